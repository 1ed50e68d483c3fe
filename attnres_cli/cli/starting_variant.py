"""my_variant: h_{l+1} = h_l + s_l f_l(h_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside; s_l one learned scalar per
sublayer, L in all.

Options:
    strength  what every s_l starts at.

Start: s_l = strength; with 1 the model is `standard` at step 0.
Parameters: L.
Cost: one multiplication per channel and sublayer; nothing is read or written that `standard` does
not.
Depth mixing: output i reaches every later site with the weight s_i.
Source: yours.
"""

from __future__ import annotations

import torch
from torch import nn

from attnres_cli.nn.residual import Hidden, Residual, VariantError, register


@register("my_variant")
class MyVariant(Residual):
    """The state is the stream. Any value may be one; it is never changed in place.

    Depth-mixing designs keep a History instead: see variants/attnres.py.
    """

    def __init__(self, d_model: int, n_sublayers: int, *, strength: float = 1.0) -> None:
        super().__init__(d_model, n_sublayers)
        if strength == 0:
            raise VariantError("strength must not be 0: no sublayer would ever be heard")
        self.scale = nn.Parameter(torch.full((n_sublayers,), strength))
        self.equals_standard_at_init = strength == 1.0

    def start(self, x: Hidden) -> Hidden:
        return x

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return state, state  # what sublayer l sees, and the state to go on with

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + self.scale[l - 1].to(y.dtype) * y  # l counts from 1

    def finish(self, state: Hidden) -> Hidden:
        return state
