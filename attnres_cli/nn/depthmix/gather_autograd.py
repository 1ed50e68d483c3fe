"""Backward as a gather: each source sums its own gradient, once, when backward reaches its append.

1. When v_i is appended, its scores z_il at all later sites are known: one matrix product, and
   nothing else is kept of it but v_i and its reciprocal rms.
2. A read l mixes by them. Plain autograd would return a gradient of full width to each of its
   sources, O(L^2) vectors to be written and added up. Here a read returns none: its backward puts
   g_l with the numbers per token a_il and s_il, or what they are computed from, into the buffer of
   each source that it saw.
3. When backward reaches the append of v_i, all of these are there, and dv_i and dW are computed by
   the formulas of eager.py. A token, an empty tensor that goes from append to append and into each
   read, is what makes autograd run them in this order.

A gradient of a gradient would be wrong silently, and is refused.

Scores that a read brings along, of a query of its own or of a plain scoring (Scoring.plain), get
their gradients s_il from the read; those of a query go back to its sources by their buffers too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import eager, grouped_reads, unrolled
from attnres_cli.nn.depthmix.gradients import GradBuffer, ParamGrads, ReadGrad, ScoredSource
from attnres_cli.nn.depthmix.query_scores import inverse_rms, query_scores
from attnres_cli.nn.depthmix.scoring import EngineState, no_autocast, wide


class Record(NamedTuple):
    """What is kept of a source.

    Attributes:
        params: of all sources' scores: (sites, D) queries with the gain folded in, or rows (., H)
            of the table, source by source.
        token: orders backward; None where nothing needs a gradient.
        buffer: where reads put what they send back to this source.
        learned: where all sources add up the gradient of params.
        plain: its scores under a plain scoring, by site.
    """

    source: ScoredSource
    params: Tensor | None
    token: Tensor | None = None
    buffer: GradBuffer | None = None
    learned: ParamGrads | None = None
    plain: Mapping[int, Tensor] | None = None


@dataclass(frozen=True)
class Gather:
    """The engine with custom autograd: deterministic, and bare of bookkeeping without gradients."""

    arithmetic: eager.Eager

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """One more source, scored at every site that will read it."""
        number = state.n_sources
        last: Record | None = state.newest_record
        params = all_params(state, v) if last is None else last.params
        learns = last is None and params is not None and params.requires_grad
        held = None if params is None else params.detach()
        first, row = state.layout.readers_of(number).start, row_of(state, number)
        flat, rows = _flat(v.detach()), rows_of(state, held)
        z, r = self.arithmetic.scores(flat, rows)
        if state.scoring.gain is not None and state.scoring.query is None:  # reads bring theirs
            r = inverse_rms(state.scoring, flat)
        source = ScoredSource(number, first, row, flat, rows, z, r)
        token, learned = (last.token, last.learned) if last else (None, None)
        buffer: GradBuffer | None = None
        if torch.is_grad_enabled() and (v.requires_grad or learns or token is not None):
            buffer = GradBuffer()
            if held is not None and learns:
                learned = ParamGrads(held)
            token = _Append.apply(  # type: ignore[no-untyped-call]
                v, params if learns else None, token, source, self.arithmetic, buffer, learned
            )
        plain = None
        if state.scoring.plain:
            state = unrolled.with_queries(state)
            plain = unrolled.scores_of(state, v)
        record = Record(source, held, token, buffer, learned, plain)
        return state.with_source(v, record)

    def read(
        self, state: EngineState, site: int, query: Tensor | None = None
    ) -> tuple[Tensor, EngineState]:
        """h_l = sum_i a_il v_i."""
        token = state.newest_record.token if torch.is_grad_enabled() else None
        scores = None
        records = [state.records[i] for i in state.scoring.visible[site]]
        buffers = [record.buffer for record in records]
        if query is not None and state.scoring.rank is None:
            sources = [record.source for record in records]
            scores = query_scores(state.scoring, site, query, token, sources, buffers)
        elif query is not None or state.scoring.plain:
            scores = _plain_scores(state, site, query)
        if scores is None and token is None:
            return grouped_reads.read(state, site, self.arithmetic)
        if scores is not None and token is None:  # no source learns; what scores are made of may
            scores = scores.transpose(0, 1).unflatten(0, state.newest.shape[:2])
            return unrolled.mix(state, site, scores), state
        if scores is None:
            vectors, z, state = to_mix(state, site, self.arithmetic)
            h, kept = self.arithmetic.mix(vectors, z, state.dtype)
        else:
            h, kept = _mix_by(scores.detach(), state, site)
        h = h.to(state.dtype).view(state.newest.shape)
        h = _Read.apply(token, scores, h, kept, site, buffers, self.arithmetic)  # type: ignore[no-untyped-call]
        return h, state

    def scores(self, state: EngineState, site: int) -> Tensor:
        """(B, T, S, H) scores at a site, without a gradient."""
        batch, time, _ = state.newest.shape
        if state.scoring.plain:
            scores = _plain_scores(state, site).detach()
            return scores.transpose(0, 1).unflatten(0, (batch, time))
        seen = state.scoring.visible[site]
        z = torch.stack([state.records[i].source.scores_at(site) for i in seen], dim=1)
        return z.unflatten(0, (batch, time)) if len(z) == batch * time else z.unsqueeze(0)


def _mix_by(scores: Tensor, state: EngineState, site: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The (N, D) mix by scores (S, N, H), and what the gradients of plain scores need."""
    sources = [state.records[i].source.v for i in state.scoring.visible[site]]
    weights = state.scoring.weights(scores, dim=0)
    return eager.weighted_sum(sources, weights.unbind()), (weights, *sources)


