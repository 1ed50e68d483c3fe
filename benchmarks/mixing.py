"""Depth mixing alone, against the bytes it must move at the speed at which memory is copied.

    python benchmarks/mixing.py --json mixing.json
    python benchmarks/mixing.py --device cuda --json mixing_gpu.json

Three patterns over sources that are given, without sublayers between them: `read`, one site that
reads S sources; `Full`, S sites of which site l reads sources 0..l-1; `Block(4)`, the same with
sources of four sublayers. Bytes are the least that a read by itself can move: forward, each source
of a site once and the mix once; backward, by gathering, each gradient of a site once per source it
read, and each source and its gradient once. The share is bytes / time / copy speed, the copy timed
on this machine in the same run; an engine that reads a source once for several sites may pass 1.
Backward is the time of both less that of forward, of the same round. On a GPU it is the time of
the kernels alone: they are launched while it waits, since one read by itself takes the processor
longer to launch than a GPU to compute. In a model that is compiled the launches are few.

Outputs and all gradients are compared with the reference engine in float32 first.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, failure, finish, save, spread_text, started

from attnres_cli.nn import cost, measure
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

TARGETS = {"forward": 0.80, "backward": 0.65}
"""Shares of copy speed, for fused kernels on a GPU."""

Mixed = list[Tensor]

AHEAD = 100_000_000
"""Cycles for which a GPU waits, some 0.05 s, while the processor launches what is timed."""


@dataclass(frozen=True)
class Pattern:
    """Which sites read which sources."""

    name: str
    visible: tuple[tuple[int, ...], ...]

    @property
    def n_sources(self) -> int:
        """Sources that some site reads."""
        return 1 + max(map(max, self.visible))

    def bytes_moved(self, n_tokens: int, d_model: int, itemsize: int) -> tuple[int, int]:
        """The least that reads by themselves move, forward and backward."""
        pairs, row = sum(map(len, self.visible)), n_tokens * d_model * itemsize
        return (pairs + len(self.visible)) * row, (pairs + 2 * self.n_sources) * row


def read(s: int) -> Pattern:
    """One site over s sources."""
    return Pattern(f"read of {s}", (tuple(range(s)),))


def trunk(n_sublayers: int, block_size: int) -> Pattern:
    """The sites of a trunk from its second sublayer on: the first one mixes nothing."""
    visible = tuple(
        tuple(sorted({0, *range(block_size, l, block_size), l - 1}))
        for l in range(2, n_sublayers + 2)
    )
    return Pattern(
        f"{'Full' if block_size == 1 else f'Block({block_size})'} {n_sublayers}", visible
    )


class Mixing:
    """Sources, queries and incoming gradients of a pattern, and the calls that are timed."""

    def __init__(
        self,
        pattern: Pattern,
        engine: str,
        dtype: torch.dtype,
        size: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        generator = torch.Generator(device).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        d_model, sites = size[-1], len(pattern.visible)
        self.pattern, self.engine = pattern, engine
        self.sources = [draw(*size).to(dtype).requires_grad_() for _ in range(pattern.n_sources)]
        self.query = (draw(sites, d_model) / d_model**0.5).requires_grad_()
        self.gain = torch.ones(sites, d_model, device=device).requires_grad_()
        self.gradients = [draw(*size).to(dtype) for _ in range(sites)]
        self.call: Callable[[], Mixed] = self.mix
        if engine == "compile":
            self.call = torch.compile(self.mix, dynamic=False)

    def mix(self) -> Mixed:
        """Every site's, as the engine in use computes it."""
        history = History(
            Scoring(self.pattern.visible, "softmax", query=self.query, gain=self.gain)
        )
        mixed, made = [], 0
        for site, seen in enumerate(self.pattern.visible):
            while made <= seen[-1]:
                history = history.append(self.sources[made])
                made += 1
            h, history = history.read(site)
            mixed.append(h)
        return mixed

    def forward(self) -> Mixed:
        """All mixes, with their graph."""
        with engines.use(self.engine):
            return self.call()

    def forward_backward(self) -> None:
        """All mixes, and the gradients of sources, queries and gains."""
        torch.autograd.backward(self.forward(), self.gradients)
        for x in self.leaves:
            x.grad = None

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are of."""
        return [*self.sources, self.query, self.gain]

    def result(self) -> list[Tensor]:
        """All mixes and all gradients, in float32."""
        mixed = self.forward()
        gradients = torch.autograd.grad(mixed, self.leaves, self.gradients)
        return [x.detach().float() for x in (*mixed, *gradients)]


def of_kernels(call: measure.Call, device: torch.device) -> float:
    """Seconds of a call's kernels on a GPU, which waits until they are launched."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    torch.cuda._sleep(AHEAD)  # noqa: SLF001  # there is no public one
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) / 1000


