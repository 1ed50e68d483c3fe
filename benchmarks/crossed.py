"""How often intervals of a difference over seeds x items miss it, and what tasks called where none
differs, by rule.

    python benchmarks/crossed.py [N_STUDIES]

Differences are drawn with parts of seeds, items and the residual in several ratios, or are those of
two arms' right answers (0 or 1) whose logits have such parts. Every mean is 0. The rules:

    seeds       Student's over means of seeds: for other seeds, and these items
    items       Student's over means of items: for these seeds, and other items
    pooled      McNemar's or a t test over all seeds' items at once: of nothing
    satterthwaite   the sum of both variances less the residual's, with its degrees of freedom
    bootstrap   percentiles of means over seeds and items both drawn again (Owen 2007)
    both        each variance stretched by its own t: what verdicts rest on (stats/crossed.py)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from attnres_cli.stats.sequential import ALPHA, LEAST_SEEDS, first_rate, shares
from attnres_cli.verdict.task_answers import FIRST_MEASURE

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int, int], Floats]
"""(studies, seeds, items) differences with mean 0, from these numbers of them."""

SEEDS, ITEMS = (2, 3, 5, 7, 12), (50, 200, 1000)
AT_ONCE = 8_000_000  # differences
RESAMPLED = 300


def parts(seeds: float, items: float, residual: float, heavy: bool = False) -> Draw:
    """Each part gives this share of the variance of the mean."""

    def draw(random: np.random.Generator, n: int, s: int, i: int) -> Floats:
        def noise(*shape: int) -> Floats:
            if heavy:
                return random.standard_t(3, size=shape)
            return random.normal(size=shape)

        found: Floats = np.sqrt(seeds * s) * noise(n, s, 1) + np.sqrt(items * i) * noise(n, 1, i)
        return found + np.sqrt(residual * s * i) * noise(n, s, i)

    return draw


def answers(right: float, seeds: float, items: float) -> Draw:
    """Differences of right answers, of which so many are right; sd of logits of arms' seeds and of
    arms' items.
    """

    def draw(random: np.random.Generator, n: int, s: int, i: int) -> Floats:
        hard = random.normal(0, 1.5, (n, 1, i)) + np.log(right / (1 - right))

        def one() -> Floats:
            own = seeds * random.normal(size=(n, s, 1)) + items * random.normal(size=(n, 1, i))
            found: Floats = (random.random((n, s, i)) < 1 / (1 + np.exp(-hard - own))).astype(float)
            return found

        return one() - one()

    return draw


CASES: dict[str, Draw] = {
    "seeds alone": parts(1, 0, 0),
    "items alone": parts(0, 1, 0),
    "residual alone": parts(0, 0, 1),
    "a third each": parts(1 / 3, 1 / 3, 1 / 3),
    "seeds and residual": parts(0.5, 0, 0.5),
    "items and residual": parts(0, 0.5, 0.5),
    "items a fifth of it": parts(0, 0.2, 0.8),
    "a third each, heavy tails": parts(1 / 3, 1 / 3, 1 / 3, heavy=True),
    "50 % right": answers(0.5, 0, 0),
    "50 % right, seeds differ": answers(0.5, 0.1, 0),
    "50 % right, items differ": answers(0.5, 0, 0.5),
    "50 % right, both": answers(0.5, 0.1, 0.5),
    "3 % right": answers(0.03, 0, 0),
    "3 % right, both": answers(0.03, 0.1, 0.5),
}


def misses(d: Floats, alpha: float) -> dict[str, NDArray[np.bool_]]:
    """By rule, whether the interval at 1 - alpha of each study leaves 0 out."""
    _, s, i = d.shape
    mean = d.mean(axis=(1, 2))
    by_seed, by_item = d.mean(axis=2) - mean[:, None], d.mean(axis=1) - mean[:, None]
    of_seeds = (by_seed**2).sum(axis=1) / (s - 1) / s
    of_items = (by_item**2).sum(axis=1) / (i - 1) / i
    squares = ((d - mean[:, None, None]) ** 2).sum(axis=(1, 2))
    degrees = (s - 1) * (i - 1)
    residual = squares - s * (s - 1) * i * of_seeds - i * (i - 1) * s * of_items
    residual = np.maximum(residual, 0) / degrees / (s * i)

    def t(n: Floats | int) -> Floats:
        found: Floats = stdtrit(n, 1 - alpha / 2)
        return found

    with np.errstate(all="ignore"):
        both = of_seeds + of_items - residual
        free = both**2 / (of_seeds**2 / (s - 1) + of_items**2 / (i - 1) + residual**2 / degrees)
        halves = {
            "seeds": t(s - 1) * np.sqrt(of_seeds),
            "items": t(i - 1) * np.sqrt(of_items),
            "pooled": t(s * i - 1) * np.sqrt(squares / (s * i - 1) / (s * i)),
            "satterthwaite": t(np.maximum(free, 1)) * np.sqrt(np.maximum(both, 0)),
            "both": np.sqrt(
                t(s - 1) ** 2 * of_seeds + t(i - 1) ** 2 * np.maximum(of_items - residual, 0)
            ),
        }
    return {rule: np.abs(mean) > half for rule, half in halves.items()}


def bootstrap(random: np.random.Generator, d: Floats, alpha: float) -> NDArray[np.bool_]:
    """The same for the pigeonhole bootstrap's percentiles."""
    _, s, i = d.shape
    found = []
    for study in d:
        seeds = random.multinomial(s, np.full(s, 1 / s), RESAMPLED) / s
        items = random.multinomial(i, np.full(i, 1 / i), RESAMPLED) / i
        low, high = np.quantile(((seeds @ study) * items).sum(axis=1), [alpha / 2, 1 - alpha / 2])
        found.append(not low <= 0 <= high)
    return np.array(found)


