"""Scores of a read's own query q (N, D), with their gradients by hand.

    z_i = r_i (q . v_i),   dq = sum_i g_i r_i v_i,   dv_i = g_i r_i q - (g_i z_i r_i^2 / D) v_i

per head, where g_i is the gradient of z_i, and r_i = 1 / rms(v_i), or 1 of raw keys. Plain autograd
holds five vectors for each pair of a site and a source, and takes twice the calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnres_cli.nn.depthmix.scoring import EngineState, Scoring, no_autocast, wide


def query_scores(state: EngineState, site: int, query: Tensor) -> Tensor:
    """(B, T, S, H) scores of the visible sources with a query (B, T, D) of this read alone."""
    scoring, query = state.scoring, query.to(wide(query))
    if scoring.gain is not None:
        query = query * scoring.gain[site]
    keys = [scoring.key(state.sources[i]) for i in scoring.visible[site]]
    flat = [each.to(query.dtype).reshape(-1, each.shape[-1]) for each in (query, *keys)]
    scores: Tensor = _Scores.apply(scoring, *flat)  # type: ignore[no-untyped-call]
    found, biases = scores.transpose(0, 1).unflatten(0, query.shape[:-1]), scoring.biases(site)
    return scoring.squash(found if biases is None else found + biases)


class _Scores(torch.autograd.Function):
    """A query and S sources (N, D) -> scores (S, N, H)."""

    @staticmethod
    def forward(ctx: Any, scoring: Scoring, query: Tensor, *sources: Tensor) -> Tensor:
        q = _rows(query, scoring.heads)
        z, r = query.new_empty(len(sources), len(query), scoring.heads), None
        if scoring.gain is not None:
            r = z.new_empty(*z.shape[:2], scoring.heads if scoring.head_norm else 1)
        for i, v in enumerate(sources):
            torch.sum(q * _rows(v, scoring.heads), -1, out=z[i])
            if r is not None:
                torch.linalg.vector_norm(_rows(v, r.shape[-1]), dim=-1, out=r[i])
        if r is not None:
            r.square_().div_(query.shape[-1] / r.shape[-1]).add_(scoring.eps).rsqrt_()
            z.mul_(r)
        ctx.save_for_backward(z, r, query, *sources)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        z, r, query, *sources = ctx.saved_tensors
        heads, along = z.shape[-1], None
        with no_autocast(g):
            if r is not None:
                along = g * z if r.shape[-1] == heads else (g * z).sum(dim=-1, keepdim=True)
                along = along.mul_(r.square()).mul_(-r.shape[-1] / query.shape[-1]).unsqueeze(-1)
                g = g * r
            g, q, dq, dsources = g.unsqueeze(-1), _rows(query, heads), torch.zeros_like(query), []
            for i, v in enumerate(sources):
                _rows(dq, heads).addcmul_(g[i], _rows(v, heads))
                dv = (g[i] * q).view_as(v)
                if along is not None:
                    n_norms = along.shape[2]
                    _rows(dv, n_norms).addcmul_(along[i], _rows(v, n_norms))
                dsources.append(dv)
        return None, dq, *dsources


def _rows(x: Tensor, heads: int) -> Tensor:
    """(N, D) as (N, H, D/H)."""
    return x.view(len(x), heads, -1)
