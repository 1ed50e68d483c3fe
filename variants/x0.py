"""x0: h_{2b-1} = r_b X_{b-1} + z_b x, then attention and MLP of layer b add to it: X_b; X_0 = x.

Symbols: x (B, T, D) the embedding; X_b the stream after Transformer layer b = 1..n_layers; r_b and
z_b its learned scalars, applied once, before its attention. Within the layer all is as usual:
h_{2b} = h_{2b-1} + f_{2b-1}(h_{2b-1}) and X_b = h_{2b} + f_{2b}(h_{2b}), f with its norm inside
(PreNorm).
Options:
    init  nanochat: r falls from 1.15 in the first layer to 1.05 in the last, z from 0.20 to 0.05,
          in equal steps. neutral: r = 1, z = 0.
Start: as `init` says. nanochat is the default because it is the published design, tuned as one;
neutral is `standard` at step 0, and shows what the scalars learn by themselves.
Contains: standard, where r = 1 and z = 0.
Parameters: 2 n_layers.
Cost: three FLOPs per channel and layer, 3 D n_layers; stream and embedding read and the sum
written, 3 D n_layers numbers.
Depth mixing: M[l, i] is the product of r_c over the layers c that begin after source i and not
after site l; the embedding adds z_b times the product of r_c from layer b + 1 on, for every b.
Source: Karpathy, nanochat, `resid_lambdas` and `x0_lambdas` of gpt.py (2026); before it Jordan et
al., modded-nanogpt (2024).
Differences: nanochat normalises the embedding, for the stream and for x alike; here both are the
trunk's embedding as it is, of unit variance at the start but free to grow. nanochat gives r and z
learning rates of their own and decays r; here they have that of all that a design adds, and no
decay. A single layer takes the values of the first.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.residual import Hidden, register


@register("x0")
class X0(Addon):
    """The first sublayer of each layer reads the sum, and the stream goes on from there."""

    acts_on_stream = True
    order = 2  # after the long skips, as in modded-nanogpt

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        init: Literal["neutral", "nanochat"] = "nanochat",
    ) -> None:
        super().__init__(d_model, n_sublayers)
        self.equals_standard_at_init = init == "neutral"
        steps = torch.arange(self.n_layers) / max(1, self.n_layers - 1)  # 0..1
        kept, added = torch.ones_like(steps), torch.zeros_like(steps)
        if init == "nanochat":
            kept, added = 1.15 - 0.10 * steps, 0.20 - 0.15 * steps
        # (n, 1): products with a row are in float32 under autocast, those with a scalar are not
        self.kept, self.added = nn.Parameter(kept[:, None]), nn.Parameter(added[:, None])

    def begin(self, x: Hidden) -> Kept:
        return (x,)

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        if l % 2 == 0:  # the MLP: inside its layer
            return h, kept
        return self.kept[l // 2] * h + self.added[l // 2] * kept[0], kept

    def n_kept(self, l: int) -> int:
        return 1

    def extra_flops_per_token(self) -> int:
        return 3 * self.d_model * self.n_layers
