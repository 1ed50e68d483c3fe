"""On what terms arms are compared, and how an arm came to a recipe of its own. No torch, no SQL."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # pydantic comes with it, which the command line does without until it is needed
    from attnres_cli.config.arms import Setting

_SHORT = {
    "optim.design_lr_scale": "added x",  # what a design adds, at so many times the rate
    "optim.weight_decay": "decay ",
    "optim.warmup_fraction": "warmup ",
}

Match = Literal["tokens", "params", "flops", "time"]
"""What arms have in common: tokens seen, parameters, FLOPs of a token, or time of training."""

MATCHES: tuple[Match, ...] = ("tokens", "params", "flops", "time")


@dataclass(frozen=True)
class Terms:
    """What one comparison holds equal: `match`, for all arms as for `baseline` (empty where match
    is tokens). `is_tuned`: each arm has the settings that this study found for it, or with
    `rate_only` the learning rate alone; `by_design`: those that the recipe has for its design.
    """

    match: Match = "tokens"
    baseline: str = ""
    is_tuned: bool = False
    by_design: bool = False
    rate_only: bool = False


SHARED = Terms()  # one recipe for every arm
BY_DESIGN = Terms(by_design=True)


@dataclass(frozen=True)
class Trial:
    """A setting that tuning has tried: the keys it sets, and a loss for each seed, None where
    training diverged.
    """

    changes: tuple[Setting, ...]
    losses: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """Mean loss over the seeds; None where one diverged."""
        known = [loss for loss in self.losses if loss is not None]
        return sum(known) / len(known) if len(known) == len(self.losses) else None


@dataclass(frozen=True)
class Tuned:
    """How an arm's learning rate was found, then a second number: of `second` settings at that
    rate, or none. Studies of before have no `second`, `rate_digest` and `regret`: their rates lie
    between those that were tried.
    """

    shared: float  # the recipe's learning rate
    rates: tuple[float, ...]
    losses: tuple[float | None, ...]  # mean over the seeds at each rate; None: one diverged
    seeds: tuple[int, ...]
    lr: float
    is_on_edge: bool  # lr is the least or greatest rate: a better one may lie beyond
    fit: str  # how lr was chosen, in words
    second: tuple[Trial, ...] = ()
    changes: tuple[Setting, ...] = ()  # of `second`; none where the recipe's own were best
    rate_digest: str = ""  # of the arm's recipe with the rate alone
    regret: float | None = None  # how much better the best settings may be, nats per token

    @property
    def may_miss(self) -> float:
        """How much better the best settings may be, infinite if unknown; 0 in older studies."""
        is_unknown = self.is_on_edge or self.regret is None
        return math.inf if self.rate_digest and is_unknown else self.regret or 0.0

    @property
    def text(self) -> str:
        """`lr 0.00424, added x10`."""
        return settings_text((("optim.lr", self.lr), *self.changes))


@dataclass(frozen=True)
class Given:
    """The settings that a recipe gives an arm by its design: a learning rate and `changes`."""

    lr: float
    is_own: bool  # False: the recipe has none for this design, and it takes the shared ones
    changes: tuple[Setting, ...] = ()
    regret: float | None = None  # how much better the best settings may be, nats per token
    is_on_edge: bool = False  # a better one may lie beyond what was tried

    @property
    def may_miss(self) -> float:
        """How much better the best settings may be; 0 where nobody has asked."""
        return math.inf if self.is_on_edge else self.regret or 0.0

    @property
    def text(self) -> str:
        """`lr 0.004`; `lr 0.006 (the recipe's)` where it is not the design's own."""
        shown = settings_text((("optim.lr", self.lr), *self.changes))
        return shown + ("" if self.is_own else " (the recipe's)")


_LATER = ("rate_only", "second", "changes", "rate_digest", "regret")


def stated(what: Terms | Tuned | Given | Matched) -> dict[str, Any]:
    """All that it says, as reports have it; what came later only where it says something."""
    later = _LATER if not isinstance(what, Given) else (*_LATER, "is_on_edge")
    return {key: value for key, value in asdict(what).items() if value or key not in later}


def settings_text(settings: tuple[Setting, ...]) -> str:
    """`lr 0.00424, added x10`."""
    parts = ((_SHORT.get(key, key.rpartition(".")[2] + " "), value) for key, value in settings)
    return ", ".join(f"{k}{v:g}" if isinstance(v, float) else f"{k}{v}" for k, v in parts)


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


def given_of(how: Tuned | Matched | Given | None) -> Given | None:
    """The settings that a recipe has for an arm's design; None where it has none of its own."""
    given = how.given if isinstance(how, Matched) else how
    return given if isinstance(given, Given) and given.is_own else None


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
    def may_miss(self) -> float:
        """How much better the arm's best settings may be, nats per token."""
        how = self.how.given if isinstance(self.how, Matched) else self.how
        return 0.0 if how is None else how.may_miss

    @property
    def text(self) -> str:
        """What is its own, as `lr 0.0141`, `d_ff 87`."""
        how = self.how
        if self.terms.rate_only and isinstance(how, Tuned):
            return f"lr {how.lr:g}"
        if isinstance(how, Given | Tuned):
            return how.text
        rate = "" if how.given is None else f"{how.given.text}, "
        return f"{rate}{how.changed} {how.after:,}"
