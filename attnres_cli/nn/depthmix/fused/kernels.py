"""Triton kernels of depth mixing. They know tiles and pointers; ops.py knows tensors.

N tokens, D width, H heads of DH = D / H channels, S sources of a read, R sites that read a source,
K gradients of reads, G sites of a group. Sources and gradients come as tuples of
pointers, so that nothing is stacked; a tuple is padded with copies of its last member, which
`n_...` masks, so that kernels are compiled for a few lengths and not for each. Scores are
(R, N, H) in float32 with rows `z_row` apart; Z_STEP is H, or 0 for a table, whose scores do not
depend on the token. NORM is 0 for softmax, 1 for sigmoid, 2 for none.

Every sum runs in float32, in one order: two runs give equal bits. Token offsets are 64 bits wide.
"""

from __future__ import annotations

import triton
import triton.language as tl


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


@triton.jit(do_not_specialize=["n_tokens", "n_rows", "z_row"])
def scores_kernel(
    v, w, z, r, n_tokens, n_rows, v_row, z_row, eps,
    D: tl.constexpr, HEADS: tl.constexpr, NORMALISE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """z[l, n, h] = r_n (v_n . w_l) over head h, r_n = 1 / rms(v_n). Grid: token tiles."""
    DH: tl.constexpr = D // HEADS
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows, d = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    in_n, in_r = n < n_tokens, rows < n_rows
    row = v + n[:, None] * v_row
    inverse_rms = tl.full([BLOCK_N], 1.0, tl.float32)
    if NORMALISE:
        squares = tl.zeros([BLOCK_N], tl.float32)
        for start in range(0, D, BLOCK_D):
            c = start + d
            x = tl.load(row + c[None, :], mask=in_n[:, None] & (c < D)[None, :], other=0.0)
            x = x.to(tl.float32)
            squares += tl.sum(x * x, axis=1)
        inverse_rms = 1.0 / tl.sqrt(squares / D + eps)
        tl.store(r + n, inverse_rms, mask=in_n)
    for h in range(HEADS):
        dots = tl.zeros([BLOCK_N, BLOCK_R], tl.float32)
        for start in range(0, DH, BLOCK_D):
            c = h * DH + start + d
            in_d = start + d < DH
            x = tl.load(row + c[None, :], mask=in_n[:, None] & in_d[None, :], other=0.0)
            q = tl.load(
                w + rows[None, :] * D + c[:, None], mask=in_r[None, :] & in_d[:, None], other=0.0
            )
            dots = tl.dot(x.to(tl.float32), q, dots, input_precision=PRECISION)
        at = z + rows.to(tl.int64)[None, :] * z_row + n[:, None] * HEADS + h
        tl.store(at, dots * inverse_rms[:, None], mask=in_n[:, None] & in_r[None, :])


@triton.jit(do_not_specialize=["n_sources", "n_tokens"])
def mix_kernel(
    sources, rows, scores, out, constants, n_sources, n_tokens,
    S: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr,
    Z_STEP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out[n] = sum_i a_in v_i[n]; constants (2, N, H) of the softmax: largest score, 1 / sum.

    Grid: token tiles x tiles of the width within a head.
    """
    DH: tl.constexpr = D // HEADS
    TILES: tl.constexpr = (DH + BLOCK_D - 1) // BLOCK_D
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    head, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    d = tile * BLOCK_D + tl.arange(0, BLOCK_D)
    in_n = n < n_tokens
    mask = in_n[:, None] & (d < DH)[None, :]
    column = head * DH + d[None, :]
    largest = tl.full([BLOCK_N], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if NORM == 0:
        for i in tl.static_range(S):
            there = in_n & (i < n_sources)
            z = tl.load(scores[i] + n * Z_STEP + head, mask=there, other=float("-inf"))
            largest = tl.maximum(largest, z)
        largest = tl.where(in_n, largest, 0.0)
    for i in tl.static_range(S):
        there = in_n & (i < n_sources)
        z = tl.load(scores[i] + n * Z_STEP + head, mask=there, other=float("-inf"))
        a = tl.where(there, _weight(z, largest, 1.0, NORM), 0.0)
        total += a
        at = sources[i] + n[:, None] * rows[i] + column
        acc += a[:, None] * tl.load(at, mask=mask & (i < n_sources), other=0.0).to(tl.float32)
    if NORM == 0:
        inverse_sum = 1.0 / tl.where(in_n, total, 1.0)
        acc *= inverse_sum[:, None]
        if tile == 0:
            nh = n * HEADS + head
            tl.store(constants + nh, largest, mask=in_n)
            tl.store(constants + (n + n_tokens) * HEADS + head, inverse_sum, mask=in_n)
    tl.store(out + n[:, None] * D + column, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_sources", "n_tokens", "n_sites", "z_row"])
def mix_group_kernel(
    sources, rows, scores, mixed, score, n_sources, n_tokens, n_sites, z_row,
    S: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr,
    Z_STEP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The same for the G sites of a group at once, every source read once.

    Under a softmax score[g, n] = log sum_i exp(z_i[g, n]): mixed[g] with this score is to a later
    mix one source like any other, and stands for all that it holds. Grid as mix_kernel's.
    """
    DH: tl.constexpr = D // HEADS
    TILES: tl.constexpr = (DH + BLOCK_D - 1) // BLOCK_D
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    head, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    d = tile * BLOCK_D + tl.arange(0, BLOCK_D)
    g = tl.arange(0, BLOCK_G).to(tl.int64)[:, None]
    in_n, in_d = n < n_tokens, d < DH
    inside = (g < n_sites) & in_n[None, :]  # (G, N)
    column = head * DH + d
    at_z = g * z_row + n[None, :] * Z_STEP + head
    largest = tl.full([BLOCK_G, BLOCK_N], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_N, BLOCK_D], tl.float32)
    if NORM == 0:
        for i in tl.static_range(S):
            z = tl.load(scores[i] + at_z, mask=inside & (i < n_sources), other=float("-inf"))
            largest = tl.maximum(largest, z)
        largest = tl.where(inside, largest, 0.0)
    for i in tl.static_range(S):
        there = i < n_sources
        z = tl.load(scores[i] + at_z, mask=inside & there, other=float("-inf"))
        a = tl.where(inside & there, _weight(z, largest, 1.0, NORM), 0.0)
        total += a
        at = sources[i] + n[:, None] * rows[i] + column[None, :]
        x = tl.load(at, mask=in_n[:, None] & in_d[None, :] & there, other=0.0).to(tl.float32)
        acc += a[:, :, None] * x[None, :, :]
    gn = g * n_tokens + n[None, :]
    if NORM == 0:
        total = tl.where(inside, total, 1.0)
        acc /= total[:, :, None]
        if tile == 0:
            tl.store(score + gn * HEADS + head, largest + tl.log(total), mask=inside)
    at_out = mixed + gn[:, :, None] * D + column[None, None, :]
    tl.store(at_out, acc, mask=inside[:, :, None] & in_d[None, None, :])


@triton.jit(do_not_specialize=["n_grads", "n_tokens", "z_row", "ds_row"])
def gather_kernel(
    v, z, g, g_rows, constants, deltas, start, acc, ds,
    n_grads, n_tokens, v_row, z_row, ds_row,
    K: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr,
    Z_STEP: tl.constexpr, HAS_START: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What K later sites send back to a source.

    acc[n] = start[n] + sum_k a_k g_k[n]; ds[k, n] = the score's gradient. Grid: token tiles x
    heads; a head's channels lie in one tile, since a dot product runs over them.
    """
    DH: tl.constexpr = D // HEADS
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    in_n = n < n_tokens
    column = head * DH + d[None, :]
    mask = in_n[:, None] & (d < DH)[None, :]
    x = tl.load(v + n[:, None] * v_row + column, mask=mask, other=0.0).to(tl.float32)
    at = n[:, None] * D + column
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if HAS_START:
        total = tl.load(start + at, mask=mask, other=0.0).to(tl.float32)
    nh = n * HEADS + head
    wide = tl.zeros([1], tl.int64)
    for k in tl.static_range(K):
        there = in_n & (k < n_grads)
        y = tl.load(g[k] + n[:, None] * g_rows[k] + column, mask=mask & (k < n_grads), other=0.0)
        y = y.to(tl.float32)
        score = tl.load(z + (wide + k) * z_row + n * Z_STEP + head, mask=there, other=0.0)
        slope = tl.sum(x * y, axis=1)
        if NORM == 0:
            largest = tl.load(constants[k] + nh, mask=there, other=0.0)
            inverse = tl.load(constants[k] + (n + n_tokens) * HEADS + head, mask=there, other=0.0)
            delta = tl.load(deltas[k] + nh, mask=there, other=0.0)
            a = _weight(score, largest, inverse, NORM)
            slope = a * (slope - delta)
        else:
            a = _weight(score, 0.0, 1.0, NORM)
            if NORM == 1:
                slope *= a * (1.0 - a)
        a = tl.where(there, a, 0.0)
        total += a[:, None] * y
        tl.store(ds + (wide + k) * ds_row + nh, slope, mask=there)
    tl.store(acc + at, total, mask=mask)


@triton.jit(do_not_specialize=["n_tokens", "n_rows", "z_row", "ds_row", "tiles_each"])
def finish_kernel(
    acc, v, z, r, w, ds, dv, dw, n_tokens, n_rows, v_row, z_row, ds_row, tiles_each,
    D: tl.constexpr, HEADS: tl.constexpr, NORMALISE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of a source and of its queries, from acc and ds (both sums of gather_kernel).

    dv = acc + r sum_l ds_l w_l - (r^2 / D) (sum_lh ds_lh z_lh) v; dw[part] = sum_n r ds v.
    Grid: parts of the tokens x tiles of the width within a head. A part's sum of dw stays in
    registers; the parts are added up afterwards in one order, so no atomics are needed.
    """
    DH: tl.constexpr = D // HEADS
    TILES: tl.constexpr = (DH + BLOCK_D - 1) // BLOCK_D
    part = tl.program_id(0)
    head, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
    d = tile * BLOCK_D + tl.arange(0, BLOCK_D)
    in_d = d < DH
    column = head * DH + d
    rows = tl.arange(0, BLOCK_R)
    in_r = rows < n_rows
    q = tl.load(
        w + rows[:, None] * D + column[None, :], mask=in_r[:, None] & in_d[None, :], other=0.0
    )
    dq = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for step in range(tiles_each):
        n = (part.to(tl.int64) * tiles_each + step) * BLOCK_N + tl.arange(0, BLOCK_N)
        in_n = n < n_tokens
        mask = in_n[:, None] & in_d[None, :]
        nr = in_n[:, None] & in_r[None, :]
        x = tl.load(v + n[:, None] * v_row + column[None, :], mask=mask, other=0.0).to(tl.float32)
        total = tl.load(acc + n[:, None] * D + column[None, :], mask=mask, other=0.0)
        at_ds = ds + rows.to(tl.int64)[None, :] * ds_row + n[:, None] * HEADS
        s = tl.load(at_ds + head, mask=nr, other=0.0)
        if NORMALISE:
            at_z = z + rows.to(tl.int64)[None, :] * z_row + n[:, None] * HEADS
            along = tl.zeros([BLOCK_N], tl.float32)
            for h in range(HEADS):
                along += tl.sum(
                    tl.load(at_ds + h, mask=nr, other=0.0) * tl.load(at_z + h, mask=nr, other=0.0),
                    axis=1,
                )
            inverse_rms = tl.load(r + n, mask=in_n, other=0.0)
            total -= (along * inverse_rms * inverse_rms / D)[:, None] * x
            s *= inverse_rms[:, None]
        total = tl.dot(s, q, total, input_precision=PRECISION)
        dq = tl.dot(tl.trans(s), x, dq, input_precision=PRECISION)
        at_dv = dv + n[:, None] * D + column[None, :]
        tl.store(at_dv, total.to(dv.dtype.element_ty), mask=mask)
    at_dw = dw + (part.to(tl.int64) * n_rows + rows[:, None]) * D + column[None, :]
    tl.store(at_dw, dq, mask=in_r[:, None] & in_d[None, :])
