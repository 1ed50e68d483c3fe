"""Triton kernels of depth mixing. They know tiles and pointers; ops.py knows tensors.

N tokens, D width, H heads, S sources of a read, R sites that read a source, K gradients of reads,
G sites of a group. All tensors are dense. A mix and a gather do not know heads: (N, H) tokens and
heads are their rows, each WIDTH = D / H wide, and row m has the score m % period, where a table has
a period of H, since its scores do not depend on the token. Scores are (R, N, H) in float32, their
sites `z_row` apart. NORM is 0 for softmax, 1 for sigmoid, 2 for none.

Sources and gradients come as tuples of pointers, so that nothing is stacked. A tuple is padded to
one of a few lengths, so that few kernels are compiled. Each PART of it has a loop of its own, which
takes CHUNK members at a time.

Every sum runs in float32, in one order: two runs give equal bits. Offsets are 64 bits wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(4)
"""Members of a tuple that a loop takes at a time. Their loads are under way together."""

PART = tl.constexpr(16)
"""Members that a loop chooses from, by comparing its counter with each chunk's: a loop over 64 had
1,200 instructions on sm_80 for what takes 760 over 16.
"""

_LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _pick(items, part: tl.constexpr, first, j: tl.constexpr):
    """items[first + j] of a part; `first`, a multiple of CHUNK, is known at run time alone."""
    item = items[part + j]
    for other in tl.static_range(part + CHUNK, part + PART, CHUNK):
        if other < len(items):
            item = tl.where(first == other, items[other + j], item)
    return item


@triton.jit
def _if(condition, mask):
    """A mask where a number's condition holds, else nothing. Not `mask & condition`: the
    interpreter of Triton 3.9 makes int32 of a compared number, which its loads refuse as a mask.
    """
    return tl.where(condition, mask, False)


@triton.jit
def _dot(exact, wide, acc, PRECISION: tl.constexpr):
    """Add exact @ wide to acc, in float32's accuracy. bf16x3 is for an `exact` whose numbers
    bfloat16 can hold: of three products with parts of `wide` none takes `exact` apart.
    """
    if PRECISION == "bf16x3":
        exact = exact.to(tl.bfloat16)
        high = wide.to(tl.bfloat16)
        rest = wide - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        acc = tl.dot(exact, low, acc)
        acc = tl.dot(exact, middle, acc)
        acc = tl.dot(exact, high, acc)
    else:
        acc = tl.dot(exact, wide, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _weight(z, largest, inverse_sum, NORM: tl.constexpr):
    """A source's weight from its score and the softmax's constants."""
    if NORM == 0:
        # At most 1 anyway; a site that nobody read has constants of 0, and gives 0. Not by
        # tl.minimum, which makes a number of what is none.
        below = z - largest
        return tl.exp(tl.where(below > 0, 0.0, below)) * inverse_sum
    if NORM == 1:
        e = tl.exp(-tl.abs(z))  # never overflows
        return tl.where(z >= 0, 1.0, e) / (1.0 + e)
    return z


@triton.jit
def _join(
    largest, total, acc, sources, scores, n_sources, at, at_z, inside, inside_z,
    NORM: tl.constexpr,
):  # fmt: skip
    """What (G, N) sites and rows have mixed, joined by more sources: the largest score, the sum of
    weights relative to it, and the weighted sum (G, N, BLOCK_D).
    """
    for part in tl.static_range(0, len(sources), PART):
        for first in range(part, tl.minimum(n_sources, part + PART), CHUNK):
            zs, most = (), largest
            for j in tl.static_range(CHUNK):
                there = _if(first + j < n_sources, inside_z)
                z = tl.load(_pick(scores, part, first, j) + at_z, mask=there, other=float("-inf"))
                zs = zs + (z,)  # noqa: RUF005
                most = tl.maximum(most, z)
            if NORM == 0:
                scale = tl.exp(largest - most)
                total *= scale
                acc *= scale[:, :, None]
                largest = most
            for j in tl.static_range(CHUNK):
                there = first + j < n_sources
                a = tl.where(_if(there, inside_z), _weight(zs[j], largest, 1.0, NORM), 0.0)
                total += a
                x = tl.load(_pick(sources, part, first, j) + at, mask=_if(there, inside), other=0.0)
                acc += a[:, :, None] * x.to(tl.float32)[None, :, :]
    return largest, total, acc


@triton.jit
def _mixed(
    wide, wide_scores, narrow, narrow_scores, n_wide, n_narrow, at, at_z, inside, inside_z,
    NORM: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """_join of the float32 sources and of the others."""
    largest = tl.full([BLOCK_G, BLOCK_N], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_N, BLOCK_D], tl.float32)
    largest, total, acc = _join(
        largest, total, acc, wide, wide_scores, n_wide, at, at_z, inside, inside_z, NORM
    )
    largest, total, acc = _join(
        largest, total, acc, narrow, narrow_scores, n_narrow, at, at_z, inside, inside_z, NORM
    )
    return largest, tl.where(inside_z, total, 1.0), acc


@triton.jit(do_not_specialize=["n_wide", "n_narrow", "n_rows", "period"])
def mix_kernel(
    wide, wide_scores, narrow, narrow_scores, out, constants, n_wide, n_narrow, n_rows, period,
    WIDTH: tl.constexpr, NORM: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[m] = sum_i a_im v_i[m]; constants (2, rows) of the softmax: largest score, 1 / sum.

    Grid: tiles of rows x tiles of the width.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    here = m < n_rows
    at, inside = m[:, None] * WIDTH + d[None, :], here[:, None] & (d < WIDTH)[None, :]
    largest, total, acc = _mixed(
        wide, wide_scores, narrow, narrow_scores, n_wide, n_narrow,
        at, (m % period)[None, :], inside, here[None, :], NORM, 1, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    if NORM == 0:
        acc /= total[:, :, None]
        if tl.program_id(1) == 0:
            tl.store(constants + m[None, :], largest, mask=here[None, :])
            tl.store(constants + n_rows + m[None, :], 1.0 / total, mask=here[None, :])
    tl.store(out + at[None], acc.to(out.dtype.element_ty), mask=inside[None])


@triton.jit(
    do_not_specialize=["n_wide", "n_narrow", "n_rows", "period", "n_sites", "z_row", "score_row"]
)
def mix_group_kernel(
    wide, wide_scores, narrow, narrow_scores, mixed, score, n_wide, n_narrow, n_rows, period,
    n_sites, z_row, score_row,
    WIDTH: tl.constexpr, NORM: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The same for the G sites of a group at once, every source read once.

    Under a softmax score[g, m] = log sum_i exp(z_i[g, m]): mixed[g] with this score is to a later
    mix one source like any other, and stands for all that it holds. Grid as mix_kernel's.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    g = tl.arange(0, BLOCK_G).to(tl.int64)[:, None]
    here = m < n_rows
    at, inside = m[:, None] * WIDTH + d[None, :], here[:, None] & (d < WIDTH)[None, :]
    inside_z = (g < n_sites) & here[None, :]
    largest, total, acc = _mixed(
        wide, wide_scores, narrow, narrow_scores, n_wide, n_narrow,
        at, g * z_row + (m % period)[None, :], inside, inside_z, NORM, BLOCK_G, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    at_g = g * n_rows + m[None, :]
    if NORM == 0:
        acc /= total[:, :, None]
        if tl.program_id(1) == 0:
            at_score = score + g * score_row + m[None, :]
            tl.store(at_score, largest + tl.log(total), mask=inside_z)
    at_out = mixed + at_g[:, :, None] * WIDTH + d[None, None, :]
    tl.store(at_out, acc, mask=inside_z[:, :, None] & (d < WIDTH)[None, None, :])


@triton.jit(do_not_specialize=["n_tokens", "n_sites", "z_row"])
def scores_kernel(
    v, w, z, r, n_tokens, n_sites, z_row, eps,
    D: tl.constexpr, HEADS: tl.constexpr, NORMALISE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """z[l, n, h] = r_n (v_n . w_l) over head h, r_n = 1 / rms(v_n). Grid: token tiles.

    The source is read once: the products of all heads wait for r_n in registers.
    """
    WIDTH: tl.constexpr = D // HEADS
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    in_n, in_r = n < n_tokens, rows < n_sites
    squares, dots = tl.zeros([BLOCK_N], tl.float32), ()
    for h in tl.static_range(HEADS):
        product = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
        for start in range(0, WIDTH, BLOCK_D):
            c, in_d = h * WIDTH + start + d, start + d < WIDTH
            at = v + n[:, None] * D + c[None, :]
            x = tl.load(at, mask=in_n[:, None] & in_d[None, :], other=0.0).to(tl.float32)
            at_w = w + rows[None, :] * D + c[:, None]
            q = tl.load(at_w, mask=in_r[None, :] & in_d[:, None], other=0.0)
            squares += tl.sum(x * x, axis=1)
            product = _dot(x, q, product, PRECISION)
        dots = dots + (product,)  # noqa: RUF005
    inverse_rms = tl.full([BLOCK_N], 1.0, tl.float32)
    if NORMALISE:
        inverse_rms = 1.0 / tl.sqrt(squares / D + eps)
        tl.store(r + n, inverse_rms, mask=in_n)
    at_z = z + rows.to(tl.int64)[None, :] * z_row + n[:, None] * HEADS
    for h in tl.static_range(HEADS):
        z_h = dots[h] * inverse_rms[:, None]
        tl.store(at_z + h, z_h, mask=in_n[:, None] & in_r[None, :])


@triton.jit(do_not_specialize=["n_rows"])
def dots_kernel(
    x, y, out, n_rows,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[m] = x[m] . y[m]. Grid: tiles of rows."""
    m = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    here = m < n_rows
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for start in range(0, WIDTH, BLOCK_D):
        at = m[:, None] * WIDTH + start + d[None, :]
        inside = here[:, None] & (start + d < WIDTH)[None, :]
        a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        total += a * tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + m, tl.sum(total, axis=1), mask=here)


