"""resv: V_b <- V_b + p_b x + q_b X_1 + r_b X_m in the last layers b, h_{l+1} = h_l + f_l(h_l).

Symbols: V_b (B, T, K, d_head) the values of the attention of Transformer layer b, before positions;
X_b (B, T, D) the stream after layer b of n, x = X_0 the embedding, added as they are, without a
projection: the heads of V_b beside each other are as wide as they. m = 8 n // 11. p, q, r learned
scalars. An add-on: on another stream X_b is what its next layer's values are made of.
Options:
    layers  in how many last layers; below n - m, as X_m is not there before.
    init    the initial p, q and r. 0 is `standard` at step 0.
Start: p = q = r = init = 0: `standard`.
Parameters: 3 layers.
Cost: six FLOPs per channel and such layer; X_1 and X_m are kept.
Depth mixing: the stream's, which goes on as it is.
Refused: one layer; more layers than follow m; values narrower than the model (n_kv_heads d_head
below D); attention whose values are not its own to change (mla, kda).
Source: Jordan et al., modded-nanogpt, pull request 259 (2026): into the last of its 11 layers, from
the embedding and after its first and eighth layer.
Differences: its initial values are not published apart from a record's code, so that `standard` is
the start here. It normalises the embedding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.residual import Hidden, Inputs, VariantError, register


@register("resv")
class ResV(Addon):
    """It keeps x, X_1 and X_m, once they are there."""

    adds_to_values = True
    order = 3  # after values are mixed with those of the first layer

    def __init__(
        self, d_model: int, n_sublayers: int, *, layers: int = 1, init: float = 0.0
    ) -> None:
        super().__init__(d_model, n_sublayers)
        n, self.middle = self.n_layers, 8 * self.n_layers // 11
        if n < 2:
            raise VariantError("earlier streams need at least 2 layers, got 1: use standard")
        if not 1 <= layers <= n - self.middle:
            raise VariantError(f"layers must be in 1..{n - self.middle}, got {layers}")
        if not math.isfinite(init):
            raise VariantError(f"init must be a finite number, got {init}")
        self.equals_standard_at_init = init == 0
        self.first = n - layers  # counted from 0
        self.weight = nn.Parameter(torch.full((layers, 3), float(init)))

    def changes_stream(self) -> bool:
        return False  # it looks at what is read, and lets it pass

    def begin(self, x: Hidden) -> Kept:
        return (x,)

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        if l % 2 and l // 2 in (1, self.middle):
            stream = h.v if isinstance(h, Inputs) else h
            kept = (*kept, *[stream] * (1 + (self.middle == 1)))
        return h, kept

    def on_values(self, kept: Kept, l: int, v: Tensor) -> tuple[Tensor, Kept]:
        row = l // 2 - self.first
        if row < 0:
            return v, kept
        parts = zip(self.weight[row].split(1), kept, strict=True)
        return v + sum(w * h.unflatten(-1, v.shape[-2:]) for w, h in parts), kept

    def n_kept(self, l: int) -> int:
        layer = (l - 1) // 2  # the last one whose attention has read
        return 1 + (layer >= 1) + (layer >= self.middle)
