"""The arithmetic of depth mixing in plain PyTorch, without autograd: scores, sums, gradients.

Shapes: N tokens, D width, H heads, S sources of a read, R sites that read a source, K letters, P
sources gathered together. Everything is in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.gradient_messages import Letter, Made
from attnres_cli.nn.depthmix.scoring import Scoring, wide

name = "eager"

GATHERED_TOGETHER = 1
"""Sources whose gradients are gathered in one go. On two cores batched matrix products that read
every g_l once for four sources took longer than four times one source (docs/results/log.md)."""


TRAINS_IN_PHASES = False
"""Whether reads are grouped in training too. On two cores, with sources of 1M numbers, groups took
0.8 to 1.1 of the time of one pass per read, and they hold a dozen sums more."""

GROUP = 2.0
"""Sites of a group by the square root of all sites. With 33 sites, 1,024 numbers: groups of 6, 11
and all took 13, 9 and 9 us per read; with 16,384 numbers 50, 41 and 85."""

TILE = 64
"""Tokens times heads of a tile; 16 took as long on one core, longer on two."""


def sites_together(n_sites: int) -> int:
    """How many sites share phase 1."""
    return math.ceil(GROUP * math.sqrt(n_sites))


def scores(v: Tensor, leaf: Tensor | None, scoring: Scoring) -> tuple[Tensor | None, Tensor | None]:
    """(R, N, H) scores of a source (N, D) at its R readers, and its (N,) reciprocal rms.

    A table's scores are (R, 1, H). None where there is nothing to score.
    """
    if leaf is None:
        return None, None
    if scoring.table is not None:
        return leaf.unsqueeze(1), None
    v = v.to(leaf.dtype)
    if scoring.heads == 1:
        z = (leaf @ v.t()).unsqueeze(-1)
    else:
        per_head = leaf.view(len(leaf), scoring.heads, -1)
        z = torch.einsum("nhd,rhd->rnh", _split(v, scoring.heads), per_head).contiguous()
    if scoring.gain is None:
        return z, None
    norm = torch.linalg.vector_norm(v, dim=-1)
    r = norm.square_().div_(v.shape[-1]).add_(scoring.eps).rsqrt_()
    return z.mul_(r.unsqueeze(-1)), r


def mix(
    sources: Sequence[Tensor], scores: Sequence[Tensor], scoring: Scoring, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The (N, D) sum of sources (N, D) under scores (N, H), and a softmax's constants (2, N, H)."""
    stacked = torch.stack(list(scores))
    constants = None
    if scoring.norm == "softmax":
        constants = stacked.new_empty(2, *stacked.shape[1:])
        torch.amax(stacked, dim=0, out=constants[0])
        weights = stacked.sub_(constants[0]).exp_()
        torch.sum(weights, dim=0, out=constants[1])
        weights.mul_(constants[1].reciprocal_())
    else:
        weights = scoring.weights(stacked, dim=0)
    return weighted_sum(sources, weights).to(dtype), constants


