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
    """How an arm's learning rate was found."""

    shared: float  # the recipe's learning rate
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]  # mean over the seeds at each rate; None: one diverged
    seeds: tuple[int, ...]
    lr: float
    is_on_edge: bool  # lr is the least or greatest rate: a better one may lie beyond
    fit: str  # how lr was chosen, in words


@dataclass(frozen=True)
class Matched:
    """How an arm was made equal to the baseline by changing one number of its recipe."""

    changed: Literal["d_ff", "tokens"]
    before: int  # in the shared recipe
    after: int  # in the arm's own
    unmatched: float  # parameters, FLOPs per token or seconds under the shared recipe
    value: float  # under its own
    target: float  # the baseline's
    step_ratio: tuple[float, float, float] | None = None  # of step times: median and quartiles
    rounds: int = 0  # in which the two took turns on `device_name`
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
