"""vres: V_b <- a_b V_1 + c_b V_b in the layers b = 2..n, h_{l+1} = h_l + f_l(h_l), h_1 = x.

Symbols: V_b (B, T, K, d_head) the values of the attention of Transformer layer b as it projects
them, before positions; V_1 those of the first layer; a_b and c_b scalars. An add-on: attnres+vres
has the stream of `attnres`.
Options:
    weights  learned: a_b and c_b of every layer. shared: a_b = s softmax(t)_b of one learned scale
             s and a logit t for each layer, c_b as in learned. sum: c_b alone, with a_b = 1 - c_b.
             fixed: neither is learned.
    first    the initial a. With sum it is 1 - own.
    own      the initial c.
Start: a = c = 0.5, as published: not `standard`, but for first=0,own=1 (own=1 with sum).
Contains: standard, where a = 0 and c = 1.
Parameters: 2 (n - 1) learned; 2 (n - 1) + 1 shared; n - 1 sum; none fixed.
Cost: three FLOPs per value and later layer. V_1 of the tokens under way is kept; a cache in
generation holds the mixed values, and no more than before.
Depth mixing: the stream's, which goes on as it is; values are not in it.
Refused: one layer; a kind of attention whose values are not its own to change (mla, kda).
Source: Zhou et al. 2024, ResFormer (arXiv 2410.17897), its fixed and learned forms; sum: Jordan et
al., modded-nanogpt (2024-11).
Differences: weights=fixed,first=1,own=0 computes SVFormer, but for the later projections of values,
which a trunk has in any case and which then learn nothing. NeuTRENO is not here: it adds V_1 - V_b
to what attention has summed up, not to values.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.residual import VariantError, register


@register("vres")
class VRes(Addon):
    """It keeps V_1. Row b of `own`, and of `first`, is of layer b + 2."""

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        weights: Literal["learned", "shared", "sum", "fixed"] = "learned",
        first: float = 0.5,
        own: float = 0.5,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        n = self.n_layers - 1
        if n < 1:
            raise VariantError("values of the first layer need a second one: use standard")
        if not (math.isfinite(first) and math.isfinite(own)):
            raise VariantError(f"first and own must be finite numbers, got {first} and {own}")
        self.weights = weights
        start = 1 - own if weights == "sum" else first
        self.equals_standard_at_init = (start, own) == (0, 1)
        self.fixed = (start, own)
        if weights != "fixed":
            # (n, 1): products with a row are in float32 under autocast, those with a scalar are not
            self.own = nn.Parameter(torch.full((n, 1), own))
        if weights == "learned":
            self.first = nn.Parameter(torch.full((n, 1), first))
        elif weights == "shared":
            self.logit = nn.Parameter(torch.zeros(n, 1))
            self.scale = nn.Parameter(torch.full((1,), first * n))

    def on_values(self, kept: Kept, l: int, v: Tensor) -> tuple[Tensor, Kept]:
        if l == 1:
            return v, (v,)
        a, c = self._weights(l // 2 - 1)
        if isinstance(a, float) or isinstance(c, float) or engines.plain():
            return a * kept[0] + c * v, kept
        return _Mixed.apply(kept[0], v, a, c), kept  # type: ignore[no-untyped-call]

    def _weights(self, row: int) -> tuple[Tensor | float, Tensor | float]:
        if self.weights == "fixed":
            return self.fixed
        own = self.own[row]
        if self.weights == "sum":
            return 1 - own, own
        if self.weights == "shared":
            return self.scale * self.logit.softmax(dim=0)[row], own
        return self.first[row], own

    def n_kept(self, l: int) -> int:
        return min(l, 1)


class _Mixed(torch.autograd.Function):
    """a V_1 + c V_b, for values (B, T, K, d_head) and scalars (1): plain autograd's numbers, by way
    of half as many buffers.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, own: Tensor, a: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(first, own, a, c)
        return (a * first).add_(c * own)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (g,), (first, own, a, c) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            return a * g, c * g, (g * first).sum().view(1), (g * own).sum().view(1)
        part = g * first
        da = part.sum().view(1)
        dc = torch.mul(g, own, out=part).sum().view(1)
        return torch.mul(g, a, out=part), g * c, da, dc
