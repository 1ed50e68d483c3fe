"""The gather without side effects, for compilers: gradients travel by edges of the graph alone.

The formulas are eager.py's, the order is gather_autograd.py's. A compiler cannot see a buffer that
backward fills. So each site that is still to read has an edge: two tensors without content that go
from the append of one source to the next and end in the site's read. Their "gradients" are what a
ReadGrad holds, passed on unchanged from append to append. Each edge has one consumer, so nothing is
added up, and the compiler sees a graph of plain operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import eager, unrolled
from attnres_cli.nn.depthmix.gather_autograd import Gather, all_params, row_of, rows_of, to_mix
from attnres_cli.nn.depthmix.gradients import ReadGrad, ScoredSource
from attnres_cli.nn.depthmix.scoring import EngineState, Scoring, wide


class Edge(NamedTuple):
    """How a read's gradient comes back: the gradient of g (N, D) is g_l, that of softmax (3, N, H)
    is the largest score, the reciprocal of the sum of exponentials, and g_l . h_l.
    """

    g: Tensor
    softmax: Tensor


@dataclass
class Used:
    """What a trace has used up, since an edge serves one read: the newest source, and sites."""

    newest: int
    sites: set[int]


class Record(NamedTuple):
    """What is kept of a source: as gather_autograd.Record, with the edges after its append."""

    source: ScoredSource
    params: Tensor | None
    edges: dict[int, Edge]
    used: Used


@dataclass(frozen=True)
class CompiledGather(Gather):
    """The engine of fused kernels under torch.compile, for scores that engines.choose gives it."""

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """One more source. Raises NotImplementedError where a history branches."""
        number, scoring = state.n_sources, state.scoring
        params = state.newest_record.params if number else all_params(state, v)
        rows = rows_of(state, params)
        used = state.newest_record.used if number else Used(-1, set())
        edges = state.newest_record.edges if number else _first_edges(scoring, v)
        if used.newest != number - 1:  # an edge has one consumer: two would add up their gradients
            raise NotImplementedError("a history that branches cannot be compiled with Triton")
        used.newest = number
        edges = {site: edge for site, edge in edges.items() if site not in used.sites}
        first, sites = state.layout.readers_of(number).start, tuple(edges)
        flat = (tensor for edge in edges.values() for tensor in edge)
        z, r, *passed = _Append.apply(v, rows, number, first, sites, self.arithmetic, *flat)  # type: ignore[no-untyped-call]
        pairs = zip(passed[::2], passed[1::2], strict=True)
        edges = {site: Edge(*pair) for site, pair in zip(edges, pairs, strict=True)}
        kept = _scores_or_none(rows, z, r, scoring)
        held = None if rows is None else rows.detach()
        source = ScoredSource(number, first, row_of(state, number), _flat(v.detach()), held, *kept)
        record = Record(source, params, edges, used)
        return state.with_source(v, record)

    def read(
        self, state: EngineState, site: int, query: Tensor | None = None
    ) -> tuple[Tensor, EngineState]:
        """h_l = sum_i a_il v_i; one that is read again, or by its own query, is unrolled."""
        record, scoring = state.newest_record, state.scoring
        if query is None and scoring.query is not None and site in record.used.sites:
            query = scoring.query[site]
        if query is not None:
            return unrolled.mix(state, site, unrolled.query_scores(state, site, query)), state
        if site in record.used.sites:
            return unrolled.mix(state, site, unrolled.scores_at(scoring, site, {})), state
        record.used.sites.add(site)
        with torch.no_grad():
            sources, scores, state = to_mix(state, site, self.arithmetic)
        h = _Read.apply(  # type: ignore[no-untyped-call]
            *record.edges[site], self.arithmetic, state.dtype, *sources, *scores
        )
        return h.view(state.newest.shape), state


class _Append(torch.autograd.Function):
    """(v, params, edges) -> (z, r, edges); backward gathers from what the edges bring."""

    @staticmethod
    def forward(
        ctx: Any,
        v: Tensor,
        params: Tensor | None,
        number: int,
        first: int,
        sites: tuple[int, ...],
        arithmetic: eager.Eager,
        *edges: Tensor,
    ) -> tuple[Tensor, ...]:
        z, r = arithmetic.scores(_flat(v), params)
        z = v.new_empty(0) if z is None else z
        r = v.new_empty(0) if r is None else r
        ctx.save_for_backward(v, params, z, r)
        ctx.number, ctx.first, ctx.sites, ctx.arithmetic = number, first, sites, arithmetic
        ctx.mark_non_differentiable(z, r)
        return z, r, *(edge.clone() for edge in edges)

    @staticmethod
    def backward(ctx: Any, _z: None, _r: None, *grads: Tensor) -> Any:
        v, params, z, r = ctx.saved_tensors
        scoring = ctx.arithmetic.scoring
        kept = _scores_or_none(params, z, r, scoring)
        source = ScoredSource(ctx.number, ctx.first, 0, _flat(v), params, *kept)
        reads = [
            _read_grad(site, grads[2 * k], grads[2 * k + 1], scoring)
            for k, site in enumerate(ctx.sites)
            if ctx.number in scoring.visible[site]
        ]
        dv, dparams = ctx.arithmetic.source_gradient(source, reads)
        dv = None if dv is None else dv.to(v.dtype).view(v.shape)
        return dv, dparams, None, None, None, None, *grads


class _Read(torch.autograd.Function):
    """(edge) -> h; backward sends the gradient and the softmax's constants into the edge."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        softmax: Tensor,
        arithmetic: eager.Eager,
        dtype: torch.dtype,
        *tensors: Tensor,
    ) -> Tensor:
        half = len(tensors) // 2
        h, kept = arithmetic.mix(tensors[:half], tensors[half:], dtype)
        ctx.save_for_backward(*kept)
        ctx.heads = arithmetic.scoring.heads
        return h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        nothing = [None] * (len(ctx.needs_input_grad) - 2)
        if not ctx.saved_tensors:
            return g, None, *nothing
        h, constants = ctx.saved_tensors
        product = g.to(wide(g)) * h
        delta = product.unflatten(-1, (ctx.heads, -1)).sum(dim=-1)
        return g, torch.cat((constants, delta.unsqueeze(0))), *nothing


def _first_edges(scoring: Scoring, first: Tensor) -> dict[int, Edge]:
    """An edge for every site that will mix, by tensors that take no room."""
    n = first.shape[0] * first.shape[1]
    g, softmax = first.new_zeros(()), first.new_zeros((), dtype=wide(first))
    return {
        site: Edge(g.expand(n, first.shape[2]), softmax.expand(3, n, scoring.heads))
        for site, sources in enumerate(scoring.visible)
        if len(sources) > 1 or (sources and scoring.norm != "softmax")
    }


def _read_grad(site: int, g: Tensor, softmax: Tensor, scoring: Scoring) -> ReadGrad:
    if scoring.norm != "softmax":
        return ReadGrad(site, g)
    return ReadGrad(site, g, delta=softmax[2], constants=softmax[:2])


def _scores_or_none(
    params: Tensor | None, z: Tensor, r: Tensor, scoring: Scoring
) -> tuple[Tensor | None, Tensor | None]:
    """Scores and reciprocal rms, where there are any: an autograd function returns tensors only."""
    return None if params is None else z, None if scoring.gain is None else r


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
