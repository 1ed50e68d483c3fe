"""frac: h_l = concat(Y^T X), X' = A^T X + diag(B) split(f_l(h_l)): m fractions of the width as X.

Symbols: X (B, T, m, D / m) the stream before sublayer l cut into m fractions, at first the
embedding; f_l the sublayer; per token Y (m, m) which fractions it reads where, A (m, m) how they
mix (rows from, columns to), B (m) how much of each fraction of its output is written. With x_j
fraction j of a token, W (D / m, 2 m) and w (D / m) learned, row j of (Y, A) is
s_a tanh(RMSNorm(x_j) W) plus a learned row, and B_j is s_b tanh(RMSNorm(x_j) w) plus a learned
number. The output norm sees the joined fractions.

Options:
    fractions  m, a divisor of d_model; 1 is hc:n_streams=1.
    dynamic    off: the learned rows and numbers alone, the same for every token.

Start: Y = A = I, B = 1, W = w = 0, s_a = s_b = 0.01, gain 1: the model is `standard` at step 0.
Parameters: L (2 m^2 + m); dynamic L (2 m^2 + m + (D / m) (2 m + 2) + 2).
Cost: per sublayer 2 D (2 m + 1) FLOPs for the sums, dynamic 2 D (2 m + 3) more for the
coefficients and their norm; 2 D numbers per sublayer, h written and the stream read again.
Depth mixing: none, unless m = 1: fractions exchange places, so an earlier output has an m by m
matrix of weights.
Refused: fractions that do not divide d_model.

Source: Zhu et al. 2025, Frac-Connections (arXiv 2503.14125). Differences: the norm before W is an
RMSNorm with gain over a fraction, one per sublayer and shared by its fractions, where their code
has a LayerNorm. What the paper calls a layer is a sublayer here, as in hc.
"""

from __future__ import annotations

import torch

from attnres_cli.nn.residual import Hidden, VariantError, register

from .parts.learned_rows import LearnedRows
from .parts.many_streams import State


@register("frac")
class FracConnections(LearnedRows):
    """Columns of the rows: the m of Y, the m of A, B."""

    equals_standard_at_init = True

    def __init__(
        self, d_model: int, n_sublayers: int, *, fractions: int = 4, dynamic: bool = True
    ) -> None:
        super().__init__(d_model, n_sublayers)
        if fractions < 1 or d_model % fractions:
            raise VariantError(f"fractions must divide d_model {d_model}, got {fractions}")
        self.n_streams = fractions
        if fractions > 1:
            self.not_linear = (
                "fractions of the width exchange places: a source's weight is a matrix"
            )
        keep = torch.eye(fractions)
        rows = torch.cat((keep, keep, torch.ones(fractions, 1)), dim=-1)
        self.learn(rows.repeat(n_sublayers, 1, 1), d_model // fractions, dynamic=dynamic)

    def start(self, x: Hidden) -> State:
        return State(x.unflatten(-1, (self.n_streams, -1)), self.each(), x.dtype)

    def finish(self, state: State) -> Hidden:
        return state.x.flatten(-2)

    def extra_flops_per_token(self) -> int:
        m = self.n_streams
        per_sublayer = 2 * m + 1 + (0 if self.weight is None else 2 * m + 3)
        return 2 * self.d_model * self.n_sublayers * per_sublayer
