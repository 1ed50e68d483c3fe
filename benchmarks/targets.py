"""What the compiler says of every kernel that a training step launches, for GPUs that are not here.

    python benchmarks/targets.py                                   # sm_90, width 1024
    python benchmarks/targets.py --targets 80 90 100 120 --widths 1024 2048 4096 8192 --all

Triton compiles down to machine code without a device: a stand-in driver reports a target, every
launch becomes a warm-up, and the project's own histories run on CPU tensors, forward and backward.
Registers, spilled bytes per thread and shared memory are ptxas's. Bytes are counted in the compiled
code (traffic.py) for 65,536 tokens, over the bytes of all that an operator is given and returns;
queries, the same for every program, stay in the cache and count once. Exit code 1 where a bound is
passed. Give a fresh TRITON_CACHE_DIR: what comes from a cache has no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import traffic

from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import engines

TOKENS = 65536
SHARED = 99 * 1024
SPILLS = {"scores": 0, "mix": 0, "gather": 0}
"""Bytes of stores that a thread may spill; 128 of other kernels."""
RATIO = {"finish": 1.12}
"""Of bytes counted over needed; 1.1 of other kernels. finish: width 1024, 8 heads."""
OPTIONS = ("norm=sigmoid", "score=static", "score=static,norm=none", "key_norm=off")


class StandIn:
    """A driver that knows its target and nothing else."""

    def __init__(self, target: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", target, 32)

    def get_current_target(self) -> Any:
        """What is compiled for."""
        return self.target

    def get_current_device(self) -> int:
        """The key of compiled kernels: each target has its own."""
        return self.target.arch

    def get_current_stream(self, _device: int) -> int:
        """None is used."""
        return 0


@contextlib.contextmanager
def compiling(target: int) -> Iterator[list[dict[str, Any]]]:
    """Inside, launches compile for a target; what was compiled and launched is appended."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(StandIn(target))
    triton.knobs.nvidia.dump_ptxas_log = True
    run, launches = JITFunction.run, []

    def compile_alone(self: Any, *given: Any, grid: Any, **named: Any) -> Any:
        named.pop("warmup")
        log, began = io.StringIO(), _seconds()
        with contextlib.redirect_stdout(log):
            kernel = run(self, *given, grid=grid, warmup=True, **named)
        told = log.getvalue()
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
        registers = re.search(r"Used (\d+) registers", told)
        launches.append(
            {
                "kernel": self.fn.__name__.removesuffix("_kernel"),
                "target": target,
                "hash": kernel.hash,
                "new": registers is not None,
                "seconds": round(_seconds() - began, 2),
                "registers": int(registers[1]) if registers else None,
                "spills": [int(spills[1]), int(spills[2])] if spills else None,
                "shared": kernel.metadata.shared,
                "code": kernel,
                "given": dict(zip(self.arg_names, given, strict=False)) | named,
                "grid": (*grid, 1)[:2],
            }
        )
        return kernel

    JITFunction.run = compile_alone
    try:
        yield launches
    finally:
        JITFunction.run = run


def step(spec: str, width: int, n_sublayers: int, first: torch.dtype, other: torch.dtype) -> None:
    """A forward and a backward of a design, its sublayers the identity in the type `other`."""
    design = variant.parse(spec).build(width, n_sublayers)
    with engines.use("triton"):
        x = torch.zeros(1, 16, width, dtype=first, requires_grad=True)
        state = design.start(x)
        for l in range(1, n_sublayers + 1):
            h, state = design.read(state, l)
            state = design.write(state, l, h.to(other) * 1)
        design.finish(state).float().sum().backward()


