"""mhc: h_l = P X, X' = R X + Q^T f_l(h_l): n streams, R doubly stochastic, P and Q positive.

Symbols: X (B, T, n, D) the streams before sublayer l, at first n copies of the embedding; f_l the
sublayer; per token P (1, n) what it reads, R (n, n) how streams mix (column from, row to), Q (1, n)
how much of its output each stream gets. With z = RMSNorm(vec X) (n D), without gain, learned
matrices W (n D, .), biases b and numbers a:
P = sigmoid(a_p z W_p + b_p), Q = 2 sigmoid(a_q z W_q + b_q), R = Sinkhorn(exp(a_r z W_r + b_r)).
The output norm sees the sum of the streams.

Options:
    n_streams   n.
    residual    lite: R = sum_k softmax_k(a_r z W_r + b_r) Pi_k over all n! permutation matrices
                Pi_k, doubly stochastic as it stands; n is 4 at most. identity: R = I, as in
                identity hyper-connections: streams are read and written, and never mixed.
    iterations  of Sinkhorn, each of which makes the columns and then the rows sum to 1.
    init        lite: as in the code of mHC-lite, b_q starts like b_p; not `standard` at step 0.
    readout     sigmoid: the output norm sees sum_i sigmoid(a z W + b)_i x_i, as in DeepSeek-V4.

Start: b_p is 1 at stream (l - 1) mod n and -1 elsewhere; b_q = 0, so Q = 1; b_r = 0 on the
diagonal (lite: for the identity) and -8 elsewhere, so R is the identity within 0.001; W = 0, so
that nothing is random; a = 0.01; the readout's W and b are 0. The streams are then equal, h is a
multiple of the standard stream, and the model is `standard` at step 0. Were b_p equal too, the
streams would get equal gradients and stay equal for ever; as it is, their Q differ after one step.
R has nothing to learn at the first sublayer, where streams are equal, and is not computed there but
under a compiler, nor at the last before a sum.
Parameters: L (n D (2 n + r) + 2 n + r + 3), r = n^2 or for lite n!, and L (2 n^2 D + 2 n + 2) for
identity; sigmoid n^2 D + n + 1 more.
Cost: per sublayer 2 D n (n + 2) FLOPs for the sums and 2 D n (2 n + r + 1) for the coefficients
and their norm, 8 n^2 for each of Sinkhorn's iterations (lite: 2 n! (n^2 + 2)); (3 n - 1) D numbers
moved. n D and (n + 1) D at the output; sigmoid 2 D n (n + 1) FLOPs more. Training holds 2 n
numbers per token and iteration.
Depth mixing: M[l, i] = P(l) R(l-1) ... R(i+1) Q(i)^T, per token.
Refused: lite with more than 4 streams; iterations for lite and identity, which have none.

Source: Xie et al. 2025, mHC (arXiv 2512.24880), section 4; mHC-lite (arXiv 2601.05732). identity:
arXiv 2607.28611, of which we know the abstract.
Differences: the paper gives a = 0.01 and 20 iterations, but no W, no b and no readout: those are
ours. Public codes differ in the order of rows and columns, in the norm's gain and inputs, and in
whether R or its transpose is applied; as in the paper here, so that the rows of R, weights of one
new stream, sum to 1 to rounding, and its columns as Sinkhorn converges: in 2,000 draws of n = 4
they were off by up to 4e-4, 0.05 and 0.4 after 20 iterations, for scores of deviation 1, 3 and 10.
The norm's eps is 1e-6 (the paper's 1e-20).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnres_cli.nn.cost import TableOne
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.scoring import no_autocast, wide
from attnres_cli.nn.residual import Hidden, VariantError, register

from .parts import sinkhorn
from .parts.many_streams import (
    ManyStreams,
    Maps,
    Own,
    State,
    gradients,
    project,
    read,
    score_slopes,
    scores,
)


@register("mhc")
class ManifoldHyperConnections(ManyStreams):
    """Columns of W and b: the n of P, the n of Q, the n^2 or n! of R."""

    rate_falls = (("weight", 1, 0), ("head.1", 1, 0))
    permutations: Tensor | None
    repeats: Tensor

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        n_streams: int = 4,
        residual: Literal["sinkhorn", "lite", "identity"] = "sinkhorn",
        iterations: int = 20,
        init: Literal["standard", "lite"] = "standard",
        readout: Literal["sum", "sigmoid"] = "sum",
    ) -> None:
        super().__init__(d_model, n_sublayers)
        _refuse(n_streams, residual, iterations)
        self.n_streams, self.iterations, self.mixes = n_streams, iterations, residual != "identity"
        self.equals_standard_at_init = init == "standard"
        table = _permutations(n_streams) if residual == "lite" else None
        self.register_buffer("permutations", table, persistent=False)
        mix = -8 * (1 - torch.eye(n_streams).flatten())
        if table is not None:
            mix = -8 * (torch.arange(len(table)) > 0).float()
        mix = mix[: len(mix) * self.mixes]
        own = 2 * torch.eye(n_streams)[torch.arange(n_sublayers) % n_streams] - 1
        written = own if init == "lite" else torch.zeros_like(own)
        self.sizes = (n_streams, n_streams, *([len(mix)] * self.mixes))
        # Held: to make it in each forward pass, a GPU would be waited for
        self.register_buffer("repeats", torch.tensor(self.sizes), persistent=False)
        self.bias = nn.Parameter(torch.cat((own, written, mix.expand(n_sublayers, -1)), dim=-1))
        width = n_streams * d_model
        self.weight = nn.Parameter(torch.zeros(n_sublayers, width, sum(self.sizes)))
        self.scale = nn.Parameter(torch.full((n_sublayers, len(self.sizes)), 0.01))
        self.head = nn.ParameterList()  # scale, weight, bias
        if readout == "sigmoid":
            sizes = ((width, n_streams), (n_streams,))
            start = torch.full((1,), 0.01)  # a number without an axis cannot be sharded
            self.head.extend([start, *(torch.zeros(size) for size in sizes)])
            self.register_load_state_dict_pre_hook(_with_axis)  # type: ignore[no-untyped-call]

    def each(self) -> Sequence[Own]:
        total = sum(self.sizes)
        scale = self.scale.repeat_interleave(self.repeats, dim=-1, output_size=total)
        weight = self.weight * scale.unsqueeze(1)  # once for all tokens
        rest = ((bias,) for bias in self.bias.unbind())
        return [Own(*each) for each in zip(weight.unbind(), rest, strict=True)]

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        """At the first sublayer, where streams are n views of one, what that one needs: R leaves
        equal streams as they are.
        """
        x, n = state.x, self.n_streams
        if engines.plain() or x.stride(-2):
            return super().read(state, l)
        with no_autocast(x):
            w, (bias,) = state.each[l - 1].wide(x)
            assert w is not None
            weight = w[:, : 2 * n].unflatten(0, (n, -1)).sum(dim=0)
            x = x.to(wide(x))
            gates = (project(x[..., 0, :], weight) + bias[: 2 * n]).sigmoid()
            h = gates[..., :n].sum(dim=-1, keepdim=True) * x[..., 0, :]
            written = 2 * gates[..., n:].unsqueeze(-1)
        return h.to(state.dtype), state._replace(x=x, write=written)

    def made(self, z: Tensor | None, *own: Tensor) -> tuple[Maps, tuple[Tensor, ...]]:
        assert z is not None
        if self._fused(z):
            from .parts import sinkhorn_kernels  # needs triton

            sums, write, found = sinkhorn_kernels.made(z, own[0], self.n_streams, self.iterations)
            return Maps(sums, write), (found,)
        scores, n = z + own[0].unsqueeze(-1), self.n_streams
        gates = scores[: 2 * n].sigmoid()
        kept: tuple[Tensor, ...] = ()
        if not self.mixes:
            mix = torch.eye(n).to(z).view(-1, 1).expand(-1, z.shape[1])
        elif self.permutations is None:
            mix, kept = sinkhorn.sinkhorn(scores[2 * n :].unflatten(0, (n, n)), self.iterations)
        else:
            kept = (scores[2 * n :].softmax(dim=0),)
            mix = self.permutations.t().to(z.dtype) @ kept[0]
        sums = torch.cat((gates[:n], mix.reshape(n * n, -1))).t().contiguous()
        write = 2 * gates[n:].t().unsqueeze(-1)
        return Maps(sums.unflatten(-1, (n + 1, n)), write), (gates, *kept)

    def slopes(
        self, g: Maps, z: Tensor | None, kept: Sequence[Tensor], *own: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gates, *rest), n = kept, self.n_streams
        assert z is not None
        if self.mixes and not rest:  # by what was kept: a GPU's backward is another thread's
            from .parts import sinkhorn_kernels

            found = sinkhorn_kernels.slopes(g.sums, g.write, gates, n, self.iterations)
            return found, found.sum(dim=1)
        sums, found = g.sums.flatten(1).t(), torch.empty_like(z)
        found[:n].copy_(sums[:n])
        torch.mul(g.write.squeeze(-1).t(), 2, out=found[n : 2 * n])
        found[: 2 * n].mul_(torch.addcmul(gates, gates, gates, value=-1))
        if not self.mixes:
            return found, found.sum(dim=1)
        if self.permutations is None:
            mix = sums[n:].contiguous().view(n, n, -1)
            found[2 * n :].copy_(sinkhorn.slopes(mix, *rest).flatten(0, 1))
        else:
            mix = self.permutations.to(z.dtype) @ sums[n:]
            found[2 * n :].copy_(mix.sub_((mix * rest[0]).sum(dim=0)).mul_(rest[0]))
        return found, found.sum(dim=1)

    def _fused(self, z: Tensor) -> bool:
        iterates = self.mixes and self.permutations is None
        return iterates and not torch.is_grad_enabled() and engines.fuses(z)

    def finish(self, state: State) -> Hidden:
        if engines.plain() or not len(self.head):
            return super().finish(state)
        with no_autocast(state.x):
            x = state.x.to(wide(state.x)).contiguous()
            return _Out.apply(x, *self._head(x)).to(state.dtype)  # type: ignore[no-untyped-call]

    def readout(self, x: Tensor) -> Tensor:
        return _readout(x, *self._head(x)) if len(self.head) else super().readout(x)

    def _head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale, weight, bias = (each.to(wide(x)) for each in self.head)
        return scale * weight, bias

    def extra_flops_per_token(self) -> int:
        n, width = self.n_streams, self.n_streams * self.d_model
        rounds = 8 * n * n * self.iterations * self.mixes
        if self.permutations is not None:
            rounds = 2 * len(self.permutations) * (n * n + 2)
        per_sublayer = 2 * width * (n + 2 + sum(self.sizes) + 1) + rounds
        head = 2 * width * (n + 1) if len(self.head) else 0
        return self.n_sublayers * per_sublayer + width + head

    def table_one(self) -> TableOne | None:
        """(8 n + 2) d; the few numbers beside d are left out."""
        if not self.mixes:
            return None
        return TableOne("mHC", 8.0 * self.n_streams + 2, None, 34.0)


def _with_axis(_design: Any, weights: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    """Weights that were saved while the readout's scale had no axis."""
    name = f"{prefix}head.0"
    if name in weights:
        weights[name] = weights[name].view(1)


