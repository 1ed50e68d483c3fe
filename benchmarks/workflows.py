"""How often a study in which nothing differs says that something does, by what its user does.

    python benchmarks/workflows.py [N_STUDIES]

Every study has a baseline and arms whose losses have the same distribution. A workflow is a set of
(number of arms, number of seeds) at which the user looks; a study errs if any arm is called better
or worse at any of them. `Holm` judges each look by itself, with Holm's correction for the arms that
are there; `looks` is looks.py, which is told the plan (arms and seeds of the first
look). Also: the power of both, in units of the sd of a paired difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np
from looks import LEAST_SEEDS, shares, sizes
from numpy.typing import NDArray
from scipy.special import stdtr

from attnres_cli.stats.power import ALPHA

Floats = NDArray[np.float64]
State = tuple[int, int]
"""Arms and seeds that are there when the user looks."""

MOST_ARMS, MOST_SEEDS = 11, 30


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
WORKFLOWS: dict[str, tuple[State, list[State]]] = {  # plan, looks
    "one look, 1 arm, 2 seeds": ((1, 2), [(1, 2)]),
    "one look, 4 arms, 2 seeds": ((4, 2), [(4, 2)]),
    "one look, 1 arm, 7 seeds": ((1, 7), [(1, 7)]),
    "one look, 4 arms, 7 seeds": ((4, 7), [(4, 7)]),
    "4 arms, a look at every seed to 30": ((4, 3), [(4, n) for n in range(2, 31)]),
    "4 arms planned with 8, looks as advised": ((4, 8), [(4, n) for n in (8, 12, 18, 27)]),
    "1 arm, then 10 more one by one, 7 seeds": ((1, 7), [(m, 7) for m in range(1, 12)]),
    "1 arm, then 10 more at once, 7 seeds": ((1, 7), [(1, 7), (11, 7)]),
    "arms and seeds added, any order, any stop": (
        (2, 5),
        [(m, n) for m in range(2, 12) for n in range(2, 31)],
    ),
}


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


def by_holm(p: Floats, _plan: State, states: Iterable[State]) -> NDArray[np.bool_]:
    """(studies, arms) whether each arm is ever called at these states."""
    called = np.zeros((len(p), p.shape[2]), dtype=bool)
    for arms, seeds in states:
        here = np.sort(p[:, seeds, :arms], axis=1)
        steps = here < ALPHA / np.arange(arms, 0, -1)
        n_called = np.cumprod(steps, axis=1).sum(axis=1)  # Holm: up to the first that fails
        edge = np.take_along_axis(here, np.maximum(n_called - 1, 0)[:, None], axis=1)
        called[:, :arms] |= (p[:, seeds, :arms] <= edge) & (n_called > 0)[:, None]
    return called


def by_looks(p: Floats, plan: State, states: Iterable[State]) -> NDArray[np.bool_]:
    """The same by looks.py: arms after the plan join in the order of states."""
    states = list(states)
    groups = [plan[0]]
    for arms, _ in states:
        if arms > sum(groups):
            groups.append(arms - sum(groups))
    of_arm = np.repeat(shares(groups), groups)
    called = np.zeros((len(p), p.shape[2]), dtype=bool)
    for arms, seeds in states:
        for size, part in sizes(plan[1]):
            if size > seeds:
                break
            called[:, :arms] |= p[:, size, :arms] < ALPHA * part * of_arm[:arms]
    return called


RULES = {"Holm": by_holm, "looks": by_looks}


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
    for name, (plan, states) in WORKFLOWS.items():
        for rule, judge in RULES.items():
            rates = [100 * judge(p[noise], plan, states).any(axis=1).mean() for noise in NOISE]
            print(f"| {name} | {rule} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")


def powers(n_studies: int) -> None:
    """Print the share of studies that call the one arm that differs."""
    effects = (1.0, 1.5, 2.0, 3.0)
    print("\nPower, % of studies that call the arm that differs, normal noise\n")
    print("| plan, then looks | rule | " + " | ".join(f"{e:g} sd" for e in effects) + " |")
    print("|---|---|" + "---|" * len(effects))
    p = {effect: drawn("normal", n_studies, -effect, seed=1) for effect in effects}
    cases: dict[str, tuple[State, list[State]]] = {
        f"{arms} arm{'s' * (arms > 1)}, {seeds} seeds": ((arms, seeds), [(arms, seeds)])
        for arms in (1, 4)
        for seeds in (LEAST_SEEDS, 7, 12)
    }
    cases["1 arm, 5 seeds, then 8, 12, 18"] = ((1, 5), [(1, n) for n in (5, 8, 12, 18)])
    cases["1 arm, 8 seeds, then 12, 18, 27"] = ((1, 8), [(1, n) for n in (8, 12, 18, 27)])
    for name, (plan, states) in cases.items():
        for rule, judge in RULES.items():
            rates = [100 * judge(p[effect], plan, states)[:, 0].mean() for effect in effects]
            print(f"| {name} | {rule} | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |")


if __name__ == "__main__":
    n_studies = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    error_rates(n_studies)
    powers(n_studies)
