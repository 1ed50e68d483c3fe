"""The sum over sources unrolled: plain PyTorch on a list that is never stacked.

torch.compile fuses it best: a read becomes one pass over its sources together with what follows,
and so does its gradient. A new source is scored by one product with its future sites' queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.scoring import EngineState, Scoring, wide


class Unrolled:
    """The engine `compile`. The record of a source: {site: (B, T, H) scores}."""

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """One more source, scored at every site that will read it."""
        state = with_queries(state)
        return state.with_source(v, scores_of(state, v))

    def read(
        self, state: EngineState, site: int, query: Tensor | None = None
    ) -> tuple[Tensor, EngineState]:
        """h_l = sum_i a_il v_i, one multiply-add per source."""
        scores = self.scores(state, site) if query is None else query_scores(state, site, query)
        return mix(state, site, scores), state

    def scores(self, state: EngineState, site: int) -> Tensor:
        """(B, T, S, H) scores at a site, (1, 1, S, H) from a table."""
        return scores_at(state.scoring, site, state.records)


def scores_at(scoring: Scoring, site: int, records: Mapping[int, Mapping[int, Tensor]]) -> Tensor:
    """(B, T, S, H) scores at a site with the table's biases; these (1, 1, S, H) without a query."""
    biases = scoring.biases(site)
    if scoring.query is None:
        assert biases is not None
        return biases
    scores = torch.stack([records[i][site] for i in scoring.visible[site]], dim=-2)
    return scoring.squash(scores if biases is None else scores + biases)


def mix(state: EngineState, site: int, scores: Tensor) -> Tensor:
    """(B, T, D) what a site sees under scores (B, T, S, H), in the type of v_0."""
    weights = state.scoring.weights(scores, dim=-2)
    h: Tensor | None = None
    for a, i in zip(weights.unbind(dim=-2), state.scoring.visible[site], strict=True):
        v = state.sources[i].unflatten(-1, (weights.shape[-1], -1))  # (B, T, H, D/H)
        a = a.unsqueeze(-1)
        h = a * v if h is None else torch.addcmul(h, a, v.to(a.dtype))
    assert h is not None
    return h.flatten(-2).to(state.dtype)


def scores_of(state: EngineState, v: Tensor) -> dict[int, Tensor]:
    """Scores of the next source at every site that will read it: r_i (v_i . (query * gain)). The
    state is one with queries.
    """
    scoring, readers = state.scoring, state.layout.readers_of(state.n_sources)
    if state.queries is None or not readers:
        return {}
    v = scoring.key(v)
    v = v.to(wide(v))
    queries = state.queries[readers.start : readers.stop]  # an index list would wait for CUDA
    queries = queries.to(v.dtype).unflatten(-1, (scoring.heads, -1))  # (R, H, D/H)
    if scoring.heads == 1:
        scores = (v @ queries.squeeze(1).t()).unsqueeze(-1)  # (B, T, R, 1)
    else:
        scores = torch.einsum("bthd,rhd->btrh", v.unflatten(-1, (scoring.heads, -1)), queries)
    if scoring.gain is not None:
        scores = scores * _inverse_rms(v, scoring).unsqueeze(-2)
    return dict(zip(readers, scores.unbind(dim=-2), strict=True))


def with_queries(state: EngineState) -> EngineState:
    """The state with its queries, the gain folded in, which changes no score. Once for all sources:
    compiled, each product more is a kernel more.
    """
    query, gain = state.scoring.query, state.scoring.gain
    if state.queries is not None or query is None:
        return state
    return replace(state, queries=query if gain is None else query * gain)


def query_scores(state: EngineState, site: int, query: Tensor) -> Tensor:
    """(B, T, S, H) scores of the visible sources with a query (B, T, D) of this read alone."""
    scoring = state.scoring
    query = query.to(wide(query))
    if scoring.gain is not None:
        query = query * scoring.gain[site]
    scores = []
    for i in scoring.visible[site]:
        v = scoring.key(state.sources[i])
        v = v.to(wide(v))
        score = (query * v).unflatten(-1, (scoring.heads, -1)).sum(dim=-1)  # (B, T, H)
        if scoring.gain is not None:
            score = score * _inverse_rms(v, scoring)
        scores.append(score)
    found, biases = torch.stack(scores, dim=-2), scoring.biases(site)
    return scoring.squash(found if biases is None else found + biases)


def _inverse_rms(v: Tensor, scoring: Scoring) -> Tensor:
    """(B, T, 1), or (B, T, H) of each head's slice."""
    if not scoring.head_norm:
        return torch.rsqrt(v.square().mean(dim=-1, keepdim=True) + scoring.eps)
    per_head = v.unflatten(-1, (scoring.heads, -1))
    return torch.rsqrt(per_head.square().mean(dim=-1) + scoring.eps)
