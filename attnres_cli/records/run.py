"""What is run and what comes of it: frozen dataclasses, no torch, no SQL."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from attnres_cli.config.recipe import Recipe
from attnres_cli.records import device_flops
from attnres_cli.records.code import Code
from attnres_cli.records.description import DataDescription as DataDescription

Identity = tuple[str, str, int, str, str]
"""What tells a run from every other: recipe digest, variant, seed, data, code."""

UNKNOWN = Code()
FIRST_TUNING_SEED = 1_000_000  # seeds from here up tune learning rates, and are never compared
FIRST_LOOK_SEED = FIRST_TUNING_SEED + 100  # of designs, and rates of parts, that a search looks at
WEIGHTS = "weights*.safetensors"  # a run's final weights in its folder, see `weights_file`


def weights_file(sha256: str | None) -> str:
    """The file of final weights with this checksum. It says so in its name: of two machines that
    each believe that a run is theirs, none replaces what the other wrote.
    """
    return f"weights-{sha256[:16]}.safetensors" if sha256 else "weights.safetensors"


class Status(enum.StrEnum):
    """Where a run stands. A diverged run is a result, a failed one is not."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    DIVERGED = "diverged"
    FAILED = "failed"


GRAPHS = "CUDA graphs"
EVALUATION = "evaluation compiled"
"""What a way begins with where evaluation is compiled as training is: with CUDA graphs or without.
Older compiled runs, whose ways say neither, were evaluated eagerly.
"""


def way_of(compiled: str, shared: str) -> str:
    """A way of one of the two above, or neither, and of ranks, or none."""
    return ", ".join(filter(None, (compiled, shared)))


WAITS = (Status.PENDING, Status.RUNNING)  # where runs stand that have not ended
ENDED = (Status.COMPLETE, Status.DIVERGED)  # with a result


@dataclass(frozen=True)
class RunSpec:
    """All that decides a run: recipe x variant x seed, on the data with this fingerprint, by this
    code.
    """

    recipe: Recipe
    variant: str
    seed: int
    fingerprint: str
    code: Code = UNKNOWN

    @property
    def identity(self) -> Identity:
        """As of its RunRecord."""
        code = self.code.digest
        return self.recipe.digest, self.variant, self.seed, self.fingerprint, code


@dataclass(frozen=True)
class Point:
    """Losses in nats per token after `step` steps; train_loss is the mean since the last point."""

    step: int
    train_loss: float | None
    val_loss: float | None


@dataclass(frozen=True)
class Settings:
    """What the machine decided, not the recipe: where and how a run's numbers were computed."""

    device: str  # "cpu", "cuda"
    device_name: str
    precision: str  # "fp32", "bf16"
    compiled: bool
    threads: int
    engine: str  # of depth mixing in training steps, by name, never "auto"
    way: str = ""  # GRAPHS or EVALUATION, and how ranks share the run, as `ddp on 2 ranks`

    @property
    def _ways(self) -> tuple[str, str]:
        """Of the (last) way: GRAPHS, EVALUATION or nothing; how ranks share the run, or nothing."""
        last = self.way.rpartition(", then ")[2]
        first, _, rest = last.partition(", ")
        return (first, rest) if first in (GRAPHS, EVALUATION) else ("", last)

    @property
    def compiled_as(self) -> str:
        """GRAPHS, EVALUATION, or nothing: training alone is compiled, or nothing is."""
        return self._ways[0]

    @property
    def shared(self) -> str:
        """How ranks share the run; empty where one device has it."""
        found = self._ways[1]
        return found if found.endswith(" ranks") else ""

    @property
    def graphs(self) -> bool:
        """Whether steps are compiled and replayed as CUDA graphs."""
        return self.compiled and self.compiled_as == GRAPHS

    @property
    def compiler(self) -> str:
        """As train.compile says it: off, on or graphs."""
        return "off" if not self.compiled else "graphs" if self.graphs else "on"

    @property
    def parallel(self) -> tuple[str, int]:
        """The (last) way's first word, and how many ranks there are: (none, 1) for one device."""
        name, _, ranks = self.shared.removesuffix(" ranks").partition(" on ")
        return (name.partition(" ")[0], int(ranks)) if ranks else ("none", 1)

    @property
    def ranks(self) -> int:
        """How many share a run."""
        return self.parallel[1]

    @property
    def numerics(self) -> str:
        """`cpu fp32 eager, 1 thread`: runs that differ in this are never paired. The engine is none
        of it; on a CPU each number of threads rounds in its own way, and so do ranks.
        """
        found = f"{self.device} {self.precision} {'compiled' if self.compiled else 'eager'}"
        threads = f", {self.threads} thread{'' if self.threads == 1 else 's'}"
        return found + (threads if self.device == "cpu" else "") + (self.way and f", {self.way}")

    @property
    def uncompiled(self) -> Settings:
        """The same without the compiler: what is timed before a run, proved and probed in it."""
        engine = "eager" if self.engine == "compile" else self.engine  # slow without a compiler
        way = self.shared if self.compiled_as else self.way
        return replace(self, compiled=False, engine=engine, way=way)


Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """What was measured inside a model after `step` steps; train/probes.py has the formulas.

    L+1 numbers each, by output i = 0..L (0 is the embedding): output_rms, gradient_rms,
    contribution, imbalance; by site l = 1..L+1, the last before the output norm: all others.
    `imbalance` is 0 where there are no experts, and None where none has any. `mixing` is M, a row
    per site, a column per output; of an attention with named inputs that of its queries, with those
    of keys and values beside it. Where there is no M, `no_mixing` says why, and what comes
    of M is None.

    `moved` and `agreement` have a number for each of the design's own parameters, whose names are
    `added` (train/movement.py has the formulas); None before the first step, and without any.
    """

    step: int
    output_rms: Numbers = ()
    gradient_rms: Numbers = ()
    input_rms: Numbers = ()
    newest_source_rms: Numbers | None = None
    newest_share: Numbers | None = None
    embedding_share: Numbers | None = None
    entropy: Numbers | None = None  # nats
    contribution: Numbers | None = None
    imbalance: Numbers | None = None
    mixing: tuple[Numbers, ...] | None = None
    mixing_k: tuple[Numbers, ...] | None = None
    mixing_v: tuple[Numbers, ...] | None = None
    no_mixing: str = ""
    added: str = ""
    moved: Numbers | None = None
    agreement: Numbers | None = None


