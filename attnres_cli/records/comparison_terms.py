"""On what terms arms are compared, and how an arm came to a recipe of its own. No torch, no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Match = Literal["tokens", "params", "flops", "time"]
"""What arms have in common: tokens seen, parameters, FLOPs of a token, or time of training."""

MATCHES: tuple[Match, ...] = ("tokens", "params", "flops", "time")


@dataclass(frozen=True)
class Terms:
    """What one comparison holds equal: `match`, for all arms as for `baseline` (empty where match
    is tokens). `is_tuned`: each arm has a learning rate of its own.
    """

    match: Match = "tokens"
    baseline: str = ""
    is_tuned: bool = False


SHARED = Terms()  # one recipe for every arm


@dataclass(frozen=True)
class Tuned:
    """How an arm's learning rate was found.

    Attributes:
        shared: the recipe's learning rate.
        losses: at each rate the mean validation loss over the seeds, None where a run diverged.
        is_on_edge: whether lr is the least or greatest of the rates: a better one may lie beyond.
        fit: how lr was chosen, in words.
    """

    shared: float
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]
    seeds: tuple[int, ...]
    lr: float
    is_on_edge: bool
    fit: str


@dataclass(frozen=True)
class Matched:
    """How an arm was made equal to the baseline by changing one number of its recipe.

    Attributes:
        before: that number in the shared recipe; after: in the arm's own.
        unmatched: the arm's parameters, FLOPs per token or seconds of training under the shared
            recipe; value: under its own; target: the baseline's.
        step_ratio: for time, the arm's step time as a multiple of the baseline's: median and
            quartiles of `rounds` rounds in which the two took turns on `device_name`.
    """

    changed: Literal["d_ff", "tokens"]
    before: int
    after: int
    unmatched: float
    value: float
    target: float
    step_ratio: tuple[float, float, float] | None = None
    rounds: int = 0
    device_name: str = ""

    @property
    def remains(self) -> float:
        """What is left of the difference, as a part of the baseline's."""
        return self.value / self.target - 1


@dataclass(frozen=True)
class ArmRecipe:
    """The recipe (`digest`) of one arm where the shared one (`base_digest`) is changed for it."""

    base_digest: str
    fingerprint: str
    terms: Terms
    variant: str
    digest: str
    how: Tuned | Matched

    @property
    def text(self) -> str:
        """What is its own, as `lr 0.0141`, `d_ff 87`."""
        if isinstance(self.how, Tuned):
            return f"lr {self.how.lr:g}"
        return f"{self.how.changed} {self.how.after:,}"