def counted(target: int, width: int, heads: int) -> list[dict[str, Any]]:
    """Every operator on 65,536 tokens: bytes counted in its code, and bytes it needs."""
    from attnres_cli.nn.depthmix.fused import ops

    def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*size, dtype=dtype)  # of memory that is never touched

    n, sites, results = TOKENS, 32, []
    v, g = make(n, width, dtype=torch.bfloat16), make(n, width)
    z, w, r, one = make(sites, n, heads), make(sites, width), make(n), make(n, heads)
    group = make(8, n, heads)
    calls: dict[str, tuple[Any, list[Any]]] = {
        "scores": (ops.scores, [v, w, heads, True, 1e-6]),
        "mix": (ops.mix, [[g] + [v] * 5, [one] * 6, 0, torch.float32]),
        "mix_group": (ops.mix_group, [[g] + [v] * 24, [group] * 25, 0]),
        "gather": (
            ops.gather, [v, z, [g] * sites, [make(2, n, heads)] * sites, [one] * sites, None, 0]
        ),
        "finish": (ops.finish, [g, v, z, r, w, z]),
    }  # fmt: skip
    for name, (call, given) in calls.items():
        with compiling(target) as launches:
            made = call(*given)
        found = [_bytes(launch) for launch in launches]
        needed = _size(given) + _size(made)
        entry: dict[str, Any] = {"kernel": name, "target": target, "width": width, "heads": heads}
        cached = sum(each.pop("w", 0) for each in found) - w.nbytes * (name in ("scores", "finish"))
        total = sum(sum(each.values()) for each in found) + w.nbytes * (cached > 0)
        entry |= {"bytes": total, "needed": needed, "ratio": round(total / needed, 3)}
        results.append(entry | {"from_cache": round(max(0, cached) / needed, 3)})
    return results