@dataclass(frozen=True)
class RunResult:
    """What training one run gave."""

    status: Status
    val_loss: float  # at the end, nats per token; nan where the run diverged
    initial_loss: float
    steps: int
    tokens: int
    step_s: float  # median of a training step, evaluation not counted
    tokens_per_second: float
    train_s: float  # wall time of the whole run
    peak_bytes: int  # of the device on CUDA, else of the process
    n_params: int
    flops_per_token: int
    settings: Settings
    curve: tuple[Point, ...]
    probes: tuple[Probe, ...] = ()  # by step; the store reads them only when it is asked to
    weights_sha256: str | None = None  # of the final weights' file; None: not known, or no file
    proofs: tuple[tuple[str, str], ...] = ()  # of the trained model: a gate, what is wrong or empty

    @property
    def mfu(self) -> float | None:
        """Share of the device's peak that the model's FLOPs took; None where none is known."""
        on = self.settings
        speed = self.tokens_per_second
        return device_flops.mfu(speed, self.flops_per_token, on.device_name, on.precision)


@dataclass(frozen=True)
class Gate:
    """A condition on an ended run: `low` and `high` bound a loss, `value`, in nats per token."""

    name: str
    passed: bool
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run as the study holds it; `result` is None until it is complete or diverged. `gates` are
    empty until then, and in runs of an attnres that did not write them down. `code` is the digest
    of what made it, empty where that is not known; `created_at` (UTC, ISO 8601) is that
    of all runs planned at once, and of no others. `note` and `tags` are what people say of it,
    `origin` names the study from which it was merged.
    """

    id: int
    recipe: str
    recipe_digest: str
    variant: str
    seed: int
    fingerprint: str
    status: Status
    error: str | None = None
    result: RunResult | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    code: str = ""
    created_at: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()
    origin: str = ""

    @property
    def identity(self) -> Identity:
        """What tells it from every other run."""
        return self.recipe_digest, self.variant, self.seed, self.fingerprint, self.code


@dataclass(frozen=True)
class Removed:
    """A run that was removed: `val_loss` is nan where it diverged or had not ended, times are UTC,
    ISO 8601, `created_at` that of its plan. `reason` is None where none was given.
    """

    recipe_digest: str
    variant: str
    seed: int
    fingerprint: str
    code: str
    created_at: str
    removed_at: str
    status: Status
    val_loss: float
    reason: str | None = None


@dataclass(frozen=True)
class Standing:
    """Where a run stands at this moment; times are UTC, ISO 8601."""

    run_id: int
    owner: str | None  # host, boot, process and its start, while it is running
    is_alive: bool | None  # None where there is no process, or nobody here can know
    step: int | None  # done so far, as its process last said
    attempts: int  # starts since it last came further
    created_at: str
    started_at: str | None
    finished_at: str | None
    heartbeat_at: str | None


@dataclass(frozen=True)
class Event:
    """News of a run from its worker: it has started (step 0), come further or ended (`done`, with a
    `val_loss` unless it failed). Losses in nats per token; `save_s` is how long its last checkpoint
    took to write.
    """

    worker: int
    run_id: int
    step: int = 0
    train_loss: float | None = None
    done: bool = False
    val_loss: float | None = None
    save_s: float = 0.0