def main() -> None:
    """Every pattern under every engine, in turn."""
    parser = arguments("depth mixing alone, against copy speed", rounds=21)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--engines", nargs="+", help="default: reference eager compile, or triton")
    given = parser.parse_args()
    device = started(given.threads, given.device)
    cuda = device.type == "cuda"
    engines = given.engines or ["reference", "eager", "compile", *(["triton"] if cuda else [])]
    size = (8, 2048, 1024) if cuda else (8, 256, 256)
    patterns = [read(4), read(9), read(17), trunk(16, 1), trunk(32, 1), trunk(32, 4)]
    if given.quick:
        size, patterns = (2, 8, 16), [read(3), trunk(4, 1), trunk(4, 2)]
    dtype = torch.bfloat16 if cuda else torch.float32
    machine = facts(device, given.threads)
    results: list[dict[str, Any]] = []
    wrong: list[str] = []
    document = {"benchmark": "mixing", "machine": machine, "size": size, "results": results}
    measure.allow_compiling()
    for pattern in patterns:
        mixings = {name: Mixing(pattern, name, dtype, size, device) for name in engines}
        found = measured(mixings, dtype, size, given.rounds, device, machine["copy_speed"])
        wrong += [f"{arm['pattern']} ({arm['engine']}): {arm['wrong']}" for arm in found]
        results += found
        _print(found)
        save(document, given.json)
    finish(document, given.json, [line for line in wrong if not line.endswith(": None")])


def measured(
    mixings: dict[str, Mixing],
    dtype: torch.dtype,
    size: tuple[int, int, int],
    rounds: int,
    device: torch.device,
    copy_speed: float,
) -> list[dict[str, Any]]:
    """One pattern by all engines in turn, those that are wrong left out."""
    pattern = next(iter(mixings.values())).pattern
    right = _right(Mixing(pattern, "reference", torch.float32, size, device))
    most = measure.TOLERANCE["fp32" if dtype == torch.float32 else "bf16"]
    wrong: dict[str, str | None] = {}
    for name, mixing in mixings.items():
        try:
            error = _error(mixing.result(), right)
            wrong[name] = None if error <= most else f"off the reference by {error:.2g}"
        except Exception as caught:  # the others go on
            wrong[name] = failure(caught, device)
    cuda = device.type == "cuda"
    good = {name: mixing for name, mixing in mixings.items() if wrong[name] is None}
    for mixing in good.values():
        mixing.forward_backward()
    calls: dict[str, measure.Call] = {
        f"{name} forward": mixing.forward for name, mixing in good.items()
    }
    calls |= {f"{name} both": mixing.forward_backward for name, mixing in good.items()}
    times = measure.in_turn(calls, rounds, device, of_kernels if cuda else measure.seconds)
    moved = dict(zip(TARGETS, pattern.bytes_moved(*_flat(size), dtype.itemsize), strict=True))
    results = []
    for name, complaint in wrong.items():
        entry: dict[str, Any] = {"pattern": pattern.name, "engine": name, "wrong": complaint}
        if name in good:
            entry |= _shares(times[f"{name} forward"], times[f"{name} both"], moved, copy_speed)
        results.append(entry)
    return results


def _shares(
    forward: tuple[float, ...],
    both: tuple[float, ...],
    moved: dict[str, int],
    copy_speed: float,
) -> dict[str, Any]:
    """Times, and shares of copy speed, of one engine."""
    backward = tuple(all_of_it - part for part, all_of_it in zip(forward, both, strict=True))
    entry: dict[str, Any] = {}
    for name, seconds in (("forward", forward), ("backward", backward)):
        time = cost.spread(seconds)
        share = moved[name] / time.median / copy_speed if time.median > 0 else None
        entry[name] = {
            "seconds": time._asdict(), "bytes": moved[name], "share": share,
            "target": TARGETS[name],
        }  # fmt: skip
    return entry


def _flat(size: tuple[int, int, int]) -> tuple[int, int]:
    return size[0] * size[1], size[2]


def _right(whole: Mixing) -> list[Tensor]:
    """All mixes and gradients, of one sequence at a time, which bounds the reference's memory."""
    parts = []
    for row in range(len(whole.sources[0])):
        part = copy.copy(whole)
        part.sources = [v[row : row + 1].detach().requires_grad_() for v in whole.sources]
        part.gradients = [g[row : row + 1] for g in whole.gradients]
        part.call = part.mix
        parts.append(part.result())
    *rows, query, gain = (list(found) for found in zip(*parts, strict=True))
    return [*(torch.cat(found) for found in rows), sum(query[1:], query[0]), sum(gain[1:], gain[0])]


def _error(found: list[Tensor], right: list[Tensor]) -> float:
    """The largest relative difference in norm of a mix or gradient."""
    whole = max(float(x.norm()) for x in right)
    errors = [
        float((x - y).norm()) / max(float(y.norm()), 1e-3 * whole)
        for x, y in zip(found, right, strict=True)
    ]
    return max(errors, key=lambda error: (error != error, error))


def _print(results: list[dict[str, Any]]) -> None:
    for arm in results:
        line = f"{arm['pattern']:12} {arm['engine']:10}"
        for name in TARGETS:
            if name in arm:
                time, share = cost.Spread(**arm[name]["seconds"]), arm[name]["share"]
                told = "-" if share is None else f"{share:.2f}"
                line += f"  {name} {spread_text(time, 1000, 2):>24} ms, share {told}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