def rates(draw: Draw, n: int, s: int, i: int, alpha: float, seed: int = 0) -> dict[str, float]:
    """By rule, the share of n studies that miss."""
    random, counts, done = np.random.default_rng(seed), dict[str, float](), 0
    while done < n:
        here = min(n - done, max(1, AT_ONCE // (s * i)))
        for rule, missed in misses(draw(random, here, s, i), alpha).items():
            counts[rule] = counts.get(rule, 0) + float(missed.sum())
        done += here
    return {rule: count / n for rule, count in counts.items()}


def ranges(n: int, alpha: float) -> None:
    """Print the least and greatest rate of every rule over all cases, by numbers of seeds."""
    print(
        f"\nIntervals at {100 * (1 - alpha):g} % that miss, %: least to greatest over "
        f"{len(CASES)} cases x {ITEMS} items, {n:,} studies each\n"
    )
    digits = 1 if alpha > 0.01 else 2
    print("| n | " + " | ".join(misses(np.zeros((1, 2, 2)), alpha)) + " |")
    for s in SEEDS:
        found = [rates(draw, n, s, i, alpha) for draw in CASES.values() for i in ITEMS]
        cells = [
            f"{100 * min(each[rule] for each in found):.{digits}f} to "
            f"{100 * max(each[rule] for each in found):.{digits}f}"
            for rule in found[0]
        ]
        print(f"| {s} | " + " | ".join(cells) + " |", flush=True)


def tasks_called(n: int, n_tasks: int, n_seeds: int, by_shares: bool) -> float:
    """The share of studies in which any of so many tasks that join one by one is called, one arm,
    one measure each; at 5 % each by `both`, or at its part of the rate.
    """
    draw, random = parts(1 / 3, 1 / 3, 1 / 3), np.random.default_rng(1)
    called = np.zeros(n, dtype=bool)
    for task in range(n_tasks):
        part = shares([1] * n_tasks)[task] * FIRST_MEASURE
        alpha = first_rate(1) * part if by_shares else ALPHA
        called |= misses(draw(random, n, n_seeds, 100), alpha)["both"]
    return float(called.mean())


def main(words: Iterable[str]) -> None:
    """Print all tables."""
    n = int(next(iter(words), "1000"))
    ranges(n, 0.05)
    ranges(4 * n, 0.002)
    print("\nThe same of the bootstrap at 95 %, 200 items\n")
    for case in ("seeds alone", "items alone", "residual alone", "a third each"):
        found = []
        for s in SEEDS:
            random = np.random.default_rng(s)
            missed = bootstrap(random, CASES[case](random, n // 2, s, 200), 0.05)
            found.append(f"{s} seeds {100 * missed.mean():.1f}")
        print(f"{case}: {', '.join(found)}", flush=True)
    print("\nAny of N tasks called that join one by one, nothing differs, %")
    for n_tasks in (1, 3, 10):
        by = [100 * tasks_called(4 * n, n_tasks, LEAST_SEEDS, shared) for shared in (False, True)]
        print(f"{n_tasks} tasks: {by[0]:.1f} at 5 % each, {by[1]:.1f} by shares")


if __name__ == "__main__":
    main(sys.argv[1:])
