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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.scoring import no_autocast, wide
from attnres_cli.nn.residual import Hidden, Residual

Own = tuple[Tensor, ...]
"""The parameters of one sublayer."""

EPS = 1e-6
"""Of the norms."""


class Maps(NamedTuple):
    """How one sublayer reads and writes n streams; leading axes are tokens, or none. The shapes are
    sums (..., k + n, n), the rows of `read` above those of `mix`, and write (..., n, 1).
    """

    sums: Tensor
    write: Tensor

    @property
    def read(self) -> Tensor:
        """(..., k, n)."""
        return self.sums[..., : -self.sums.shape[-1], :]

    @property
    def mix(self) -> Tensor:
        """(..., n, n), from the second axis to the first."""
        return self.sums[..., -self.sums.shape[-1] :, :]


class State(NamedTuple):
    """The streams x (B, T, n, S) and the parameters of each sublayer. Between a read and its write
    also how the output is written, and either how the streams will be mixed, or they are by then.
    """

    x: Tensor
    each: Sequence[Own]
    write: Tensor | None = None
    mix: Tensor | None = None


class ManyStreams(Residual):
    """Copies of the width, whose sum the output norm sees."""

    n_streams: int

    @abstractmethod
    def each(self) -> Sequence[Own]:
        """The parameters of each sublayer, taken apart once: an index for each of L sublayers has
        a gradient of all their size.
        """

    @abstractmethod
    def maps(self, x: Tensor, own: Own) -> Maps:
        """The maps of a sublayer with these parameters, from the streams x (B, T, n, S) before."""

    def readout(self, x: Tensor) -> Tensor:
        """(..., 1, n) weights of the streams at the output."""
        return x.new_ones(1, x.shape[-2], dtype=wide(x))

    def start(self, x: Hidden) -> State:
        x = x.unsqueeze(-2).expand(*x.shape[:-1], self.n_streams, -1)
        return State(x if engines.plain() else x.contiguous(), self.each())

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        x, maps = state.x, self.maps(state.x, state.each[l - 1])
        if engines.plain() or x.dtype != wide(x):  # mixed where they are written: less is moved
            return read(x, maps.read), State(x, state.each, maps.write, maps.mix)
        h, mixed = _mixed(x, maps)
        return h, State(mixed, state.each, maps.write)

    def write(self, state: State, l: int, y: Hidden) -> State:
        assert state.write is not None
        return State(write(state.x, state.mix, state.write, y), state.each)

    def finish(self, state: State) -> Hidden:
        return read(state.x, self.readout(state.x))

    def carry(self, state: State, l: int) -> tuple[Tensor]:
        return (state.x,)

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        return State(tensors[0], self.each())

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | None:
        """Beside the streams go rows (B, T, n, L+1), the weight of every v_i in each of them. The
        maps of the streams are applied to both, so no design states its equation twice.
        """
        if self.not_linear:
            return None
        x, each, *_ = self.start(values[0])
        units = torch.eye(len(values), dtype=x.dtype, device=x.device)
        rows, seen = units[0].expand(*x.shape[:-1], -1), []
        for own, y, unit in zip(each, values[1:], units[1:], strict=True):
            maps = self.maps(x, own)
            seen.append(read(rows, maps.read))
            x = write(x, maps.mix, maps.write, y)
            rows = write(rows, maps.mix, maps.write, unit)
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

    def each(self) -> Sequence[Own]:
        own, columns = self.static.unbind(), self.static.shape[-1]
        if self.weight is None or self.gain is None or self.scale is None:
            return [(rows,) for rows in own]
        first, last = self.scale.split(1, dim=-1)
        scale = torch.cat((first.expand(-1, columns - 1), last), dim=-1)
        weight = self.weight * self.gain.unsqueeze(-1)  # RMSNorm's gain, which changes no number
        return list(zip(own, weight.unbind(), scale.unbind(), strict=True))

    def rows(self, x: Tensor, own: Own) -> tuple[Tensor, Tensor]:
        """(..., n, K - 1) and (..., n, 1): of a sublayer, and their last column."""
        rows, *learned = (parameter.to(wide(x)) for parameter in own)
        if learned:
            weight, scale = learned
            rows = torch.addcmul(rows, scale, project(x, weight).tanh())
        columns = rows.shape[-1] - 1
        found, last = rows.split((columns, 1), dim=-1)
        return found, last


