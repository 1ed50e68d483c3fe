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
from attnres_cli.nn.depthmix.scoring import Norm, Scoring, wide

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
        r = torch.full_like(norm, self.scoring.eps)
        r.addcmul_(norm, norm, value=1 / v.shape[-1]).rsqrt_()
        return z.mul_(r.unsqueeze(-1)), r

    def mix(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor], dtype: torch.dtype
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The (N, D) sum of sources (N, D) under scores (N, H), and what `read_gradients` needs."""
        weights = self.scoring.weights(torch.stack(list(scores)), dim=0)
        return weighted_sum(sources, weights.unbind()).to(dtype), (weights, *sources)

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

    def read_gradients(
        self, site: int, g: Tensor, kept: Sequence[Tensor], n_sources: int
    ) -> list[ReadGrad]:
        """What goes back to each source of a read, from the gradient g (N, D) of its sum."""
        weights, *sources = kept
        slopes = score_gradients(g, sources, weights, self.scoring.norm)
        pairs = zip(weights.unbind(), slopes.unbind(), strict=True)
        return [ReadGrad(site, g, weight, slope) for weight, slope in pairs]

    def source_gradient(
        self, source: ScoredSource, grads: Sequence[ReadGrad]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of a source (N, D) and of its params, None where there are none, from all
        later reads.
        """
        if not grads:
            return None, None
        dv, slopes, along = self.gather(source, grads)
        if slopes is None:
            return dv, None
        slopes = _rows(source, [grad.site for grad in grads if not grad.is_plain], slopes)
        if self.scoring.table is not None:
            return dv, slopes.sum(dim=1)
        return self.finish(source, dv, slopes, along)

    def gather(
        self, source: ScoredSource, grads: Sequence[ReadGrad]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(N, D) sum_l a_il g_l; the (K, N, H) gradients s_il of the scores that are not plain
        autograd's, None where there are none; the (N, H) sums of s_il z_il, where they are at hand.
        """
        weights = [grad.weight for grad in grads if grad.weight is not None]
        slopes = [grad.slope for grad in grads if grad.slope is not None]
        vectors, along = [grad.g for grad in grads], [grad.along for grad in grads]
        if of_itself := [each for each in along if each is not None]:
            vectors.append(source.v)
            weights.append(torch.stack(of_itself).sum(dim=0))
        total = weighted_sum(vectors, weights)
        return total, torch.stack(slopes) if slopes else None, None

    def finish(
        self, source: ScoredSource, acc: Tensor, slopes: Tensor, _along: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The gradients of a source (N, D) and of its queries, through its scores too. `acc` (N, D)
        reached the source through the mixes, and is overwritten; `slopes` (R, N, H) are its scores'
        gradients.
        """
        assert source.params is not None
        v, heads = _wide(source), self.scoring.heads
        if source.r is not None:
            assert source.z is not None
            slopes = slopes * source.r.unsqueeze(-1)
            along_v = (slopes * source.z).sum(dim=(0, 2)).mul_(source.r)  # (N,)
            acc.addcmul_(along_v.unsqueeze(-1), v, value=-1 / v.shape[-1])
        if heads == 1:
            slopes = slopes.squeeze(-1)
            return acc.addmm_(slopes.t(), source.params), slopes @ v
        queries = source.params.view(len(source.params), heads, -1)
        _split(acc, heads).add_(torch.einsum("rnh,rhd->nhd", slopes, queries))
        dparams = torch.einsum("rnh,nhd->rhd", slopes, _split(v, heads))
        return acc, dparams.flatten(-2)


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """(N, D) sum of vectors (N, D) times weights (N, H) or (1, H), in the weights' type."""
    heads = weights[0].shape[-1]
    total: Tensor | None = None
    for v, a in zip(vectors, weights, strict=True):
        v, a = _split(v, heads), a if heads == 1 else a.unsqueeze(-1)
        total = a * v if total is None else total.addcmul_(a, v)
    assert total is not None
    return total if heads == 1 else total.flatten(-2)


def score_gradients(g: Tensor, sources: Sequence[Tensor], weights: Tensor, norm: Norm) -> Tensor:
    """(S, N, H) gradients s_il of a read's scores, (S, 1, H) of scores that all tokens share, from
    the gradient g (N, D) of its sum. A product that is written and then summed took half the time
    of a product of matrices by token.
    """
    g, heads = g.to(weights.dtype), weights.shape[-1]
    if weights.shape[1] > 1:
        found = dots(g, sources, heads)
    elif heads > 1:
        found = dots(g, sources, heads).sum(dim=1, keepdim=True)
    else:
        whole = [torch.dot(g.view(-1), v.to(g.dtype).view(-1)) for v in sources]
        found = torch.stack(whole).view(-1, 1, 1)
    if norm == "none":
        return found
    if norm == "sigmoid":
        return found.mul_(weights).mul_(1 - weights)
    return found.sub_((weights * found).sum(dim=0)).mul_(weights)


def dots(x: Tensor, sources: Sequence[Tensor], heads: int) -> Tensor:
    """(S, N, H) dot products of x (N, D) and sources, per head."""
    x = _split(x, heads)
    product = torch.empty_like(x)
    found = x.new_empty(len(sources), *x.shape[:-1])
    for v, dot in zip(sources, found.unbind(), strict=True):
        torch.sum(torch.mul(x, _split(v, heads), out=product), dim=-1, out=dot)
    return found.view(len(sources), -1, heads)


def _split(x: Tensor, heads: int) -> Tensor:
    """(N, D) as (N, H, D/H); as it is for one head."""
    return x if heads == 1 else x.view(len(x), heads, -1)


def _wide(source: ScoredSource) -> Tensor:
    return source.v.to(wide(source.v) if source.params is None else source.params.dtype)


def _rows(source: ScoredSource, sites: Sequence[int], slopes: Tensor) -> Tensor:
    """(R, N, H) gradients of all scores of a source, from those (K, N, H) of the sites read."""
    assert source.params is not None
    rows = [site - source.first for site in sites]
    every = range(len(source.params))
    if rows == list(every):
        return slopes
    found: dict[int, Tensor] = {}
    for row, slope in zip(rows, slopes.unbind(), strict=True):
        found[row] = found[row] + slope if row in found else slope
    unread = torch.zeros_like(slopes[0])
    return torch.stack([found.get(row, unread) for row in every])
