"""How often a study in which nothing differs says that something does, by what its user does.

    python benchmarks/workflows.py [N_STUDIES]

Every study has a baseline and arms whose losses have the same distribution. A workflow is a series
of (number of arms, number of seeds) that the study has when its user looks, the first being the
plan; a study errs if any arm is called better or worse at any of them. `Holm` judges each look by
itself, with Holm's correction for the arms that are there; `looks` is what verdicts rest on
(verdict/family.py gives the looks, and tests hold these words against `compare`). Then what becomes
one of several tables: `any` counts a study that errs in any of them, as where the best is shown,
`one` the first alone, `apart` and `shared` what a ledger of what is computed and removed changes.
Also: the power of both, in units of the sd of a paired difference; and errors, power and seeds of
studies whose arms are trained until they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from attnres_cli.records.run import RunRecord, Status
from attnres_cli.stats.sequential import ALPHA, LEAST_SEEDS, MOST, first_rate
from attnres_cli.verdict.family import family

Floats = NDArray[np.float64]
State = tuple[int, int]
"""Arms and seeds that are there when the user looks."""

MOST_ARMS, MOST_SEEDS = 11, 30
BASELINE = "standard"


def normal(random: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Normal noise."""
    return random.normal(size=size)


def heavy(random: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Student's t with three degrees of freedom."""
    return random.standard_t(3, size=size)


def skewed(random: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Lognormal."""
    return random.lognormal(size=size)


def unequal(random: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Each arm twice as noisy as the one before it, up to eight times."""
    return random.normal(size=size) * 2.0 ** (np.arange(size[-1]) % 4)


def stuck(share: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """A share of the runs of every arm is stuck 10 sd above the others."""

    def draw(random: np.random.Generator, size: tuple[int, ...]) -> Floats:
        return random.normal(size=size) + 10.0 * (random.random(size) < share)

    return draw


NOISE = {
    "normal": normal,
    "t, 3 df": heavy,
    "lognormal": skewed,
    "unequal": unequal,
    "stuck 10 %": stuck(0.1),
    "stuck 50 %": stuck(0.5),
}
WORKFLOWS: dict[str, list[State]] = {
    "one look, 1 arm, 2 seeds": [(1, 2)],
    "one look, 4 arms, 2 seeds": [(4, 2)],
    "one look, 1 arm, 7 seeds": [(1, 7)],
    "one look, 4 arms, 7 seeds": [(4, 7)],
    "4 arms, a look at every seed to 30": [(4, n) for n in range(2, 31)],
    "4 arms planned with 8, looks as advised": [(4, n) for n in (8, 12, 18, 27)],
    "1 arm, then 10 more one by one, 7 seeds": [(m, 7) for m in range(1, 12)],
    "1 arm, then 10 more at once, 7 seeds": [(1, 7), (11, 7)],
    "arms and seeds added, any order, any stop": [
        (m, n) for m in range(2, 12) for n in range(5, 31)
    ],
}
CHOSEN = "baseline first, then as many seeds as suit it"


def p_values(differences: Floats) -> Floats:
    """(studies, seeds + 1, arms) two-sided p of the t test of the first n differences, nan below 2
    seeds, from (studies, seeds, arms).
    """
    studies, seeds, arms = differences.shape
    n = np.arange(1, seeds + 1)[:, None]
    mean = differences.cumsum(axis=1) / n
    with np.errstate(all="ignore"):
        variance = ((differences**2).cumsum(axis=1) - n * mean**2) / (n - 1)
        t = np.abs(mean) / np.sqrt(variance / n)
        found = 2 * stdtr(np.maximum(n - 1, 1), -t)
    found[:, 0] = np.nan
    return np.concatenate([np.full((studies, 1, arms), np.nan), found], axis=1)


def by_holm(p: Floats, states: Iterable[State]) -> NDArray[np.bool_]:
    """(studies, arms) whether each arm is ever called at these states."""
    called = np.zeros((len(p), p.shape[2]), dtype=bool)
    for arms, seeds in states:
        here = np.sort(p[:, seeds, :arms], axis=1)
        steps = here < ALPHA / np.arange(arms, 0, -1)
        n_called = np.cumprod(steps, axis=1).sum(axis=1)  # Holm: up to the first that fails
        edge = np.take_along_axis(here, np.maximum(n_called - 1, 0)[:, None], axis=1)
        called[:, :arms] |= (p[:, seeds, :arms] <= edge) & (n_called > 0)[:, None]
    return called


def by_looks(p: Floats, states: Iterable[State]) -> NDArray[np.bool_]:
    """The same by looks. Whoever adds an arm gives it all seeds that the others have."""
    states = list(states)
    held = family(planned(states), BASELINE)
    called = np.zeros((len(p), p.shape[2]), dtype=bool)
    for arms, seeds in states:
        for arm in range(arms):
            for size, alpha in held.looks(str(arm)):
                if size > seeds:
                    break
                called[:, arm] |= p[:, size, arm] < alpha
    return called


def planned(states: Iterable[State]) -> list[RunRecord]:
    """The runs that these commands plan, one moment for each; the baseline has all seeds."""
    found: dict[tuple[str, int], RunRecord] = {}
    for moment, (arms, seeds) in enumerate(states):
        for name in (BASELINE, *map(str, range(arms))):
            for seed in range(seeds):
                run = RunRecord(
                    0, "", "", name, seed, "", Status.PENDING, created_at=f"{moment:04}"
                )
                found.setdefault((name, seed), run)
    return list(found.values())


RULES = {"Holm": by_holm, "looks": by_looks}


def chosen(n_studies: int, noise: str) -> dict[str, float]:
    """Percent of null studies that err whose user trains the baseline on 5 to 20 seeds, looks at
    its losses, and then plans one arm with that many seeds or more, as many as make the baseline's
    mean look most unlike its long run's.
    """
    losses = NOISE[noise](np.random.default_rng(5), (n_studies, MOST_SEEDS, 2))
    base = losses[..., 0] - np.median(losses[..., 0])
    n = np.arange(1, MOST_SEEDS + 1)
    z = np.abs(base.cumsum(axis=1)) / np.sqrt(n)
    z[:, : LEAST_SEEDS - 1] = 0
    z[:, 20:] = 0  # which the baseline has not had
    # It stops where its mean is most extreme so far, or goes on to 20.
    at = np.argmax(z, axis=1)
    p = p_values(losses[..., 1:] - losses[..., :1])[np.arange(n_studies), at + 1, 0]
    return {
        "Holm": 100 * float((p < ALPHA).mean()),
        "looks": 100 * float((p < first_rate(1) / 2).mean()),
    }


def tried(n_studies: int, noise: str) -> dict[str, float]:
    """Percent of null studies of 11 arms and seven seeds that err with each arm as the baseline."""
    losses = NOISE[noise](np.random.default_rng(6), (n_studies, 7, MOST_ARMS + 1))
    wrong = []
    for base in range(1, MOST_ARMS + 1):
        others = np.delete(losses, base, axis=2) - losses[..., base, None]
        wrong.append(by_looks(p_values(others), [(MOST_ARMS, 7)]).any(axis=1))
    return {"any": 100 * np.any(wrong, axis=0).mean(), "one": 100 * wrong[0].mean()}


def typed(n_studies: int, noise: str) -> dict[str, float]:
    """Percent of null studies that err whose user types one recipe in 26 ways of the same bits,
    planned with 5 to 30 seeds: as tables of their own, and as the one table that they are.
    """
    p, seeds = drawn(noise, n_studies)[..., :1], range(LEAST_SEEDS, MOST_SEEDS + 1)
    apart = (p[:, seeds.start :, 0] < first_rate(1)).any(axis=1)
    shared = by_looks(p, [(1, n) for n in seeds])
    return {"apart": 100 * apart.mean(), "shared": 100 * shared.mean()}


def watched(n_studies: int, noise: str) -> dict[str, float]:
    """Percent of null studies that err whose user watches the curves of seven seeds (correlation
    0.95 with the end), removes all before any has ended if they promise no word, and tries others,
    up to 20 times: untold, and where a removed run blocks its row.
    """
    random = np.random.default_rng(7)
    losses = NOISE[noise](random, (n_studies, 20 * 7, 2))
    ends = losses[..., 1] - losses[..., 0]
    curves = ends + 0.33 * ends.std() * random.normal(size=ends.shape)
    p_end, p_seen = (
        p_values(each.reshape(-1, 7, 1))[:, 7, 0].reshape(-1, 20) < first_rate(1)
        for each in (ends, curves)
    )
    at = np.argmax(p_seen, axis=1)  # the first that promises a word, or the first of all
    found = p_end[np.arange(n_studies), np.where(p_seen.any(axis=1), at, 19)]
    kept = p_seen[:, 0]
    return {"apart": 100 * found.mean(), "shared": 100 * (found & kept).mean()}


SEVERAL = {
    "11 arms, 7 seeds, each tried as baseline": tried,
    "one recipe typed in 26 ways, planned with 5 to 30 seeds": typed,
    "runs removed unfinished for their curves, 20 tries": watched,
}


def drawn(noise: str, n_studies: int, effect: float = 0.0, seed: int = 0) -> Floats:
    """P values of studies in which the first arm's differences have this mean, in their sd."""
    random = np.random.default_rng(seed)
    losses = NOISE[noise](random, (n_studies, MOST_SEEDS, MOST_ARMS + 1))
    differences = losses[..., 1:] - losses[..., :1]
    differences[..., 0] += effect * np.sqrt(2)  # the sd of a difference of two normal losses
    return p_values(differences)


def error_rates(n_studies: int) -> None:
    """Print the share of null studies that call any arm, by workflow, noise and rule."""
    print(f"Any arm called where none differs, % of {n_studies:,} studies\n")
    print("| workflow | rule | " + " | ".join(NOISE) + " |")
    print("|---|---|" + "---|" * len(NOISE))
    p = {noise: drawn(noise, n_studies) for noise in NOISE}
    rows = {
        (name, rule): [100 * judge(p[noise], states).any(axis=1).mean() for noise in NOISE]
        for name, states in WORKFLOWS.items()
        for rule, judge in RULES.items()
    }
    for name, study in {CHOSEN: chosen, **SEVERAL}.items():
        found = [study(n_studies, noise) for noise in NOISE]
        rows |= {(name, rule): [each[rule] for each in found] for rule in found[0]}
    for (name, rule), rates in rows.items():
        print(f"| {name} | {rule} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")


def powers(n_studies: int) -> None:
    """Print the share of studies that call the one arm that differs."""
    effects = (1.0, 1.5, 2.0, 3.0)
    print("\nPower, % of studies that call the arm that differs, normal noise\n")
    print("| plan, then looks | rule | " + " | ".join(f"{e:g} sd" for e in effects) + " |")
    print("|---|---|" + "---|" * len(effects))
    p = {effect: drawn("normal", n_studies, -effect, seed=1) for effect in effects}
    cases: dict[str, list[State]] = {
        f"{arms} arm{'s' * (arms > 1)}, {seeds} seeds": [(arms, seeds)]
        for arms in (1, 4)
        for seeds in (LEAST_SEEDS, 7, 12)
    }
    cases["1 arm, 5 seeds, then 8, 12, 18"] = [(1, n) for n in (5, 8, 12, 18)]
    cases["1 arm, 7 seeds, then 11, 17"] = [(1, n) for n in (7, 11, 17)]
    for name, states in cases.items():
        for rule, judge in RULES.items():
            rates = [100 * judge(p[effect], states)[:, 0].mean() for effect in effects]
            print(f"| {name} | {rule} | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |")


def pocock(n_arms: int) -> list[tuple[int, float]]:
    """Looks at one rate each, at 7, 11, 17 and 26 seeds: found in null studies, of Bonferroni's
    share of the rate.
    """
    at = [7, 11, 17, 26]
    p = p_values(np.random.default_rng(11).normal(size=(200_000, at[-1], 1)))[:, at, 0]
    rate = float(np.quantile(p.min(axis=1), ALPHA / n_arms))
    return [(n, rate) for n in at]


def growing_rules(n_arms: int) -> dict[str, list[tuple[int, float]]]:
    """The looks at an arm of n, on at most 26 seeds, by each rule."""
    plan = planned([(n_arms, 7)])
    rules = {
        "--until decided": family(plan, BASELINE, most=MOST),
        "7 planned": family(plan, BASELINE),
    }
    looks = {name: takewhile(_is_within, held.looks("0")) for name, held in rules.items()}
    return {name: list(found) for name, found in looks.items()} | {"Pocock": pocock(n_arms)}


def _is_within(look: tuple[int, float]) -> bool:
    return look[0] <= MOST


def first_call(p: Floats, looks: list[tuple[int, float]]) -> tuple[NDArray[np.bool_], Floats]:
    """(studies, arms) whether an arm is called at any of these looks, and its seeds by then."""
    n = np.array([size for size, _ in looks])
    is_found = p[:, n, :] < np.array([rate for _, rate in looks])[:, None]
    called = is_found.any(axis=1)
    return called, np.where(called, n[is_found.argmax(axis=1)], n[-1])


def grown(n_studies: int) -> None:
    """Print errors and power of studies whose arms get seeds until they are called, 26 at most."""
    effects, noises = (0.5, 0.75, 1.0, 1.5), ("normal", "t, 3 df")
    print(f"\nSeeds added until an arm is called, {MOST} at most: % of {n_studies:,} studies\n")
    head = [
        *(f"any called, none differs: {each}" for each in noises),
        *(f"{e:g} sd" for e in effects),
    ]
    print("| arms | rule | " + " | ".join(head) + " |")
    print("|---|---|" + "---|" * len(head))
    null = {noise: drawn(noise, n_studies, seed=2) for noise in noises}
    there = [drawn("normal", n_studies, -effect, seed=3) for effect in effects]
    for n_arms in (1, 10):
        for rule, looks in growing_rules(n_arms).items():
            errors = [first_call(null[noise][..., :n_arms], looks)[0] for noise in noises]
            cells = [f"{100 * each.any(axis=1).mean():.1f}" for each in errors]
            for p in there:
                called, seeds = first_call(p[..., :1], looks)
                cells.append(f"{100 * called.mean():.0f} ({seeds.mean():.1f})")
            print(f"| {n_arms} | {rule} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    n_studies = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    error_rates(n_studies)
    powers(n_studies)
    grown(n_studies)