def _once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses to be differentiated, where its result would be wrong silently."""

    def checked(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "this engine's gradients cannot be differentiated again: for a gradient of a "
                "gradient use the engine `compile` or `reference`"
            )
        return backward(ctx, *grads)

    return checked


class _Append(torch.autograd.Function):
    """(v, params, token) -> token; backward gathers the gradient of v from the buffer. That of
    params comes by way of the first source, when all others have added theirs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        v: Tensor,
        params: Tensor | None,
        token: Tensor | None,
        source: ScoredSource,
        arithmetic: eager.Eager,
        buffer: GradBuffer,
        learned: ParamGrads | None,
    ) -> Tensor:
        ctx.save_for_backward(source.v, source.params, source.z, source.r)
        ctx.place, ctx.shape = source[:3], v.shape
        ctx.arithmetic, ctx.buffer, ctx.learned = arithmetic, buffer, learned
        return v.new_empty(0)

    @staticmethod
    @_once
    def backward(ctx: Any, token: Tensor) -> Any:
        source = ScoredSource(*ctx.place, *ctx.saved_tensors)
        learned: ParamGrads | None = ctx.learned
        with no_autocast(token):
            dv, drows = ctx.arithmetic.source_gradient(source, ctx.buffer.take())
            if drows is not None and learned is not None:
                learned.add(source.row, drows)
        dv = None if dv is None else dv.to(source.v.dtype).view(ctx.shape)
        dparams = learned.take() if learned is not None and ctx.needs_input_grad[1] else None
        return dv, dparams, token if ctx.needs_input_grad[2] else None, None, None, None, None


class _Read(torch.autograd.Function):
    """(token, plain scores or None, h) -> h; backward sends to each source what is its own."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        scores: Tensor | None,
        h: Tensor,
        kept: Sequence[Tensor],
        site: int,
        buffers: Sequence[GradBuffer | None],
        arithmetic: eager.Eager,
    ) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.is_plain = scores is not None
        ctx.site, ctx.buffers, ctx.arithmetic = site, buffers, arithmetic
        return h.view_as(h)

    @staticmethod
    @_once
    def backward(ctx: Any, g: Tensor) -> Any:
        g, kept, slopes = _flat(g), ctx.saved_tensors, None
        with no_autocast(g):
            if ctx.is_plain:
                weights, *sources = kept
                slopes = eager.score_gradients(g, sources, weights, ctx.arithmetic.scoring.norm)
                grads = [ReadGrad(ctx.site, g, weight) for weight in weights.unbind()]
            else:
                grads = ctx.arithmetic.read_gradients(ctx.site, g, kept, len(ctx.buffers))
        for buffer, grad in zip(ctx.buffers, grads, strict=True):
            if buffer is not None:
                buffer.put(grad)
        return g.new_empty(0), slopes, None, None, None, None, None


def all_params(state: EngineState, first: Tensor) -> Tensor | None:
    """What all sources' scores are learned by: queries with the gain folded in, which changes no
    score, or rows of the table, source by source. None where there is nothing. Sources are of the
    type of the `first` or less.
    """
    scoring = state.scoring
    params = scoring.table if scoring.query is None else scoring.query
    if params is None or scoring.plain:
        return None
    if scoring.query is None:  # a row that is not read has no gradient
        index = _index if torch.compiler.is_compiling() else _remembered
        params = params.index_select(0, index(state.layout.pairs, params.device))
    elif scoring.gain is not None:
        params = params * scoring.gain
    return params.to(torch.promote_types(wide(params), first.dtype))


def _index(pairs: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """The rows of a table, source by source."""
    with torch.inference_mode(mode=False):  # or no gradient could go by what is remembered
        return torch.tensor([max(row, 0) for rows in pairs for row in rows], device=device)


_remembered = cache(_index)  # to make it anew, a GPU would be waited for in each forward pass


def row_of(state: EngineState, number: int) -> int:
    """The first row of all params that is a source's own."""
    if state.scoring.query is not None:
        return state.layout.readers_of(number).start
    return sum(map(len, state.layout.pairs[:number]))


def rows_of(state: EngineState, params: Tensor | None) -> Tensor | None:
    """The params of the next source, None where there is nothing, or nothing to read."""
    number = state.n_sources
    n_readers = len(state.layout.readers_of(number))
    if params is None or not n_readers:
        return None
    row = row_of(state, number)
    return params[row : row + n_readers]


def to_mix(
    state: EngineState, site: int, arithmetic: eager.Eager
) -> tuple[list[Tensor], list[Tensor], EngineState]:
    """The sources (N, D) and their scores (N, H) that a site's mix is made of in training."""
    if arithmetic.trains_in_groups:
        return grouped_reads.to_mix(state, site, arithmetic)
    seen = [state.records[i].source for i in state.scoring.visible[site]]
    return [source.v for source in seen], [source.scores_at(site) for source in seen], state


def _plain_scores(state: EngineState, site: int, query: Tensor | None = None) -> Tensor:
    """(S, N, H) scores at a site under a plain scoring, or of a query of this read alone."""
    if query is None:
        plain = {i: each.plain for i, each in state.records.items()}
        scores = unrolled.scores_at(state.scoring, site, plain)
    else:
        scores = unrolled.query_scores(state, site, query)
    return scores.flatten(0, 1).transpose(0, 1)


def _flat(x: Tensor) -> Tensor:
    """(B, T, D) as (N, D), row after row."""
    return x.reshape(-1, x.shape[-1]).contiguous()
