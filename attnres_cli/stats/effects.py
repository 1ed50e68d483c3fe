"""Effects: what each choice of a searched design changes of its loss, from one run per design.

A loss is an intercept of its rung + effects of the design's choices + of pairs of them + of choices
at a rung that is not the top one + of the design + noise. All but the intercepts are drawn at
random, each kind with a variance of its own that the losses tell (REML, Patterson and Thompson
1971), under a wide prior. A search trains more of what has looked good: plain means and least
squares are biased by it, as what was unlucky is left and stays unlucky. The law of the effects
given all losses does not depend on how designs were chosen (Rubin 1976). benchmarks/effects.py
counts how often intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Value = str | int | float | bool | None
Design = dict[str, Value]

LEAST = 8
"""Designs below which nothing is said."""
_STREAM, _SLOT, _NONE = "stream", "addon ", "none"
_PRIOR = (math.log(0.1), 2.0)  # mean and sd of the log of a variance, of that within a rung
_HALF = 2.086  # sd to each side of 95 %: Student's with 20 degrees, by simulation
_STEP = 1e-3  # of a log variance


@dataclass(frozen=True)
class Look:
    """One run: its design's choices, the rung that it was trained to, and its loss in nats, which
    is not finite where it diverged. `addon 1`, `addon 2`, ... hold an add-on each, or `none`.
    """

    choices: Mapping[str, Value]
    rung: int
    loss: float


@dataclass(frozen=True)
class Effect:
    """What a value of a choice changes of the loss at the top rung, in nats: less the mean of the
    choice's other values, of an add-on less its absence. Other choices' values count alike.
    """

    choice: str  # `stream`, `attnres.norm`, `+vres`
    value: Value  # True of an add-on that is there
    mean: float
    low: float  # of the interval at 95 %
    high: float
    n_designs: int  # that have the value and a loss
    n_diverged: int  # that have the value, and diverged


def effects(looks: Sequence[Look]) -> list[Effect]:
    """The effect of every value that has ended, of choices with several such values; of two values
    that of the last, as the first one's is its opposite. The largest first; none of fewer than
    LEAST designs.

    Runs that diverged have no loss that an effect could explain: they are counted, not fitted.
    """
    finite = [look for look in looks if math.isfinite(look.loss)]
    ended = [factors(look.choices) for look in finite]
    lost = [factors(look.choices) for look in looks if not math.isfinite(look.loss)]
    if len(set(map(_key, ended))) < LEAST:
        return []
    levels = levels_of(ended)
    fit = _Fit(finite, ended, levels)
    found = []
    for choice, values in levels.items():
        for place in range(len(values) == 2, len(values)):
            mean, sd = fit.effect(choice, place)
            counts = (_n_having(of, choice, values[place]) for of in (ended, lost))
            ends = mean - _HALF * sd, mean + _HALF * sd
            found.append(Effect(choice, values[place], mean, *ends, *counts))
    return sorted(found, key=lambda each: -abs(each.mean))


def factors(choices: Mapping[str, Value]) -> Design:
    """The choices, with `+vres` for an add-on in whichever slot."""
    own = {name: value for name, value in choices.items() if not name.startswith(_SLOT)}
    added = (v for name, v in choices.items() if name.startswith(_SLOT) and v != _NONE)
    return own | {f"+{name}": True for name in added}


def _key(design: Design) -> frozenset[tuple[str, Value]]:
    return frozenset(design.items())


def _value(design: Design, choice: str) -> object:
    """The value of a choice; what no value equals where the design does not have the choice."""
    return design.get(choice, False if choice.startswith("+") else math.nan)


def _n_having(designs: Iterable[Design], choice: str, value: Value) -> int:
    return len({_key(design) for design in designs if _value(design, choice) == value})


def levels_of(designs: Iterable[Design]) -> dict[str, list[Value]]:
    """The values of every choice that has several, sorted; an add-on is absent or there."""
    found: dict[str, set[Value]] = {}
    for design in designs:
        for choice, value in design.items():
            found.setdefault(choice, {False} if choice.startswith("+") else set()).add(value)
    return {
        choice: sorted(values, key=lambda v: (isinstance(v, str), -math.inf if v is None else v))
        for choice, values in found.items()
        if len(values) > 1
    }


class _Fit:
    """The law of effects given losses, at variances that the losses leave likely."""

    def __init__(
        self, looks: Sequence[Look], designs: Sequence[Design], levels: Mapping[str, list[Value]]
    ) -> None:
        self.codes = {choice: coded(designs, choice, of) for choice, of in levels.items()}
        rungs = np.array([look.rung for look in looks])
        numbers = {key: number for number, key in enumerate(map(_key, designs))}
        of_design = np.array([numbers[_key(design)] for design in designs])
        kernels, sizes = _kernels(self.codes, of_design, rungs)
        self.law = _Law(np.array([look.loss for look in looks]), rungs, kernels)
        self.points = [
            (dict(zip(kernels, np.exp(logs), strict=True)), self.law.projected(logs)[0])
            for logs in self.law.variances()
        ]
        self.sizes = sizes

    def effect(self, choice: str, place: int) -> tuple[float, float]:
        """Mean and sd of a value's effect less the mean of the choice's others."""
        codes, kind = self.codes[choice], _kind(choice)
        difference = contrast(codes.shape[1], place)
        along, means, left = codes @ difference, [], []
        for variances, projected in self.points:
            variance = variances[kind] / self.sizes[kind]
            known = variance * along @ projected
            means.append(known @ self.law.losses)
            left.append(variance * (difference @ difference - known @ along))
        mean = self.law.scale * float(np.mean(means))
        return mean, self.law.scale * math.sqrt(np.mean(left) + np.var(means))


def _kind(choice: str) -> str:
    return _STREAM if choice == _STREAM else "options"


def coded(designs: Sequence[Design], choice: str, values: Sequence[Value]) -> Floats:
    """(looks, values) 1 for the value of a design less their mean; 0 without the choice."""
    found = np.array([[_value(d, choice) == value for value in values] for d in designs], float)
    return found - found.sum(axis=1, keepdims=True) / len(values)


def contrast(n: int, place: int) -> Floats:
    """(n) weights of one value less the mean of the others."""
    found = np.full(n, -1 / (n - 1))
    found[place] = 1.0
    return found


def _kernels(
    codes: Mapping[str, Floats], of_design: NDArray[np.int_], rungs: NDArray[np.int_]
) -> tuple[dict[str, Floats], dict[str, float]]:
    """What two losses share by each kind of effect, 1 on average of a loss with itself, and what
    the kernels were divided by. Those of pairs are products of the centered codes of two choices.
    """
    each = {choice: code @ code.T for choice, code in codes.items()}
    none = np.zeros((len(rungs), len(rungs)))
    stream = each.get(_STREAM, none)
    options = sum((of for choice, of in each.items() if choice != _STREAM), none)
    squares = sum((of**2 for of in each.values()), none)
    is_early = (rungs[:, None] == rungs) & (rungs < rungs.max())
    found = {
        _STREAM: stream,
        "options": options,
        "pairs": ((stream + options) ** 2 - squares) / 2,
        "early": (stream + options) * is_early,
        "design": (of_design[:, None] == of_design).astype(float),
        **{f"noise {rung}": np.diag((rungs == rung).astype(float)) for rung in set(rungs)},
    }
    sizes = {name: float(np.trace(of)) / len(rungs) for name, of in found.items()}
    return {name: of / sizes[name] for name, of in found.items() if sizes[name] > 1e-9}, sizes


class _Law:
    """What losses are likely by kernels with variances, in units of their sd within a rung."""

    def __init__(
        self, losses: Floats, rungs: NDArray[np.int_], kernels: Mapping[str, Floats]
    ) -> None:
        self.kernels = np.array(list(kernels.values()))
        self.steps = (rungs[:, None] == np.unique(rungs)).astype(float)
        centered = losses - self.steps @ (self.steps.T @ losses / self.steps.sum(axis=0))
        self.scale = float(centered.std()) or 1.0
        self.losses = centered / self.scale

    def projected(self, logs: Floats) -> tuple[Floats, float]:
        """REML's P, the inverse covariance less what the intercepts take, and -log of its size."""
        total = np.tensordot(np.exp(logs), self.kernels, 1)
        factor, _ = scipy.linalg.lapack.dpotrf(total, lower=True)
        half, _ = scipy.linalg.lapack.dpotri(factor, lower=True)
        inverse = np.tril(half) + np.tril(half, -1).T
        taken = inverse @ self.steps
        inner = self.steps.T @ taken
        size = 2 * np.log(np.diag(factor)).sum() + np.linalg.slogdet(inner)[1]
        return inverse - taken @ np.linalg.solve(inner, taken.T), float(size)

    def unlikely(self, logs: Floats) -> tuple[float, Floats]:
        """-log of restricted likelihood times prior, at logs of the variances, and its slopes."""
        projected, size = self.projected(logs)
        left, far = projected @ self.losses, (logs - _PRIOR[0]) / _PRIOR[1]
        moved = np.einsum("kij,ij->k", self.kernels, projected - np.outer(left, left))
        value = 0.5 * (size + self.losses @ left + far @ far)
        return float(value), 0.5 * np.exp(logs) * moved + far / _PRIOR[1]

    def variances(self) -> list[Floats]:
        """Logs of likely variances: points with the mode and the bend there as their mean and
        covariance. The mode alone would make intervals too narrow: of 60 designs, by a tenth.
        """
        n = len(self.kernels)
        start = np.full(n, _PRIOR[0])
        mode = scipy.optimize.minimize(self.unlikely, start, jac=True, method="L-BFGS-B").x
        around = [
            self.unlikely(mode + s)[1] - self.unlikely(mode - s)[1] for s in _STEP * np.eye(n)
        ]
        bend = np.array(around) / (2 * _STEP)
        sizes, axes = np.linalg.eigh((bend + bend.T) / 2)
        reach = math.sqrt(n) * axes / np.sqrt(np.maximum(sizes, _PRIOR[1] ** -2))
        return [mode + sign * along for along in reach.T for sign in (1, -1)]