def _readout(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(..., 1, n): the sigmoid weights of streams x (..., n, D)."""
    with no_autocast(x):
        return (project(x.flatten(-2), weight) + bias).sigmoid().unsqueeze(-2)


class _Out(torch.autograd.Function):
    """Streams x (B, T, n, D), W (n D, n), b (n) -> their sum (B, T, D) under `_readout`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z, r = scores(x.view(-1, len(weight)), weight)
        gates = (z.t() + bias).sigmoid_().view(*x.shape[:-1], 1)
        ctx.save_for_backward(x, weight, bias, z, r, gates)
        return (gates * x).sum(dim=-2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, bias, z, r, gates = ctx.saved_tensors
        if torch.is_grad_enabled():
            return gradients(lambda x, *own: read(x, _readout(x, *own)), (x, weight, bias), *grads)
        with no_autocast(x):
            g = grads[0].unsqueeze(-2)
            found = (g * x).sum(dim=-1).view(-1, len(bias)).t().contiguous()
            found *= torch.addcmul(gates, gates, gates, value=-1).view(-1, len(bias)).t()
            dbias = found.sum(dim=1)
            dx, dweight = score_slopes(found, z, r, x.view(-1, len(weight)), weight)
            return dx.view_as(x).addcmul_(gates, g), dweight, dbias


def _permutations(n: int) -> Tensor:
    """(n!, n^2): all permutation matrices, the identity first."""
    return torch.stack([torch.eye(n)[list(p)].flatten() for p in itertools.permutations(range(n))])


def _refuse(n_streams: int, residual: str, iterations: int) -> None:
    if n_streams < 1 or iterations < 1:
        raise VariantError(
            f"n_streams and iterations must be at least 1, got {n_streams} and {iterations}"
        )
    if residual == "lite" and n_streams > 4:
        raise VariantError(
            f"residual=lite takes at most 4 streams: {n_streams} have {math.factorial(n_streams)} "
            "permutations; use residual=sinkhorn"
        )
    if residual != "sinkhorn" and iterations != 20:
        raise VariantError(f"residual={residual} has no iterations: drop them")
