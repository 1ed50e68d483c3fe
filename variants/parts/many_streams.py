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
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.scoring import no_autocast, wide
from attnres_cli.nn.residual import Hidden, Residual
from attnres_cli.nn.trunk.linear import product

EPS = 1e-6  # of the norms


class Own(NamedTuple):
    """The parameters of one sublayer: W (S, K) or (n S, K) of the scores RMSNorm(x) W, None where
    its maps do not depend on the streams, and what they are made of beside the scores.
    """

    weight: Tensor | None
    rest: tuple[Tensor, ...]

    def wide(self, x: Tensor) -> Own:
        """The same in float32 at least, for streams x."""
        weight = None if self.weight is None else self.weight.to(wide(x))
        return Own(weight, tuple(each.to(wide(x)) for each in self.rest))


class Maps(NamedTuple):
    """How one sublayer reads and writes n streams; leading axes are tokens. The shapes are sums
    (..., k + n, n), the rows of `read` above those of `mix`, and write (..., n, 1).
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
    """The streams x (B, T, n, S), the parameters of each sublayer and the streams' type. Between a
    read and its write also how the output is written, and either how the streams will be mixed, or
    they are by then.
    """

    x: Tensor
    each: Sequence[Own]
    dtype: torch.dtype
    write: Tensor | None = None
    mix: Tensor | None = None


class ManyStreams(Residual):
    """Copies of the width, whose sum the output norm sees."""

    n_streams: int

    @abstractmethod
    def each(self) -> Sequence[Own]:
        """Of each sublayer, taken apart once: the gradient of an index has all of their size."""

    @abstractmethod
    def made(self, z: Tensor | None, *own: Tensor) -> tuple[Maps, tuple[Tensor, ...]]:
        """The maps of N tokens, or of one for all, from scores z (K, N), or (K, N n) of each stream
        for itself, and a sublayer's own parameters after W; and what `slopes` needs of them.
        """

    @abstractmethod
    def slopes(
        self, g: Maps, z: Tensor | None, kept: Sequence[Tensor], *own: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradients of what `made` was given, from those of N tokens' maps."""

    def maps(self, x: Tensor, own: Own) -> Maps:
        """The maps of a sublayer with these parameters, from the streams x (B, T, n, S) before."""
        with no_autocast(x):
            weight, rest = own.wide(x)
            z = None if weight is None else project(x.reshape(-1, len(weight)), weight).t()
            maps, _ = self.made(z, *rest)
        tokens = x.shape[:-2]
        return Maps(*(m.expand(tokens.numel(), -1, -1).unflatten(0, tokens) for m in maps))

    def readout(self, x: Tensor) -> Tensor:
        """(..., 1, n) weights of the streams at the output."""
        return x.new_ones(1, x.shape[-2], dtype=wide(x))

    def start(self, x: Hidden) -> State:
        """Copies of the embedding, as views of it: their axis has stride 0."""
        streams = x.unsqueeze(-2).expand(*x.shape[:-1], self.n_streams, -1)
        return State(streams, self.each(), x.dtype)

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        x, own = state.x, state.each[l - 1]
        if engines.plain():  # mixed where they are written: a compiler moves less
            maps = self.maps(x, own)
            return read(x, maps.read), state._replace(write=maps.write, mix=maps.mix)
        with no_autocast(x):
            weight, rest = own.wide(x)
            x = x.to(wide(x)).contiguous()
            h, mixed, weights = _Read.apply(self, x, weight, *rest)  # type: ignore[no-untyped-call]
        return h.to(state.dtype), state._replace(x=mixed, write=weights)

    def write(self, state: State, l: int, y: Hidden) -> State:
        assert state.write is not None
        if state.mix is not None:
            x = write(state.x, state.mix, state.write, y)
        else:
            x = _Write.apply(state.x, state.write, y.to(state.x.dtype)).to(state.dtype)  # type: ignore[no-untyped-call]
        return State(x, state.each, state.dtype)

    def finish(self, state: State) -> Hidden:
        return read(state.x, self.readout(state.x))

    def carry(self, state: State, l: int) -> tuple[Tensor]:
        return (state.x,)

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        return State(tensors[0], self.each(), tensors[0].dtype)

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


def read(x: Tensor, weights: Tensor) -> Tensor:
    """(B, T, k S): the k sums of the streams x (B, T, n, S) under weights (..., k, n), joined."""
    return combine(weights, x).flatten(-2).to(x.dtype)


def write(x: Tensor, mix: Tensor, weights: Tensor, y: Tensor) -> Tensor:
    """(B, T, n, S): the streams x, mixed, after a sublayer has put out y (B, T, k S)."""
    mixed, slices = combine(mix, x), y.unflatten(-1, (-1, x.shape[-1]))
    return torch.addcmul(mixed, weights, slices.to(mixed.dtype)).to(x.dtype)


