"""gtrxl: h_{l+1} = (1 - z) * h_l + z * tanh(W_c y + U_c (r * h_l)), y = f_l(h_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm); * by channel; z =
sigmoid(W_z y + U_z h_l - b) and r = sigmoid(W_r y + U_r h_l) the gates of a GRU, whose input is
the output y and whose state is the stream; W, U (D, D) and b (D) learned for each sublayer.
Options:
    bias  the initial value of all b: the larger, the more the stream is kept.
Start: W, U ~ N(0, 1 / D), b = bias = 2. Not `standard`.
Parameters: (6 D^2 + D) L: as many as another MLP with each sublayer.
Cost: 12 D^2 + 12 D FLOPs per sublayer.
Depth mixing: none: a tanh of what is written.
Refused: an infinite bias.
Source: Parisotto et al. 2019, GTrXL (arXiv 1910.06764).
Differences: the paper applies ReLU to y before the gates; here y goes in as it is, as in later
code.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Residual, VariantError, register


@register("gtrxl")
class GTrXL(Residual):
    """Rows of `of_output` make r, z and c of y; rows of `of_stream` r and z of the stream."""

    rate_falls = (("of_output", 1, 0), ("of_stream", 1, 0), ("of_reset", 1, 0))
    not_linear = "what is written passes through a tanh"

    def __init__(self, d_model: int, n_sublayers: int, *, bias: float = 2.0) -> None:
        super().__init__(d_model, n_sublayers)
        if not math.isfinite(bias):
            raise VariantError(f"bias must be a finite number, got {bias}")
        generator = torch.Generator().manual_seed(0)

        def drawn(n: int) -> nn.Parameter:
            size = n_sublayers, n * d_model, d_model
            return nn.Parameter(torch.randn(size, generator=generator) / math.sqrt(d_model))

        self.of_output, self.of_stream, self.of_reset = drawn(3), drawn(2), drawn(1)
        self.bias = nn.Parameter(torch.full((n_sublayers, d_model), bias))

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        r_y, z_y, c_y = F.linear(y, self.of_output[l - 1]).chunk(3, dim=-1)
        r_h, z_h = F.linear(state, self.of_stream[l - 1]).chunk(2, dim=-1)
        r: Tensor = (r_y + r_h).sigmoid()
        z = (z_y + z_h - self.bias[l - 1]).sigmoid()
        c = (c_y + F.linear(r * state, self.of_reset[l - 1])).tanh()
        return (1 - z) * state + z * c

    def extra_flops_per_token(self) -> int:
        d = self.d_model
        return self.n_sublayers * (12 * d * d + 12 * d)
