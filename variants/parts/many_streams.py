"""Many streams instead of one: what a sublayer reads of them, and how its output is written.

With n streams x_j of width S, and k slices of a sublayer's input and output of the same width,

    h    = concat_k sum_j read[k, j] x_j
    x'_i = sum_j mix[i, j] x_j + write[i] y_i

where y_i is slice i of the output y, or all of y where there is one slice (k = 1). Streams that
are copies of the width have k = 1 and S = D, fractions of it k = n and S = D / n. A design says
what the three maps are; the rest is here. Maps are in float32 at least, whatever autocast says,
and so are the sums; streams keep their own type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix.scoring import no_autocast, wide
from attnres_cli.nn.residual import Hidden, Residual


class Maps(NamedTuple):
    """How one sublayer reads and writes n streams; leading axes are tokens, or none. The shapes are
    read (..., k, n), write (..., n, 1), and mix (..., n, n), from the second axis to the first.
    """

    read: Tensor
    mix: Tensor
    write: Tensor


class State(NamedTuple):
    """The streams (B, T, n, S), and between a read and its write the maps of both."""

    x: Tensor
    maps: Maps | None = None


class ManyStreams(Residual):
    """Copies of the width, whose sum the output norm sees."""

    n_streams: int

    @abstractmethod
    def maps(self, x: Tensor, l: int) -> Maps:
        """The maps of sublayer l, from the streams x (B, T, n, S) before it."""

    def readout(self, x: Tensor) -> Tensor:
        """(..., 1, n) weights of the streams at the output."""
        return x.new_ones(1, x.shape[-2], dtype=wide(x))

    def start(self, x: Hidden) -> State:
        return State(x.unsqueeze(-2).expand(*x.shape[:-1], self.n_streams, -1))

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        maps = self.maps(state.x, l)
        return read(state.x, maps.read), State(state.x, maps)

    def write(self, state: State, l: int, y: Hidden) -> State:
        assert state.maps is not None
        return State(write(state.x, state.maps, y))

    def finish(self, state: State) -> Hidden:
        return read(state.x, self.readout(state.x))

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | None:
        """Beside the streams go rows (B, T, n, L+1), the weight of every v_i in each of them. The
        maps of the streams are applied to both, so no design states its equation twice.
        """
        if self.not_linear:
            return None
        x = self.start(values[0]).x
        units = torch.eye(len(values), dtype=x.dtype, device=x.device)
        rows, seen = units[0].expand(*x.shape[:-1], -1), []
        for l in range(1, self.n_sublayers + 1):
            maps = self.maps(x, l)
            seen.append(read(rows, maps.read))
            x, rows = write(x, maps, values[l]), write(rows, maps, units[l])
        seen.append(read(rows, self.readout(x)))
        return torch.stack(seen, dim=-2).unsqueeze(-3)


class LearnedRows(ManyStreams):
    """Row j of the maps is b_j + s tanh(RMSNorm(x_j) W), b, s, W learned for each sublayer; the
    last column has an s of its own.
    """

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
        own = self.static[l - 1].to(wide(x))
        if self.weight is None or self.gain is None or self.scale is None:
            return own[:, :-1], own[:, -1:]
        found = project(x, self.weight[l - 1], self.gain[l - 1]).tanh()
        first, last = self.scale[l - 1].to(own.dtype)
        return own[:, :-1] + first * found[..., :-1], own[:, -1:] + last * found[..., -1:]


def read(x: Tensor, weights: Tensor) -> Tensor:
    """(B, T, k S): the k sums of the streams x (B, T, n, S) under weights (..., k, n), joined."""
    return combine(weights, x).flatten(-2).to(x.dtype)


def write(x: Tensor, maps: Maps, y: Tensor) -> Tensor:
    """(B, T, n, S): the streams x after a sublayer has put out y (B, T, k S)."""
    slices = y.unflatten(-1, (maps.read.shape[-2], -1))
    return (combine(maps.mix, x) + maps.write * slices).to(x.dtype)


def combine(weights: Tensor, x: Tensor) -> Tensor:
    """(..., k, S): sums of x (..., n, S) under weights (..., k, n), in the weights' type.

    Eager runs take a batched matrix product, compiled ones the elementwise form, which fuses with
    what is around it. Streams (16, 128, 4, 128) mixed by a (4, 4) matrix per token, forward and
    backward on one core: 6 to 14 ms as a product, 23 to 25 ms elementwise (and every term is held),
    26 to 37 ms stream by stream; compiled 9 to 11 ms as a product, 2.5 ms elementwise.
    """
    x = x.to(weights.dtype)
    if torch.compiler.is_compiling():
        return (weights.unsqueeze(-1) * x.unsqueeze(-3)).sum(dim=-2)
    with no_autocast(x):
        return weights.contiguous() @ x  # a strided operand is copied matrix by matrix


def project(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """(..., K): RMSNorm(x) @ weight for x (..., S) and weight (S, K), in float32 at least."""
    kind = wide(x)
    with no_autocast(x):
        gain = None if gain is None else gain.to(kind)
        normed = F.rms_norm(x.to(kind), x.shape[-1:], gain, eps=1e-6)
        return normed @ weight.to(kind)
