"""What benchmarks measure with. It needs torch alone, so that a bare machine can be measured."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.private import TorchDispatchMode, tree_leaves
from attnres_cli.nn.residual import Residual

Call = Callable[[], object]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""

_MOST_FORMS = 2**20  # of one function: none gets there, as each takes a second or more

TOLERANCE = {"fp32": 1e-3, "bf16": 8e-2}
"""Relative difference of a loss or gradient from the reference's, which is in float32."""


def seconds(call: Call, device: torch.device) -> float:
    """Seconds of a call, the device's work in it included."""
    _wait(device)
    started = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - started


def in_turn(
    calls: Mapping[str, Call],
    rounds: int,
    device: torch.device,
    clock: Callable[[Call, torch.device], float] = seconds,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each call in each round. Every other round runs backwards, to be fair to all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls) if number % 2 == 0 else list(calls)[::-1]:
            times[name].append(clock(calls[name], device))
    return {name: tuple(values) for name, values in times.items()}


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees, as it does in workers: a step of `mhc` in `quick`'s shape
    takes 0.92 of the time without the 3,400 pages that it otherwise gives back and gets again.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_THRESHOLD, 2**25)


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most bytes of tensors that a call holds at once, beyond those there before it."""
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    return max(allocations(call))


def allocations(call: Call) -> list[int]:
    """Bytes of CPU tensors beyond those at the start, after every allocation and release."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to stderr
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        kept = call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profile.export_chrome_trace(str(trace))  # its only public form with every single release
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    del kept
    memory = sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"])
    return list(itertools.accumulate((e["args"]["Bytes"] for e in memory), initial=0))


