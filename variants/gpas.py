"""gpas: h <- h - silu(a_b) sg(h) after each sum of layer b = 1..n, sg passing no gradient.

Symbols: h (B, T, D) the stream once the output of an attention, or of an MLP, was added to it; a_b
a learned scalar of Transformer layer b, which serves both, silu(a) = a sigmoid(a). Forward the
stream is scaled by 1 - silu(a_b); backward its gradient passes as if it were not.
Start: a = 0: `standard` at step 0.
Parameters: n.
Cost: two FLOPs per channel and sublayer, 4 D n.
Depth mixing: M[l, i] is the product of 1 - silu(a_b) over the sublayers from i, or 1, to l - 1, b
the layer of each.
Refused: a stream that is not one tensor.
Source: Chen et al. 2025, "GPAS" (arXiv 2506.22049), its form for PreNorm, and its code, which uses
a layer's one scalar twice.
Differences: for layers with norms after the sum the paper scales another place; here those streams
are scaled after the sublayer too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.residual import Hidden, register


@register("gpas")
class GPAS(Addon):
    """A sublayer's end is where the next one, or the output norm, reads the stream."""

    acts_on_stream = True
    equals_standard_at_init = True
    order = -1  # a part of the sublayer that ends, so before all that looks at the stream after it

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        # (n, 1): products with a row are in float32 under autocast, those with a scalar are not
        self.gate = nn.Parameter(torch.zeros(self.n_layers, 1))

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        return (self._scaled(h, l // 2) if l > 1 else h), kept

    def on_finish(self, kept: Kept, h: Hidden) -> Hidden:
        return self._scaled(h, self.n_layers)

    def _scaled(self, h: Hidden, b: int) -> Hidden:
        return h - F.silu(self.gate[b - 1]) * h.detach()

    def extra_flops_per_token(self) -> int:
        return 2 * self.d_model * self.n_sublayers
