"""backout: h_{L+1} = X_n - a X_m for the output norm, X_b = X_{b-1} + attention + MLP, m = n//2+1.

Symbols: X_b (B, T, D) the stream after Transformer layer b of n, X_0 = x the embedding; a one
learned scalar. An add-on: it takes what the layers up to the middle one built out of what is read
at the end, so that they may serve the later ones alone. Of one or two layers X_m is X_n.
Options:
    init  the initial a. 0 is `standard` at step 0.
Start: a = init = 0.2, as published.
Contains: standard, where a = 0.
Parameters: 1.
Cost: two FLOPs per channel, 2 D; X_m is kept until the end.
Depth mixing: M[L + 1, i] = 1 - a for the sources in X_m, 1 for the others; before, that of the
stream.
Refused: a stream that is not one tensor, of which there is no X_m; an infinite init.
Source: Karpathy, nanochat, `backout_lambda` of gpt.py (2026), which keeps the stream after block
n_layer // 2, counted from 0; before it modded-nanogpt.
Differences: nanochat gives a the learning rate of its scalars.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.residual import Hidden, VariantError, register


@register("backout")
class Backout(Addon):
    """It keeps X_m from when the first sublayer of layer m + 1 reads it."""

    acts_on_stream = True

    def __init__(self, d_model: int, n_sublayers: int, *, init: float = 0.2) -> None:
        super().__init__(d_model, n_sublayers)
        if not math.isfinite(init):
            raise VariantError(f"init must be a finite number, got {init}")
        self.equals_standard_at_init = init == 0
        self.middle = 2 * (self.n_layers // 2 + 1) + 1  # of one or two layers, after the last
        self.weight = nn.Parameter(torch.full((1,), float(init)))

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        return h, (h,) if l == self.middle else kept

    def on_finish(self, kept: Kept, h: Hidden) -> Hidden:
        return h - self.weight * (kept[0] if kept else h)

    def n_kept(self, l: int) -> int:
        return int(l >= self.middle)
