"""Which design a search tries next: by Optuna's TPE, at first at random.

Pure: what is proposed follows from the space, from what was seen and from the seed alone. Designs
are told apart by their canonical names; those that a constructor refuses are never proposed. Of a
refused one, options go back to their defaults until it is not: else a stream with many options that
exclude each other would hardly ever be tried.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli.lab.search.designs import Choices, DesignSpace, NameOf
from attnres_cli.lab.search.proposals import STARTUP
from attnres_cli.nn.residual import Value

TOP = 1
"""The rung of all tokens; 0 is that of a quarter of them."""

_TRIES, _MOST_DRAWS = 50, 500

Proposer = Callable[[], Choices]


@dataclass(frozen=True)
class Seen:
    """A design that was tried: its loss at the highest rung that it has reached, None while it
    trains, inf where it diverged.
    """

    choices: Mapping[str, Value]
    rung: int
    loss: float | None


def tpe(space: DesignSpace, seen: Sequence[Seen], seed: int) -> Proposer:
    """Optuna's TPE: it takes a design that has not reached the top rung as one that was pruned."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            multivariate=True, group=True, constant_liar=True, n_startup_trials=0, seed=seed
        )
    study = optuna.create_study(sampler=sampler)
    study.add_trials([_trial(space, each) for each in seen])

    def propose() -> Choices:
        trial = study.ask()  # it stays as one that trains: what is proposed again is not worth it
        return space.draw(lambda name, values: trial.suggest_categorical(name, values))

    return propose


def proposed(
    space: DesignSpace,
    name_of: NameOf,
    seen: Sequence[Seen],
    seed: int,
    make: Callable[[DesignSpace, Sequence[Seen], int], Proposer] | None = tpe,
) -> tuple[Choices, str] | None:
    """A legal design that was not tried, with its name: as what `make` makes proposes, or near it
    where that is refused; or where that has proposed none in 50 tries, or there is none, at random.
    None if 500 draws find none.
    """
    source, known = random.Random(seed), {name_of(dict(each.choices)) for each in seen}  # noqa: S311
    n_ended = sum(each.loss is not None for each in seen)

    def draw() -> Choices:
        return space.draw(lambda _, values: source.choice(values))

    tries: list[tuple[Proposer, int]] = [(draw, _MOST_DRAWS)]
    if make is not None and n_ended >= STARTUP:
        tries.insert(0, (make(space, seen, seed), _TRIES))
    for propose, n in tries:
        for _ in range(n):
            choices = propose()
            for near in chain([choices], space.simpler(choices, source)):
                if (name := name_of(near)) is not None:
                    break
            if name is not None and name not in known:
                return near, name
    return None


def _trial(space: DesignSpace, seen: Seen) -> FrozenTrial:
    """A design as Optuna holds it, with the choices of which there are several values."""
    distributions: dict[str, BaseDistribution] = {}

    def pick(name: str, values: Sequence[Value]) -> Value:
        distributions[name] = CategoricalDistribution(values)
        return seen.choices[name]

    made = space.draw(pick)
    state = TrialState.COMPLETE if seen.rung >= TOP else TrialState.PRUNED
    return create_trial(
        state=TrialState.RUNNING if seen.loss is None else state,
        params={name: made[name] for name in distributions},
        distributions=distributions,
        value=seen.loss if seen.rung >= TOP else None,
        intermediate_values={} if seen.loss is None else {seen.rung: seen.loss},
    )
