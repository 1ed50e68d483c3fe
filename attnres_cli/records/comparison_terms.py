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
    is tokens). `is_tuned`: each arm is at the learning rate that this study found for it;
    `by_design`: at the one that the recipe has for its design.
    """

    match: Match = "tokens"
    baseline: str = ""
    is_tuned: bool = False
    by_design: bool = False


SHARED = Terms()  # one recipe for every arm
BY_DESIGN = Terms(by_design=True)


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
class Given:
    """The learning rate that a recipe with rates by design gives an arm."""

    lr: float
    is_own: bool  # False: the recipe has none for this design, and it takes optim.lr

    @property
    def text(self) -> str:
        """`lr 0.004`; `lr 0.006 (the recipe's)` where it is not the design's own."""
        return f"lr {self.lr:g}" + ("" if self.is_own else " (the recipe's)")


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
    given: Given | None = None  # the learning rate, where the recipe has rates by design

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
    how: Tuned | Matched | Given
    recipe: str = ""  # name of the shared one

    @property
    def text(self) -> str:
        """What is its own, as `lr 0.0141`, `d_ff 87`."""
        how = self.how
        if isinstance(how, Tuned):
            return f"lr {how.lr:g}"
        if isinstance(how, Given):
            return how.text
        rate = "" if how.given is None else f"{how.given.text}, "
        return f"{rate}{how.changed} {how.after:,}"