class _Made(TorchDispatchMode):
    """Weak references to the storages of all tensors that operations return inside, but for those
    of parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._learned = {x.untyped_storage() for x in module.parameters()}
        self._made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        self._made.update(x.untyped_storage() for x in tree_leaves(made) if isinstance(x, Tensor))
        return made

    def n_bytes(self) -> int:
        """Of those that are still there."""
        gc.collect()  # Triton's interpreter leaves circles behind
        return sum(each.nbytes() for each in set(self._made) - self._learned)


@contextlib.contextmanager
def _rest_frozen() -> Iterator[None]:
    """No search for circles in what there was before: one through all of torch takes 0.2 s."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def vectors_held(
    residual: Residual, batch: int, time: int, device: torch.device
) -> tuple[int, ...]:
    """How many vectors of full width per token a design holds while each sublayer computes, and at
    the output norm, without gradients: the bytes of all its tensors over those of one (B, T, D).
    """
    held: list[int] = []
    vector = 4 * batch * time * residual.d_model

    def drawn() -> Tensor:
        return torch.randn(batch, time, residual.d_model, device=device)

    with torch.inference_mode(), _rest_frozen(), _Made(residual) as made:
        state = residual.start(drawn())
        for l in range(1, residual.n_sublayers + 1):
            state = residual.read(state, l)[1]
            if l % 2 and residual.sees_values:
                state = residual.values(state, l, drawn().unsqueeze(2))[1]
            held.append(made.n_bytes() // vector)
            state = residual.write(state, l, drawn())
        held.append(made.n_bytes() // vector)
    return tuple(held)


def copy_speed(device: torch.device) -> float:
    """Bytes per second read and written by a copy within the device's memory, median of five."""
    n_bytes = 2**30 if device.type == "cuda" else 2**27  # beyond most caches
    source = torch.ones(n_bytes // 4, device=device)
    target = torch.zeros_like(source)
    times = [seconds(lambda: target.copy_(source), device) for _ in range(7)]
    return 2 * n_bytes / statistics.median(times[2:])


class Disagreement(NamedTuple):
    """Relative differences from the reference engine; `where` is the parameter that is worst."""

    loss: float
    gradient: float
    where: str

    def complaint(self, precision: str) -> str | None:
        """What is wrong, None where both are within the tolerance of a precision."""
        most = TOLERANCE[precision]
        if not self.loss <= most:
            return f"its loss is off the reference's by {self.loss:.2g}, {most:g} at most"
        if not self.gradient <= most:
            return (
                f"its gradient of {self.where} is off the reference's by {self.gradient:.2g}, "
                f"{most:g} at most"
            )
        return None


def stir(module: nn.Module) -> None:
    """Move a design's parameters off their start, where equal weights of sources hide errors."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter) * 0.3 / parameter.shape[-1:].numel() ** 0.5)


Gradients = dict[str, Tensor]


def loss_and_gradients(
    model: Transformer,
    forward: Callable[[Tensor, Tensor], Tensor],
    windows: Tensor,
    engine: str,
    precision: str,
    rows: int | None = None,
) -> tuple[float, Gradients]:
    """Loss (nats per token) and gradients by name of tokens (B, T + 1), `rows` sequences at a time.
    `forward` is the model or its compiled form. The model holds no gradients afterwards.
    """
    parts, total = windows.split(rows or len(windows)), 0.0
    bf16 = torch.autocast(windows.device.type, torch.bfloat16)
    for part in parts:
        with engines.use(engine), bf16 if precision == "bf16" else contextlib.nullcontext():
            loss = forward(part[:, :-1], part[:, 1:])
        loss = loss * (len(part) / len(windows))
        loss.backward()
        total += loss.item()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return total, named


def disagreement(
    found: tuple[float, Gradients], reference: tuple[float, Gradients]
) -> Disagreement:
    """How far loss and gradients are from the reference's. A gradient is compared in norm, with its
    own or a thousandth of the norm of all together, whichever is larger. A missing one is zero.
    """
    off_loss = abs(found[0] - reference[0]) / max(abs(reference[0]), 1e-12)
    total = sum(float(g.double().square().sum()) for g in reference[1].values()) ** 0.5
    worst, where = 0.0, ""
    for name in reference[1].keys() | found[1].keys():
        zero = torch.zeros_like((found[1] | reference[1])[name])
        mine, right = (each[1].get(name, zero).double() for each in (found, reference))
        size = max(float(right.norm()), 1e-3 * total, 1e-30)
        error = float((mine - right).norm()) / size
        if not error <= worst:
            worst, where = error, name
            if error != error:
                break
    return Disagreement(off_loss, worst, where)


def compiled(model: Transformer, *, graphs: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A model by torch.compile, for the sizes it is called with. With `graphs` its forward and its
    backward pass are CUDA graphs from the third call on. What a call returns, gradients
    too, the next one writes again.
    """
    allow_compiling()
    return torch.compile(model, dynamic=False, mode="reduce-overhead" if graphs else None)


def check(
    model: Transformer,
    forward: Callable[[Tensor, Tensor], Tensor],
    windows: Tensor,
    engine: str,
    precision: str,
    oracle: Transformer | None = None,
) -> tuple[Disagreement, float]:
    """How far an engine is from the reference engine in float32, and the seconds of its own first
    pass, compilation included. The reference computes `oracle` (the same function and parameters;
    None: the model itself), one sequence at a time to bound its memory.
    """
    plain = model if oracle is None else oracle
    reference = loss_and_gradients(plain, plain, windows, "reference", "fp32", rows=1)
    _wait(windows.device)
    started = time.perf_counter()
    found = loss_and_gradients(model, forward, windows, engine, precision)
    _wait(windows.device)
    elapsed = time.perf_counter() - started
    return disagreement(found, reference), elapsed


def evaluation_off(
    model: Transformer,
    forward: Callable[[Tensor, Tensor], Tensor],
    windows: Tensor,
    engine: str,
    precision: str,
    passes: int,
) -> float:
    """How far the loss of an evaluation, the last of so many, is from the reference's (relative).
    The earlier ones see other tokens.
    """
    bf16 = torch.autocast(windows.device.type, torch.bfloat16)
    model.eval()
    try:
        with torch.no_grad(), engines.use("reference"):
            right = float(model(windows[:, :-1], windows[:, 1:]))
        with (
            torch.no_grad(),
            engines.use(engine),
            bf16 if precision == "bf16" else contextlib.nullcontext(),
        ):
            for left in range(passes - 1, -1, -1):
                given = windows.roll(left, 1)
                loss = float(forward(given[:, :-1], given[:, 1:]))
    finally:
        model.train()
    return abs(loss - right) / max(abs(right), 1e-12)


def allow_compiling() -> None:
    """Let torch.compile compile any number of models. All share the code of one `forward`, of which
    by default it keeps 8 forms and makes 256 in a process: later models it silently runs eagerly.
    """
    from torch.compiler import config  # takes a second to import

    config.recompile_limit = config.accumulated_recompile_limit = _MOST_FORMS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cpu_name() -> str:
    """The processor's name, as Linux gives it, and the vector instructions that torch takes there:
    sums round by them, and a virtual machine may call two generations of processors `AMD EPYC`.
    """
    name, vectors = platform.machine(), torch.backends.cpu.get_cpu_capability()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if "model name" in line:
                name = line.partition(":")[2].strip()
    return f"{name} ({vectors})"