def weighted_sum(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """(N, D): sum over S of sources (N, D) times weights (S, N, H), in the weights' type."""
    heads = weights.shape[-1]
    h: Tensor | None = None
    for v, a in zip(sources, weights.unsqueeze(-1).unbind(), strict=True):
        v = _split(v, heads)
        h = a * v if h is None else h.addcmul_(a, v)
    assert h is not None
    return h.flatten(-2)


def phase_one(
    sources: Sequence[Tensor], scores: Sequence[Tensor], scoring: Scoring
) -> tuple[Tensor, Tensor | None]:
    """Mixes (G, N, D) of the same sources for G sites, and their scores (G, N, H) under a softmax.

    A mix with its score, log sum_i exp(z_i), is to a later mix one source like any other.

    Args:
        sources: S of (N, D).
        scores: for each, (G, N, H) at these sites, or (G, 1, H) of a table.
        scoring: theirs.

    """
    n, heads = len(sources[0]), scoring.heads
    weights = torch.stack([z.expand(-1, n, -1) for z in scores], dim=-1)  # (G, N, H, S)
    score = None
    if scoring.norm == "softmax":
        score = weights.logsumexp(dim=-1)
    weights = scoring.weights(weights, dim=-1).flatten(1, 2).transpose(0, 1)  # (N H, G, S)
    per_head = [v.view(n * heads, -1) for v in sources]
    mixed = weights.new_empty(weights.shape[1], *per_head[0].shape)
    for start in range(0, len(weights), TILE):  # a tile stays in the cache, and is all it copies
        here = slice(start, start + TILE)
        stacked = torch.stack([v[here] for v in per_head], dim=1).to(weights.dtype)
        mixed[:, here] = torch.bmm(weights[here], stacked).transpose(0, 1)
    return mixed.view(len(mixed), n, -1), score


def gather(
    mades: Sequence[Made],
    letters: Sequence[Letter],
    scoring: Scoring,
    starts: Sequence[Tensor | None],
) -> tuple[list[Tensor], list[Tensor]]:
    """What the letters give to each source: (N, D) sum_l a_il g_l, (K, N, H) gradients of scores.

    Args:
        mades: P sources, all of them read by every letter's site.
        letters: K of them.
        scoring: theirs.
        starts: for each source (N, D) to begin its sum with, or None.

    """
    accs, slopes = [], []
    for made, start in zip(mades, starts, strict=True):
        weights = _weights(_at(made, letters), letters, scoring)
        acc, dots = _sum_and_dots(_wide(made), weights, start, letters)
        accs.append(acc)
        slopes.append(_slopes(weights, dots, letters, scoring))
    return accs, slopes


def finish(made: Made, acc: Tensor, ds: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """The gradients of a source (N, D) and of its leaf, from those of its sums and its scores.

    Args:
        made: the source.
        acc: (N, D) what reached it through the mixes; overwritten.
        ds: (R, N, H) gradients of its scores.
        scoring: theirs.

    """
    assert made.leaf is not None
    if scoring.table is not None:
        return acc, ds.sum(dim=1)
    v = _wide(made)
    if made.r is not None:
        assert made.z is not None
        along_v = (ds * made.z).sum(dim=(0, 2))  # (N,)
        along_v.mul_(made.r.square()).div_(-v.shape[-1])
        acc.addcmul_(along_v.unsqueeze(-1), v)
        ds = ds * made.r.unsqueeze(-1)
    if scoring.heads == 1:
        ds = ds.squeeze(-1)
        return acc.addmm_(ds.t(), made.leaf), ds @ v
    per_head = made.leaf.view(len(made.leaf), scoring.heads, -1)
    _split(acc, scoring.heads).add_(torch.einsum("rnh,rhd->nhd", ds, per_head))
    dleaf = torch.einsum("rnh,nhd->rhd", ds, _split(v, scoring.heads))
    return acc, dleaf.flatten(-2)


def own_slopes(letter: Letter, sources: Sequence[Tensor], scoring: Scoring) -> Tensor:
    """(S, N, H) gradients of the scores that a read brought along."""
    assert letter.weights is not None
    g = letter.g.to(letter.weights.dtype)
    dots = torch.stack([head_dots(g, v, scoring.heads) for v in sources])
    return _slopes(letter.weights, dots, [letter], scoring)


def head_dots(x: Tensor, y: Tensor, heads: int) -> Tensor:
    """(N, H) dot products of the heads of x and y, both (N, D), without their product in memory."""
    n = len(x) * heads
    return torch.bmm(x.view(n, 1, -1), y.to(x.dtype).view(n, -1, 1)).view(-1, heads)


def _split(x: Tensor, heads: int) -> Tensor:
    """(N, D) as (N, H, D/H)."""
    return x.view(len(x), heads, -1)


def _wide(made: Made) -> Tensor:
    return made.v.to(wide(made.v) if made.leaf is None else made.leaf.dtype)


def _at(made: Made, letters: Sequence[Letter]) -> Tensor:
    """(K, N, H) scores of a source at the letters' sites; a view where these follow each other, so
    that nothing waits for a GPU.
    """
    assert made.z is not None
    rows = [letter.site - made.first for letter in letters]
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return made.z[rows[0] : rows[0] + len(rows)]
    return torch.stack([made.z[row] for row in rows])


def _weights(z: Tensor, letters: Sequence[Letter], scoring: Scoring) -> Tensor:
    """(K, N, H) weights of one source at the letters' sites, from its scores there."""
    if scoring.norm != "softmax":
        return scoring.weights(z, dim=0)
    constants = torch.stack(
        [letter.constants for letter in letters if letter.constants is not None]
    )
    return (z - constants[:, 0]).exp_().mul_(constants[:, 1])


def _sum_and_dots(
    v: Tensor, weights: Tensor, start: Tensor | None, letters: Sequence[Letter]
) -> tuple[Tensor, Tensor]:
    """A source's (N, D) sum of a_il g_l, and its (K, N, H) dots g_l . v, g_l read while at hand.

    One row per token and head, so that a view of g_l serves both: (N H, 1, D/H).
    """
    rows = (len(v) * weights.shape[2], 1, -1)
    dots = v.new_empty(len(letters), rows[0], 1, 1)
    columns = v.view(rows).transpose(1, 2)
    scale = weights.expand(-1, len(v), -1).reshape(len(letters), rows[0], 1, 1).unbind()
    acc = None if start is None else start.to(v.dtype).view(rows)
    for k, (letter, dot) in enumerate(zip(letters, dots.unbind(), strict=True)):
        g = letter.g.to(v.dtype).view(rows)
        torch.bmm(g, columns, out=dot)
        acc = _added(acc, scale[k], g, in_place=k > 0)  # never into the start, which is not ours
    assert acc is not None
    return acc.view(v.shape), dots.view(len(letters), len(v), -1)


def _added(acc: Tensor | None, a: Tensor, g: Tensor, *, in_place: bool) -> Tensor:
    if acc is None:
        return a * g
    return acc.addcmul_(a, g) if in_place else torch.addcmul(acc, a, g)


def _slopes(weights: Tensor, dots: Tensor, letters: Sequence[Letter], scoring: Scoring) -> Tensor:
    """(K, N, H) gradients of the scores; takes the place of dots."""
    if scoring.norm == "none":
        return dots
    if scoring.norm == "sigmoid":
        return dots.mul_(weights).mul_(1 - weights)
    delta = torch.stack([letter.delta for letter in letters if letter.delta is not None])
    return dots.sub_(delta).mul_(weights)
