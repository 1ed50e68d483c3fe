"""How often intervals of effects of choices hold the truth, in searches of designs, by rule.

    python benchmarks/effects.py [N_SEARCHES] [N_DESIGNS ...]

A space of 8 streams with up to 3 options each and 6 add-ons, two at most on a design. A loss adds
an effect of each choice (sd 0.02 nats of streams, 0.008 of others), in most cases one of each pair
of choices (0.004) and of the design (0.004), effects at a quarter of the tokens alone (0.005), and
the noise of a seed (0.014 there, 0.011 at the end). A quarter of the designs, the best, are trained
to the end. Designs are drawn at random, or by a sampler that, as TPE does, draws a value as often
as it stands in the best fifth. The rules:

    mixed      stats/effects.py
    squares    least squares of all choices at once
    means      mean less the mean of the other values, with Welch's error

`lowest` is the error of the effect that a search finds lowest of all, in nats: what was chosen for
its size is the most biased. Optuna's fANOVA has no sign and no interval, so it is not among them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnres_cli.stats import effects as law
from attnres_cli.stats.effects import Effect, Look, effects

Floats = NDArray[np.float64]
STREAMS, ADDONS, SLOTS = 8, 6, ("addon 1", "addon 2")
MAIN, OTHER, PAIR, DESIGN, EARLY, SEEDS = 0.02, 0.008, 0.004, 0.004, 0.005, (0.014, 0.011)
HALF = 1.96
Found = Mapping[tuple[str, object], tuple[float, float]]
"""Mean and half of the interval of each value of a choice."""


def normal(random: np.random.Generator, *shape: int) -> Floats:
    """With sd 1."""
    return random.normal(size=shape)


def heavy(random: np.random.Generator, *shape: int) -> Floats:
    """Student's t with three degrees of freedom, of sd 1."""
    return random.standard_t(3, size=shape) / math.sqrt(3)


def sparse(random: np.random.Generator, *shape: int) -> Floats:
    """Normal in a tenth of the places, 0 elsewhere; of sd 1."""
    return random.normal(size=shape) * (random.random(shape) < 0.1) / math.sqrt(0.1)


