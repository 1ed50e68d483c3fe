"""What the compiler says of every kernel that a training step launches, for GPUs that are not here.

    python benchmarks/targets.py                                   # sm_90, width 1024
    python benchmarks/targets.py --targets 80 90 100 120 --widths 1024 2048 4096 8192 --all

Triton compiles down to machine code without a device: a stand-in driver reports a target, every
launch becomes a warm-up, and the project's own histories run on CPU tensors, forward and backward.
Registers, spilled bytes per thread and shared memory are ptxas's; of the spills those inside of
loops are counted in the machine code (disassembly.py). Bytes are counted in the compiled
code (traffic.py) for 65,536 tokens, over the bytes of all that an operator is given and returns;
queries, the same for every program, stay in the cache and count once. Seconds are of all cores, for
all kernels of an arm, whichever arm had them first. Exit code 1 where a bound is passed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bounds
import common
import disassembly
import traffic

from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import engines

TOKENS = 65536
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


def counted(
    target: int, width: int, heads: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What had to be compiled of every operator on 65,536 tokens; and for each the bytes counted in
    its code, and those it needs.
    """
    from attnres_cli.nn.depthmix.fused import ops

    def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*size, dtype=dtype)  # of memory that is never touched

    n, sites, new, results = TOKENS, 32, [], []
    v, g = make(n, width, dtype=torch.bfloat16), make(n, width)
    z, w, r, one = make(sites, n, heads), make(sites, width), make(n), make(n, heads)
    group = make(8, n, heads)
    calls: dict[str, tuple[Any, list[Any]]] = {
        "scores": (ops.scores, [v, w, heads, True, 1e-6]),
        "mix": (ops.mix, [[g] + [v] * 5, [one] * 6, 0, torch.float32]),
        "mix_group": (ops.mix_group, [[g] + [v] * 24, [group] * 25, 0]),
        "dots": (ops.dots, [g, v, heads]),
        "gather": (
            ops.gather, [v, z, [g] * sites, [make(2, n, heads)] * sites, [one] * sites, None, 0]
        ),
        "finish": (ops.finish, [g, v, r, w, z, one]),
    }  # fmt: skip
    for name, (call, given) in calls.items():
        with compiling(target) as launches:
            made = call(*given)
        new += _new(launches, width, f"heads={heads}, {sites} sites")
        found = [_bytes(launch) for launch in launches]
        needed = _size(given) + _size(made)
        entry: dict[str, Any] = {"kernel": name, "target": target, "width": width, "heads": heads}
        again = sum(each.pop(("w", False), 0) for each in found)
        loads = w.nbytes * (again > 0)
        loads += sum(n for each in found for (_, stored), n in each.items() if not stored)
        stores = sum(n for each in found for (_, stored), n in each.items() if stored)
        entry |= {"loads": loads, "stores": stores, "needed": needed}
        entry |= {"ratio": round((loads + stores) / needed, 3)}
        results.append(entry | {"from_cache": round(max(0, again - w.nbytes) / needed, 3)})
    return new, results


def _new(launches: list[dict[str, Any]], width: int, arm: str) -> list[dict[str, Any]]:
    """What was compiled, without what holds tensors, and how many of its spills are in loops."""
    kept = ("kernel", "target", "hash", "seconds", "registers", "spills", "shared")
    found = []
    for one in launches:
        if one["new"]:
            entry = {name: one[name] for name in kept} | {"width": width, "arm": arm, "in_loops": 0}
            if max(one["spills"]):
                entry["in_loops"] = disassembly.spills_in_loops(one["code"].asm["cubin"])
            found.append(entry)
    return found


def _bytes(launch: dict[str, Any]) -> dict[tuple[str, bool], int]:
    """Of a launch, by argument and whether they are stored: those of the first program of a row of
    the grid and of the last, which stands for all others.
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
    found: dict[tuple[str, bool], int] = {}
    threads = 32 * launch["code"].metadata.num_warps
    for place, times in ((0, 1), (columns - 1, columns - 1)):
        if times:
            code = launch["code"].asm["ptx"]
            moved = traffic.count(code, values, (rows // 2, place), threads)
            for (owner, stored), n in moved.items():
                name = owners[owner], stored
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
    specs = ("attnres", "attnres:block_size=4,heads=8"), ("attnres:heads=8", "attnres:block_size=4")
    for number, width in enumerate(widths):  # either with either heads, at every other width
        here = specs[number % 2] if everything else ("attnres", "attnres:block_size=4")
        found += [(spec, width, n_sublayers, f32, bf16) for spec in here]
    if everything:
        found += [(f"attnres:{each}", widths[0], n_sublayers, f32, bf16) for each in OPTIONS]
        found += [(f"mhc:n_streams={n}", widths[0], 4, f32, bf16) for n in (2, 4, 8)]
        for spec in ("attnres", "attnres:block_size=4"):
            found.append((spec, widths[0], 2 * n_sublayers, f32, bf16))
            found.append((spec, widths[-1], n_sublayers, bf16, bf16))
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
    document: dict[str, Any] = {"benchmark": "targets", "kernels": [], "arms": [], "bytes": []}
    with tempfile.TemporaryDirectory() as cache:  # what comes from a cache has no figures
        os.environ["TRITON_CACHE_DIR"] = cache
        for target in given.targets:
            costs: dict[str, float] = {}
            for arm in arms(given.widths, 4 if given.quick else given.sublayers, given.all):
                kernels, entry = compiled(costs, target, *arm)
                document["kernels"] += kernels
                document["arms"].append(entry)
                print(
                    "sm_{target} {arm}: {kernels} kernels, {seconds} s".format(**entry), flush=True
                )
            for width in given.widths:
                for heads in (1, 8):
                    kernels, entries = counted(target, width, heads)
                    document["kernels"] += kernels
                    document["bytes"] += entries
    print(f"\n{bounds.tables(document)}")
    document["machine"] = common.facts(torch.device("cpu"), torch.get_num_threads())
    common.finish(document, given.json, bounds.passed(document))


def compiled(
    costs: dict[str, float], target: int,
    spec: str, width: int, n_sublayers: int, first: torch.dtype, other: torch.dtype,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """What of an arm had to be compiled, and the whole arm; `costs` has seconds by kernel."""
    types = " and ".join(dict.fromkeys(str(each)[6:] for each in (first, other)))
    arm = f"{spec}, {n_sublayers} sublayers, width {width}, {types}"
    with compiling(target) as launches:
        step(spec, width, n_sublayers, first, other)
    new = _new(launches, width, arm)
    costs |= {one["hash"]: one["seconds"] for one in new}
    hashes = {one["hash"] for one in launches}
    seconds = round(sum(costs[one] for one in hashes), 1)
    entry = {"target": target, "arm": arm, "kernels": len(hashes), "seconds": seconds}
    return new, entry


if __name__ == "__main__":
    main()
