"""What a search proposes and finds: frozen dataclasses, no torch, no optuna, no SQL."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attnres_cli.records.run import Identity

Value = int | float | str  # of one dimension of a proposal
Cell = tuple[Value | None, ...]  # the sizes of a shape, None for one that was not searched

_SIZES = ("n_layers", "d_model", "n_heads", "mlp_ratio", "params")
"""What trials of one shape share. d_ff takes up what a variant's own parameters change."""
_NOT_OPTIONS = {*_SIZES[:3], "d_ff", "aspect", "heads_per_layer", "tokens"}
MOST_COUNTED = 2_000
"""Combinations of designs up to which legal ones are counted; of more, a share is drawn."""
_POINTS = re.compile(r"(\d+) points?\b")  # in the text that names a family's sampler


class State(enum.StrEnum):
    """Where a trial stands. A failed one is in no verdict."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """A proposal of Optuna, and the run that answers it. `dimensions` always has n_layers, d_model,
    n_heads, d_ff, aspect (d_model / n_layers), heads_per_layer (n_heads / n_layers) and tokens.
    """

    number: int
    state: State
    dimensions: Mapping[str, Value]  # what was searched, and what follows of it
    variant: str  # canonical at this depth, with its options
    recipe_digest: str  # of the recipe with these sizes
    n_params: int
    flops: float  # of the whole training
    values: tuple[float, ...] = ()  # of each objective on the first look's seed; inf: diverged
    is_extra: bool = False  # beyond those asked for: best for another variant

    @property
    def outcome(self) -> str:
        """Its state, or `diverged` if its loss is not a number."""
        is_finite = bool(self.values) and math.isfinite(self.values[0])
        return "diverged" if self.state is State.COMPLETE and not is_finite else self.state.value

    @property
    def cell(self) -> Cell:
        """Its sizes, the same for trials of one shape whatever their variants."""
        return tuple(self.dimensions.get(name) for name in _SIZES)

    @property
    def options(self) -> dict[str, Value]:
        """What was searched besides sizes: options of the variant, learning rate and others."""
        return {name: v for name, v in self.dimensions.items() if name not in _NOT_OPTIONS}


@dataclass(frozen=True)
class Family:
    """The search of one variant, as it was typed."""

    variant: str
    trials: tuple[Trial, ...]  # also failed ones, and shapes that were best for another variant
    sampler: str  # Optuna's, and why: `grid: 24 points, no more than trials`


@dataclass(frozen=True)
class Designs:
    """What a search over designs has that one over shapes has not."""

    size: int  # of the space
    legal: float  # the share of it that is
    tokens: tuple[int, int]  # of a first look: in short, and whole
    baseline_digest: str  # of the recipe of the baseline's first look
    settings_digest: str  # of the recipe, with what it says of single designs
    compared_digest: str = ""  # of that under which the best are compared, once it is known
    slope: float | None = None  # nats per e-fold of tokens, where looks are judged at equal time

    def n_of(self, n_trials: int) -> int:
        """How many designs so many trials can have, which are no more than are legal."""
        n_legal = max(1, round(self.size * self.legal))
        return min(n_trials, n_legal) if self.size <= MOST_COUNTED else n_trials


@dataclass(frozen=True)
class Search:
    """One search of the study: what was asked, and a family for each variant."""

    name: str  # the digest of all that decides the search, by which it can be asked for
    recipe: str
    recipe_digest: str  # of the recipe before any size was changed
    fingerprint: str
    budget: str  # as typed, `params=2M`
    tolerance: float  # the share by which a shape may miss it
    space: str  # as typed or by default, `aspect=15..75,heads_per_layer=0.3..0.7`
    objectives: tuple[str, ...]  # `val_loss` first, then step_time, params, flops or memory
    learning_rate: str  # the rule that was used, in words
    first_seed: int  # of every trial
    confirm_seeds: tuple[int, ...]  # of the best shapes, as asked for last
    n_trials: int  # asked for, per family
    families: tuple[Family, ...]
    earlier_seeds: tuple[int, ...] = ()  # as asked for before, also those asked for again
    codes: tuple[str, ...] = ()  # digests of the code of its designs; none where not known
    designs: Designs | None = None  # of a search over designs

    @property
    def about(self) -> Designs:
        """What it says of designs, which it is over."""
        assert self.designs is not None
        return self.designs


def n_asked(search: Search, family: Family) -> int:
    """Trials that a family can have: those asked for, or all points where these are fewer."""
    points = _POINTS.search(family.sampler)
    return min(search.n_trials, int(points[1])) if points else search.n_trials


def fresh_seeds(search: Search, trained: Collection[Identity]) -> tuple[int, ...]:
    """The seeds that confirm a search's best shapes: those asked for last, and every earlier one
    that has trained a shape of it, so that no choice of seeds hides another. `trained` are all runs
    that have ended.
    """
    shapes = {(t.recipe_digest, t.variant) for f in search.families for t in f.trials}
    held = {
        seed
        for digest, variant, seed, data, code in trained
        if (digest, variant) in shapes and data == search.fingerprint
        if code in search.codes or not search.codes
    }
    earlier = [seed for seed in search.earlier_seeds if seed in held]
    return tuple(dict.fromkeys([*earlier, *search.confirm_seeds]))


def on_front(values: Sequence[tuple[float, ...]]) -> list[bool]:
    """Of each whether no other one is nowhere above it and somewhere below: less is better."""

    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    return [not any(beats(other, each) for other in values) for each in values]
