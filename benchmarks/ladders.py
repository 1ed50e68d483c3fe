"""How often the interval of a multiplier over sizes holds the truth.

    python benchmarks/ladders.py [N_LADDERS]

Every ladder has a baseline and one arm that is worth 1.25 times its compute at the largest size, a
little less below. Losses lie about a law, which may have a floor: by scatter of the sizes, which
more seeds do not lessen and which the arms may share, and by noise of seeds, half of it shared. The
arm costs 3 % more FLOPs. `attnres report --scaling` fits the mean over seeds. Then the paper's
Table 2.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from attnres_cli.config.shipped import paper
from attnres_cli.stats.scaling import FLOOR_SIZES, fit, multipliers, shared_floor
from attnres_cli.verdict.numbers import outward

Floats = NDArray[np.float64]

WORTH, GROWTH, COST = 1.25, 0.05, 1.03
"""The multiplier at the largest size, its change per e-fold of compute, FLOPs of the arm."""

SEED_SD = 0.004
SIZES, SEEDS = (3, 4, 5, 6, 8), (1, 2, 3, 5, 10)
LAWS = {  # E, A, alpha, and the range of compute
    "no floor, 8x": (0.0, 1.89, 0.057, 8.0),
    "floor 1.0, 8x": (1.0, 0.89, 0.12, 8.0),
    "floor 1.2, 64x": (1.2, 0.9, 0.3, 64.0),
}
SCATTER = {  # shared by the arms, and their own; sd of log loss
    "none": (0.0, 0.0),
    "independent": (0.0, 0.003),
    "paired": (0.003, 0.002),
    "mostly shared": (0.006, 0.001),
}


def ladder(
    law: str, scatter: str, n_sizes: int, n_seeds: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Compute and mean losses over seeds, (2 arms, sizes)."""
    floor, a, alpha, span = LAWS[law]
    compute = np.geomspace(1.0, span, n_sizes) * np.array([[1.0], [COST]])
    worth = np.log(WORTH) + GROWTH * np.log(compute[1] / compute[1, -1])
    reached = compute * np.exp([np.zeros(n_sizes), worth])
    shared, own = SCATTER[scatter]
    seeds = SEED_SD * np.sqrt(0.5 / n_seeds)
    errors = random.normal(0, np.hypot(shared, seeds), n_sizes) + random.normal(
        0, np.hypot(own, seeds), (2, n_sizes)
    )
    return compute, (floor + a * reached**-alpha) * np.exp(errors)


def covered(law: str, scatter: str, n_sizes: int, n_seeds: int, n_ladders: int) -> tuple[int, int]:
    """How many intervals hold the truth, with a floor where the sizes allow it and without."""
    cell = (list(LAWS).index(law), list(SCATTER).index(scatter), n_sizes, n_seeds)
    random, held = np.random.default_rng(cell), [0, 0]
    for _ in range(n_ladders):
        drawn = ladder(law, scatter, n_sizes, n_seeds, random)
        for i, floor in enumerate((n_sizes >= FLOOR_SIZES, False)):
            (found,) = multipliers(*drawn, floor)
            held[i] += found.ci95 is not None and found.ci95[0] <= WORTH <= found.ci95[1]
    return held[0], held[1]


def coverage(n_ladders: int) -> None:
    """Print the share of intervals that hold the truth, with and without a floor in the fit."""
    print(
        f"Intervals that hold the truth, % of {n_ladders:,} ladders (without a floor in the fit)\n"
    )
    print("| law | scatter | sizes | " + " | ".join(f"{n} seeds" for n in SEEDS) + " |")
    print("|---|---|---|" + "---|" * len(SEEDS))
    for law in LAWS:
        for scatter in SCATTER:
            for sizes in SIZES:
                row = [covered(law, scatter, sizes, seeds, n_ladders) for seeds in SEEDS]
                rates = [f"{100 * w / n_ladders:.1f} ({100 * o / n_ladders:.0f})" for w, o in row]
                print(f"| {law} | {scatter} | {sizes} | {' | '.join(rates)} |", flush=True)


def table_2() -> None:
    """Print what the paper's arms are worth by the losses that it prints, one run per size."""
    held = paper()
    of_size = list(held["table2"].values())
    arms = list(of_size[0])
    losses = np.array([[of[arm] for of in of_size] for arm in arms])
    compute = np.array([held["scaling"]["compute"]] * len(arms))
    floor = shared_floor(compute, losses)
    print("\nThe paper's Table 2: multiplier at the largest size [95 %]\n")
    print(f"| arm | E {floor:.3f}, shared | A | alpha | without a floor | A | alpha |")
    print("|---|---|---|---|---|---|---|")
    for arm, ours, plain in zip(
        arms, _columns(compute, losses, floor), _columns(compute, losses, 0.0), strict=True
    ):
        print(f"| {arm} | {ours} | {plain} |")


def _columns(compute: Floats, losses: Floats, floor: float) -> list[str]:
    """Multiplier, A and alpha of each arm."""
    found = multipliers(compute, losses, floor > 0)
    worth = ["-", *(outward(one.value, one.ci95, 3) for one in found)]
    laws = fit(compute, losses, floor)
    return [
        f"{text} | {law.a:.3f} | {law.alpha:.4f}" for text, law in zip(worth, laws, strict=True)
    ]


if __name__ == "__main__":
    table_2()
    coverage(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
