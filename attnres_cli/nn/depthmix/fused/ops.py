"""The kernels as PyTorch operators `attnres::...`, which compilers and CUDA graphs take whole.

Each has a fake that says what it returns, and none changes its arguments. Shapes as in kernels.py;
sources and gradients are (N, D) with any distance between rows. Scores (R, N, H) and gradients of
scores are allocated with N rounded up to 16, so that every row of theirs is aligned alike and no
kernel is compiled anew for another number of tokens.
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
"""Parts that a sum over tokens is made in; fixed, so that its order is the same everywhere."""

_PADDED_TO = 4
_REGISTERS = 4096
"""Numbers of a tile that a program of four warps keeps beside each other without spilling."""


@torch.library.custom_op("attnres::scores", mutates_args=())
def scores(v: Tensor, w: Tensor, heads: int, normalise: bool, eps: float) -> tuple[Tensor, Tensor]:
    """(R, N', H) scores of a source (N, D) with folded queries (R, D); its (N,) reciprocal rms.
    N' is N rounded up to 16; what lies beyond N is not defined.
    """
    v, w = _rowwise(v), w.contiguous()
    n, d = v.shape
    z, r = _empty_scores(v, len(w), heads), v.new_empty(n, dtype=torch.float32)
    block_n, block_d = 32, _block(d // heads, 16, 64)
    with torch.cuda.device_of(v):
        kernels.scores_kernel[(triton.cdiv(n, block_n),)](
            v, w, z, r, n, len(w), v.stride(0), z.stride(0), eps,
            D=d, HEADS=heads, NORMALISE=normalise, PRECISION=_precision(),
            BLOCK_N=block_n, BLOCK_R=_block(len(w), 16), BLOCK_D=block_d,
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
    vs, zs = [_rowwise(v) for v in sources], _alike(scores)
    n, d = vs[0].shape
    heads = zs[0].shape[-1]
    out = vs[0].new_empty(n, d, dtype=dtype)
    constants = vs[0].new_empty(2, n, heads, dtype=torch.float32)
    block_n, block_d, tiles = _tiles(d // heads)
    with torch.cuda.device_of(out):
        kernels.mix_kernel[(triton.cdiv(n, block_n), heads * tiles)](
            _padded(vs), _padded([v.stride(0) for v in vs]), _padded(zs),
            out, constants, len(vs), n,
            S=_padded_to(len(vs)), D=d, HEADS=heads, NORM=norm, Z_STEP=_z_step(zs[0]),
            BLOCK_N=block_n, BLOCK_D=block_d,
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
    source, or (G, 1, H) of a table; (G, N, H) scores of the mixes, not defined without a softmax.
    """
    vs, zs = [_rowwise(v) for v in sources], list(scores)
    (n, d), (n_sites, _, heads) = vs[0].shape, zs[0].shape
    mixed = vs[0].new_empty(n_sites, n, d, dtype=torch.float32)
    score = vs[0].new_empty(n_sites, n, heads, dtype=torch.float32)
    block_g = triton.next_power_of_2(n_sites)
    block_n, block_d, tiles = _tiles(d // heads, block_g)
    with torch.cuda.device_of(mixed):
        kernels.mix_group_kernel[(triton.cdiv(n, block_n), heads * tiles)](
            _padded(vs), _padded([v.stride(0) for v in vs]), _padded(zs), mixed, score,
            len(vs), n, n_sites, zs[0].stride(0),
            S=_padded_to(len(vs)), D=d, HEADS=heads, NORM=norm, Z_STEP=_z_step(zs[0]),
            BLOCK_G=block_g, BLOCK_N=block_n, BLOCK_D=block_d,
        )  # fmt: skip
    return mixed, score


@mix_group.register_fake
def _(sources: Sequence[Tensor], scores: Sequence[Tensor], norm: int) -> tuple[Tensor, Tensor]:
    (n, d), (n_sites, _, heads) = sources[0].shape, scores[0].shape
    score = sources[0].new_empty(n_sites, n, heads, dtype=torch.float32)
    return sources[0].new_empty(n_sites, n, d, dtype=torch.float32), score


@torch.library.custom_op("attnres::gather", mutates_args=())
def gather(
    v: Tensor,
    z: Tensor,
    gradients: Sequence[Tensor],
    constants: Sequence[Tensor],
    deltas: Sequence[Tensor],
    start: Tensor | None,
    norm: int,
) -> tuple[Tensor, Tensor]:
    """(N, D) sum of `start` and what reaches a source; (K, N', H) gradients of its scores.

    Of each of K reads: its gradient (N, D), the source's scores (N, H), or (1, H) of a table, and
    under a softmax its constants (2, N, H) and deltas (N, H).
    """
    v, gs = _rowwise(v), [_rowwise(g) for g in gradients]
    (n, d), heads = v.shape, z.shape[-1]
    acc = v.new_empty(n, d, dtype=torch.float32)
    ds = _empty_scores(v, len(gs), heads)
    block_d = _block(d // heads, 1)
    block_n = max(1, min(16, _REGISTERS // block_d))
    none = (acc,) * _padded_to(len(gs))
    with torch.cuda.device_of(acc):
        kernels.gather_kernel[(triton.cdiv(n, block_n), heads)](
            v, z, _padded(gs), _padded([g.stride(0) for g in gs]),
            _padded([c.contiguous() for c in constants]) if constants else none,
            _padded([delta.contiguous() for delta in deltas]) if deltas else none,
            acc if start is None else start.contiguous(), acc, ds,
            len(gs), n, v.stride(0), z.stride(0), ds.stride(0),
            K=_padded_to(len(gs)), D=d, HEADS=heads, NORM=norm,
            Z_STEP=_z_step(z), HAS_START=start is not None,
            BLOCK_N=block_n, BLOCK_D=block_d, num_warps=_warps(block_n * block_d),
        )  # fmt: skip
    return acc, ds


@gather.register_fake
def _(v: Tensor, z: Tensor, gradients: Sequence[Tensor], *_: object) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape, dtype=torch.float32), _empty_scores(v, len(gradients), z.shape[-1])


@torch.library.custom_op("attnres::finish", mutates_args=())
def finish(
    acc: Tensor, v: Tensor, z: Tensor, r: Tensor | None, w: Tensor, ds: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of a source v (N, D) and of its folded queries w (R, D). They come from acc
    (N, D), which reaches v through the sums, and from the gradients ds (R, N', H) of v's scores z
    (R, N, H). The reciprocal rms r (N,) is None where keys are not normalised.
    """
    v, w, acc = _rowwise(v), w.contiguous(), acc.contiguous()
    (n, d), heads, n_rows = v.shape, z.shape[-1], len(w)
    dv = v.new_empty(n, d)
    block_n, block_d = 32, _block(d // heads, 16, 64)
    tiles_each = triton.cdiv(triton.cdiv(n, block_n), PARTS)
    parts = triton.cdiv(triton.cdiv(n, block_n), tiles_each)
    dw = w.new_empty(parts, n_rows, d)
    with torch.cuda.device_of(dv):
        kernels.finish_kernel[(parts, heads * triton.cdiv(d // heads, block_d))](
            acc, v, z, acc if r is None else r, w, ds, dv, dw,
            n, n_rows, v.stride(0), z.stride(0), ds.stride(0), tiles_each,
            D=d, HEADS=heads, NORMALISE=r is not None, PRECISION=_precision(),
            BLOCK_N=block_n, BLOCK_R=_block(n_rows, 16), BLOCK_D=block_d,
        )  # fmt: skip
    return dv, dw.sum(dim=0)


@finish.register_fake
def _(
    _acc: Tensor, v: Tensor, _z: Tensor, _r: Tensor, w: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), w.new_empty(w.shape)


def _rowwise(x: Tensor) -> Tensor:
    """x, copied where its rows are not dense."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(scores: Sequence[Tensor]) -> list[Tensor]:
    """Dense scores, all (N, H), or all (1, H)."""
    if len({len(z) for z in scores}) > 1:
        n = max(len(z) for z in scores)
        scores = [z.expand(n, -1) for z in scores]
    return [z.contiguous() for z in scores]


def _z_step(z: Tensor) -> int:
    """Numbers between the scores of two tokens: none in a table."""
    return 0 if z.shape[-2] == 1 else z.shape[-1]


def _empty_scores(v: Tensor, n_rows: int, heads: int) -> Tensor:
    n = (v.shape[0] + 15) // 16 * 16
    return v.new_empty(n_rows, n, heads, dtype=torch.float32)


def _padded_to(n: int) -> int:
    return (n + _PADDED_TO - 1) // _PADDED_TO * _PADDED_TO


def _padded(items: Sequence[Tensor] | Sequence[int]) -> tuple[Tensor | int, ...]:
    """The items, the last one repeated up to a multiple of 4."""
    return (*items, *[items[-1]] * (_padded_to(len(items)) - len(items)))


def _block(n: int, least: int, most: int = 1 << 20) -> int:
    return min(max(triton.next_power_of_2(n), least), most)


def _tiles(d_head: int, n_sites: int = 1) -> tuple[int, int, int]:
    """(tokens of a tile, channels of a tile, tiles of a head)."""
    block_d = _block(d_head, 16, max(16, 1024 // n_sites))
    block_n = max(1, _REGISTERS // (n_sites * block_d) // 2)
    return min(block_n, 32), block_d, triton.cdiv(d_head, block_d)


def _warps(numbers: int) -> int:
    return min(16, max(4, triton.next_power_of_2(numbers // 1024)))


def _precision() -> str:
    """Of matrix products: three TF32 products make one as good as float32's."""
    return "ieee" if triton.knobs.runtime.interpret else "tf32x3"