def _bytes(launch: dict[str, Any]) -> dict[str, int]:
    """Of a launch, by argument: those of the first program of a row of the grid and of the last,
    which stands for all others.
    """
    values: list[int | None] = []
    owners: list[str] = []

    def flatten(name: str, value: Any, kind: Any) -> None:
        if isinstance(kind, tuple):
            for one, its in zip(value, kind, strict=True):
                flatten(name, one, its)
        elif kind != "constexpr":
            values.append(None if isinstance(value, Tensor) else value)
            owners.append(name)

    for name, kind in launch["code"].src.signature.items():
        flatten(name, launch["given"].get(name), kind)
    rows, columns = launch["grid"]
    found: dict[str, int] = {}
    threads = 32 * launch["code"].metadata.num_warps
    for place, times in ((0, 1), (columns - 1, columns - 1)):
        if times:
            code = launch["code"].asm["ptx"]
            for owner, n in traffic.count(code, values, (rows // 2, place), threads).items():
                name = owners[owner]
                found[name] = found.get(name, 0) + n * times * rows
    return found


def _size(given: Any) -> int:
    if isinstance(given, Tensor):
        return given.nbytes
    return sum(map(_size, given)) if isinstance(given, (list, tuple)) else 0


def _seconds() -> float:
    """Of all cores, in this process and in those it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, kinds))


def arms(widths: list[int], n_sublayers: int, everything: bool) -> list[tuple[Any, ...]]:
    """(spec, width, sublayers, type of v_0, of outputs)."""
    f32, bf16 = torch.float32, torch.bfloat16
    found: list[tuple[Any, ...]] = []
    for width in widths:
        for spec in ("attnres", "attnres:block_size=4"):
            found.append((spec, width, n_sublayers, f32, bf16))
            if everything:
                parts = spec.partition(":")
                eight = f"{parts[0]}:{','.join(filter(None, (parts[2], 'heads=8')))}"
                found.append((eight, width, n_sublayers, f32, bf16))
    if everything:
        found += [(f"attnres:{each}", widths[0], n_sublayers, f32, bf16) for each in OPTIONS]
        found += [("attnres", widths[0], 2 * n_sublayers, f32, bf16)]
        found += [
            (spec, widths[-1], n_sublayers, bf16, bf16)
            for spec in ("attnres", "attnres:block_size=4")
        ]
    return found


def main() -> None:
    """Compile, count, print, and say which bounds are passed."""
    parser = argparse.ArgumentParser(description="what the compiler says of the fused kernels")
    parser.add_argument("--targets", type=int, nargs="+", default=[90])
    parser.add_argument("--widths", type=int, nargs="+", default=[1024])
    parser.add_argument("--sublayers", type=int, default=32)
    parser.add_argument(
        "--all", action="store_true", help="heads, norms, types and twice the depth"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="four sublayers")
    parser.add_argument("--rounds", type=int, help="of no use here")
    given = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("the interpreter compiles nothing: unset TRITON_INTERPRET")
    kernels: list[dict[str, Any]] = []
    bytes_moved: list[dict[str, Any]] = []
    wrong: list[str] = []
    for target in given.targets:
        for arm in arms(given.widths, 4 if given.quick else given.sublayers, given.all):
            found = compiled(target, *arm)
            kernels += found["kernels"]
            wrong += [line for one in found["kernels"] if (line := passed(one, found["arm"]))]
            if len(found["hashes"]) > 12 and arm[2] <= 32:
                wrong.append(f"{found['arm']}: {len(found['hashes'])} kernels, 12 at most")
            print(
                f"{found['arm']}: {len(found['hashes'])} kernels, {found['seconds']:.1f} s",
                flush=True,
            )
        for width in given.widths:
            for heads in (1, 8):
                bytes_moved += counted(target, width, heads)
    wrong += [
        "{kernel} sm_{target} {width} heads={heads}: {ratio} of its bytes".format(**one)
        for one in bytes_moved
        if one["ratio"] > RATIO.get(one["kernel"], 1.1)
    ]
    _print(kernels, bytes_moved)
    machine = common.facts(torch.device("cpu"), torch.get_num_threads())
    document = {
        "benchmark": "targets",
        "machine": machine,
        "kernels": kernels,
        "bytes": bytes_moved,
    }
    common.finish(document, given.json, wrong)


def compiled(
    target: int, spec: str, width: int, n_sublayers: int, first: torch.dtype, other: torch.dtype
) -> dict[str, Any]:
    """What one arm launches, and what of it had to be compiled."""
    types = f"{first}/{other}".replace("torch.", "")
    arm = f"sm_{target} {spec} {n_sublayers} sublayers, width {width}, {types}"
    with compiling(target) as launches:
        step(spec, width, n_sublayers, first, other)
    new = [launch for launch in launches if launch["new"]]
    kept = [{k: v for k, v in one.items() if k not in ("code", "given", "grid")} for one in new]
    seconds = sum(one["seconds"] for one in new)
    hashes = {one["hash"] for one in launches}
    kept = [one | {"width": width, "arm": arm} for one in kept]
    return {"arm": arm, "kernels": kept, "hashes": hashes, "seconds": seconds}


def passed(kernel: dict[str, Any], arm: str) -> str | None:
    """The bound that a kernel passes, in words, or None."""
    most = SPILLS.get(kernel["kernel"], 128)
    if max(kernel["spills"]) > most or kernel["shared"] > SHARED:
        return f"{arm}: {kernel['kernel']} spills {kernel['spills']}, shares {kernel['shared']}"
    return None


def _print(kernels: list[dict[str, Any]], bytes_moved: list[dict[str, Any]]) -> None:
    """Markdown: the worst of each kernel by target and width, and bytes over those needed."""
    print("\n| kernel | target | width | registers | spills | shared | bytes, 1 and 8 heads |")
    print("|---|---|---|---|---|---|---|")
    places = sorted({(one["kernel"], one["target"], one["width"]) for one in kernels})
    for place in places:
        here = [one for one in kernels if (one["kernel"], one["target"], one["width"]) == place]
        registers, shared = (max(one[name] for one in here) for name in ("registers", "shared"))
        spills = max(max(one["spills"]) for one in here)
        ratios = [
            str(one["ratio"]) for one in bytes_moved
            if (one["kernel"], one["target"], one["width"]) == place
        ]  # fmt: skip
        cells = (*place, registers, spills, shared, ", ".join(ratios))
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
