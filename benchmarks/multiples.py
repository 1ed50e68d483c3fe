"""Whether intervals of "how many times its tokens the baseline needs" hold the truth in 95%.

    python benchmarks/multiples.py [N_STUDIES]

Each study has an arm and its baseline, seven seeds or twelve, and the baseline at other budgets.
The baseline's true loss is E + A / tokens^a, fitted to what `quick` came to at half, one and two
times its tokens. The arm's true multiple is known. Losses of one seed go together, as they do where
arms share initial weights and the order of data. `time` divides by a ratio of step times that is
measured too, at its own small error.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnres_cli.stats.multiples import Budget, worth
from attnres_cli.stats.pairs import paired

Floats = NDArray[np.float64]
SD, TOGETHER = 0.012, 0.5  # of losses over seeds; the share of variance that a seed gives all runs
RATIO, RATIO_ERROR = 1.35, 0.01  # of step times: true, and the standard error of its logarithm


class Study(NamedTuple):
    """What a study has: seeds of arms, seeds of other budgets, which budgets."""

    n: int
    n_others: int
    ratios: tuple[float, ...]
    heavy: bool = False


STUDIES = {
    "7 seeds, half and double with 7": Study(7, 7, (0.5, 2)),
    "7 seeds, half, double, fourfold with 7": Study(7, 7, (0.5, 2, 4)),
    "12 seeds, half and double with 7": Study(12, 7, (0.5, 2)),
    "7 seeds, half, 1.41 and double with 7": Study(7, 7, (0.5, 1.41, 2)),
    "7 seeds, half and double with 3": Study(7, 3, (0.5, 2)),
    "7 seeds of t, 3 df": Study(7, 7, (0.5, 2), heavy=True),
}
TRUE = (0.6, 0.8, 1.0, 1.07, 1.2, 1.41, 1.7)


def curve() -> tuple[float, float, float]:
    """E, A, a of the loss E + A r^-a at r times the tokens, through quick's three means."""
    half, one, double = 2.013, 1.717, 1.519
    a = math.log((half - one) / (one - double)) / math.log(2)
    most = (one - double) / (1 - 2**-a)
    return one - most, most, a


def loss(ratio: float) -> float:
    """The baseline's true loss at a multiple of its tokens."""
    floor, scale, a = curve()
    return floor + scale * ratio**-a


def coverage(study: Study, true: float, n_studies: int) -> tuple[float, float]:
    """Shares of studies whose interval holds the true multiple: of tokens, of time."""
    random = np.random.default_rng(0)
    held = held_time = 0
    for _ in range(n_studies):
        n = max(study.n, study.n_others)
        shared = random.normal(size=n) * SD * math.sqrt(TOGETHER)
        noise = random.standard_t(3, (n, 3)) / 3**0.5 if study.heavy else random.normal(size=(n, 3))
        arm, base = (shared[:, None] + noise[:, :2] * SD * math.sqrt(1 - TOGETHER)).T
        arm, base = (arm + loss(true))[: study.n], base + loss(1)
        budgets = []
        for ratio in study.ratios:
            own = random.normal(size=n) * SD * math.sqrt(1 - TOGETHER)
            drops = (base - (loss(ratio) + shared + own))[: study.n_others]
            error = float(drops.std(ddof=1)) / math.sqrt(len(drops))
            by_seed = dict(enumerate(drops.tolist()))
            budgets.append(Budget(ratio, float(drops.mean()), error, len(drops), by_seed))
        difference = paired(list(arm), list(base[: study.n]))
        by_seed = dict(enumerate((arm - base[: study.n]).tolist()))
        found = worth(difference, difference.ci95, by_seed, budgets)
        assert found is not None
        held += found.low <= true <= found.high
        ratio = RATIO * math.exp(random.normal() * RATIO_ERROR)
        timed = found.over(ratio, 1.96 * RATIO_ERROR)
        held_time += timed.low <= true / RATIO <= timed.high
    return held / n_studies, held_time / n_studies


def main() -> None:
    """Print a line for each kind of study and true multiple."""
    n_studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("coverage of tokens, of time, in % of", n_studies, "studies; true multiples of tokens:")
    print(f"{'':44}" + "".join(f"{true:>15}" for true in TRUE))
    for name, study in STUDIES.items():
        cells = []
        for true in TRUE:
            if true < min(1, *study.ratios) or true > max(1, *study.ratios):
                cells.append(f"{'-':>15}")
                continue
            tokens, time = coverage(study, true, n_studies)
            cells.append(f"{100 * tokens:>8.1f}{100 * time:>7.1f}")
        print(f"{name:44}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