def read(x: Tensor, weights: Tensor) -> Tensor:
    """(B, T, k S): the k sums of the streams x (B, T, n, S) under weights (..., k, n), joined."""
    return combine(weights, x).flatten(-2).to(x.dtype)


def write(x: Tensor, mix: Tensor | None, weights: Tensor, y: Tensor) -> Tensor:
    """(B, T, n, S): the streams x after a sublayer has put out y (B, T, k S), which are mixed by
    then, or are by `mix`.
    """
    mixed = x if mix is None else combine(mix, x)
    slices = y.unflatten(-1, (-1, x.shape[-1]))
    return torch.addcmul(mixed, weights, slices.to(mixed.dtype)).to(x.dtype)


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
    if weights.shape[-2] == 1:  # one row: a product's kernels are for more
        return (weights.mT * x).sum(dim=-2, keepdim=True)
    weights = weights.expand(*x.shape[:-2], -1, -1)
    with no_autocast(x):
        sums = torch.bmm(weights.flatten(0, -3), x.flatten(0, -3))
    return sums.view(*x.shape[:-2], *sums.shape[-2:])


def project(x: Tensor, weight: Tensor) -> Tensor:
    """(..., K): RMSNorm(x) @ weight for x (..., S) and weight (S, K), in float32 at least."""
    x, weight = x.to(wide(x)), weight.to(wide(x))
    with no_autocast(x):
        if engines.plain():
            return _normed(x, weight)
        found: Tensor = _Projected.apply(x.reshape(-1, x.shape[-1]), weight)  # type: ignore[no-untyped-call]
        return found.unflatten(-1, x.shape[:-1]).movedim(0, -1)


class _Projected(torch.autograd.Function):
    """x (N, S), weight (S, K) -> (K, N): products are quicker so, since tokens are many."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        r = torch.linalg.vector_norm(x, dim=-1).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
        found = (weight.t() @ x.t()).mul_(r)
        ctx.save_for_backward(x, weight, r, found)
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, r, found = ctx.saved_tensors
        if torch.is_grad_enabled():
            return gradients(lambda x, w: _normed(x, w).t(), (x, weight), g)
        with no_autocast(x):
            along = (g * found).sum(dim=0).mul_(r.square()).div_(-x.shape[-1])
            g = g * r
            return (along.unsqueeze(-1) * x).addmm_(g.t(), weight.t()), (g @ x).t()


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=EPS) @ weight


def _mixed(x: Tensor, maps: Maps) -> tuple[Tensor, Tensor]:
    """What is read of the streams x, and they mixed, by one product."""
    sums = maps.sums.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
    with no_autocast(x):
        h, mixed = _Mixed.apply(x.flatten(0, -3), sums)  # type: ignore[no-untyped-call]
    return h.view(*x.shape[:-2], -1), mixed.view(x.shape)


class _Mixed(torch.autograd.Function):
    """Streams (N, n, S), weights (N, k + n, n) -> sums (N, k, S) and (N, n, S)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weights)
        h, mixed = torch.bmm(weights, x).tensor_split((-x.shape[1],), dim=1)
        return h.contiguous(), mixed  # a norm that keeps h would keep all sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weights = ctx.saved_tensors
        g = torch.cat(grads, dim=1)
        if torch.is_grad_enabled():
            return gradients(torch.bmm, (weights, x), g)[::-1]
        with no_autocast(x):
            slopes = torch.empty_like(weights).copy_(torch.bmm(g, x.mT))  # in their layout
            return torch.bmm(weights.mT, g), slopes


def gradients(
    form: Callable[..., Tensor], inputs: tuple[Tensor, ...], g: Tensor
) -> tuple[Tensor, ...]:
    """Those of a form's inputs by plain autograd, from the gradient g of what it gives: they can be
    differentiated again.
    """
    found: tuple[Tensor, ...] = torch.func.vjp(form, *inputs)[1](g)
    return found
