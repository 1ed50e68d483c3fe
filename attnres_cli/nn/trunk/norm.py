"""RMSNorm: y = g x / sqrt(mean(x^2) + eps), over the last dimension.

Symbols: x (N, D) tokens, g (D) the gain, r (N) the reciprocal root mean square of each token.
Gradients, by dy: dg = sum_n r x dy;  dx = r g dy - (r^3 / D) (x . g dy) x.
Source: Zhang and Sennrich 2019 (arXiv 1910.07467).

On a CPU torch composes its own of some six passes over the tokens forward and twelve backward, and
keeps three vectors per token. Here it is three and five, and x and r are kept. A GPU has a kernel,
and a compiler fuses: both get torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """Tokens (..., D) to tokens of unit size times a learned gain."""

    def forward(self, x: Tensor) -> Tensor:
        """In the gain's type, which autocast leaves wider than the tokens may be."""
        return rms_norm(x.to(self.weight.dtype), self.weight, self.eps)


def rms_norm(x: Tensor, gain: Tensor, eps: float | None) -> Tensor:
    """(..., D): tokens x (..., D) of unit size, times the gain (D) of the same type."""
    is_wide = x.dtype in (torch.float32, torch.float64)
    if x.device.type != "cpu" or not is_wide or torch.compiler.is_compiling():
        return F.rms_norm(x, gain.shape, gain, eps)
    return _RMSNorm.apply(x, gain, torch.finfo(x.dtype).eps if eps is None else eps)  # type: ignore[no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = r.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, r)
        ctx.eps = eps
        return (x * r).mul_(gain)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, r = ctx.saved_tensors
        (dy,) = gradients
        if torch.is_grad_enabled():  # create_graph=True: r is a function of x
            y = F.rms_norm(x, gain.shape, gain, ctx.eps)
            return *torch.autograd.grad(y, (x, gain), dy, create_graph=True), None
        x, dy, r = x.flatten(0, -2), dy.flatten(0, -2), r.view(-1, 1)
        products = x * dy
        dgain = products.t() @ r.view(-1)
        slope = (products @ gain).unsqueeze(-1).mul_(r * r * r)
        dx = torch.mul(dy, gain, out=products).mul_(r).addcmul_(x, slope, value=-1 / x.shape[-1])
        return dx.view_as(gradients[0]), dgain, None
