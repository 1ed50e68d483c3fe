"""scaled: h_{l+1} = h_l + f_l(h_l) / L^a, h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l = 1..L with its norm inside (PreNorm); a a fixed
exponent. An add-on: on another stream each output is written so much smaller.
Options:
    exponent  a. 0.5 is depth-muP's, 1 CompleteP's, 0 `standard`.
Start: the outputs are L^a times smaller beside the embedding than in `standard`.
Contains: standard, where a = 0.
Parameters: none.
Cost: one multiplication per channel and sublayer, D L FLOPs; no bytes.
Depth mixing: M[l, i] = L^-a for 1 <= i < l, and M[l, 0] = 1.
Refused: a negative or infinite exponent.
Source: Yang et al. 2023, depth-muP (arXiv 2310.02244); Dey et al. 2025, CompleteP (arXiv
2505.01618).
Differences: only the factor on branches. Both also scale learning rates, initial values and the
optimiser's epsilon with depth and width; these are the recipe's. CompleteP counts from a base depth
that was tuned; here L itself.
"""

from __future__ import annotations

import math

from attnres_cli.nn.addon import Addon
from attnres_cli.nn.residual import Hidden, VariantError, register


@register("scaled")
class Scaled(Addon):
    """What is written of an output is it times one number."""

    def __init__(self, d_model: int, n_sublayers: int, *, exponent: float = 0.5) -> None:
        super().__init__(d_model, n_sublayers)
        if not 0 <= exponent < math.inf:
            raise VariantError(f"exponent must be a finite number of at least 0, got {exponent}")
        self.equals_standard_at_init = exponent == 0
        self.depth_exponent = 1 - exponent
        self.factor = float(n_sublayers) ** -exponent

    def on_write(self, l: int, y: Hidden) -> Hidden:
        return self.factor * y

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model