@triton.jit(do_not_specialize=["n_grads", "n_rows", "period", "z_row", "ds_row", "has_start"])
def gather_kernel(
    v, z, gs, constants, deltas, start, acc, ds, along,
    n_grads, n_rows, period, z_row, ds_row, has_start,
    WIDTH: tl.constexpr, NORM: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What K later sites send back to a source.

    acc[m] = start[m] + sum_k a_k g_k[m]; ds[k, m] = the score's gradient; along[m] = sum_k ds z.
    Grid: tiles of rows; a row lies in one tile, since a dot product runs over it.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    here = m < n_rows
    at, inside = m[:, None] * WIDTH + d[None, :], here[:, None] & (d < WIDTH)[None, :]
    at_z = m % period
    x = tl.load(v + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(start + at, mask=_if(has_start != 0, inside), other=0.0).to(tl.float32)
    products = tl.zeros([BLOCK_N], tl.float32)
    for part in tl.static_range(0, len(gs), PART):
        for first in range(part, tl.minimum(n_grads, part + PART), CHUNK):
            for j in tl.static_range(CHUNK):
                k = first + j
                there = _if(k < n_grads, here)
                at_g = _pick(gs, part, first, j) + at
                y = tl.load(at_g, mask=_if(k < n_grads, inside), other=0.0).to(tl.float32)
                site = tl.cast(k, tl.int64)
                score = tl.load(z + site * z_row + at_z, mask=there, other=0.0)
                slope = tl.sum(x * y, axis=1)
                if NORM == 0:
                    at_c = _pick(constants, part, first, j) + m
                    largest = tl.load(at_c, mask=there, other=0.0)
                    inverse = tl.load(at_c + n_rows, mask=there, other=0.0)
                    delta = tl.load(_pick(deltas, part, first, j) + m, mask=there, other=0.0)
                    a = _weight(score, largest, inverse, NORM)
                    slope = a * (slope - delta)
                else:
                    a = _weight(score, 0.0, 1.0, NORM)
                    if NORM == 1:
                        slope *= a * (1.0 - a)
                total += tl.where(there, a, 0.0)[:, None] * y
                products += slope * score
                tl.store(ds + site * ds_row + m, slope, mask=there)
    tl.store(acc + at, total, mask=inside)
    tl.store(along + m, products, mask=here)


@triton.jit(do_not_specialize=["n_tokens", "n_sites", "ds_row", "tiles_each"])
def finish_kernel(
    acc, v, along, r, w, ds, dv, dw, n_tokens, n_sites, ds_row, tiles_each,
    D: tl.constexpr, HEADS: tl.constexpr, NORMALISE: tl.constexpr,
    PRECISION: tl.constexpr, SUMS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Gradients of a source and of its queries, from the sums of gather_kernel.

    dv = acc + r sum_l ds_l w_l - (r^2 / D) (sum_h along_h) v; dw[part] = sum_n r ds v.
    Grid: parts of the tokens x tiles of the width within a head. A part's sum of dw stays in
    registers; the parts are added up afterwards in one order, so no atomics are needed.
    """
    WIDTH: tl.constexpr = D // HEADS
    TILES: tl.constexpr = (WIDTH + BLOCK_D - 1) // BLOCK_D
    part = tl.program_id(0).to(tl.int64)
    head, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    d = tile * BLOCK_D + tl.arange(0, BLOCK_D)
    in_d = d < WIDTH
    column = head * WIDTH + d
    rows, heads = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_H)
    in_r = rows < n_sites
    in_w = in_r[:, None] & in_d[None, :]
    q = tl.load(w + rows[:, None] * D + column[None, :], mask=in_w, other=0.0)
    dq = tl.zeros([BLOCK_D, BLOCK_R] if SUMS == "bf16x3" else [BLOCK_R, BLOCK_D], tl.float32)
    for step in range(tiles_each):
        n = (part * tiles_each + step) * BLOCK_N + tl.arange(0, BLOCK_N)
        in_n = n < n_tokens
        at, inside = n[:, None] * D + column[None, :], in_n[:, None] & in_d[None, :]
        x = tl.load(v + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(acc + at, mask=inside, other=0.0)
        at_ds = ds + rows.to(tl.int64)[None, :] * ds_row + n[:, None] * HEADS + head
        s = tl.load(at_ds, mask=in_n[:, None] & in_r[None, :], other=0.0)
        if NORMALISE:
            inverse_rms = tl.load(r + n, mask=in_n, other=0.0)
            at_along = along + n[:, None] * HEADS + heads[None, :]
            products = tl.load(at_along, mask=in_n[:, None] & (heads < HEADS)[None, :], other=0.0)
            over_d = tl.sum(products, axis=1) * inverse_rms * inverse_rms / D
            total -= over_d[:, None] * x
            s *= inverse_rms[:, None]
        total = tl.dot(s, q, total, input_precision=PRECISION)
        if SUMS == "bf16x3":
            dq = _dot(tl.trans(x), s, dq, SUMS)
        else:
            dq = tl.dot(tl.trans(s), x, dq, input_precision=SUMS)
        tl.store(dv + at, total.to(dv.dtype.element_ty), mask=inside)
    if SUMS == "bf16x3":
        dq = tl.trans(dq)
    at_dw = dw + (part * n_sites + rows[:, None]) * D + column[None, :]
    tl.store(at_dw, dq, mask=in_w)
