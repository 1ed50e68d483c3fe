"""The arithmetic of depth mixing in plain PyTorch, without autograd.

    z_il = r_i (v_i . W_l),   r_i = 1 / rms(v_i),   W_l = query_l * gain_l
    a_il = norm_i(z_il),      h_l = sum_i a_il v_i

and with g_l = dLoss/dh_l, delta_l = g_l . h_l:

    s_il = a_il (g_l . v_i - delta_l)                       the gradient of z_il under a softmax
    dv_i = sum_l a_il g_l + r_i sum_l s_il W_l - (r_i^2 / D) (sum_l s_il z_il) v_i
    dW_l = sum over tokens and i of s_il r_i v_i

Shapes: N tokens, D width, H heads, S sources of a read, R sites that read a source, K gradients of
reads. Everything is in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.gradients import ReadGrad, ScoredSource
from attnres_cli.nn.depthmix.scoring import Scoring, wide

GROUP = 2.0
"""Sites of a group by the square root of all sites. With 33 sites, 1,024 numbers: groups of 6, 11
and all took 13, 9 and 9 us per read; with 16,384 numbers 50, 41 and 85."""


class Eager:
    """The arithmetic of any device and type. A subclass may compute the same by other means.

    `trains_in_groups`: whether reads are grouped in training too. On two cores, with sources of 1M
    numbers, groups took 0.8 to 1.1 of one pass per read's time, and they hold a dozen sums more.
    """

    trains_in_groups = False

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    def sites_together(self, n_sites: int) -> int:
        """How many sites share the first phase of a read."""
        return math.ceil(GROUP * math.sqrt(n_sites))

    def scores(self, v: Tensor, params: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """(R, N, H) scores of a source (N, D) at its R readers, (R, 1, H) of a table; its (N,)
        reciprocal rms. None where there is nothing to score.
        """
        if params is None:
            return None, None
        if self.scoring.table is not None:
            return params.unsqueeze(1).contiguous(), None
        return self.dots(v, params)

    def dots(self, v: Tensor, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same of queries (R, D) with the gain folded in."""
        v = v.to(queries.dtype)
        if self.scoring.heads == 1:
            z = (queries @ v.t()).unsqueeze(-1)
        else:
            queries = queries.view(len(queries), self.scoring.heads, -1)
            z = torch.einsum("nhd,rhd->rnh", _split(v, self.scoring.heads), queries).contiguous()
        if self.scoring.gain is None:
            return z, None
        norm = torch.linalg.vector_norm(v, dim=-1)
        r = norm.square_().div_(v.shape[-1]).add_(self.scoring.eps).rsqrt_()
        return z.mul_(r.unsqueeze(-1)), r

    def mix(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        """The (N, D) sum of sources (N, D) under scores (N, H), and a softmax's constants."""
        stacked = torch.stack(list(scores))
        constants = None
        if self.scoring.norm == "softmax":
            constants = stacked.new_empty(2, *stacked.shape[1:])
            torch.amax(stacked, dim=0, out=constants[0])
            weights = stacked.sub_(constants[0]).exp_()
            torch.sum(weights, dim=0, out=constants[1])
            weights.mul_(constants[1].reciprocal_())
        else:
            weights = self.scoring.weights(stacked, dim=0)
        return weighted_sum(sources, weights).to(dtype), constants

    def mix_group(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """(G, N, D) mixes of the same sources for G sites, and under a softmax their (G, N, H)
        scores. A mix with its score, log sum_i exp(z_i), is to a later mix one source like any
        other. A source's scores are (G, N, H), or (G, 1, H) of a table.
        """
        n, heads = len(sources[0]), self.scoring.heads
        weights = torch.stack([z.expand(-1, n, -1) for z in scores], dim=-1)  # (G, N, H, S)
        score = weights.logsumexp(dim=-1) if self.scoring.norm == "softmax" else None
        weights = self.scoring.weights(weights, dim=-1).flatten(1, 2).transpose(0, 1)  # (N H, G, S)
        per_head = [v.view(n * heads, -1) for v in sources]
        stacked = torch.stack(per_head, dim=1).to(weights.dtype)
        mixed = torch.bmm(weights, stacked).transpose(0, 1).contiguous()
        return mixed.view(len(mixed), n, -1), score

    def source_gradient(
        self, source: ScoredSource, grads: Sequence[ReadGrad], dv: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of a source (N, D) and of its params, None where there are none, from all
        later reads. `dv` (N, D) is what reached the source by other ways.
        """
        grads = [grad for grad in grads if source.number in grad.seen]
        for grad in grads:
            if grad.weights is not None:
                share = grad.own_share(source.number)
                dv = share if dv is None else dv + share
        learned = [grad for grad in grads if grad.weights is None]
        if not learned:
            return dv, None
        dv, slopes = self.gather(source, learned, dv)
        slopes = _rows(source, learned, slopes)
        if self.scoring.table is not None:
            return dv, slopes.sum(dim=1)
        return self.finish(source, dv, slopes)

    def gather(
        self,
        source: ScoredSource,
        grads: Sequence[ReadGrad],
        start: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """(N, D) start + sum_l a_il g_l, and the (K, N, H) gradients s_il of its scores."""
        weights = _weights(_scores_at(source, grads), grads, self.scoring)
        acc, dots = _sum_and_dots(_wide(source), weights, start, grads)
        return acc, _slopes(weights, dots, grads, self.scoring)

    def finish(self, source: ScoredSource, acc: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of a source (N, D) and of its queries, through its scores too. `acc` (N, D)
        reached the source through the mixes, and is overwritten; `slopes` (R, N, H) are its scores'
        gradients.
        """
        assert source.params is not None
        v = _wide(source)
        if source.r is not None:
            assert source.z is not None
            along_v = (slopes * source.z).sum(dim=(0, 2))  # (N,)
            along_v.mul_(source.r.square()).div_(-v.shape[-1])
            acc.addcmul_(along_v.unsqueeze(-1), v)
            slopes = slopes * source.r.unsqueeze(-1)
        if self.scoring.heads == 1:
            slopes = slopes.squeeze(-1)
            return acc.addmm_(slopes.t(), source.params), slopes @ v
        queries = source.params.view(len(source.params), self.scoring.heads, -1)
        _split(acc, self.scoring.heads).add_(torch.einsum("rnh,rhd->nhd", slopes, queries))
        dparams = torch.einsum("rnh,nhd->rhd", slopes, _split(v, self.scoring.heads))
        return acc, dparams.flatten(-2)


def weighted_sum(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """(N, D): sum over S of sources (N, D) times weights (S, N, H), in the weights' type."""
    heads = weights.shape[-1]
    h: Tensor | None = None
    for v, a in zip(sources, weights.unsqueeze(-1).unbind(), strict=True):
        v = _split(v, heads)
        h = a * v if h is None else h.addcmul_(a, v)
    assert h is not None
    return h.flatten(-2)


def own_slopes(grad: ReadGrad, sources: Sequence[Tensor], scoring: Scoring) -> Tensor:
    """(S, N, H) gradients of the scores that a read brought along."""
    assert grad.weights is not None
    g = grad.g.to(grad.weights.dtype)
    dots = torch.stack([head_dots(g, v, scoring.heads) for v in sources])
    return _slopes(grad.weights, dots, [grad], scoring)


def head_dots(x: Tensor, y: Tensor, heads: int) -> Tensor:
    """(N, H) dot products of the heads of x and y, both (N, D), without their product in memory."""
    n = len(x) * heads
    return torch.bmm(x.view(n, 1, -1), y.to(x.dtype).view(n, -1, 1)).view(-1, heads)


def _split(x: Tensor, heads: int) -> Tensor:
    """(N, D) as (N, H, D/H)."""
    return x.view(len(x), heads, -1)


def _wide(source: ScoredSource) -> Tensor:
    return source.v.to(wide(source.v) if source.params is None else source.params.dtype)


def _rows(source: ScoredSource, grads: Sequence[ReadGrad], slopes: Tensor) -> Tensor:
    """(R, N, H) gradients of all scores of a source, from those (K, N, H) of the sites read."""
    assert source.params is not None
    sites = [grad.site - source.first for grad in grads]
    every = range(len(source.params))
    if sites == list(every):
        return slopes
    found: dict[int, Tensor] = {}
    for row, slope in zip(sites, slopes.unbind(), strict=True):
        found[row] = found[row] + slope if row in found else slope
    unread = torch.zeros_like(slopes[0])
    return torch.stack([found.get(row, unread) for row in every])


def _scores_at(source: ScoredSource, grads: Sequence[ReadGrad]) -> Tensor:
    """(K, N, H) scores at the sites read; a view if these are adjacent, so that no GPU waits."""
    first = grads[0].site
    if [grad.site for grad in grads] == list(range(first, first + len(grads))):
        return source.scores(first, first + len(grads))
    return torch.stack([source.scores_at(grad.site) for grad in grads])


def _weights(z: Tensor, grads: Sequence[ReadGrad], scoring: Scoring) -> Tensor:
    """(K, N, H) weights of one source at the sites read, from its scores there."""
    if scoring.norm != "softmax":
        return scoring.weights(z, dim=0)
    constants = torch.stack([grad.constants for grad in grads if grad.constants is not None])
    return (z - constants[:, 0]).exp_().mul_(constants[:, 1])


def _sum_and_dots(
    v: Tensor, weights: Tensor, start: Tensor | None, grads: Sequence[ReadGrad]
) -> tuple[Tensor, Tensor]:
    """A source's (N, D) sum of a_il g_l, and its (K, N, H) dots g_l . v, g_l read while at hand.

    One row per token and head, so that a view of g_l serves both: (N H, 1, D/H).
    """
    rows = (len(v) * weights.shape[2], 1, -1)
    dots = v.new_empty(len(grads), rows[0], 1, 1)
    columns = v.view(rows).transpose(1, 2)
    scale = weights.expand(-1, len(v), -1).reshape(len(grads), rows[0], 1, 1).unbind()
    acc = None if start is None else start.to(v.dtype).view(rows)
    for k, (grad, dot) in enumerate(zip(grads, dots.unbind(), strict=True)):
        g = grad.g.to(v.dtype).view(rows)
        torch.bmm(g, columns, out=dot)
        if acc is None:
            acc = scale[k] * g
        elif k == 0:  # not into the start, which is not ours
            acc = torch.addcmul(acc, scale[k], g)
        else:
            acc.addcmul_(scale[k], g)
    assert acc is not None
    return acc.view(v.shape), dots.view(len(grads), len(v), -1)


def _slopes(weights: Tensor, dots: Tensor, grads: Sequence[ReadGrad], scoring: Scoring) -> Tensor:
    """(K, N, H) gradients of the scores; takes the place of dots."""
    if scoring.norm == "none":
        return dots
    if scoring.norm == "sigmoid":
        return dots.mul_(weights).mul_(1 - weights)
    delta = torch.stack([grad.delta for grad in grads if grad.delta is not None])
    return dots.sub_(delta).mul_(weights)
