"""Proposals of Optuna. Its samplers see the dimensions as numbers in their order. What they propose
is moved to the nearest point not yet tried, and they are told that this one was tried.
"""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from attnres_cli.errors import UsageError, unknown
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.studies import VOID
from attnres_cli.records.search_records import State, Trial, Value

SAMPLERS = ("auto", "tpe", "gp", "nsga2", "grid", "brute", "random")

STARTUP = 10
"""Trials that TPE and GP draw at random before they learn; of few trials, at most half."""

_Space = Mapping[str, BaseDistribution]


class Points:
    """The points of one variant, as Optuna sees them; `names` are dimensions of several values."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        self.names = _searched(self.points)
        if len({self._key(point.dimensions) for point in self.points}) < len(self.points):
            self.names.append("n_layers")  # shapes that are alike but for their size
        columns = {name: [point.dimensions[name] for point in points] for name in self.names}
        self.distributions = {name: _distribution(values) for name, values in columns.items()}
        self.of_key = {self._key(point.dimensions): point for point in self.points}

    def __len__(self) -> int:
        return len(self.points)

    def _key(self, params: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(_rounded(params[name]) for name in self.names)

    def of_trial(self, trial: FrozenTrial) -> Point | None:
        """What a trial tries; None where it is void, or its process died before it was written."""
        if VOID in trial.user_attrs:
            return None
        is_whole = all(name in trial.params for name in self.names)
        return self.of_key.get(self._key(trial.params)) if is_whole else None

    def tried(self, trials: Sequence[FrozenTrial]) -> set[Point]:
        """The points of these trials."""
        return {point for trial in trials if (point := self.of_trial(trial)) is not None}

    def params_of(self, point: Point) -> dict[str, Value]:
        """What Optuna is told of a point."""
        return {name: point.dimensions[name] for name in self.names}

    def distributions_of(self, _point: Point) -> dict[str, BaseDistribution]:
        """Among which values Optuna chose the point's."""
        return self.distributions

    def trial(self, point: Point) -> Trial:
        """The point as a trial that has just begun; its number is not known here."""
        follow = {"mlp_ratio", "params", "lr"} - {*self.names}
        searched = {name: v for name, v in point.dimensions.items() if name not in follow}
        run = (point.variant, point.recipe.digest, point.n_params, point.flops)
        return Trial(-1, State.RUNNING, searched, *run)

    def distance(self, params: Mapping[str, Any], point: Point) -> float:
        """The squared distance of a proposal from a point, each dimension from 0 to 1."""
        return sum(
            _apart(params[name], point.dimensions[name], distribution) ** 2
            for name, distribution in self.distributions.items()
        )


def _searched(points: Sequence[Point]) -> list[str]:
    """The dimensions that tell the points apart."""
    trunk = ("aspect", "heads_per_layer", "mlp_ratio", "params")
    options = [name for name, _ in points[0].options] if points else []
    lr = ["lr"] if any(point.lr is not None for point in points) else []
    names = (*trunk, *lr, *options)
    return [name for name in names if len({point.dimensions[name] for point in points}) > 1]


def _distribution(values: Sequence[Value]) -> BaseDistribution:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(numbers), max(numbers)
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(int(low), int(high), log=low > 0)
    return FloatDistribution(float(low), float(high), log=low > 0)


def _rounded(value: Value) -> Value:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _apart(a: Any, b: Any, distribution: BaseDistribution) -> float:
    """From 0 to 1: logarithms of numbers by their range, words as equal or not."""
    if isinstance(distribution, FloatDistribution | IntDistribution):
        low, high = distribution.low, distribution.high
        if distribution.log:
            return abs(math.log(a / b)) / math.log(high / low)
        return abs(a - b) / (high - low)
    return float(a != b)


class Feasible(RandomSampler):
    """A sampler of Optuna that proposes points. It is seeded by (study, trial number), so that an
    interrupted search goes on instead of repeating its first proposals.

    `grid` takes the points in their order, `brute` at random. Both do without Optuna's own, which
    forget cells of failed trials and repeat some in parallel.
    """

    def __init__(self, points: Points, kind: str, seed: int, n_startup: int) -> None:
        super().__init__(seed)  # of parameters that are not of the space: there are none
        self._points, self._kind, self._seed, self._n_startup = points, kind, seed, n_startup

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every dimension, always."""
        return dict(self._points.distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: _Space
    ) -> dict[str, Any]:
        """The point nearest to what the sampler proposes that is not tried yet."""
        points, seed = self._points, seed_of(self._seed, trial.number)
        others = [each for each in study.get_trials(deepcopy=False) if each.number != trial.number]
        tried = points.tried(others)
        free = [point for point in points.points if point not in tried] or points.points
        if self._kind == "grid":
            return points.params_of(free[0])
        if self._kind == "brute":
            return points.params_of(random.Random(seed).choice(free))  # noqa: S311
        proposed = self._proposed(study, trial, _sampler(self._kind, seed, self._n_startup))
        return points.params_of(min(free, key=lambda point: points.distance(proposed, point)))

    def _proposed(
        self, study: optuna.Study, trial: FrozenTrial, sampler: BaseSampler
    ) -> dict[str, Any]:
        space = sampler.infer_relative_search_space(study, trial)
        found = dict(sampler.sample_relative(study, trial, space))
        for name, distribution in self._points.distributions.items():
            if name not in found:
                found[name] = sampler.sample_independent(study, trial, name, distribution)
        return found


def _sampler(kind: str, seed: int, n_startup: int) -> BaseSampler:
    samplers = optuna.samplers
    learns: dict[str, Any] = {"seed": seed, "n_startup_trials": n_startup}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if kind == "tpe":
            return samplers.TPESampler(**learns, multivariate=True, constant_liar=True)
        if kind == "gp":
            return samplers.GPSampler(**learns, deterministic_objective=False)
        if kind == "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=n_startup)
        return RandomSampler(seed=seed)


def seed_of(study_seed: int, number: int) -> int:
    """Of the proposal of that number."""
    digest = hashlib.sha256(f"{study_seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def chosen(asked: str, n_points: int, n_trials: int, n_objectives: int) -> tuple[str, str]:
    """The sampler, and a text that names it with the reason."""
    points = "1 point" if n_points == 1 else f"{n_points} points"
    if asked not in SAMPLERS:
        raise UsageError(unknown("sampler", asked, SAMPLERS))
    if asked == "grid" and n_trials < n_points:
        raise UsageError(
            f"--sampler grid tries all points of the space: --trials {n_points}, or brute, which "
            f"tries {n_trials} of them"
        )
    if asked == "nsga2" and n_objectives == 1:
        raise UsageError("--sampler nsga2 is for two objectives, as --objective val_loss,params")
    if asked != "auto":
        return asked, f"{asked}: as asked; {points}, {n_trials} trials at most"
    if n_points <= n_trials:
        return "grid", f"grid: {points}, no more than trials"
    if n_objectives > 1:
        return "nsga2", f"nsga2: {points}, more than trials, and {n_objectives} objectives"
    return "tpe", f"tpe: {points}, more than trials"


def n_startup(kind: str, n_trials: int) -> int:
    """Trials that are drawn without looking at results; for nsga2 the size of a population."""
    if kind in ("grid", "brute", "random"):
        return n_trials
    if kind == "nsga2":
        return max(4, min(50, n_trials // 4))
    return max(1, min(STARTUP, n_trials // 2))
