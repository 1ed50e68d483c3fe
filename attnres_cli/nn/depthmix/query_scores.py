"""Scores of a read's own query q (N, D), with their gradients by hand.

    z_i = r_i (q . v_i),   dq = sum_i g_i r_i v_i,   dv_i = g_i r_i q - (g_i z_i r_i^2 / D) v_i

per head, where g_i is the gradient of z_i, and r_i = 1 / rms(v_i), or 1 of raw keys. Plain autograd
holds five vectors for each pair of a site and a source, and takes twice the calls. As in
gather_autograd.py a source gets its gradients by its buffer, when all of them are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnres_cli.nn.depthmix import eager
from attnres_cli.nn.depthmix.gradients import GradBuffer, ReadGrad, ScoredSource
from attnres_cli.nn.depthmix.scoring import Scoring, no_autocast, wide


def query_scores(
    scoring: Scoring,
    site: int,
    query: Tensor,
    token: Tensor | None,
    sources: Sequence[ScoredSource],
    buffers: Sequence[GradBuffer | None],
) -> Tensor:
    """(S, N, H) scores of sources with a query (B, T, D) of this read alone."""
    query = query.to(wide(query))
    if scoring.gain is not None:
        query = query * scoring.gain[site]
    flat = query.reshape(-1, query.shape[-1])
    scores: Tensor = _Scores.apply(flat, token, scoring, site, sources, buffers)  # type: ignore[no-untyped-call]
    biases = scoring.biases(site)
    return scoring.squash(scores if biases is None else scores + biases[0].transpose(0, 1))


def inverse_rms(scoring: Scoring, v: Tensor) -> Tensor:
    """(N, 1) of a source v (N, D), or (N, H) of each head's slice."""
    v = v.to(wide(v)).unflatten(-1, (scoring.heads if scoring.head_norm else 1, -1))
    r = torch.linalg.vector_norm(v, dim=-1).square_().div_(v.shape[-1])
    return r.add_(scoring.eps).rsqrt_()


class _Scores(torch.autograd.Function):
    """(query (N, D), token) -> scores (S, N, H); backward sends to each source what is its own."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        token: Tensor | None,
        scoring: Scoring,
        site: int,
        sources: Sequence[ScoredSource],
        buffers: Sequence[GradBuffer | None],
    ) -> Tensor:
        vectors, r = [source.v for source in sources], None
        z = eager.dots(query, vectors, scoring.heads)
        if scoring.gain is not None:
            found = (s.r if s.r is not None else inverse_rms(scoring, s.v) for s in sources)
            r = torch.stack([each[: len(query)].view(len(query), -1) for each in found])
            z.mul_(r)
        ctx.save_for_backward(z, r, query, *vectors)
        ctx.site, ctx.buffers = site, buffers
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,), (z, r, query, *vectors) = grads, ctx.saved_tensors
        along: Sequence[Tensor | None] = [None] * len(vectors)
        with no_autocast(g):
            if r is not None:
                slopes = g * z if r.shape[-1] == z.shape[-1] else (g * z).sum(-1, keepdim=True)
                slopes.mul_(r.square()).mul_(-r.shape[-1] / query.shape[-1])
                along, g = slopes.unbind(), g * r
            weights = g.unbind()
            dq = eager.weighted_sum(vectors, weights)
        for buffer, weight, of_itself in zip(ctx.buffers, weights, along, strict=True):
            if buffer is not None:
                buffer.put(ReadGrad(ctx.site, query, weight, along=of_itself))
        return dq, query.new_empty(0) if ctx.needs_input_grad[1] else None, None, None, None, None
