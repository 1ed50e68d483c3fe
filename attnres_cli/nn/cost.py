"""What a design costs: times and memory as measured, reads and writes as counted. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The median of one or more values and their quartiles."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(times: Sequence[float], baseline: Sequence[float]) -> Spread:
    """How many times the baseline's time, from the ratios of each round's two times."""
    return spread([mine / theirs for mine, theirs in zip(times, baseline, strict=True)])


class TableOne(NamedTuple):
    """The paper's Table 1 (arXiv 2603.15031): residual reads and writes per token and sublayer, in
    units of d_model, without the input and output of the sublayer itself. `here` is for this trunk,
    with `groups` of (sublayers per block, blocks); `paper` for 128 sublayers in 8 blocks of 16.
    """

    scheme: str
    here: float
    groups: tuple[int, int] | None
    paper: float


@dataclass(frozen=True)
class ArmCost:
    """One arm.

    Attributes:
        extra_flops: forward FLOPs per token beyond `standard`.
        extra_bytes: forward reads and writes per token beyond `standard`, as counting.py counts.
        io_per_sublayer: all of them, per sublayer and in units of d_model; `standard` has 3.
        wrong: why the arm was not timed, None if it was.
        disagreement: relative differences from the reference engine, of loss and gradients.
        start_s: seconds of the first forward and backward pass, compilation included.
        seconds: one time per round; empty where it was not timed.
        peak_bytes: the most memory held at once in a step, weights and optimiser included.
    """

    variant: str
    n_params: int
    extra_flops: int
    extra_bytes: int
    io_per_sublayer: float
    table_one: TableOne | None
    wrong: str | None = None
    disagreement: tuple[float, float] | None = None
    start_s: float | None = None
    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Conditions:
    """What the numbers were taken on. `computed` reads like `cpu fp32 eager`; `copy_speed` is the
    bytes per second that copying a large tensor reads and writes.
    """

    recipe: str
    recipe_digest: str
    shape: Mapping[str, object]
    device: str
    device_name: str
    computed: str
    precision: str
    compiled: bool
    engine: str
    threads: int
    versions: Mapping[str, str]
    rounds: int
    baseline: str
    copy_speed: float


@dataclass(frozen=True)
class StepBench:
    """Whole training steps of some arms, measured in turn."""

    conditions: Conditions
    tokens_per_step: int
    arms: tuple[ArmCost, ...]

    def times(self, variant: str) -> tuple[float, ...]:
        """Seconds per step, one per round; empty where the arm was not timed."""
        return next((arm.seconds for arm in self.arms if arm.variant == variant), ())

    def versus(self, arm: ArmCost) -> Spread | None:
        """Its ratio to the baseline, None where one of the two was not timed."""
        base = self.times(self.conditions.baseline)
        return ratio(arm.seconds, base) if arm.seconds and base else None

    def extra_s_per_token(self, arm: ArmCost) -> float | None:
        """Median seconds per trained token beyond the baseline, of the same round."""
        base = self.times(self.conditions.baseline)
        if not arm.seconds or not base:
            return None
        differences = [mine - theirs for mine, theirs in zip(arm.seconds, base, strict=True)]
        return statistics.median(differences) / self.tokens_per_step


@dataclass(frozen=True)
class DecodeArm:
    """One arm's generation: by batch size, the seconds per step of each round. A step gives one
    token to every row. `wrong` says why the arm was not timed, None if it was.
    """

    variant: str
    n_params: int
    wrong: str | None
    seconds: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class DecodeBench:
    """Generation by some arms, measured in turn: `n_new` tokens per row after `n_prompt` given
    ones, without the token that the prompt's own pass gives.
    """

    conditions: Conditions
    n_prompt: int
    n_new: int
    batch_sizes: tuple[int, ...]
    arms: tuple[DecodeArm, ...]

    def versus(self, arm: DecodeArm, batch_size: int) -> Spread | None:
        """Its ratio to the baseline, None where one of the two was not timed."""
        bases = [other for other in self.arms if other.variant == self.conditions.baseline]
        mine = arm.seconds.get(batch_size, ())
        base = bases[0].seconds.get(batch_size, ()) if bases else ()
        return ratio(mine, base) if mine and base else None


@dataclass(frozen=True)
class PrefillArm:
    """One arm's prefill in float64: by one process, by all ranks at once, by ranks in chunks.

    Attributes:
        off: of the two ways on ranks, the largest difference from one process.
        held: bytes of full width that the design carries from depth to depth, the most at once on
            one process, measured in the three ways.
        counted: the same by formula, embedding and blocks of all these tokens; () without one.
    """

    variant: str
    off: tuple[float, float]
    held: tuple[int, int, int]
    counted: tuple[int, ...]


@dataclass(frozen=True)
class PrefillBench:
    """Prefill of `n_tokens` of width `d_model` on `ranks` processes, `chunk` tokens at a time;
    `sent` are the bytes that one rank sends for one sublayer.
    """

    recipe: str
    n_tokens: int
    d_model: int
    ranks: int
    chunk: int
    sent: int
    arms: tuple[PrefillArm, ...]
