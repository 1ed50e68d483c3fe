"""The kernels as PyTorch operators `attnres::...`, which compilers and CUDA graphs take whole.

Each has a fake that says what it returns, and none changes its arguments. Shapes as in kernels.py;
sources and gradients are (N, D). Scores (R, N, H) and gradients of scores are allocated with N
rounded up to 16, so that every row of theirs is aligned alike and no kernel is compiled anew for
another number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from attnres_cli.nn.depthmix.fused import kernels

NORMS = {"softmax": 0, "sigmoid": 1, "none": 2}
"""The numbers by which kernels know norms."""

PARTS = 128
"""Most parts that a sum over tokens is made in; fixed, so that its order is the same everywhere."""

LENGTHS = (16, 64)
"""What tuples are padded to, and multiples of the last: a kernel is compiled for each length."""

_SITES = 64
"""Whose queries a program keeps without spilling."""


@torch.library.custom_op("attnres::scores", mutates_args=())
def scores(v: Tensor, w: Tensor, heads: int, normalise: bool, eps: float) -> tuple[Tensor, Tensor]:
    """(R, N', H) scores of a source (N, D) with folded queries (R, D); its (N,) reciprocal rms.
    N' is N rounded up to 16; what lies beyond N is not defined.
    """
    v, w = v.contiguous(), w.contiguous()
    n, d = v.shape
    z, r = _empty_scores(v, len(w), heads), v.new_empty(n, dtype=torch.float32)
    block_r, most_n, most_d, warps = _block(len(w), 32), 128, 32, 8
    precision = _precision(v)
    if precision == "bf16x3":
        block_r, most_n, most_d, warps = _block(len(w), 16), 64, 64, 4
    block_n = 1024 * warps // (block_r * triton.next_power_of_2(heads))
    with torch.cuda.device_of(v):
        kernels.scores_kernel[(triton.cdiv(n, block_n),)](
            v, w, z, r, n, len(w), z.stride(0), eps,
            D=d, HEADS=heads, NORMALISE=normalise, PRECISION=precision,
            BLOCK_N=min(most_n, max(16, block_n)), BLOCK_R=block_r,
            BLOCK_D=_block(d // heads, 16, most_d), num_warps=warps,
        )  # fmt: skip
    return z, r


@scores.register_fake
def _(v: Tensor, w: Tensor, heads: int, *_: object) -> tuple[Tensor, Tensor]:
    return _empty_scores(v, w.shape[0], heads), v.new_empty(v.shape[0], dtype=torch.float32)


@torch.library.custom_op("attnres::mix", mutates_args=())
def mix(
    sources: Sequence[Tensor], scores: Sequence[Tensor], norm: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(N, D) sum of sources under scores (N, H), or (1, H); the softmax's constants (2, N, H)."""
    (n, d), heads = sources[0].shape, scores[0].shape[-1]
    if len({len(z) for z in scores}) > 1:
        scores = [z.expand(n, -1) for z in scores]
    out = sources[0].new_empty(n, d, dtype=dtype)
    constants = sources[0].new_empty(2, n, heads, dtype=torch.float32)
    pointers, counts = _by_type(sources, [z.contiguous() for z in scores])
    block_n, block_d = _tile(d // heads, 512, 4)
    with torch.cuda.device_of(out):
        kernels.mix_kernel[(triton.cdiv(n * heads, block_n), triton.cdiv(d // heads, block_d))](
            *pointers, out, constants, *counts, n * heads, scores[0].numel(),
            WIDTH=d // heads, NORM=norm, BLOCK_N=block_n, BLOCK_D=block_d, num_warps=1,
        )  # fmt: skip
    return out, constants


@mix.register_fake
def _(
    sources: Sequence[Tensor], scores: Sequence[Tensor], norm: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    n, d = sources[0].shape
    constants = sources[0].new_empty(2, n, scores[0].shape[-1], dtype=torch.float32)
    return sources[0].new_empty(n, d, dtype=dtype), constants


@torch.library.custom_op("attnres::mix_group", mutates_args=())
def mix_group(
    sources: Sequence[Tensor], scores: Sequence[Tensor], norm: int
) -> tuple[Tensor, Tensor]:
    """(G, N, D) float32 mixes of the same sources for G sites, under scores (G, N, H) of each
    source, or (G, 1, H) of a table; (G, N', H) scores of the mixes, not defined without a softmax.
    """
    (n, d), (n_sites, period, heads) = sources[0].shape, scores[0].shape
    mixed = sources[0].new_empty(n_sites, n, d, dtype=torch.float32)
    score = _empty_scores(sources[0], n_sites, heads)
    pointers, counts = _by_type(sources, scores)
    block_g = triton.next_power_of_2(n_sites)
    block_n, block_d = _tile(d // heads, 2048 // block_g, 2)
    with torch.cuda.device_of(mixed):
        kernels.mix_group_kernel[
            (triton.cdiv(n * heads, block_n), triton.cdiv(d // heads, block_d))
        ](
            *pointers, mixed, score, *counts, n * heads, period * heads,
            n_sites, scores[0].stride(0), score.stride(0),
            WIDTH=d // heads, NORM=norm, BLOCK_G=block_g, BLOCK_N=block_n, BLOCK_D=block_d,
            num_warps=2,
        )  # fmt: skip
    return mixed, score


@mix_group.register_fake
def _(sources: Sequence[Tensor], scores: Sequence[Tensor], norm: int) -> tuple[Tensor, Tensor]:
    (n, d), (n_sites, _, heads) = sources[0].shape, scores[0].shape
    score = _empty_scores(sources[0], n_sites, heads)
    return sources[0].new_empty(n_sites, n, d, dtype=torch.float32), score


@torch.library.custom_op("attnres::dots", mutates_args=())
def dots(x: Tensor, y: Tensor, heads: int) -> Tensor:
    """(N, H) dot products of (N, D) with (N, D), by head, in float32."""
    x, y, (n, d) = x.contiguous(), y.contiguous(), x.shape
    found = x.new_empty(n, heads, dtype=torch.float32)
    block_n, block_d = _tile(d // heads, 1024, 16)
    with torch.cuda.device_of(found):
        kernels.dots_kernel[(triton.cdiv(n * heads, block_n),)](
            x, y, found, n * heads,
            WIDTH=d // heads, BLOCK_N=block_n, BLOCK_D=block_d, num_warps=1,
        )  # fmt: skip
    return found


@dots.register_fake
def _(x: Tensor, _y: Tensor, heads: int) -> Tensor:
    return x.new_empty(x.shape[0], heads, dtype=torch.float32)


@torch.library.custom_op("attnres::gather", mutates_args=())
def gather(
    v: Tensor,
    z: Tensor,
    gradients: Sequence[Tensor],
    constants: Sequence[Tensor],
    deltas: Sequence[Tensor],
    start: Tensor | None,
    norm: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(N, D) sum of `start` and what reaches a source; (K, N', H) gradients of its scores; their
    (N, H) dot products over K with the scores.

    Of each of K reads: its gradient (N, D), the source's scores (N, H), or (1, H) of a table, and
    under a softmax its constants (2, N, H) and deltas (N, H).
    """
    v, (period, heads) = v.contiguous(), z.shape[1:]
    n, d = v.shape
    acc = v.new_empty(n, d, dtype=torch.float32)
    along = v.new_empty(n, heads, dtype=torch.float32)
    ds = _empty_scores(v, len(gradients), heads)
    gs = _padded([g.contiguous() for g in gradients])
    none = (acc,) * len(gs)
    block_d = _block(d // heads, 16)
    # 2048 numbers of rows of 512 spilled up to 68 bytes, 8 accesses of them in loops (sm_80).
    block_n = max(1, min(16, (1024 if block_d < 1024 else 2048) // block_d))
    warps = min(16, max(4, block_n * block_d // 1024))
    if block_d >= 1024 and _hopper():  # a row in one warp waits for no other: half the time there
        block_n, warps = 1, block_d // 1024
    with torch.cuda.device_of(acc):
        kernels.gather_kernel[(triton.cdiv(n * heads, block_n),)](
            v, z, gs,
            _padded([c.contiguous() for c in constants]) if constants else none,
            _padded([delta.contiguous() for delta in deltas]) if deltas else none,
            v if start is None else start.contiguous(), acc, ds, along,
            len(gradients), n * heads, period * heads, z.stride(0), ds.stride(0),
            int(start is not None),
            WIDTH=d // heads, NORM=norm,
            BLOCK_N=block_n, BLOCK_D=block_d, num_warps=warps,
        )  # fmt: skip
    return acc, ds, along


@gather.register_fake
def _(
    v: Tensor, z: Tensor, gradients: Sequence[Tensor], *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    acc, ds = v.new_empty(v.shape, dtype=torch.float32), len(gradients)
    along = v.new_empty(len(v), z.shape[-1], dtype=torch.float32)
    return acc, _empty_scores(v, ds, z.shape[-1]), along


@torch.library.custom_op("attnres::finish", mutates_args=())
def finish(
    acc: Tensor, v: Tensor, r: Tensor | None, w: Tensor, ds: Tensor, along: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of a source v (N, D) and of its folded queries w (R, D). They come from acc
    (N, D), which reaches v through the sums, and from the gradients ds (R, N', H) of v's scores,
    whose dot products over R with the scores are `along` (N, H). The reciprocal rms r (N,) is None
    where keys are not normalised.
    """
    v, w, acc, along = v.contiguous(), w.contiguous(), acc.contiguous(), along.contiguous()
    most, dw = _block(len(w), 32, _SITES), []
    for first in range(0, len(w), most):  # 64 sublayers' output site is read alone
        here = slice(first, first + most)
        dtype = v.dtype if here.stop >= len(w) else torch.float32
        acc, rows = _finish(acc, v, r, w[here], ds[here], along, dtype, most)
        along = torch.zeros_like(along)
        dw.append(rows)
    return acc, torch.cat(dw) if len(dw) > 1 else dw[0]


def _finish(
    acc: Tensor, v: Tensor, r: Tensor | None, w: Tensor, ds: Tensor, along: Tensor,
    dtype: torch.dtype, block_r: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """finish, of at most so many sites, as the type asked for."""
    (n, d), heads, n_sites = v.shape, ds.shape[-1], len(w)
    dv = v.new_empty(n, d, dtype=dtype)
    sums, block_n, most_d, warps = _precision(v), 16, 8192 // block_r, 8
    if sums == "bf16x3" and block_r <= 32:  # for more sites it would spill
        block_n, most_d, warps = 64, 64, 4
    block_d = _block(d // heads, 16, most_d)
    n_tiles = triton.cdiv(n, block_n)
    tiles_each = triton.cdiv(n_tiles, min(PARTS, max(16, PARTS * 512 // d)))
    parts = triton.cdiv(n_tiles, tiles_each)
    dw = w.new_empty(parts, n_sites, d)
    with torch.cuda.device_of(dv):
        kernels.finish_kernel[(parts, heads * triton.cdiv(d // heads, block_d))](
            acc, v, along, along if r is None else r, w, ds, dv, dw,
            n, n_sites, ds.stride(0), tiles_each,
            D=d, HEADS=heads, NORMALISE=r is not None,
            PRECISION=_precision(), SUMS=sums,
            BLOCK_N=block_n, BLOCK_R=block_r, BLOCK_D=block_d,
            BLOCK_H=triton.next_power_of_2(heads), num_warps=warps, num_stages=2,
        )  # fmt: skip
    return dv, dw.sum(dim=0)


@finish.register_fake
def _(_acc: Tensor, v: Tensor, _r: Tensor | None, w: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), w.new_empty(w.shape)


def _by_type(
    sources: Sequence[Tensor], scores: Sequence[Tensor]
) -> tuple[list[tuple[Tensor, ...]], list[int]]:
    """Pointers of the float32 sources, of their scores, of the others and of theirs; both counts.
    A kernel is compiled for the types of its pointers: so for any order of the two one is enough.
    """
    narrow = next((v.dtype for v in sources if v.dtype != torch.float32), torch.bfloat16)
    pointers: list[tuple[Tensor, ...]] = []
    counts = []
    for kind in (torch.float32, narrow):
        here = [i for i, v in enumerate(sources) if (v.dtype == narrow) == (kind == narrow)]
        vs = [sources[i].to(kind).contiguous() for i in here] or [scores[0].view(kind)]
        pointers += [_padded(vs), _padded([scores[i] for i in here] or [scores[0]])]
        counts.append(len(here))
    return pointers, counts


def _empty_scores(v: Tensor, n_rows: int, heads: int) -> Tensor:
    n = (v.shape[0] + 15) // 16 * 16
    return v.new_empty(n_rows, n, heads, dtype=torch.float32)


def _padded(items: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The items, the last one repeated up to one of LENGTHS."""
    length = next((n for n in LENGTHS if n >= len(items)), 0)
    length = length or triton.cdiv(len(items), LENGTHS[-1]) * LENGTHS[-1]
    return (*items, *[items[-1]] * (length - len(items)))


def _block(n: int, least: int, most: int = 1 << 20) -> int:
    return min(max(triton.next_power_of_2(n), least), most)


def _tile(width: int, numbers: int, most_rows: int) -> tuple[int, int]:
    """(rows of a tile, channels of a tile) of so many numbers."""
    block_d = _block(width, 16, min(1024, max(16, numbers)))
    return max(1, min(most_rows, numbers // block_d)), block_d


def _hopper() -> bool:
    """Whether kernels are for the GPUs on which tiles were measured (benchmarks/tiles.py)."""
    if triton.knobs.runtime.interpret:
        return False
    return bool(triton.runtime.driver.active.get_current_target().arch == 90)


def _precision(exact: Tensor | None = None) -> str:
    """Of matrix products: three of TF32 make one as good as float32's, and three of bfloat16 if one
    side is `exact` in it.
    """
    if triton.knobs.runtime.interpret:
        return "ieee"
    is_bf16 = exact is not None and exact.dtype == torch.bfloat16
    return "bf16x3" if is_bf16 and _hopper() else "tf32x3"
