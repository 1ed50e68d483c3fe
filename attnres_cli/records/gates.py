"""Gates: what an ended run must meet before it may be judged, as numbers that the study keeps.
Whether two runs can be compared is a matter of the comparison.
"""

from __future__ import annotations

import math

from attnres_cli.records.run import DataDescription, Gate, RunRecord, RunResult, Status

FINITE, START, LEARNED, FLOOR = "finite", "start", "learned", "floor"
CAUSAL, REPEATS, TRACELESS = "causal", "repeats", "traceless"
PROOFS = (CAUSAL, REPEATS, TRACELESS)
"""What a run proves of itself with its trained weights: train/proving.py."""
LEARNS, STATED, PROVABLE = "learns", "stated", "provable"
DOUBTS = (LEARNS, STATED, PROVABLE)
NOT_SO = {
    LEARNS: "some of its parameters can never learn",
    STATED: "it does not start as it says",
    PROVABLE: "whether it can learn, and starts as it says, is unknown: it fits no small trunk",
}
"""What is proven of a design that is not ours (nn/proofs); where it fails, nothing is blocked."""

MEANING = {
    FINITE: "the loss stayed finite",
    START: "the untrained loss is within 1 nat of ln(vocab)",
    LEARNED: "the final loss is below the untrained one",
    FLOOR: "and not below the least possible one",
    CAUSAL: "no token changes anything before it, or in another sequence",
    REPEATS: "the same batch gives the same numbers",
    TRACELESS: "and leaves nothing behind in the design",
    LEARNS: "every parameter of the design can learn",
    STATED: "and it starts as it says",
    PROVABLE: "it fits a small trunk, on which that is proven",
}
"""In words, in the order in which they are held against a run."""

_NEAR_START = 1.0  # nats
_BELOW_FLOOR = 0.01  # nats that rounding, and luck over the evaluation tokens, may give


def of(result: RunResult, data: DataDescription) -> tuple[Gate, ...]:
    """The gates of a run. One that diverged has no final loss to hold against the later ones."""
    first, last = _finite(result.initial_loss), _finite(result.val_loss)
    start = math.log(data.vocab_size)
    low, high = start - _NEAR_START, start + _NEAR_START
    found = [
        Gate(FINITE, result.status is not Status.DIVERGED, last),
        Gate(START, first is not None and low <= first <= high, first, low, high),
    ]
    if last is not None and first is not None:
        found.append(Gate(LEARNED, last < first, last, high=first))
    if last is not None and data.floor is not None:
        least = data.floor - _BELOW_FLOOR
        found.append(Gate(FLOOR, last >= least, last, low=least))
    return (*found, *(Gate(name, not wrong, None) for name, wrong in result.proofs))


def has_failed(run: RunRecord) -> bool:
    """Whether a run came to nothing, or has failed a proof, so that `--retry-failed` is for it."""
    is_disproved = any(gate.name in PROOFS and not gate.passed for gate in run.gates)
    return run.status is Status.FAILED or is_disproved


def explain(gate: Gate, result: RunResult, error: str | None = None) -> str:
    """How a run failed: `ends at 5.6, not below its start: it has learned nothing`."""
    if gate.name in PROOFS:
        return f"fails a proof: {error}"
    value = math.nan if gate.value is None else gate.value
    if gate.name == START and gate.low is not None:
        middle = gate.low + _NEAR_START
        return f"starts at {value:.2f}, not near ln(vocab) {middle:.2f}"
    if gate.name == LEARNED:
        return f"ends at {value:.3f}, not below its start: it has learned nothing"
    if gate.name == FLOOR and gate.low is not None:
        least = gate.low + _BELOW_FLOOR
        return f"ends at {value:.4f}, below the least possible loss {least:.4f}: something leaks"
    return f"diverged at step {result.steps}"


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
