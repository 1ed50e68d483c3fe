"""unet: h_{2b-1} = X_{b-1} + s_b X_{n-b+1} for the last n // 2 of the n layers b, else X_{b-1}.

Symbols: n = n_layers; X_b (B, T, D) the stream after Transformer layer b, X_0 = x the embedding;
X_b = h_{2b-1} + f_{2b-1}(h_{2b-1}) + f_{2b}(h_{2b}) as usual, with f sublayers with their norm
inside (PreNorm); s_b learned scalars. The first half of the layers push their streams on a stack,
the second half pop them, the last pushed first: an even n begins by adding X_{n/2} to itself. The
middle layer of an odd n neither pushes nor pops.
Options:
    init  the initial value of all s. 0 is `standard` at step 0.
Start: s = init = 1, as published: each skip adds the early streams once more. Equal to `standard`
at step 0 for init=0 alone.
Contains: standard, where s = 0.
Parameters: n // 2.
Cost: two FLOPs per channel and skip, 2 D (n // 2); both streams read and the sum written,
3 D (n // 2) numbers. The streams of the first half stay in memory until they are popped.
Depth mixing: M[l, i] = 1 for all i < l, plus, for each skip before site l, s_b times the weight
that source i has in the stream that it adds, carried on as any other.
Refused: one layer (there is nothing to skip), an infinite init.
Source: Jordan et al., modded-nanogpt, record of 2024-11-10 (U-net skips).
Differences: the record also adds the embedding before each layer (`x0` has that) and mixes the
first layer's values into attention; neither is here. It has an even number of layers, and where
the middle one of an odd number belongs is our choice.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.residual import VariantError, register


@register("unet")
class UNet(Addon):
    """It keeps the stack. A layer, counted from 0, first pushes what it finds, then pops."""

    acts_on_stream = True
    order = 1  # after what keeps the stream as a layer left it

    def __init__(self, d_model: int, n_sublayers: int, *, init: float = 1.0) -> None:
        super().__init__(d_model, n_sublayers)
        self.n_skips = self.n_layers // 2
        if self.n_skips == 0:
            raise VariantError("long skips need at least 2 layers, got 1: use standard")
        if not math.isfinite(init):
            raise VariantError(f"init must be a finite number, got {init}")
        self.equals_standard_at_init = init == 0
        # (n, 1): products with a row are in float32 under autocast, those with a scalar are not
        self.skip = nn.Parameter(torch.full((self.n_skips, 1), float(init)))

    def on_read(self, kept: Kept, l: int, h: Any) -> tuple[Any, Kept]:
        layer = l // 2
        if l % 2 == 0:
            return h, kept
        if 1 <= layer <= self.n_skips:
            kept = (*kept, h)
        skip = self._skip(layer)
        return (h + self.skip[skip] * kept[-1], kept[:-1]) if skip >= 0 else (h, kept)

    def _skip(self, layer: int) -> int:
        """The number of a layer's skip, below 0 where it has none."""
        return layer - (self.n_layers - self.n_skips)

    def n_kept(self, l: int) -> int:
        layer = (l - 1) // 2  # the last one that has been read
        return max(0, min(layer, self.n_skips) - max(0, self._skip(layer) + 1))

    def extra_flops_per_token(self) -> int:
        return 2 * self.d_model * self.n_skips
