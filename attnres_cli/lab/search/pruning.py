"""Pruning: trials that look hopeless are ended early, held against others of their variant alone.

They are judged by their training loss, which every run has at a hundred points; of data that are
seen once it estimates the validation loss. By default they are judged only where the learning rate
is constant: in its decay losses fall fast, and rankings flip (Wen et al. 2025, arXiv 2509.02046).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, unknown

PRUNERS = ("none", "median", "hyperband")
LOOKS = 20
"""Of a whole run; a trial is judged at some of them."""

_FIRST = 0.1  # of a run, before which no trial is judged
_LEAST_COMPLETE = 5  # trials, before median prunes
_UNTIL = "until"


@dataclass(frozen=True)
class Pruning:
    """What ends trials early, and at which looks, numbered 1 to LOOKS."""

    kind: str
    first: int
    last: int

    @property
    def text(self) -> str:
        """`median: by the training loss, from 10% to 80% of a run: ended where ...`."""
        rule = {
            "median": "its best so far is above the median of its variant's complete trials there, "
            f"once there are {_LEAST_COMPLETE}",
            "hyperband": "it is not in the best third of its bracket",
        }
        span = f"from {self.first / LOOKS:.0%} to {self.last / LOOKS:.0%} of a run"
        return f"{self.kind}: by the training loss, {span}: ended where {rule[self.kind]}"

    def make(self) -> BasePruner:
        """Optuna's pruner, for one variant."""
        if self.kind == "median":
            return MedianPruner(n_startup_trials=_LEAST_COMPLETE)
        return HyperbandPruner(min_resource=self.first, max_resource=self.last, reduction_factor=3)


def asked(text: str, recipe: Recipe, objectives: Sequence[str]) -> Pruning | None:
    """What `--pruner` says: `median`, `hyperband:until=0.5`; None of `none`.

    Raises:
        UsageError: it cannot be meant, or fits neither the recipe nor the objectives.

    """
    kind, _, option = text.partition(":")
    if kind not in PRUNERS:
        raise UsageError("--pruner: " + unknown("pruner", kind, PRUNERS))
    if kind == "none" and not option:
        return None
    if kind == "none":
        raise UsageError(f"--pruner none takes no options, got '{option}'")
    if len(objectives) > 1:
        raise UsageError(
            f"--pruner {kind} judges by one loss, and this search has two goals: leave "
            "--pruner or the second of --objective out"
        )
    until = _until(option) if option else _before_decay(recipe, kind)
    first = math.ceil(LOOKS * max(_FIRST, recipe.optim.warmup_fraction) - 1e-9)
    last = math.floor(LOOKS * until + 1e-9)
    if last < first:
        raise UsageError(
            f"--pruner {kind}: trials are judged from {first / LOOKS:.0%} of a run, after the "
            f"warm-up, and may be judged until {until:.0%}: a later {_UNTIL}="
        )
    return Pruning(kind, first, last)


def _until(option: str) -> float:
    name, _, value = option.partition("=")
    if name != _UNTIL:
        raise UsageError("--pruner: " + unknown("option", name, [_UNTIL]))
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not 0 < found < 1:
        raise UsageError(
            f"--pruner: {_UNTIL} is a share of the run between 0 and 1, as 0.5, got '{value}'"
        )
    return found


def _before_decay(recipe: Recipe, kind: str) -> float:
    optim = recipe.optim
    if optim.schedule == "wsd":
        return 1 - optim.decay_fraction
    raise UsageError(
        f"--pruner {kind}: recipe {recipe.name} lets the learning rate fall all the way "
        f"({optim.schedule}), and losses within a decay do not rank shapes: --set "
        f"optim.schedule=wsd keeps it until the last {optim.decay_fraction:.0%}, or say until "
        f"where to judge all the same: --pruner {kind}:{_UNTIL}=0.5"
    )


def looks(losses: Iterable[tuple[int, float]], steps: int) -> dict[int, float]:
    """The mean training loss since the look before, by look, of a run of so many steps.

    Args:
        losses: points of its curve so far, (step, loss), in their order.
        steps: of the whole run.

    """
    found: dict[int, float] = {}
    since: list[float] = []
    look = 1
    for step, loss in losses:
        while look < LOOKS and step > end(look, steps):  # as of a run that went on from later
            since, look = [], look + 1
        since.append(loss)
        if step == end(look, steps):
            found[look] = sum(since) / len(since)
            since, look = [], look + 1
    return found


def end(look: int, steps: int) -> int:
    """The step after which a run of so many steps comes to that look."""
    return round(steps * look / LOOKS)