@dataclass
class Surface:
    """The true effects of choices, and of pairs of them, each less their mean."""

    random: np.random.Generator
    main: Callable[..., Floats] = normal
    pair: Callable[..., Floats] | None = normal
    options: dict[str, int] = field(default_factory=dict)  # how many values
    effects: dict[str, Floats] = field(default_factory=dict)
    early: dict[str, Floats] = field(default_factory=dict)
    pairs: dict[tuple[str, str], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stream in range(STREAMS):
            for option in range(self.random.integers(4)):
                self.options[f"{stream}.{option}"] = int(self.random.integers(2, 5))
        added = {f"+{n}": 2 for n in range(ADDONS)}
        for name, n in {"stream": STREAMS, **self.options, **added}.items():
            size = MAIN if name == "stream" else OTHER
            drawn = self.main(self.random, n), self.random.normal(size=n)
            self.effects[name], self.early[name] = (
                scale * (each - each.mean())
                for scale, each in zip((size, EARLY), drawn, strict=True)
            )
            for other in list(self.effects)[:-1] if self.pair else ():
                made = self.pair(self.random, len(self.effects[other]), n)
                made += made.mean() - made.mean(axis=0) - made.mean(axis=1, keepdims=True)
                self.pairs[other, name] = PAIR * made

    def draw(self, share: Callable[[str, int], Floats | None]) -> dict[str, int]:
        """A design, by the numbers of its values; the last one of a slot is no add-on."""
        made = {"stream": int(self.random.choice(STREAMS, p=share("stream", STREAMS)))}
        own = {k: n for k, n in self.options.items() if k.startswith(f"{made['stream']}.")}
        for name, n in (own | dict.fromkeys(SLOTS, ADDONS + 1)).items():
            made[name] = int(self.random.choice(n, p=share(name, n)))
        return made

    def loss(self, design: Mapping[str, int], rung: int) -> float:
        """Without what is the design's and the seed's own."""
        added = [design[slot] for slot in SLOTS]
        values = {name: place for name, place in design.items() if name not in SLOTS}
        values |= {f"+{n}": int(n in added) for n in range(ADDONS)}
        found = sum(self.effects[name][place] for name, place in values.items())
        found += sum(
            of[values[a], values[b]]
            for (a, b), of in self.pairs.items()
            if a in values and b in values
        )
        if rung == 0:
            found += 0.3 + sum(self.early[name][place] for name, place in values.items())
        return float(found)


CASES: dict[str, Callable[[np.random.Generator], Surface]] = {
    "additive": lambda random: Surface(random, pair=None),
    "pairs": Surface,
    "heavy-tailed": lambda random: Surface(random, heavy, heavy),
    "few large pairs": lambda random: Surface(random, pair=sparse),
}


def search(surface: Surface, n: int, *, is_adaptive: bool) -> list[Look]:
    """The looks of a search of n designs, none of them twice."""
    seen: list[tuple[float, dict[str, int], float]] = []
    own = 0.0 if surface.pair is None else DESIGN

    def share(name: str, size: int) -> Floats | None:
        having = sorted((loss, of[name]) for loss, of, _ in seen if name in of)
        if not is_adaptive or len(seen) < 12 or len(having) < 4:
            return None
        best = [value for _, value in having[: max(2, len(having) // 5)]]
        weights = 0.3 + np.bincount(best, minlength=size)
        return weights / weights.sum()

    known = set[frozenset[tuple[str, int]]]()
    while len(seen) < n:
        design = surface.draw(share)
        if (key := frozenset(_choices(design).items())) in known:
            design = surface.draw(lambda _name, _size: None)
            key = frozenset(_choices(design).items())
        if key not in known:
            known.add(key)
            off = own * surface.random.normal()
            seen.append((surface.loss(design, 0) + off + _seed(surface, 0), design, off))
    first = [Look(_choices(design), 0, loss) for loss, design, _ in seen]
    best = sorted(seen, key=lambda each: each[0])[: n // 4]
    last = [(d, surface.loss(d, 1) + off + _seed(surface, 1)) for _, d, off in best]
    return first + [Look(_choices(design), 1, loss) for design, loss in last]


def _seed(surface: Surface, rung: int) -> float:
    return float(SEEDS[rung] * surface.random.normal())


def _choices(design: Mapping[str, int]) -> dict[str, str]:
    """As a look has them; slots are sorted, so that equal designs are equal."""
    added = sorted({str(design[slot]) for slot in SLOTS} - {str(ADDONS)}) + ["none"] * 2
    own = {name: str(place) for name, place in design.items() if name not in SLOTS}
    return own | dict(zip(SLOTS, added, strict=False))


def mixed(looks: Sequence[Look]) -> Found:
    """What reports say."""
    return {_name(each): (each.mean, (each.high - each.low) / 2) for each in effects(looks)}


def _name(effect: Effect) -> tuple[str, object]:
    return effect.choice, effect.value


def _coded(looks: Sequence[Look]) -> tuple[dict[str, list[law.Value]], dict[str, Floats]]:
    designs = [law.factors(look.choices) for look in looks]
    levels = law.levels_of(designs)
    return levels, {name: law.coded(designs, name, values) for name, values in levels.items()}


def squares(looks: Sequence[Look]) -> Found:
    """Least squares, the shortest solution where there are several."""
    levels, codes = _coded(looks)
    rungs = np.array([[look.rung == rung for rung in (0, 1)] for look in looks], float)
    losses = np.array([look.loss for look in looks])
    matrix = np.hstack([rungs, *codes.values()])
    inverse = np.linalg.pinv(matrix.T @ matrix)
    solved = inverse @ matrix.T @ losses
    free = len(losses) - np.linalg.matrix_rank(matrix)
    variance = float(((losses - matrix @ solved) ** 2).sum()) / max(free, 1)
    found, at = {}, 2
    for name, values in levels.items():
        here = slice(at, at := at + len(values))
        for place, value in enumerate(values):
            contrast = law.contrast(len(values), place)
            error = math.sqrt(max(0.0, variance * contrast @ inverse[here, here] @ contrast))
            found[name, value] = float(contrast @ solved[here]), HALF * error
    return found


def means(looks: Sequence[Look]) -> Found:
    """Of losses less their rung's mean."""
    levels, codes = _coded(looks)
    losses, rungs = np.array([look.loss for look in looks]), np.array([look.rung for look in looks])
    for rung in (0, 1):
        losses[rungs == rung] -= losses[rungs == rung].mean()
    found = {}
    for name, values in levels.items():
        for place, value in enumerate(values):
            having, without = (
                losses[mask] for mask in (codes[name][:, place] > 0, codes[name][:, place] < 0)
            )
            if min(len(having), len(without)) > 1:
                error = math.hypot(
                    *(np.std(of, ddof=1) / math.sqrt(len(of)) for of in (having, without))
                )
                found[name, value] = float(having.mean() - without.mean()), HALF * error
    return found


RULES = {"mixed": mixed, "squares": squares, "means": means}


def errors(
    case: str, n_searches: int, n_designs: int, *, is_adaptive: bool, seed: int = 0
) -> dict[str, Floats]:
    """By rule (effects, 4): error, half of the interval, truth, whether a search has none lower."""
    random, found = np.random.default_rng(seed), {rule: list[list[float]]() for rule in RULES}
    for _ in range(n_searches):
        surface = CASES[case](random)
        looks = search(surface, n_designs, is_adaptive=is_adaptive)
        levels, _ = _coded(looks)
        for rule, of in RULES.items():
            known = of(looks)
            lowest = min(known, key=lambda each: known[each][0])
            for (name, value), (mean, half) in known.items():
                places = [int(v) for v in levels[name]]
                at = levels[name].index(value)
                truth = law.contrast(len(places), at) @ surface.effects[name][places]
                found[rule].append([mean - truth, half, truth, (name, value) == lowest])
    return {rule: np.array(rows) for rule, rows in found.items()}


def main(words: Sequence[str]) -> None:
    """Print a table."""
    n_searches, *sizes = [int(word) for word in words] or [100, 60, 150]
    print(f"Intervals at 95% that hold the truth, of {n_searches} searches each\n")
    print(
        "| surface | designs | sampler | "
        + " | ".join(f"{rule} | nats | lowest" for rule in RULES)
        + " |"
    )
    print("|---|---|---|" + "---|---|---|" * len(RULES))
    for case in CASES:
        for size in sizes:
            for is_adaptive in (False, True):
                cells = []
                for rows in errors(case, n_searches, size, is_adaptive=is_adaptive).values():
                    off, half, _, is_lowest = rows.T
                    cells.append(f"{100 * (abs(off) <= half).mean():.1f}% | {half.mean():.4f}")
                    cells.append(f"{off[is_lowest == 1].mean():+.4f}")
                how = "adaptive" if is_adaptive else "random"
                print(f"| {case} | {size} | {how} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
