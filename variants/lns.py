"""lns: h_{l+1} = h_l + F_l(N_l(h_l) / sqrt(b)), h_1 = x, b = ceil(l / 2).

Symbols: x (B, T, D) the embedding; F_l sublayer l without a norm of its own; N_l the RMSNorm before
it, with a gain g_l (D); b the Transformer layer that it is in, from 1.
Options:
    mode  fixed: the factor stays. initial: it is g_l's initial value, and learned like that.
Start: g_l = 1, or 1 / sqrt(b) with mode=initial. Not `standard`: deeper sublayers see less.
Parameters: L D, the input norms that the sublayers do not have.
Cost: one multiplication per channel and sublayer, D L FLOPs; none with mode=initial.
Depth mixing: none: sublayers are given what a norm has made of the stream.
Source: Sun et al. 2025, LayerNorm Scaling (arXiv 2502.05795); initial: the form in the public code
of GPAS.
Differences: RMSNorm (eps 1e-6) for LayerNorm.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from attnres_cli.nn.residual import Hidden, Norms, Residual, register
from attnres_cli.nn.trunk.norm import RMSNorm


@register("lns")
class LNS(Residual):
    """The stream is standard; its norms are here, to be scaled."""

    norms = Norms.NONE
    not_linear = "sublayers are given what a norm has made of the stream"

    def __init__(
        self, d_model: int, n_sublayers: int, *, mode: Literal["fixed", "initial"] = "fixed"
    ) -> None:
        super().__init__(d_model, n_sublayers)
        self.before = nn.ModuleList(RMSNorm(d_model, eps=1e-6) for _ in range(n_sublayers))
        self.factors = [((l + 1) // 2) ** -0.5 for l in range(1, n_sublayers + 1)]
        self.is_fixed = mode == "fixed"
        with torch.no_grad():
            for norm, factor in zip(self.before, self.factors, strict=True):
                norm.get_parameter("weight").mul_(1.0 if self.is_fixed else factor)

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        h = self.before[l - 1](state)
        return (self.factors[l - 1] * h if self.is_fixed else h), state

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model * self.is_fixed
