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

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres_cli.nn.depthmix import streams
from attnres_cli.nn.depthmix.streams import Maps, State
from attnres_cli.nn.residual import Hidden, Residual, VariantError, register


@register("frac")
class FracConnections(Residual):
    """Columns of the coefficients: the m of Y, the m of A, B."""

    equals_standard_at_init = True

    def __init__(
        self, d_model: int, n_sublayers: int, *, fractions: int = 4, dynamic: bool = True
    ) -> None:
        super().__init__(d_model, n_sublayers)
        if fractions < 1 or d_model % fractions:
            raise VariantError(f"fractions must divide d_model {d_model}, got {fractions}")
        self.fractions = fractions
        if fractions > 1:
            self.not_linear = (
                "fractions of the width exchange places: a source's weight is a matrix"
            )
        keep = torch.eye(fractions)
        static = torch.cat((keep, keep, torch.ones(fractions, 1)), dim=-1)
        self.static = nn.Parameter(static.repeat(n_sublayers, 1, 1))
        self.weight = self.gain = self.scale = None
        if dynamic:
            width = d_model // fractions
            self.weight = nn.Parameter(torch.zeros(n_sublayers, width, 2 * fractions + 1))
            self.scale = nn.Parameter(torch.full((n_sublayers, 2), 0.01))
            self.gain = nn.Parameter(torch.ones(n_sublayers, width))

    def maps(self, x: Tensor, l: int) -> Maps:
        """The maps of sublayer l, from the fractions before it."""
        width, depth = streams.coefficients(
            x, l - 1, self.static, self.weight, self.gain, self.scale
        )
        read, mix = width.split(self.fractions, dim=-1)
        return Maps(read.mT, mix.mT, depth)

    def readout(self, x: Tensor) -> Tensor:
        """Every fraction at its own place."""
        return torch.eye(self.fractions, dtype=x.dtype, device=x.device)

    def start(self, x: Hidden) -> State:
        return streams.fractions(x, self.fractions)

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        maps = self.maps(state.x, l)
        return streams.read(state.x, maps.read), State(state.x, maps)

    def write(self, state: State, l: int, y: Hidden) -> State:
        assert state.maps is not None
        return State(streams.write(state.x, state.maps, y))

    def finish(self, state: State) -> Hidden:
        return state.x.flatten(-2)

    def n_params(self) -> int:
        m = self.fractions
        dynamic = 0 if self.weight is None else self.d_model // m * (2 * m + 2) + 2
        return self.n_sublayers * (2 * m * m + m + dynamic)

    def extra_flops_per_token(self) -> int:
        m = self.fractions
        per_sublayer = 2 * m + 1 + (0 if self.weight is None else 2 * m + 3)
        return 2 * self.d_model * self.n_sublayers * per_sublayer

    def extra_bytes_per_token(self, itemsize: int) -> int:
        return itemsize * self.d_model * 2 * self.n_sublayers

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | None:
        return None if self.not_linear else streams.depth_mixing(self, values)
