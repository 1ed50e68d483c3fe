"""The maps of `mhc` by two Triton kernels, where torch launches some 80 and 120 for a sublayer.

Scores z and biases are (2 n + n^2, N) and (2 n + n^2): what is read of n streams, what is written
to them, how they mix. Numbers of a token lie N apart, so that tokens are loaded side by side. Sums
have one order: two runs give equal bits. With 8 streams the second kernel spills some registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128  # tokens of a program, one for each of its threads


@torch.library.custom_op("attnres::sinkhorn", mutates_args=())
def made(z: Tensor, bias: Tensor, n: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums (N, n + 1, n), what is read above how streams mix; write (N, n, 1); and rows (., N) for
    `slopes`: 2 n of gates, n^2 of scores, n^2 of the mix, n of sums for each half iteration.
    """
    z, n_tokens = z.contiguous(), z.shape[1]
    sums, write, kept = _empty(z, bias, n, iterations)
    with torch.cuda.device_of(z):
        _made[(triton.cdiv(n_tokens, _BLOCK),)](
            z, bias, sums, write, kept, n_tokens, iterations - 1,
            STREAMS=n, PADDED=triton.next_power_of_2(n), BLOCK=_BLOCK,
        )  # fmt: skip
    return sums, write, kept


@made.register_fake
def _empty(z: Tensor, bias: Tensor, n: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    n_tokens, n_rows = z.shape[1], 2 * n * (n + iterations)
    sums, write = z.new_empty(n_tokens, n + 1, n), z.new_empty(n_tokens, n, 1)
    return sums, write, z.new_empty(n_rows, n_tokens)


@torch.library.custom_op("attnres::sinkhorn_slopes", mutates_args=())
def slopes(sums: Tensor, write: Tensor, kept: Tensor, n: int, iterations: int) -> Tensor:
    """(2 n + n^2, N): the gradient of the scores, from those of what `made` gave."""
    n_tokens = kept.shape[1]
    found = _slopes_empty(sums, write, kept, n, iterations)
    with torch.cuda.device_of(kept):
        _slopes[(triton.cdiv(n_tokens, _BLOCK),)](
            sums.contiguous(), write.contiguous(), kept, found, n_tokens, iterations - 1,
            STREAMS=n, PADDED=triton.next_power_of_2(n), BLOCK=_BLOCK,
        )  # fmt: skip
    return found


@slopes.register_fake
def _slopes_empty(sums: Tensor, write: Tensor, kept: Tensor, n: int, iterations: int) -> Tensor:
    return kept.new_empty(n * (n + 2), kept.shape[1])


@triton.jit
def _made(
    z_, bias_, sums_, write_, kept_, n_tokens, more,
    STREAMS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.arange(0, PADDED)[:, None]
    valid = (gate < STREAMS) & (token < n_tokens)[None, :]
    for kind in tl.static_range(2):
        at = kind * STREAMS + gate
        score = tl.load(z_ + at * n_tokens + token[None, :], mask=valid, other=0.0)
        score += tl.load(bias_ + at, mask=gate < STREAMS, other=0.0)
        opened = _sigmoid(score)
        tl.store(kept_ + at * n_tokens + token[None, :], opened, mask=valid)
        if kind == 0:
            tl.store(sums_ + token[None, :] * (STREAMS * (STREAMS + 1)) + gate, opened, mask=valid)
        else:
            tl.store(write_ + token[None, :] * STREAMS + gate, 2 * opened, mask=valid)

    i, j = tl.arange(0, PADDED)[:, None, None], tl.arange(0, PADDED)[None, :, None]
    t, cell = token[None, None, :], i * STREAMS + j
    inside = (i < STREAMS) & (j < STREAMS)
    valid = inside & (t < n_tokens)
    rows = kept_ + 2 * STREAMS * n_tokens
    score = tl.load(z_ + (2 * STREAMS + cell) * n_tokens + t, mask=valid, other=float("-inf"))
    score += tl.load(bias_ + 2 * STREAMS + cell, mask=inside, other=0.0)
    logs = _log_softmax(score, 0)
    tl.store(rows + cell * n_tokens + t, logs, mask=valid)
    m = tl.exp(_log_softmax(logs, 1))
    rows += STREAMS * STREAMS * n_tokens
    of_columns = rows + (STREAMS * STREAMS + j) * n_tokens + t
    of_rows = rows + (STREAMS * STREAMS + STREAMS + i) * n_tokens + t
    for k in range(more):
        column = _sum(m, 0)
        m /= column
        row = _sum(m, 1)
        m /= row
        after = 2 * k * STREAMS * n_tokens
        tl.store(of_columns + after, column, mask=(j < STREAMS) & (t < n_tokens))
        tl.store(of_rows + after, row, mask=(i < STREAMS) & (t < n_tokens))
    tl.store(rows + cell * n_tokens + t, m, mask=valid)
    tl.store(sums_ + t * (STREAMS * (STREAMS + 1)) + STREAMS + cell, m, mask=valid)


@triton.jit
def _slopes(
    sums_, write_, kept_, found_, n_tokens, more,
    STREAMS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.arange(0, PADDED)[:, None]
    valid = (gate < STREAMS) & (token < n_tokens)[None, :]
    for kind in tl.static_range(2):
        row = (kind * STREAMS + gate) * n_tokens + token[None, :]
        opened = tl.load(kept_ + row, mask=valid, other=0.0)
        if kind == 0:
            at = sums_ + token[None, :] * (STREAMS * (STREAMS + 1)) + gate
        else:
            at = write_ + token[None, :] * STREAMS + gate
        g = (1 + kind) * tl.load(at, mask=valid, other=0.0)
        tl.store(found_ + row, g * (opened - opened * opened), mask=valid)

    i, j = tl.arange(0, PADDED)[:, None, None], tl.arange(0, PADDED)[None, :, None]
    t, cell = token[None, None, :], i * STREAMS + j
    valid = (i < STREAMS) & (j < STREAMS) & (t < n_tokens)
    rows = kept_ + 2 * STREAMS * n_tokens
    logs = tl.load(rows + cell * n_tokens + t, mask=valid, other=float("-inf"))
    rows += STREAMS * STREAMS * n_tokens
    m = tl.load(rows + cell * n_tokens + t, mask=valid, other=0.0)
    g = tl.load(sums_ + t * (STREAMS * (STREAMS + 1)) + STREAMS + cell, mask=valid, other=0.0)
    g *= m  # of the logarithms of m from here on
    rows += STREAMS * STREAMS * n_tokens
    for left in range(more):
        k = 2 * (more - 1 - left) * STREAMS
        g -= m * tl.sum(g, 1, keep_dims=True)
        of_rows = rows + (k + STREAMS + i) * n_tokens + t
        m *= tl.load(of_rows, mask=(i < STREAMS) & (t < n_tokens), other=0.0)
        g -= m * tl.sum(g, 0, keep_dims=True)
        of_columns = rows + (k + j) * n_tokens + t
        m *= tl.load(of_columns, mask=(j < STREAMS) & (t < n_tokens), other=0.0)
    g -= m * tl.sum(g, 1, keep_dims=True)
    g -= tl.exp(logs) * tl.sum(g, 0, keep_dims=True)
    tl.store(found_ + (2 * STREAMS + cell) * n_tokens + t, g, mask=valid)


@triton.jit
def _sigmoid(x):
    e = tl.exp(-tl.abs(x))  # never overflows
    return tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _sum(x, AXIS: tl.constexpr):
    """Along an axis; 1 where everything is padding."""
    total = tl.sum(x, AXIS, keep_dims=True)
    return tl.where(total > 0, total, 1.0)


@triton.jit
def _log_softmax(x, AXIS: tl.constexpr):
    """Padding is -inf, before and after."""
    top = tl.max(x, AXIS, keep_dims=True)
    x -= tl.where(top > float("-inf"), top, 0.0)
    return x - tl.log(_sum(tl.exp(x), AXIS))
