"""GPUs that are not here, and how long a step takes on one by arithmetic. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.device_flops import least_s
from attnres_cli.records.plan import Memory
from attnres_cli.records.run import Settings

_KNOWN = {  # as torch calls them, and bytes of memory
    "a100": ("NVIDIA A100-SXM4-80GB", 80 * 10**9),
    "h100": ("NVIDIA H100 80GB HBM3", 80 * 10**9),
    "h200": ("NVIDIA H200", 141 * 10**9),
    "4090": ("NVIDIA GeForce RTX 4090", 24 * 10**9),
}
_MOST = 1024

# What is assumed of a step in bf16. tests/records/test_assumed.py holds it against all steps that
# were timed on GPUs (docs/results): the two hosts were virtual machines, others may launch faster.
_OF_FLOPS = 0.45  # of the peak, in matrix products
_OF_BYTES = 0.8  # of the peak bandwidth
_MOVED = 2  # each tensor is written and read once
_FUSED_AWAY = 0.4  # of those bytes, that a compiled step moves
_OPERATION_S = 25e-6  # of the host, for an operation of a step
_KERNEL_S = 300e-6  # of the host, for a fused kernel of depth mixing
_COMPILED = 0.55  # of the host's time, where a step is compiled
_REPLAYED_S = 5.5e-6  # for an operation of a step that is replayed as a CUDA graph

_OF_TRUNK = 60, 110  # operations of a micro-batch of `standard`: beside its layers, and of each
_GRAPHS_WAIT = 2  # times longer than it computes, that a compiled step launches which takes graphs
_GRAPHS_PAY_S = 120  # of launching in a run: compiling an arm takes a minute, and saves most of it


@dataclass(frozen=True)
class Gpus:
    """So many GPUs of one kind: `name` as torch would give it, bytes of memory of each."""

    n: int
    name: str
    memory: int

    @property
    def text(self) -> str:
        """`8 x NVIDIA H200`."""
        return self.name if self.n == 1 else f"{self.n} x {self.name}"


def read(text: str) -> Gpus:
    """GPUs from what is typed, as h100 or 8xh100. Raises UsageError."""
    found = re.fullmatch(r"(?:([1-9][0-9]{0,3})x)?([a-z0-9]+)", text.lower())
    n, name = (int(found[1] or 1), found[2]) if found else (0, text)
    if name not in _KNOWN:
        raise UsageError(f"{unknown('GPU', name, _KNOWN)}, or several, as 8xh100")
    if n > _MOST:
        raise UsageError(f"--assume {text}: up to {_MOST} GPUs, as 8xh100")
    return Gpus(n, *_KNOWN[name])


def step_s(memory: Memory, flops: float, parts: int, on: Settings) -> float:
    """Seconds of a step of so many FLOPs in `parts` micro-batches: what the GPU takes to compute,
    or the host to launch, whichever is longer. `memory` is that of one micro-batch.
    """
    if on.graphs:
        launching = parts * memory.n_operations * _REPLAYED_S
    else:
        launching = parts * (
            (memory.n_operations - memory.n_fused) * _OPERATION_S + memory.n_fused * _KERNEL_S
        )
    moved = _MOVED * memory.made * parts * (_FUSED_AWAY if on.compiled else 1)
    busy = least_s(on.device_name, on.precision, flops / _OF_FLOPS, moved / _OF_BYTES)
    assert busy is not None, f"{on.device_name} has no known peaks"
    return max(busy, launching * (_COMPILED if on.compiler == "on" else 1))


def graphs_pay(
    n_layers: int, parts: int, flops: float, steps: int, device_name: str, precision: str
) -> bool:
    """Whether CUDA graphs suit a run, by the arithmetic above for `standard`: a compiled step of so
    many FLOPs in `parts` micro-batches mostly waits for launches, and the run for minutes.
    """
    beside, of_each = _OF_TRUNK
    launching = parts * (beside + of_each * n_layers) * _OPERATION_S
    busy = least_s(device_name, precision, flops / _OF_FLOPS, 0)
    if busy is None or launching * steps < _GRAPHS_PAY_S:
        return False
    return launching * _COMPILED >= _GRAPHS_WAIT * busy


LEAST, MOST = 0.6, 1.6
"""Of predicted steps, how long those took that were timed on GPUs."""


def terms() -> str:
    """What is assumed, in words."""
    return (
        f"Assumed: {_OF_FLOPS:.0%} of peak FLOPs, {_OF_BYTES:.0%} of bandwidth, "
        f"{1e6 * _OPERATION_S:.0f} us of the host per operation ({1e6 * _KERNEL_S:.0f} per fused "
        f"kernel; compiled {_COMPILED} of both, "
        f"CUDA graphs {1e6 * _REPLAYED_S:.1f} us for each)."
    )
