"""Scaling: loss over compute as a power law, and what an arm is worth in the baseline's compute.

Compute and losses are (arms, sizes), the baseline first; one loss per arm and size, however many
seeds it is the mean of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from attnres_cli.stats.pairs import CONFIDENCE

Floats = NDArray[np.float64]

FLOOR_SIZES = 4
"""Sizes that a floor takes: of fewer, nothing would be left to check the law with."""

_LEAST_GAP = 1e-4  # of the least loss to the floor, as a part of it
_GRID, _ROUNDS = 25, 7  # of gaps at a time; each round looks 12 times closer
_STEP = 1e-4  # by which a logarithm of a loss is moved, to see what the multiplier does
_ROUNDING = 1e-6  # of a loss, relative: a spread below it is that of its digits


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


@dataclass(frozen=True)
class Multiplier:
    """How much more compute the baseline takes to the arm's loss: 1.25 is a quarter more."""

    value: float
    compute: float  # where it holds: the arm's largest, in the unit of what was fitted
    ci95: tuple[float, float] | None = None  # of the regression over sizes; None where no spread is
    left_out: tuple[float, float] | None = None  # least and greatest, each size left out once


def fit(compute: ArrayLike, losses: ArrayLike, floor: float = 0.0) -> list[PowerLaw]:
    """L = E + A C^-alpha of each arm by least squares in logs of the losses, E given; of two sizes,
    the line through them. Raises ValueError below two sizes, or where a number has no logarithm.
    """
    x, y = _checked(compute, losses, 2)
    floors = np.array(floor)
    slope, level = _lines(x, y, floors)
    rmse = np.sqrt((_residuals(x, y, floors) ** 2).mean(axis=1))
    found = zip(np.exp(level).tolist(), (-slope).tolist(), rmse.tolist(), strict=True)
    return [PowerLaw(a, alpha, floor, error) for a, alpha, error in found]


def shared_floor(compute: ArrayLike, losses: ArrayLike) -> float:
    """The E >= 0 with which the laws of all arms fit best together, by variable projection: the
    best laws with an E are lines. Raises ValueError as `fit`, and below four sizes.
    """
    x, y = _checked(compute, losses, FLOOR_SIZES)
    return float(_floors(x, y[None])[0])


def multipliers(compute: ArrayLike, losses: ArrayLike, floor: bool = False) -> list[Multiplier]:
    """What each arm but the first is worth at its largest compute, by laws with a shared E or none.

    Raises ValueError as `fit` or `shared_floor`, and where the baseline's loss does not fall with
    compute.
    """
    x, y = _checked(compute, losses, FLOOR_SIZES if floor else 2)
    n, cells = y.shape[1], y.size
    step = _STEP * np.eye(cells).reshape(cells, *y.shape)
    every = np.concatenate([y[None], y * np.exp(step), y * np.exp(-step)])
    floors = _floors(x, every) if floor else np.zeros(len(every))
    steepness = -float(_lines(x, y, floors[0])[0][0])
    if steepness <= 0:
        raise ValueError("the loss of the baseline does not fall with compute")
    at = x[1:, -1]
    logs = _log_multipliers(x, every, floors, at)
    up, down = np.split(logs[1:], 2)
    influence = ((up - down) / (2 * _STEP)).reshape(*y.shape, len(at))
    half = _half_widths(_residuals(x, y, floors[0]), influence)
    kept = [np.delete(np.arange(n), skip) for skip in range(n if n > 2 else 0)]
    left = np.array([_log_multipliers(x[:, k], y[:, k], floors[0], at) for k in kept])
    with np.errstate(over="ignore"):
        value, low, high = np.exp([logs[0], logs[0] - half, logs[0] + half]).tolist()
        left = np.exp(left)
    has_spread = half * steepness > _ROUNDING
    return [
        Multiplier(
            value[k],
            float(np.exp(at[k])),
            (low[k], high[k]) if has_spread[k] else None,
            (float(left[:, k].min()), float(left[:, k].max())) if kept else None,
        )
        for k in range(len(at))
    ]


def _half_widths(residuals: Floats, influence: Floats) -> Floats:
    """Half of the 95 % t interval of each log multiplier; 0 where nothing is left to estimate it.

    By the delta method, from the residuals (arms, sizes) of log L and what each loss does to each
    multiplier (arms, sizes, multipliers). The arms' errors at one size may go together, those of
    different sizes are taken as independent and alike.
    """
    free = residuals.shape[1] - 2
    if free < 1:
        return np.zeros(influence.shape[2])
    sums = np.einsum("at,ask->tsk", residuals, influence)
    errors: Floats = np.sqrt((sums**2).sum(axis=(0, 1)) / free)
    return float(scipy.special.stdtrit(free, 0.5 + CONFIDENCE / 2)) * errors


def _log_multipliers(x: Floats, losses: Floats, floors: Floats, at: Floats) -> Floats:
    """(..., arms - 1): log of the compute at which the baseline has the loss that each arm has at
    this one, minus its log.
    """
    slope, level = _lines(x, losses, floors)
    reached = level[..., 1:] + slope[..., 1:] * at
    return (reached - level[..., :1]) / slope[..., :1] - at


def _floors(x: Floats, losses: Floats) -> Floats:
    """(draws): the shared E of each draw of losses, from (draws, arms, sizes)."""
    least = losses.min(axis=(1, 2))
    low, high = np.full(len(least), np.log(_LEAST_GAP)), np.zeros(len(least))
    parts, each = np.linspace(0, 1, _GRID)[:, None], np.arange(len(least))
    for _ in range(_ROUNDS):
        gaps = low + (high - low) * parts  # in logs: (grid, draws)
        floors = -least * np.expm1(gaps)
        errors = (_residuals(x, losses, floors) ** 2).sum(axis=(-2, -1))
        best = errors.argmin(axis=0)
        low, high = gaps[np.maximum(best - 1, 0), each], gaps[np.minimum(best + 1, _GRID - 1), each]
    return np.asarray(floors[best, each])


def _residuals(x: Floats, losses: Floats, floors: Floats) -> Floats:
    """(..., arms, sizes): of log L."""
    slope, level = _lines(x, losses, floors)
    fitted = floors[..., None, None] + np.exp(level[..., None] + slope[..., None] * x)
    return np.asarray(np.log(losses / fitted))


def _lines(x: Floats, losses: Floats, floors: Floats) -> tuple[Floats, Floats]:
    """Slope and level at x = 0 of log(L - E) over x, (..., arms). Weighted so that errors of log L
    count alike: those of log(L - E) are larger, the nearer L is to E.
    """
    gap = losses - floors[..., None, None]
    weight = (gap / losses) ** 2
    weight = weight / weight.sum(axis=-1, keepdims=True)
    y = np.log(gap)
    away = x - (weight * x).sum(axis=-1, keepdims=True)
    slope = (weight * away * y).sum(axis=-1) / (weight * away**2).sum(axis=-1)
    return slope, (weight * (y - slope[..., None] * x)).sum(axis=-1)


def _checked(compute: ArrayLike, losses: ArrayLike, least: int) -> tuple[Floats, Floats]:
    """Logs of the compute, and the losses, both (arms, sizes)."""
    x, y = (np.atleast_2d(np.asarray(values, dtype=np.float64)) for values in (compute, losses))
    sizes = min(len(set(row.tolist())) for row in x)
    if sizes < least:
        raise ValueError(f"a fit takes {least} sizes or more, got {sizes}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all() and (y > 0).all()):
        raise ValueError("a fit takes positive finite losses and compute")
    return np.log(x), y