def combine(weights: Tensor, x: Tensor) -> Tensor:
    """(..., k, S): sums of x (..., n, S) under weights (..., k, n), in the weights' type.

    Eager runs take a batched matrix product, compiled ones the elementwise form, which fuses with
    what is around it. Streams (16, 128, 4, 128) mixed by a (4, 4) matrix per token, forward and
    backward on one core: 6 to 14 ms as a product, 23 to 25 ms elementwise (and every term is held);
    compiled 9 to 11 ms as a product, 2.5 ms elementwise.
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
        return F.rms_norm(x, x.shape[-1:], eps=EPS) @ weight


def scores(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(K, N) scores (RMSNorm(x) W)^T for x (N, S) and W (S, K), and the norm's r (N). They lie so
    since products, of many tokens and few scores, are quicker.
    """
    r = torch.linalg.vector_norm(x, dim=-1).square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
    return product(weight.t(), x.t()).mul_(r), r


def score_slopes(dz: Tensor, z: Tensor, r: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and W from that of the scores z, which is overwritten."""
    along = (dz.mul_(r) * z).sum(dim=0).mul_(r).unsqueeze(-1)
    dx = product(dz.t(), w.t()).addcmul_(along, x, value=-1 / len(w))
    return dx, product(dz, x).t()


class _Read(torch.autograd.Function):
    """Streams x (B, T, n, S), W and the rest of a sublayer's own -> what it reads (B, T, k S), the
    streams mixed, and how its output is written (B, T, n, 1).

    Plain autograd takes twice the calls, and adds up two gradients of the streams.
    """

    @staticmethod
    def forward(
        ctx: Any, design: ManyStreams, x: Tensor, weight: Tensor | None, *own: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        z, r = (None, None) if weight is None else scores(x.view(-1, len(weight)), weight)
        tokens, streams = x.shape[:-2], x.flatten(0, -3)
        maps, kept = design.made(z, *own)
        sums, write = (each.expand(len(streams), -1, -1) for each in maps)
        ctx.save_for_backward(x, weight, r, z, sums, *own, *kept)
        ctx.design, ctx.n_own = design, len(own)
        h, mixed = torch.bmm(sums, streams).tensor_split((-x.shape[-2],), dim=1)
        h = h.contiguous().view(*tokens, -1)  # a norm that keeps it would keep all sums
        return h, mixed.unflatten(0, tokens), write.contiguous().unflatten(0, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, r, z, sums, *rest = ctx.saved_tensors
        design, own, kept = ctx.design, rest[: ctx.n_own], rest[ctx.n_own :]
        if torch.is_grad_enabled():
            return None, *_again(design, x, weight, own, grads)
        dh, dmixed, dwrite = (each.flatten(0, 1) for each in grads)
        with no_autocast(x):
            g = torch.cat((dh.view(len(dh), -1, x.shape[-1]), dmixed), dim=1)
            slopes = Maps(torch.bmm(g, x.flatten(0, -3).mT), dwrite)
            dz, *down = design.slopes(slopes, z, kept, *own)
            if weight is None:
                return None, torch.bmm(sums.mT, g).view_as(x), None, *down
            dx, dweight = score_slopes(dz, z, r, x.view(-1, len(weight)), weight)
            dx.view(len(g), *x.shape[-2:]).baddbmm_(sums.mT, g)
        return None, dx.view_as(x), dweight, *down


class _Write(torch.autograd.Function):
    """Mixed streams x (B, T, n, S), weights (B, T, n, 1), output y (B, T, k S) -> x + weights y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(weights, y)
        return torch.addcmul(x, weights, y.unflatten(-1, (-1, x.shape[-1])))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,), (weights, y) = grads, ctx.saved_tensors
        y = y.unflatten(-1, (-1, g.shape[-1]))
        if torch.is_grad_enabled():
            dweights, dy = gradients(torch.mul, (weights, y), g)
            return g, dweights, dy.flatten(-2)
        with no_autocast(g):
            dweights = (g * y).sum(dim=-1, keepdim=True)
            if y.shape[-2] > 1:
                return g, dweights, (weights * g).flatten(-2)
            dy = weights[..., 0, :] * g[..., 0, :]
            for j in range(1, g.shape[-2]):  # written whole and summed it takes twice the time
                dy.addcmul_(weights[..., j, :], g[..., j, :])
            return g, dweights, dy


def _again(
    design: ManyStreams, x: Tensor, weight: Tensor | None, own: Sequence[Tensor], g: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of `_Read` once more, such that they can be differentiated again."""

    def plain(x: Tensor, *own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = design.maps(x, Own(None, own) if weight is None else Own(own[0], own[1:]))
        return read(x, maps.read), combine(maps.mix, x), maps.write

    if weight is not None:
        return gradients(plain, (x, weight, *own), g)
    dx, *down = gradients(plain, (x, *own), g)
    return dx, None, *down


def gradients(form: Callable[..., Any], inputs: tuple[Tensor, ...], g: Any) -> tuple[Tensor, ...]:
    """Those of a form's inputs by plain autograd, from the gradient g of what it gives: they can be
    differentiated again.
    """
    found: tuple[Tensor, ...] = torch.func.vjp(form, *inputs)[1](g)
    return found
