"""rezero: h_{l+1} = h_l + a_b F_l(h_l), h_1 = x, b = ceil(l / 2), a_b = 0 at the start.

Symbols: x (B, T, D) the embedding; F_l sublayer l without a norm; a_b one learned scalar per
Transformer layer b = 1..n_layers, for its attention and its MLP.
Options:
    norm    off: no norm within the sublayers, as published. on: the sublayers keep their input
            norms, f_l(h) = F_l(N_l(h)).
    shared  on: one scalar for both sublayers of a layer, as published. off: one for each sublayer.
Start: a = 0: the stack is the identity and the output norm sees the embedding. At the first step
nothing but the scalars, the embedding, the output norm and the head has a gradient.
Contains: standard, where norm=on and the scales are 1.
Parameters: n_layers, or L where they are not shared. norm=off takes the L D gains of the input
norms away.
Cost: one multiplication per channel and sublayer, D L FLOPs; no bytes. What is saved by norms
that are not there is not counted.
Depth mixing: M[l, i] = a_b(i) for 1 <= i < l, and M[l, 0] = 1.
Source: Bachlechner et al. 2020 (arXiv 2003.04887); that both sublayers share a scalar is
from the authors' Transformer layer.
Differences: the output norm of the trunk stays. The paper raises the lr of the scalars, here it is
that of all that a design adds. Nothing bounds the stream: large scalars overflow under norm=off.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Norms, Residual, register


@register("rezero")
class ReZero(Residual):
    """The state is the stream itself."""

    def __init__(
        self, d_model: int, n_sublayers: int, *, norm: bool = False, shared: bool = True
    ) -> None:
        super().__init__(d_model, n_sublayers)
        self.norms = Norms.PRE if norm else Norms.NONE
        self.unbounded = "" if norm else "no norm bounds what its sublayers see"
        self.shared = shared
        # (n, 1): products with a row are in float32 under autocast, those with a scalar are not
        self.scale = nn.Parameter(torch.zeros(self.n_layers if shared else n_sublayers, 1))

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + self._scale(l) * y

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model

    def _scale(self, l: int) -> Tensor:
        return self.scale[(l - 1) // 2 if self.shared else l - 1]
