"""Scaling: loss over compute as a power law, and what an arm is worth in the baseline's compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Losses = Mapping[float, Mapping[int, float]]  # by compute, the losses by seed
Sizes = tuple[list[float], list[float]]  # the compute of each size, of the arm and of the baseline
_FLOOR_POINTS = 4  # a floor is a third parameter: fewer points leave nothing to check it with
_RESAMPLES = 2_000
_FLATTEST, _STEEPEST = 1e-3, 3.0  # alpha; the paper's are 0.06, with a floor 0.3 is common
_GRID, _ROUNDS = 100, 6  # of alphas at a time; each round looks 50 times closer


@dataclass(frozen=True)
class PowerLaw:
    """L(C) = E + A C^-alpha, E being 0 where it was not fitted. rmse: of the logs of the losses."""

    a: float
    alpha: float
    floor: float
    rmse: float

    def loss(self, compute: float) -> float:
        """The loss at this compute, in the unit of the losses it was fitted to."""
        return self.floor + self.a * float(compute**-self.alpha)

    def compute(self, loss: float) -> float:
        """The compute at which the loss is reached; infinite where it never is."""
        if loss <= self.floor or self.alpha <= 0:
            return math.inf
        return float((self.a / (loss - self.floor)) ** (1 / self.alpha))


@dataclass(frozen=True)
class Multiplier:
    """How much more compute the baseline takes to the arm's loss: 1.25 is a quarter more."""

    value: float
    compute: float  # where it holds, in the unit of what was fitted
    ci95: tuple[float, float] | None = None  # by bootstrap; None with one seed at any size
    left_out: tuple[float, float] | None = None  # least and greatest, each size left out once


