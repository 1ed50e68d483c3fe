"""Comparison: what the runs of one recipe say about each arm, and whether they may say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnres_cli.records.comparison_terms import SHARED, ArmRecipe, Terms
from attnres_cli.records.evaluated import Evaluated
from attnres_cli.records.run import DataDescription, Gate, Removed, RunRecord, Status
from attnres_cli.records.step_ratio import StepRatio
from attnres_cli.stats.multiples import Budget
from attnres_cli.stats.pairs import Difference, Signs
from attnres_cli.stats.sequential import Look, Word
from attnres_cli.verdict.family import Family

Verdict = Word | Literal["identical", "pending", "blocked", "baseline"]

RULE = (
    "intervals are simultaneous 95% confidence intervals: they hold for all arms of this table and "
    "however often you look. Better or worse: the interval excludes 0. Inconclusive: it contains "
    "0; this study finds a difference of the size under detectable with 80% power"
)


@dataclass(frozen=True)
class Rules:
    """What a comparison is judged by, beside its runs.

    Attributes:
        margin: a difference in nats per token that does not matter; None: none was given.
        is_typed: whether it was typed for this look, and is neither the recipe's nor a plan's.
        slope: by how much the baseline's loss falls per e-fold of compute, nats per token.
        budgets: by how much it falls to other budgets of tokens; empty where none is known.
        removed: what was removed of the study.
        eval_tokens: on which losses are measured; None: unknown.
        is_registered: whether arms and seeds were fixed before the first run, for one look.
        is_routed: whether tokens choose experts.
        most: seeds that arms get until they are decided; None where seeds were planned.
    """

    margin: float | None = None
    slope: float | None = None
    budgets: tuple[Budget, ...] = ()
    removed: tuple[Removed, ...] = ()
    is_registered: bool = False
    eval_tokens: int | None = None
    is_routed: bool = False
    most: int | None = None
    is_typed: bool = False


@dataclass(frozen=True)
class ArmResult:
    """One arm: its runs, its difference from the baseline, the verdict and why."""

    variant: str
    losses: Mapping[int, float]  # by seed, nats per token; nan where it diverged
    n_params: int
    params_delta: int | None
    flops_per_token: int
    tokens: int
    mean: float  # over the pairs of `difference`, of the baseline over those of all arms
    sd: float | None
    engines: tuple[str, ...]  # of depth mixing; more than one where its runs differ
    verdict: Verdict
    reason: str
    difference: Difference | None = None  # over the pairs of the last look, else over all pairs
    look: Look | None = None  # None where the arm may not be compared
    pairs: tuple[int, ...] = ()  # the seeds of `difference`
    detectable: float | None = None  # the least difference that the look finds in 80 % of studies
    far: tuple[int, ...] = ()  # seeds whose differences lie far from the others'
    signs: Signs | None = None  # of the differences: what most seeds say
    is_sound: bool = False  # no gate or inequality in the way, though it may be of one seed alone
    recipe_digest: str = ""
    own: ArmRecipe | None = None  # where its recipe is not the shared one
    gates: Mapping[int, tuple[Gate, ...]] = field(default_factory=dict)  # by seed
    believed: str = ""  # why somebody believes what is too good to be true
    whole: ArmResult | None = None  # with the ended runs that were left out with a reason
    mixed: tuple[int, ...] = ()  # seeds whose baseline other versions of the software trained

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference, for all arms and looks together; None before the first look."""
        return self.look.interval if self.look else None


@dataclass(frozen=True)
class Comparison:
    """The arms of one recipe on one fingerprint of data, the baseline first, then by loss, with
    the runs that were compared. Under some terms arms have recipes of their own, derived from it.
    """

    recipe: str
    recipe_digest: str
    data: DataDescription
    baseline: str
    arms: tuple[ArmResult, ...]
    records: tuple[RunRecord, ...]
    family: Family
    terms: Terms = SHARED
    rules: Rules = Rules()
    removed: tuple[Removed, ...] = ()  # runs of this table that are not there again
    registered: str = ""  # preregistered, or exploratory; where the study has preregistrations
    older: tuple[RunRecord, ...] = ()  # left out because of their code
    n_hidden: int = 0  # arms of the table that were judged with the others and are not shown
    beside: tuple[Comparison, ...] = ()  # of the same arms on lesser terms: they get no words
    moving: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # arm, parameter, share
    step_ratios: Mapping[str, StepRatio] = field(default_factory=dict)  # by arm, to the baseline's
    evaluated: Evaluated | None = None  # where a token is no byte, and its bytes are known
    bench: str = ""  # the command that times what `step_ratios` lack, if one is known
    n_asked: int = 1  # tables that the study was asked for, this one included
    not_kept: str = ""  # why the study does not keep that this one was

    def arm(self, variant: str) -> ArmResult | None:
        """The arm of that name; None where no run of it has ended."""
        return next((arm for arm in self.arms if arm.variant == variant), None)

    @property
    def base(self) -> ArmResult | None:
        """The arm of the baseline; None where no run of it has ended."""
        return self.arm(self.baseline)

    def runs(self, *statuses: Status) -> list[RunRecord]:
        """Those in one of these states."""
        return [record for record in self.records if record.status in statuses]

    @property
    def versions(self) -> list[str]:
        """Those that trained its runs, each once."""
        return sorted({version(record) for record in self.records if record.result is not None})

    @property
    def settings(self) -> list[str]:
        """How its runs were computed, each way once."""
        on = [record.result.settings for record in self.records if record.result is not None]
        return sorted({f"{s.numerics} on {s.device_name}, depth mixing by {s.engine}" for s in on})


def ended_how(gone: Removed) -> str:
    """How a run that was removed had ended: `having ended at 1.5721`."""
    if gone.status is Status.COMPLETE:
        return f"having ended at {gone.val_loss:.4f}"
    return "having diverged" if gone.status is Status.DIVERGED else "not having ended"


def version(record: RunRecord) -> str:
    """`attnres 0.1.0, torch 2.9.0, python 3.11.7`: what trained a run."""
    names = ("attnres", "torch", "python")
    return ", ".join(f"{name} {record.versions.get(name, '?')}" for name in names)
