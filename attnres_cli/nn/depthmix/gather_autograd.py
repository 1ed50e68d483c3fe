"""Backward as a gather: each source sums its own gradient, once, when backward reaches its append.

1. When v_i is appended, its scores z_il at all later sites are known: one matrix product, and
   nothing else is kept of it but v_i and its reciprocal rms.
2. A read l mixes by them. Plain autograd would return a gradient of full width to each of its
   sources, O(L^2) vectors to be written and added up. Here a read returns none: its backward puts
   g_l, g_l . h_l and the softmax's constants into the buffer of the newest source.
3. When backward reaches the append of v_i, the gradients of every later read are there, and dv_i
   and dW are computed by the formulas of eager.py. They then go on to the buffer of the source
   before. A token, an empty tensor that goes from append to append and into each read, is what
   makes autograd run them in this order.

A gradient of a gradient would be wrong silently, and is refused.

Scores that a read brings along, of a query of its own or of a plain scoring (Scoring.plain), are
plain autograd's: the read's weights go into the buffer, and the scores get their gradients s_il.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import eager, grouped_reads, unrolled
from attnres_cli.nn.depthmix.gradients import GradBuffer, ReadGrad, ScoredSource
from attnres_cli.nn.depthmix.query_scores import query_scores
from attnres_cli.nn.depthmix.scoring import EngineState, Scoring, wide


class Record(NamedTuple):
    """What is kept of a source.

    Attributes:
        params: of all sites: (sites, D) queries with the gain folded in, or (pairs, H) table.
        token: orders backward; None where nothing needs a gradient.
        buffer: where reads put their gradients while this source is the newest.
        plain: its scores under a plain scoring, by site.
    """

    source: ScoredSource
    params: Tensor | None
    token: Tensor | None = None
    buffer: GradBuffer | None = None
    plain: Mapping[int, Tensor] | None = None


@dataclass(frozen=True)
class Gather:
    """The engine with custom autograd: deterministic, and bare of bookkeeping without gradients."""

    arithmetic: eager.Eager

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """One more source, scored at every site that will read it."""
        last: Record | None = state.newest_record if state.n_sources else None
        token = last.token if last else None
        params, rows = params_of(state, v)
        with torch.no_grad():
            z, r = self.arithmetic.scores(_flat(v), rows)
        source = scored(state, v, rows, z, r)
        record = Record(source, params)
        needs_grad = any(x is not None and x.requires_grad for x in (v, rows, token))
        if needs_grad and torch.is_grad_enabled():
            buffer = GradBuffer(last.buffer if last else None)
            v, token = _Append.apply(  # type: ignore[no-untyped-call]
                v, rows, token, source, self.arithmetic, buffer
            )
            record = record._replace(token=token, buffer=buffer)
        if state.scoring.plain:
            record = record._replace(plain=unrolled.scores_of(state, v))
        return state.with_source(v, record)

    def read(
        self, state: EngineState, site: int, query: Tensor | None = None
    ) -> tuple[Tensor, EngineState]:
        """h_l = sum_i a_il v_i."""
        scoring, newest, last = state.scoring, state.newest, state.newest_record
        token = last.token if torch.is_grad_enabled() else None
        if query is not None:
            return _read_by(query_scores(state, site, query), state, site, token), state
        if scoring.plain:
            return _read_by(_plain_scores(state, site), state, site, token), state
        if token is None:
            return grouped_reads.read(state, site, self.arithmetic)
        with torch.no_grad():
            sources, scores, state = to_mix(state, site, self.arithmetic)
            h, constants = self.arithmetic.mix(sources, scores, state.dtype)
        read = (token, None, h.view(newest.shape), constants, None, (), site, scoring, last.buffer)
        return _Read.apply(*read), state  # type: ignore[no-untyped-call]

    def scores(self, state: EngineState, site: int) -> Tensor:
        """(B, T, S, H) scores at a site, without a gradient."""
        if state.scoring.plain:
            return _plain_scores(state, site).detach()
        batch, time, _ = state.newest.shape
        seen = state.scoring.visible[site]
        z = torch.stack([state.records[i].source.scores_at(site) for i in seen], dim=1)
        return z.unflatten(0, (batch, time)) if len(z) == batch * time else z.unsqueeze(0)


def _read_by(scores: Tensor, state: EngineState, site: int, token: Tensor | None) -> Tensor:
    """What a site sees by scores (B, T, S, H) that are plain autograd's."""
    scoring = state.scoring
    if token is None:  # no source learns; what scores are made of may
        return unrolled.mix(state, site, scores)
    sources = [state.records[i].source.v for i in scoring.visible[site]]
    scores = scores.flatten(0, 1).transpose(0, 1)
    weights = scoring.weights(scores, dim=0).detach()
    h = eager.weighted_sum(sources, weights).to(state.dtype).view(state.newest.shape)
    buffer = state.newest_record.buffer
    return _Read.apply(token, scores, h, None, weights, sources, site, scoring, buffer)  # type: ignore[no-untyped-call]


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
    """(v, params, token) -> (v, token); backward gathers their gradients from the buffer."""

    @staticmethod
    def forward(
        ctx: Any,
        v: Tensor,
        params: Tensor | None,
        token: Tensor | None,
        source: ScoredSource,
        arithmetic: eager.Eager,
        buffer: GradBuffer,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(source.v, source.params, source.z, source.r)
        ctx.place, ctx.shape = (source.number, source.first), v.shape
        ctx.arithmetic, ctx.buffer = arithmetic, buffer
        return v.view_as(v), v.new_empty(0)

    @staticmethod
    @_once
    def backward(ctx: Any, dv: Tensor | None, _token: Tensor | None) -> Any:
        buffer: GradBuffer = ctx.buffer
        source = ScoredSource(*ctx.place, *ctx.saved_tensors)
        grads = buffer.take()
        with torch.autocast(source.v.device.type, enabled=False):
            start = None if dv is None else _flat(dv)
            dv, dparams = ctx.arithmetic.source_gradient(source, grads, start)
        token = None
        if buffer.before is not None:
            buffer.before.put([grad for grad in grads if grad.seen[0] < source.number])
            token = source.v.new_empty(0)
        dv = None if dv is None else dv.to(source.v.dtype).view(ctx.shape)
        return dv, dparams, token, None, None, None


class _Read(torch.autograd.Function):
    """(token, plain scores or None, h) -> h; backward puts its gradient into the buffer."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        scores: Tensor | None,
        h: Tensor,
        constants: Tensor | None,
        weights: Tensor | None,
        sources: Sequence[Tensor],
        site: int,
        scoring: Scoring,
        buffer: GradBuffer,
    ) -> Tensor:
        ctx.site, ctx.scoring, ctx.buffer = site, scoring, buffer
        ctx.save_for_backward(h, constants, weights, *sources)
        return h.view_as(h)

    @staticmethod
    @_once
    def backward(ctx: Any, g: Tensor) -> Any:
        h, constants, weights, *sources = ctx.saved_tensors
        scoring: Scoring = ctx.scoring
        g, delta, slopes = _flat(g), None, None
        with torch.autocast(g.device.type, enabled=False):
            if scoring.norm == "softmax":
                delta = eager.head_dots(g.to(wide(g)), _flat(h), scoring.heads)
            grad = ReadGrad(ctx.site, scoring.visible[ctx.site], g, delta, constants, weights)
            if weights is not None:
                slopes = eager.own_slopes(grad, sources, scoring)
        ctx.buffer.put([grad])
        return g.new_empty(0), slopes, None, None, None, None, None, None, None


def params_of(state: EngineState, v: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What scores are learned by, at all sites and at those that read the next source v: queries
    with the gain folded in, which changes no score, or rows of the table. None where there is
    nothing, or nothing to read.
    """
    scoring, layout, number = state.scoring, state.layout, state.n_sources
    params = state.newest_record.params if number else _all_params(scoring, v)
    readers = layout.readers_of(number)
    if params is None or not readers:
        return params, None
    if scoring.table is None:
        return params, params[readers.start : readers.stop]
    rows = torch.tensor([max(row, 0) for row in layout.pairs[number]], device=params.device)
    return params, params.index_select(0, rows)  # a row that is not read has no gradient


def _all_params(scoring: Scoring, first: Tensor) -> Tensor | None:
    params = scoring.table if scoring.query is None else scoring.query
    if params is None or scoring.plain:
        return None
    if scoring.query is not None and scoring.gain is not None:
        params = params * scoring.gain
    return params.to(torch.promote_types(wide(params), first.dtype))


def scored(
    state: EngineState, v: Tensor, rows: Tensor | None, z: Tensor | None, r: Tensor | None
) -> ScoredSource:
    """The next source v of a history, with its scores."""
    number = state.n_sources
    rows = None if rows is None else rows.detach()
    first = state.layout.readers_of(number).start
    return ScoredSource(number, first, _flat(v).detach(), rows, z, r)


def to_mix(
    state: EngineState, site: int, arithmetic: eager.Eager
) -> tuple[list[Tensor], list[Tensor], EngineState]:
    """The sources (N, D) and their scores (N, H) that a site's mix is made of in training."""
    if arithmetic.trains_in_groups:
        return grouped_reads.to_mix(state, site, arithmetic)
    seen = [state.records[i].source for i in state.scoring.visible[site]]
    return [source.v for source in seen], [source.scores_at(site) for source in seen], state


def _plain_scores(state: EngineState, site: int) -> Tensor:
    """(B, T, S, H) scores at a site under a plain scoring."""
    plain = {i: each.plain for i, each in state.records.items()}
    return unrolled.scores_at(state.scoring, site, plain)


def _flat(x: Tensor) -> Tensor:
    """(B, T, D) as (N, D), row after row."""
    return x.reshape(-1, x.shape[-1]).contiguous()
