"""What is run and what comes of it: frozen dataclasses, no torch, no SQL."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from attnres_cli.recipe import Recipe

CODE = "variant_code"
"""Among a run's versions, the digest of the code of its design."""


class Status(enum.StrEnum):
    """Where a run stands. A diverged run is a result, a failed one is not."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True)
class DataFacts:
    """What is kept of the tokens a run saw. Entropies: of the validation stream, nats per token.

    Attributes:
        floor: the loss, nats per token, that no model gets below on evaluation windows, which is
            known of generated tasks.
        zlib_bits: bits per byte of the validation text, of its first MiB where it is longer, as
            zlib packs it; None where the text is not known.
        xz_bits: the same by xz.

    """

    fingerprint: str
    source: str
    n_bytes: int
    vocab_size: int
    train_tokens: int
    val_tokens: int
    unigram_entropy: float
    bigram_entropy: float
    floor: float | None = None
    zlib_bits: float | None = None
    xz_bits: float | None = None

    @property
    def is_bytes(self) -> bool:
        """Whether a token is a byte of text, so that losses are those of bytes too."""
        return self.vocab_size == 256 and self.n_bytes == self.train_tokens + self.val_tokens

    @property
    def size(self) -> str:
        """How much there is, in words."""
        if not self.train_tokens:
            return f"generated without end, {self.val_tokens:,} tokens for validation"
        unit = "bytes" if self.is_bytes else "tokens"
        all_of_them = self.train_tokens + self.val_tokens
        return f"{all_of_them:,} {unit}, {self.val_tokens:,} of them for validation"


@dataclass(frozen=True)
class RunSpec:
    """All that decides a run: recipe x variant x seed, on the data with this fingerprint."""

    recipe: Recipe
    variant: str
    seed: int
    fingerprint: str


@dataclass(frozen=True)
class Point:
    """One point of a run's curve, after `step` steps; losses in nats per token.

    train_loss is the mean since the last point.
    """

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

    @property
    def numerics(self) -> str:
        """Runs that differ in this are never paired: `cpu fp32 eager`.

        The engine is no part of it: engines agree to rounding.
        """
        return f"{self.device} {self.precision} {'compiled' if self.compiled else 'eager'}"

    @property
    def uncompiled(self) -> Settings:
        """The same without the compiler: what is timed before a run, and evaluated in it."""
        engine = "eager" if self.engine == "compile" else self.engine  # slow without a compiler
        return replace(self, compiled=False, engine=engine)


@dataclass(frozen=True)
class RunResult:
    """What training one run gave.

    Attributes:
        val_loss: at the end, nats per token; nan where the run diverged.
        step_s: median time of a training step, in seconds, evaluation not counted.
        train_s: wall time of the whole run, in seconds.
        peak_bytes: largest memory, of the device on CUDA, else of the process.

    """

    status: Status
    val_loss: float
    initial_loss: float
    steps: int
    tokens: int
    step_s: float
    tokens_per_second: float
    train_s: float
    peak_bytes: int
    n_params: int
    flops_per_token: int
    settings: Settings
    curve: tuple[Point, ...]


@dataclass(frozen=True)
class RunRecord:
    """A run as the study holds it; `result` is None until it is complete or diverged."""

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


@dataclass(frozen=True)
class Standing:
    """Where a run stands at this moment; times are UTC, ISO 8601.

    Attributes:
        owner: host, boot, process and its start, while it is running.
        is_alive: whether that process lives; None where there is none, or nobody here can know.
        step: done so far, as its process last said; None before it first did.
        attempts: how often it was started since it last came further.

    """

    run_id: int
    owner: str | None
    is_alive: bool | None
    step: int | None
    attempts: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    heartbeat_at: str | None


@dataclass(frozen=True)
class Event:
    """What a worker tells: a run has started (step 0), come further, or ended (done).

    loss is the training loss while it runs, in nats per token; the validation loss at its end;
    None where there is none.
    """

    worker: int
    run_id: int
    step: int = 0
    loss: float | None = None
    done: bool = False
