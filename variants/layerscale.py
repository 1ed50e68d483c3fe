"""layerscale: h_{l+1} = h_l + g_l * f_l(h_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm); g_l (D) learned
gains of the output of sublayer l = 1..L, one per channel, * by channel.
Options:
    scale  the initial value of all g. 1 is `standard` at step 0.
Start: g = scale = 1e-4, so that the stack is nearly the identity and every output grows from
nothing at its own pace. Equal to `standard` at step 0 for scale=1 alone.
Contains: standard, where g = 1.
Parameters: L D.
Cost: one multiplication per channel and sublayer, D L FLOPs; no bytes.
Depth mixing: M[l, i] = g_i for 1 <= i < l, by channel, and M[l, 0] = 1.
Refused: a negative or infinite scale.
Source: Touvron et al. 2021, "CaiT" (arXiv 2103.17239).
Differences: 1e-4 is the default of the authors' code; for their deepest image models (24 layers
and more) they go down to 1e-5 and 1e-6. No stochastic depth. The gains are never decayed.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from attnres_cli.nn.addon import Addon
from attnres_cli.nn.residual import Hidden, VariantError, register


@register("layerscale")
class LayerScale(Addon):
    """What is written of an output is it times its gains."""

    def __init__(self, d_model: int, n_sublayers: int, *, scale: float = 1e-4) -> None:
        super().__init__(d_model, n_sublayers)
        if not 0 <= scale < math.inf:
            raise VariantError(f"scale must be a finite number of at least 0, got {scale}")
        self.equals_standard_at_init = scale == 1
        self.gain = nn.Parameter(torch.full((n_sublayers, d_model), scale))

    def on_write(self, l: int, y: Hidden) -> Hidden:
        return self.gain[l - 1] * y

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model
