"""highway: h_{l+1} = (1 - g_l) * h_l + g_l * f_l(h_l), g_l = sigmoid(W_l h_l + b_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm); g_l its gate, one
number per channel or one per token; W_l (D, D) or (1, D), b_l (D) or (1), for l = 1..L; * by
channel. The gate reads the stream h_l as it is, without the norm that f_l puts before itself.
Options:
    gate  vector: every channel has a gate, as published. scalar: one gate for the whole width.
    bias  the initial value of all b; none is -ln L.
Start: W = 0, b = -ln L: every gate is 1 / (L + 1), and the embedding reaches the output norm with
the weight (1 - 1 / (L + 1))^L, more than 1/e at any depth; with a bias of -2 it would be 2 % after
32 sublayers. Not `standard` at step 0.
Parameters: L (D^2 + D), or L (D + 1) for scalar gates.
Cost: with G = D gates per token, or 1: a product of width D for each and the two multiplications of
the sum, L (2 G D + 2 G + 2 D) FLOPs; no bytes.
Depth mixing: M[l, i] = g_i prod_{j = i + 1}^{l - 1} (1 - g_j), g_0 = 1, of each token, and of each
channel for vector gates. Rows sum to one.
Refused: a bias that is not finite.
Source: Srivastava et al. 2015 (arXiv 1505.00387), section 2; their carry gate is 1 minus the
transform gate.
Differences: they gate plain layers, here f_l is a PreNorm sublayer. They want b
negative and leave the value to tuning; b = -ln L and W = 0 are our choice. Under autocast W h is
in the type of all matrix products; bias, sigmoid and sum are in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Residual, VariantError, register


@register("highway")
class Highway(Residual):
    """The state is the stream itself; its gate is made when the output has come."""

    rate_falls = (("weight", 1, 0),)

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        gate: Literal["scalar", "vector"] = "vector",
        bias: float | None = None,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        initial = -math.log(n_sublayers) if bias is None else bias
        if not math.isfinite(initial):
            raise VariantError(f"bias must be a finite number, or none for -ln L, got {bias}")
        self.n_gates = d_model if gate == "vector" else 1
        self.weight = nn.Parameter(torch.zeros(n_sublayers, self.n_gates, d_model))
        self.bias = nn.Parameter(torch.full((n_sublayers, self.n_gates), float(initial)))

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        gate = self._gate(state, l)
        return (1 - gate) * state + gate * y

    def extra_flops_per_token(self) -> int:
        logits_and_carry = 2 * self.n_gates * self.d_model + 2 * self.n_gates
        return self.n_sublayers * (logits_and_carry + 2 * self.d_model)

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor:
        sources = torch.eye(self.n_sublayers + 1).to(values[0])
        x, row = values[0], sources[0].expand(*values[0].shape[:2], self.n_gates, -1)
        rows = [row]
        for l, v in enumerate(values[1:], 1):
            gate = self._gate(x, l).unsqueeze(-1)  # (B, T, H, 1)
            row = (1 - gate) * row + gate * sources[l]
            x = self.write(x, l, v)
            rows.append(row)
        return torch.stack(rows, dim=-2)

    def _gate(self, x: Hidden, l: int) -> Tensor:
        """(B, T, D) or (B, T, 1), in float32 under autocast through the type of the bias."""
        return torch.sigmoid(F.linear(x, self.weight[l - 1]) + self.bias[l - 1])
