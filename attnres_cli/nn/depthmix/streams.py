"""Several streams instead of one: what a sublayer reads of them, and how its output is written.

With n streams x_j of width S, and k slices of a sublayer's input and output of the same width,

    h    = concat_k sum_j read[k, j] x_j
    x'_i = sum_j mix[i, j] x_j + write[i] y_i

where y_i is slice i of the output y, or all of y where there is one slice (k = 1). Streams that
are copies of the width have k = 1 and S = D, fractions of it k = n and S = D / n. A design says
what the three maps are; the rest is here. Maps are in float32 at least, whatever autocast says,
and so are the sums; streams keep their own type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres_cli.nn.depthmix.scoring import no_autocast, wide

EPS = 1e-6
"""Of the norm before the projections that maps are made of."""


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


class Design(Protocol):
    """What `depth_mixing` asks of a design whose streams are copies of the width."""

    n_sublayers: int

    def start(self, x: Tensor) -> State:
        """The streams that hold the embedding alone."""

    def maps(self, x: Tensor, l: int) -> Maps:
        """The maps of sublayer l, from the streams x (B, T, n, D) before it."""

    def readout(self, x: Tensor) -> Tensor:
        """(..., 1, n) weights of the streams in what the output norm sees."""


def copies(x: Tensor, n: int) -> State:
    """The embedding x (B, T, D) in each of n streams (B, T, n, D)."""
    return State(x.unsqueeze(-2).expand(*x.shape[:-1], n, -1))


def fractions(x: Tensor, m: int) -> State:
    """The embedding x (B, T, D) cut into m streams (B, T, m, D / m)."""
    return State(x.unflatten(-1, (m, -1)))


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
        normed = F.rms_norm(x.to(kind), x.shape[-1:], gain, EPS)
        return normed @ weight.to(kind)


def coefficients(
    x: Tensor,
    site: int,
    static: Tensor,
    weight: Tensor | None,
    gain: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Hyper-connections' coefficients at a site, (..., n, K - 1) and (..., n, 1).

    Row j is static_j + scale * tanh(RMSNorm(x_j) @ weight), or static_j where weight is None.
    Shapes: x (B, T, n, S), static (sites, n, K), weight (sites, S, K), the norm's gain (sites, S),
    scale (sites, 2) of the first K - 1 columns and of the last.
    """
    own = static[site].to(wide(x))
    if weight is None or gain is None or scale is None:
        return own[:, :-1], own[:, -1:]
    found = project(x, weight[site], gain[site]).tanh()
    first, last = scale[site].to(own.dtype)
    return own[:, :-1] + first * found[..., :-1], own[:, -1:] + last * found[..., -1:]


def total(x: Tensor) -> Tensor:
    """(1, n): a readout that sums the streams x (B, T, n, S)."""
    return x.new_ones(1, x.shape[-2], dtype=wide(x))


def depth_mixing(design: Design, values: Sequence[Tensor]) -> Tensor:
    """M (B, T, 1, L+1, L+1) of a design whose streams are copies of the width, from v_i (B, T, D).

    Beside the streams go rows c (B, T, n, L+1), the weight of every v_i in each of them. The maps
    of the streams are applied to both, so no design states its equation twice.
    """
    x = design.start(values[0]).x
    units = torch.eye(len(values), dtype=x.dtype, device=x.device)
    rows, seen = units[0].expand(*x.shape[:-1], -1), []
    for l in range(1, design.n_sublayers + 1):
        maps = design.maps(x, l)
        seen.append(read(rows, maps.read))
        x, rows = write(x, maps, values[l]), write(rows, maps, units[l])
    seen.append(read(rows, design.readout(x)))
    return torch.stack(seen, dim=-2).unsqueeze(-3)
