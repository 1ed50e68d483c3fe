"""Each fused kernel under many tiles, against the bytes that it must move at copy speed.

    python benchmarks/tiles.py --json tiles.json           # on a GPU; some two minutes
    TRITON_INTERPRET=1 python benchmarks/tiles.py --quick  # one tile of each, tiny, on a CPU

Every kernel is launched as ops.py launches it, with other tiles, warps and products. Times are
medians with an empty cache (triton.testing.do_bench). A tile's result is compared with what ops.py
computes: `off` is the relative difference in norm. Kernels are compiled by several processes at a
time first. What is the fastest here goes into ops.py by hand.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, failure, save, started

from attnres_cli.nn.depthmix.fused import kernels, ops

Case = tuple[str, dict[str, Any], Callable[[], Tensor], int]
"""Kernel and case, tile, the call, and the bytes that it must move."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Inputs:
    """One source, its gradients and what belongs to them."""

    def __init__(self, n: int, d: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        self.n, self.d = n, d
        self.vs = [draw(n, d).bfloat16() for _ in range(16)]
        self.gs = [draw(n, d).bfloat16() for _ in range(16)]
        self.w = draw(64, d) / d**0.5
        self.z = draw(64, n, 1)
        self.r = 1 / self.vs[0].float().square().mean(dim=-1).sqrt()
        self.constants = [
            torch.stack((draw(n, 1).abs() + 4, torch.full((n, 1), 0.1, device=device)))
            for _ in self.gs
        ]
        self.deltas = [draw(n, 1) for _ in self.gs]
        self.acc, self.along = draw(n, d), draw(n, 1)
        self.row = n * d * 2
        """Bytes of a source."""


def grid(**values: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """All combinations."""
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def of_scores(x: Inputs) -> Iterator[Case]:
    """A source with R sites' queries."""
    precisions = ("ieee",) if INTERPRETED else ("tf32x3", "bf16x3")
    for n_sites in (1, 17, 33):
        z = x.vs[0].new_empty(n_sites, x.n, 1, dtype=torch.float32)
        r, w = x.r.clone(), x.w[:n_sites]

        def call(tile: dict[str, Any], w: Tensor = w, z: Tensor = z, r: Tensor = r) -> Tensor:
            kernels.scores_kernel[(triton.cdiv(x.n, tile["BLOCK_N"]),)](
                x.vs[0], w, z, r, x.n, len(w), z.stride(0), 1e-6, D=x.d, HEADS=1, NORMALISE=True,
                BLOCK_R=max(16, triton.next_power_of_2(len(w))), **tile,
            )  # fmt: skip
            return z

        for tile in grid(
            BLOCK_N=(16, 32, 64, 128), BLOCK_D=(32, 64, 128), PRECISION=precisions,
            num_warps=(2, 4, 8),
        ):  # fmt: skip
            if tile["BLOCK_N"] * tile["BLOCK_D"] <= 8192:
                yield f"scores, {n_sites} sites", tile, lambda t=tile, c=call: c(t), x.row


def of_finish(x: Inputs) -> Iterator[Case]:
    """Gradients of a source that R sites read."""
    precisions = ("ieee",) if INTERPRETED else ("tf32x3", "tf32")
    sums = ("ieee",) if INTERPRETED else ("tf32x3", "bf16x3")
    for n_sites in (1, 17):
        block_r = max(16, triton.next_power_of_2(n_sites))
        dv, w, ds = torch.empty_like(x.vs[0]), x.w[:n_sites], x.z[:n_sites]

        def call(
            tile: dict[str, Any], w: Tensor = w, ds: Tensor = ds, dv: Tensor = dv, b: int = block_r
        ) -> Tensor:
            n_tiles = triton.cdiv(x.n, tile["BLOCK_N"])
            tile = dict(tile)
            each = triton.cdiv(n_tiles, tile.pop("parts"))
            parts = triton.cdiv(n_tiles, each)
            dw = w.new_empty(parts, len(w), x.d)
            kernels.finish_kernel[(parts, triton.cdiv(x.d, tile["BLOCK_D"]))](
                x.acc, x.vs[0], x.along, x.r, w, ds, dv, dw, x.n, len(w), ds.stride(0), each,
                D=x.d, HEADS=1, NORMALISE=True, BLOCK_R=b, BLOCK_H=1, **tile,
            )  # fmt: skip
            return torch.cat((dv.flatten(), dw.sum(dim=0).flatten() / 100))

        for tile in grid(
            BLOCK_N=(16, 32, 64), BLOCK_D=(64, 128, 256), PRECISION=precisions, SUMS=sums,
            num_warps=(4, 8), num_stages=(2,), parts=(64, 256),
        ):  # fmt: skip
            if tile["BLOCK_N"] * tile["BLOCK_D"] <= 8192:
                yield f"finish, {n_sites} sites", tile, lambda t=tile, c=call: c(t), 4 * x.row


def of_gather(x: Inputs) -> Iterator[Case]:
    """What K sites send back."""
    for k in (1, 16):
        acc, along = torch.empty_like(x.acc), torch.empty_like(x.along)
        ds = torch.empty_like(x.z[:k])
        tuples = [ops._padded(each[:k]) for each in (x.gs, x.constants, x.deltas)]  # noqa: SLF001

        def call(
            tile: dict[str, Any],
            k: int = k,
            acc: Tensor = acc,
            along: Tensor = along,
            ds: Tensor = ds,
            tuples: list[tuple[Tensor, ...]] = tuples,
        ) -> Tensor:
            kernels.gather_kernel[(triton.cdiv(x.n, tile["BLOCK_N"]),)](
                x.vs[0], x.z, *tuples, x.vs[0], acc, ds, along, k, x.n, x.n, x.z.stride(0),
                ds.stride(0), 0, WIDTH=x.d, NORM=0, BLOCK_D=triton.next_power_of_2(x.d), **tile,
            )  # fmt: skip
            return acc

        for tile in grid(BLOCK_N=(1, 2, 4), num_warps=(1, 2, 4, 8), num_stages=(2, 3)):
            yield f"gather, {k} reads", tile, lambda t=tile, c=call: c(t), (k + 3) * x.row


def of_mix(x: Inputs) -> Iterator[Case]:
    """A mix of S sources, and of their groups."""
    for s in (4, 16):
        out, constants = torch.empty_like(x.vs[0]), x.acc.new_empty(2, x.n, 1)
        scores = [x.z[i] for i in range(s)]
        pointers, counts = ops._by_type(x.vs[:s], scores)  # noqa: SLF001

        def call(
            tile: dict[str, Any],
            pointers: list[tuple[Tensor, ...]] = pointers,
            counts: list[int] = counts,
            out: Tensor = out,
            constants: Tensor = constants,
        ) -> Tensor:
            of_grid = (triton.cdiv(x.n, tile["BLOCK_N"]), triton.cdiv(x.d, tile["BLOCK_D"]))
            kernels.mix_kernel[of_grid](
                *pointers, out, constants, *counts, x.n, x.n, WIDTH=x.d, NORM=0, **tile
            )
            return out

        for tile in grid(BLOCK_N=(1, 2, 4), BLOCK_D=(256, 512, 1024), num_warps=(1, 2, 4, 8)):
            yield f"mix, {s} sources", tile, lambda t=tile, c=call: c(t), (s + 1) * x.row


def of_group(x: Inputs) -> Iterator[Case]:
    """Four sites that read the same sources at once."""
    for s in (4, 16):
        mixed, score = x.acc.new_empty(4, x.n, x.d), x.acc.new_empty(4, x.n, 1)
        scores = [x.z[i : i + 4] for i in range(s)]
        pointers, counts = ops._by_type(x.vs[:s], scores)  # noqa: SLF001

        def call(
            tile: dict[str, Any],
            pointers: list[tuple[Tensor, ...]] = pointers,
            counts: list[int] = counts,
            mixed: Tensor = mixed,
            score: Tensor = score,
        ) -> Tensor:
            of_grid = (triton.cdiv(x.n, tile["BLOCK_N"]), triton.cdiv(x.d, tile["BLOCK_D"]))
            kernels.mix_group_kernel[of_grid](
                *pointers, mixed, score, *counts, x.n, x.n, 4, x.n, x.n,
                WIDTH=x.d, NORM=0, BLOCK_G=4, **tile,
            )  # fmt: skip
            return mixed

        for tile in grid(BLOCK_N=(1, 2, 4), BLOCK_D=(256, 512, 1024), num_warps=(2, 4, 8)):
            if tile["BLOCK_N"] * tile["BLOCK_D"] <= 2048:
                yield f"group of 4, {s} sources", tile, lambda t=tile, c=call: c(t), (s + 8) * x.row


def of_deltas(x: Inputs) -> Iterator[Case]:
    """The products g . h of tokens, as torch can."""
    g, h = x.gs[0], x.vs[0]
    ways: dict[str, Callable[[], Tensor]] = {
        "bmm": lambda: torch.bmm(g.float()[:, None], h.float()[:, :, None]),
        "sum": lambda: (g.float() * h.float()).sum(dim=-1),
    }
    ways["kernel"] = lambda: ops.dots(g, h, 1)
    for name, way in ways.items():
        yield "deltas", {"way": name}, way, 2 * x.row


KINDS = (of_scores, of_finish, of_gather, of_mix, of_group, of_deltas)


def cases(x: Inputs, only: str, *, quick: bool) -> list[Case]:
    """All of the kernels whose names begin so, or the first tile of each."""
    found = [each for kind in KINDS for each in kind(x) if each[0].startswith(only)]
    return list({each[0]: each for each in found[::-1]}.values()) if quick else found


def main() -> None:
    """Compile all, then time all."""
    parser = arguments("tiles of the fused kernels", rounds=0)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--only", default="", help="kernels whose names begin so")
    parser.add_argument("--compile", nargs=2, type=int, metavar=("I", "N"), help="part I of N only")
    given = parser.parse_args()
    device = started(given.threads, "cpu" if INTERPRETED else "cuda")
    x = Inputs(32, 64, device) if given.quick else Inputs(16384, given.width, device)
    found = cases(x, given.only, quick=given.quick)
    if given.compile:
        for _, _, call, _ in found[given.compile[0] :: given.compile[1]]:
            _tried(call, device)
        return
    if not given.quick:
        _compiled_by_many(given.width, given.only, max(1, min(14, (os.cpu_count() or 2) - 1)))
    results: list[dict[str, Any]] = []
    machine = facts(device, given.threads)
    right: dict[str, Tensor] = {}
    for name, tile, call, n_bytes in found:
        entry: dict[str, Any] = {"kernel": name, "tile": tile, "wrong": _tried(call, device)}
        if entry["wrong"] is None:
            result = call().float()
            first = right.setdefault(name, result.clone())
            entry["off"] = float((result.view_as(first) - first).norm() / first.norm())
            if not INTERPRETED:
                ms = triton.testing.do_bench(call, warmup=5, rep=20, return_mode="median")
                entry |= {"ms": ms, "share": n_bytes / (ms / 1e3) / machine["copy_speed"]}
        results.append(entry)
    save({"benchmark": "tiles", "machine": machine, "results": results}, given.json)
    _print(results)


def _tried(call: Callable[[], Tensor], device: torch.device) -> str | None:
    try:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # too many registers, too much shared memory: the others go on
        return failure(error, device)
    return None


def _compiled_by_many(width: int, only: str, n: int) -> None:
    command = [sys.executable, __file__, "--width", str(width), "--only", only, "--compile"]
    parts = [subprocess.Popen([*command, str(i), str(n)]) for i in range(n)]  # noqa: S603
    for part in parts:
        part.wait()


def _print(results: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(each["kernel"] for each in results):
        mine = [each for each in results if each["kernel"] == name]
        timed = sorted((e for e in mine if "ms" in e), key=lambda e: e["ms"])
        print(f"{name}: {len(mine)} tiles, {sum(e['wrong'] is not None for e in mine)} failed")
        for each in timed[:4]:
            tile = " ".join(f"{k}={v}" for k, v in each["tile"].items())
            print(
                f"  {each['ms']:.4f} ms, share {each['share']:.2f}, off {each['off']:.1e}: {tile}"
            )


if __name__ == "__main__":
    main()