def fit(compute: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """L = A C^-alpha by least squares in logs; of two points, the line through them. Raises
    ValueError below two budgets, or where a number has no logarithm.
    """
    x, y = _logs(compute, losses, 2)
    slope, intercept = (float(each) for each in _line(x, y))
    return PowerLaw(math.exp(intercept), -slope, 0.0, _rms(y - (slope * x + intercept)))


def fit_floor(compute: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """L = E + A C^-alpha with E >= 0 by variable projection: for each alpha the best E and A are
    those of a line, so that one number is searched and no start has to be guessed. Raises
    ValueError below four budgets, or where a number has no logarithm.
    """
    x, _ = _logs(compute, losses, _FLOOR_POINTS)
    values = np.asarray(losses, dtype=np.float64)
    low, high = _FLATTEST, _STEEPEST
    for _ in range(_ROUNDS):
        grid = np.geomspace(low, high, _GRID)
        best = int(np.argmin(_projected(grid, x, values)[0]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(_GRID - 1, best + 1)])
    alpha = float(grid[best])
    _, floor, a = (float(each[best]) for each in _projected(grid, x, values))
    fitted = floor + a * np.exp(-alpha * x)
    return PowerLaw(a, alpha, floor, _rms(np.log(values) - np.log(fitted)))


def _projected(alphas: Floats, x: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Squared error, E and A of the best line in C^-alpha, for each alpha; x are logs of C."""
    z = np.exp(-alphas[:, None] * x)
    away = z - z.mean(axis=1, keepdims=True)
    a = away @ values / (away * away).sum(axis=1)
    floor = values.mean() - a * z.mean(axis=1)
    a = np.where(floor < 0, z @ values / (z * z).sum(axis=1), a)  # then the best has no floor
    floor = np.maximum(floor, 0.0)
    return ((values - floor[:, None] - a[:, None] * z) ** 2).sum(axis=1), floor, a


def multiplier(arm: Losses, baseline: Losses, compute: float, floor: bool = False) -> Multiplier:
    """What the arm is worth at this compute (of the arm), by a fit to each, with how sure that is.

    Losses are by seed, by compute; sizes are paired in their order, and so are a size's seeds. To
    fit E (`floor`) takes four sizes. Raises ValueError where there are too few, or where no compute
    brings the baseline to the arm's loss.
    """
    sizes, means = (sorted(arm), sorted(baseline)), (_means(arm), _means(baseline))
    n = len(sizes[0])
    if n != len(sizes[1]):
        raise ValueError(f"the arm has {n} sizes, the baseline {len(sizes[1])}")
    every = range(n)
    value = _value(sizes, means, compute, floor, every)
    if math.isinf(value):
        raise ValueError("the baseline does not reach the arm's loss with any compute")
    left = []
    if n > (_FLOOR_POINTS if floor else 2):
        kept = [[i for i in every if i != skip] for skip in every]
        left = [_value(sizes, means, compute, floor, keep) for keep in kept]
    ci95, drawn = None, _drawn(arm, baseline, _RESAMPLES // (10 if floor else 1))
    if drawn is not None and floor:
        pairs = zip(*drawn, strict=True)
        ci95 = _central(np.array([_value(sizes, pair, compute, floor, every) for pair in pairs]))
    elif drawn is not None:
        ci95 = _central(_values(sizes, *drawn, compute))
    return Multiplier(value, compute, ci95, left_out=(min(left), max(left)) if left else None)


def _value(
    sizes: Sizes, means: tuple[Floats, Floats], compute: float, floor: bool, kept: Sequence[int]
) -> float:
    """The multiplier from one loss per size of both arms, of those sizes that are kept."""
    ours, theirs = (
        (fit_floor if floor else fit)([each[i] for i in kept], losses[list(kept)].tolist())
        for each, losses in zip(sizes, means, strict=True)
    )
    return theirs.compute(ours.loss(compute)) / compute


def _values(sizes: Sizes, ours: Floats, theirs: Floats, compute: float) -> Floats:
    """The multipliers of many draws, each a row, at once; without floors."""
    slope, intercept = _line(np.log(sizes[0]), np.log(ours))
    reached = slope * math.log(compute) + intercept
    slope, intercept = _line(np.log(sizes[1]), np.log(theirs))
    with np.errstate(divide="ignore", over="ignore"):
        needed = np.where(slope < 0, np.exp((reached - intercept) / slope), math.inf)
    return needed / compute


def _central(values: Floats) -> tuple[float, float]:
    """The interval that holds 95 % of the values; its ends are among them, even infinite ones."""
    low = np.quantile(values, 0.025, method="lower")
    return float(low), float(np.quantile(values, 0.975, method="higher"))


def _means(losses: Losses) -> Floats:
    """The mean loss of each size, in order."""
    return np.array([float(np.mean(list(losses[size].values()))) for size in sorted(losses)])


def _drawn(arm: Losses, baseline: Losses, n: int) -> tuple[Floats, Floats] | None:
    """Mean losses of both arms, draw x size, as they might have come out with other seeds.

    Around its mean, each size's pairs are drawn with replacement, stretched by sqrt(n / (n - 1)):
    a sample of n lies that much closer to its own mean than to the truth. None where some size
    has one shared seed, which shows no spread.
    """
    random, columns = np.random.default_rng(0), []
    for ours, theirs in zip(sorted(arm), sorted(baseline), strict=True):
        shared = sorted(arm[ours].keys() & baseline[theirs].keys())
        if len(shared) < 2:
            return None
        pairs = np.array([[arm[ours][seed], baseline[theirs][seed]] for seed in shared])
        stretched = (pairs - pairs.mean(axis=0)) * math.sqrt(len(shared) / (len(shared) - 1))
        chosen = random.integers(0, len(shared), (n, len(shared)))
        columns.append(pairs.mean(axis=0) + stretched[chosen].mean(axis=1))
    table = np.stack(columns, axis=1)  # draw, size, arm
    return table[:, :, 0], table[:, :, 1]


def _logs(compute: Sequence[float], losses: Sequence[float], least: int) -> tuple[Floats, Floats]:
    x, y = (np.asarray(values, dtype=np.float64) for values in (compute, losses))
    if len(set(x.tolist())) < least:
        raise ValueError(f"a fit takes {least} budgets or more, got {len(set(x.tolist()))}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a fit takes positive finite losses and budgets")
    return np.log(x), np.log(y)


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Slope and intercept by least squares, of each row of y."""
    away = x - x.mean()
    slope = y @ away / (away @ away)
    return slope, y.mean(axis=-1) - slope * x.mean()


def _rms(residuals: Floats) -> float:
    return math.sqrt(float(np.mean(residuals**2)))
