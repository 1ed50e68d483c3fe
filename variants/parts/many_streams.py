"""Many streams X (n, S): h_l = P X, X' = R X + Q f_l(h_l); P, R and Q are a design's maps.

S is the width D where the streams are copies of it, D / n where they are fractions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres_cli.nn.depthmix import streams
from attnres_cli.nn.depthmix.streams import Maps, State
from attnres_cli.nn.residual import Hidden, Residual


class ManyStreams(Residual):
    """Copies of the width, whose sum the output norm sees."""

    n_streams: int

    @abstractmethod
    def maps(self, x: Tensor, l: int) -> Maps:
        """The maps of sublayer l, from the streams x (B, T, n, S) before it."""

    def readout(self, x: Tensor) -> Tensor:
        """(..., k, n) weights of the streams at the output."""
        return streams.total(x)

    def start(self, x: Hidden) -> State:
        return streams.copies(x, self.n_streams)

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        maps = self.maps(state.x, l)
        return streams.read(state.x, maps.read), State(state.x, maps)

    def write(self, state: State, l: int, y: Hidden) -> State:
        assert state.maps is not None
        return State(streams.write(state.x, state.maps, y))

    def finish(self, state: State) -> Hidden:
        return streams.read(state.x, self.readout(state.x))

    def extra_bytes_per_token(self, itemsize: int) -> int:
        """Each stream is read twice and written once per sublayer, and read once at the output."""
        per_sublayer, at_output = 3 * self.n_streams - 1, self.n_streams + 1
        return itemsize * self.d_model * (self.n_sublayers * per_sublayer + at_output)

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | None:
        return None if self.not_linear else streams.depth_mixing(self, values)


class LearnedRows(ManyStreams):
    """Row j of the maps is b_j + s tanh(RMSNorm(x_j) W), b, s, W learned for each sublayer."""

    def learn(self, rows: Tensor, width: int, *, dynamic: bool) -> None:
        """Add the parameters: rows (L, n, K) are b at the start, W (width, K) is zero."""
        n_sublayers, _, columns = rows.shape
        self.static = nn.Parameter(rows)
        self.weight = self.gain = self.scale = None
        if dynamic:
            self.weight = nn.Parameter(torch.zeros(n_sublayers, width, columns))
            self.scale = nn.Parameter(torch.full((n_sublayers, 2), 0.01))
            self.gain = nn.Parameter(torch.ones(n_sublayers, width))

    def rows(self, x: Tensor, l: int) -> tuple[Tensor, Tensor]:
        """(..., n, K - 1) and (..., n, 1): of sublayer l, and their last column."""
        learned = (self.static, self.weight, self.gain, self.scale)
        return streams.coefficients(x, l - 1, *learned)
