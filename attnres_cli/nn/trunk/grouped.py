"""Products of a stack of matrices with rows that belong to one of them each: y_i = x_i w_e.

Rows lie sorted, those of matrix e before place ends[e] and after those of e - 1. Gradients are such
products too, dx_i = dy_i w_e', dw_e = sum_i x_i' dy_i, so that all derivatives are.

How many rows a matrix has is known on the device alone: both sums are operations of our own, which
a compiler, a tensor without numbers and a counter of FLOPs see as one, of known sizes. On GPUs
bfloat16 goes by torch's grouped product; a loop does the rest. On a core of an AMD EPYC (Zen 5)
torch's, which is a loop there too, takes 1 to 1.9 times this one's time in float32 at widths of 64
to 512, as it goes by MKL (linear.py), and 0.93 times in bfloat16; it has no float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres_cli.nn.trunk.linear import product

_ALIGNED = 8  # numbers: torch's grouped product wants rows that begin at multiples of 16 bytes


@torch.library.custom_op("attnres::rows", mutates_args=())
def rows(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """(M, N): x_i w_e, of rows x (M, K) and matrices w (E, K, N); `ends` (E) are int32."""
    if _goes_at_once(x, w):
        return F.grouped_mm(x, w, offs=ends)
    out = x.new_empty(len(x), w.shape[2])
    for e, here in _groups(ends):
        product(x[here], w[e], out[here])
    return out


@torch.library.custom_op("attnres::sums", mutates_args=())
def sums(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """(E, K, N): the sum over each group's rows of x_i' y_i, of (M, K) and (M, N)."""
    if _goes_at_once(x, y):
        return F.grouped_mm(x.t(), y, offs=ends)
    out = x.new_zeros(len(ends), x.shape[1], y.shape[1])
    for e, here in _groups(ends):
        product(x[here].t(), y[here], out[e])
    return out


def _differentiate(of: Any, backward: Callable[..., tuple[Tensor | None, ...]]) -> None:
    def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
        ctx.save_for_backward(*inputs)

    of.register_autograd(backward, setup_context=keep)


def _rows_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w, ends = ctx.saved_tensors
    return rows(dy, w.mT, ends), sums(x, dy, ends), None


def _sums_backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
    x, y, ends = ctx.saved_tensors
    return rows(y, dw.mT, ends), rows(x, dw, ends), None


_differentiate(rows, _rows_backward)
_differentiate(sums, _sums_backward)


@rows.register_fake
def _(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:  # noqa: ARG001
    return x.new_empty(len(x), w.shape[2])


@sums.register_fake
def _(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(len(ends), x.shape[1], y.shape[1])


def flops(x: tuple[int, ...], y: tuple[int, ...], *_: object, **__: object) -> int:
    """Of either sum, from the shapes of what it is given: a row meets one matrix."""
    return 2 * x[0] * x[1] * y[-1]


FLOPS = {torch.ops.attnres.rows: flops, torch.ops.attnres.sums: flops}
"""For torch's counter (FlopCounterMode's custom_mapping), whose import takes half a second."""


def _goes_at_once(x: Tensor, y: Tensor) -> bool:
    """Whether torch computes all groups at once, on a device that would wait for a loop."""
    fits = x.shape[1] % _ALIGNED == 0 and y.shape[-1] % _ALIGNED == 0
    return x.is_cuda and x.dtype is torch.bfloat16 and fits and hasattr(F, "grouped_mm")


def _groups(ends: Tensor) -> list[tuple[int, slice]]:
    """The matrices that have rows, and where these are."""
    stops = ends.tolist()
    starts = [0, *stops[:-1]]
    return [
        (e, slice(*at)) for e, at in enumerate(zip(starts, stops, strict=True)) if at[0] < at[1]
    ]
