"""Gradients by pull: each source gathers its own gradient, once, when backward reaches its making.

Plain autograd pushes: every read returns a gradient of full width to each of its sources, to be
added up, O(L^2) vectors written. Here a read returns none. Its backward writes a letter, with the
gradient g_l of its sum and the softmax's constants, into the box of the newest source, and when
backward reaches the making of source i, every letter of a later site is there:

    s_il = a_il (g_l . v_i - g_l . h_l)                                            (softmax)
    dv_i = sum_l a_il g_l + r_i sum_l s_il W_l - (r_i^2 / D) (sum_l s_il z_il) v_i
    dW_l = sum over tokens and i of s_il r_i v_i

with z_il = r_i (v_i . W_l) the score, r_i = 1 / rms(v_i), W_l = query_l * gain_l. Letters then go
on to the box of the source before. A token, an empty tensor that goes from making to making and
into each read, is what makes autograd run them in this order.

A few sources in a row are served together by the last of them, so that every g_l is read once for
all; what it has gathered for the others goes on in parcels.

Boxes are filled and emptied by backward alone, under the number of the backward pass, so one
history may be read twice, branch, be recomputed by checkpointing, or go through backward again.
A gradient of a gradient would be wrong silently, and is refused.

Scores that a read brings along, of a query of its own or of a plain scoring (see Scoring.plain),
are plain autograd's: its letter says the weights, and they are told their own gradients s_il.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import eager, grouped_reads, unrolled
from attnres_cli.nn.depthmix.engine_state import Ledger
from attnres_cli.nn.depthmix.gradient_messages import (
    Arithmetic,
    Box,
    Letter,
    Made,
    answer,
    group_of,
)
from attnres_cli.nn.depthmix.scoring import Scoring, wide


class Note(NamedTuple):
    """What is kept of a source.

    Attributes:
        made: its number, scores and reciprocal rms.
        whole: what all scores are learned by: (sites, D) folded queries or (pairs, H) table.
        token: orders backward; None where nothing needs a gradient.
        box: where reads of this ledger leave their letters.
        plain: its scores under a plain scoring, by site (listform.scores_of).

    """

    made: Made
    whole: Tensor | None
    token: Tensor | None = None
    box: Box | None = None
    plain: Mapping[int, Tensor] | None = None


@dataclass(frozen=True)
class Pull:
    """The engine with custom autograd: deterministic, and bare of bookkeeping without gradients."""

    arithmetic: Arithmetic

    @property
    def name(self) -> str:
        """`eager` or `triton`."""
        return self.arithmetic.name

    def append(self, ledger: Ledger, v: Tensor) -> Ledger:
        """One more source, scored at every site that will read it."""
        notes, number = ledger.notes, len(ledger.sources)
        whole = notes[0].whole if notes else whole_leaf(ledger, v)
        leaf = rows_for(ledger, whole, number)
        token, before = (notes[-1].token, notes[-1].box) if notes else (None, None)
        layout = ledger.layout
        readers = layout.readers[number] if number < len(layout.readers) else range(0)
        flat = _flat(v)
        learns = any(x is not None and x.requires_grad for x in (v, leaf, token))
        if learns and torch.is_grad_enabled():
            with torch.no_grad():
                z, r = self.arithmetic.scores(flat, leaf, ledger.scoring)
            made = Made(number, readers.start, flat.detach(), _detached(leaf), z, r)
            group, together = self._together(ledger, made)
            box = Box(before)
            v, token = _Make.apply(  # type: ignore[no-untyped-call]
                v, leaf, token, together, group, ledger.scoring, self.arithmetic, box
            )
            note = Note(made, whole, token, box)
        else:
            z, r = self.arithmetic.scores(flat, leaf, ledger.scoring)
            note = Note(Made(number, readers.start, flat, leaf, z, r), whole)
        if ledger.scoring.plain:
            note = note._replace(plain=unrolled.scores_of(ledger, v, number))
        return replace(ledger, sources=(*ledger.sources, v), notes=(*notes, note))

    def read(self, ledger: Ledger, site: int, query: Tensor | None = None) -> tuple[Tensor, Ledger]:
        """h_l = sum_i a_il v_i."""
        token = ledger.notes[-1].token if torch.is_grad_enabled() else None
        if query is not None:
            own = unrolled.query_scores(ledger, site, query)
            return self._read_own(ledger, site, own, token), ledger
        if ledger.scoring.plain:
            return self._read_own(ledger, site, _plain_scores(ledger, site), token), ledger
        if token is None:
            return grouped_reads.read(ledger, site, self.arithmetic)
        first, scoring = ledger.sources[0], ledger.scoring
        with torch.no_grad():
            sources, rows, ledger = parts(ledger, site, self.arithmetic)
            h, constants = self.arithmetic.mix(sources, rows, scoring, first.dtype)
        h = _Read.apply(  # type: ignore[no-untyped-call]
            token, h.view(first.shape), constants, site, scoring, ledger.notes[-1].box
        )
        return h, ledger

    def _read_own(self, ledger: Ledger, site: int, own: Tensor, token: Tensor | None) -> Tensor:
        """The same by scores (B, T, S, H) that are plain autograd's."""
        scoring, first = ledger.scoring, ledger.sources[0]
        if token is None:  # no source learns; what scores are made of may
            whole = [ledger.sources[i] for i in scoring.visible[site]]
            mixed = unrolled.weighted_sum(whole, scoring.weights(own, dim=-2))
            return mixed.to(first.dtype)
        sources = [ledger.notes[i].made.v for i in scoring.visible[site]]
        own = own.flatten(0, 1).transpose(0, 1)
        weights = scoring.weights(own, dim=0).detach()
        h = eager.weighted_sum(sources, weights).to(first.dtype).view(first.shape)
        return _ReadOwn.apply(token, own, h, weights, sources, site, ledger)  # type: ignore[no-untyped-call]

    def scores(self, ledger: Ledger, site: int) -> Tensor:
        """(B, T, S, H) scores at a site, without a gradient."""
        if ledger.scoring.plain:
            return _plain_scores(ledger, site).detach()
        batch, time, _ = ledger.sources[0].shape
        z = torch.stack(scores_at(ledger, site), dim=1)
        return z.unflatten(0, (batch, time)) if len(z) == batch * time else z.unsqueeze(0)

    def _together(self, ledger: Ledger, made: Made) -> tuple[range, tuple[Made, ...]]:
        """The group a source is served in, and its members if this one is the last."""
        layout = ledger.layout
        size = self.arithmetic.GATHERED_TOGETHER
        group = group_of(made.number, size, len(layout.readers))
        others = [ledger.notes[i].made for i in group[:-1]] if made.number == group[-1] else []
        return group, (*others, made)


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


class _Make(torch.autograd.Function):
    """(v, leaf, token) -> (v, token); backward gathers dv and d leaf from the letters."""

    @staticmethod
    def forward(
        ctx: Any,
        v: Tensor,
        leaf: Tensor | None,
        token: Tensor | None,
        together: tuple[Made, ...],
        group: range,
        scoring: Scoring,
        arithmetic: Arithmetic,
        box: Box,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(tensor for each in together for tensor in each[2:]))
        ctx.numbers = [(each.number, each.first) for each in together]
        ctx.group, ctx.scoring, ctx.arithmetic = group, scoring, arithmetic
        ctx.box, ctx.shape = box, v.shape
        return v.view_as(v), v.new_empty(0)

    @staticmethod
    @_once
    def backward(ctx: Any, dv: Tensor | None, _token: Tensor | None) -> Any:
        box: Box = ctx.box
        tensors = list(ctx.saved_tensors)
        together = [
            Made(*numbers, *tensors[4 * k : 4 * k + 4]) for k, numbers in enumerate(ctx.numbers)
        ]
        letters, parcels = box.take()
        with torch.autocast(together[-1].v.device.type, enabled=False):
            start = None if dv is None else _flat(dv)
            dv, dleaf = answer(
                together, ctx.group, letters, parcels, start, ctx.scoring, ctx.arithmetic
            )
        if box.before is not None:
            box.before.post([letter for letter in letters if letter.seen[0] < together[-1].number])
            box.before.forward(parcels)
        dv = None if dv is None else dv.to(together[-1].v.dtype).view(ctx.shape)
        token = None if box.before is None else together[-1].v.new_empty(0)
        return dv, dleaf, token, None, None, None, None, None


class _Read(torch.autograd.Function):
    """(token, h) -> h; backward posts a letter."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        h: Tensor,
        constants: Tensor | None,
        site: int,
        scoring: Scoring,
        box: Box,
    ) -> Tensor:
        ctx.site, ctx.scoring, ctx.box = site, scoring, box
        ctx.save_for_backward(h, constants)
        return h.view_as(h)

    @staticmethod
    @_once
    def backward(ctx: Any, g: Tensor) -> Any:
        h, constants = ctx.saved_tensors
        letter = _letter(ctx, g, h)._replace(constants=constants)
        ctx.box.post([letter])
        return g.new_empty(0), None, None, None, None, None


class _ReadOwn(torch.autograd.Function):
    """(token, scores, h) -> h for scores that are plain autograd's."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        own: Tensor,
        h: Tensor,
        weights: Tensor,
        sources: Sequence[Tensor],
        site: int,
        ledger: Ledger,
    ) -> Tensor:
        ctx.site, ctx.scoring, ctx.box = site, ledger.scoring, ledger.notes[-1].box
        ctx.save_for_backward(h, weights, *sources)
        return h.view_as(h)

    @staticmethod
    @_once
    def backward(ctx: Any, g: Tensor) -> Any:
        h, weights, *sources = ctx.saved_tensors
        letter = _letter(ctx, g, h)._replace(weights=weights)
        with torch.autocast(g.device.type, enabled=False):
            slopes = eager.own_slopes(letter, sources, ctx.scoring)
        ctx.box.post([letter])
        return g.new_empty(0), slopes, None, None, None, None, None


def _letter(ctx: Any, g: Tensor, h: Tensor) -> Letter:
    scoring: Scoring = ctx.scoring
    g, delta = _flat(g), None
    if scoring.norm == "softmax":
        with torch.autocast(g.device.type, enabled=False):
            delta = eager.head_dots(g.to(wide(g)), _flat(h), scoring.heads)
    return Letter(ctx.site, scoring.visible[ctx.site], g, delta)


def parts(
    ledger: Ledger, site: int, arithmetic: Arithmetic
) -> tuple[list[Tensor], list[Tensor], Ledger]:
    """The sources (N, D) and their scores (N, H) that a site's mix is made of in training."""
    if arithmetic.TRAINS_IN_PHASES:
        return grouped_reads.parts(ledger, site, arithmetic)
    sources = [ledger.notes[i].made.v for i in ledger.scoring.visible[site]]
    return sources, scores_at(ledger, site), ledger


def scores_at(ledger: Ledger, site: int) -> list[Tensor]:
    """For each source that a site sees, its (N, H) scores there; (1, H) from a table."""
    found = []
    for i in ledger.scoring.visible[site]:
        made = ledger.notes[i].made
        assert made.z is not None
        found.append(made.z[site - made.first])
    return found


def _plain_scores(ledger: Ledger, site: int) -> Tensor:
    """(B, T, S, H) scores at a site under a plain scoring."""
    return unrolled.noted_scores(ledger.scoring, site, [note.plain for note in ledger.notes])


def whole_leaf(ledger: Ledger, first: Tensor) -> Tensor | None:
    """What scores are learned by: queries with the gain folded in, which changes no score."""
    scoring = ledger.scoring
    leaf = scoring.table if scoring.query is None else scoring.query
    if leaf is None or scoring.plain:
        return None
    if scoring.query is not None and scoring.gain is not None:
        leaf = leaf * scoring.gain
    return leaf.to(torch.promote_types(wide(leaf), first.dtype))


def rows_for(ledger: Ledger, whole: Tensor | None, number: int) -> Tensor | None:
    """The leaf's rows at the sites that read a source, None where none does."""
    layout = ledger.layout
    if whole is None or number >= len(layout.readers) or not layout.readers[number]:
        return None
    if ledger.scoring.table is None:
        return whole[layout.readers[number].start : layout.readers[number].stop]
    rows = torch.tensor([max(row, 0) for row in layout.pairs[number]], device=whole.device)
    return whole.index_select(0, rows)  # a row that no site of this source reads has no gradient


def _flat(x: Tensor) -> Tensor:
    """(B, T, D) as (N, D), row after row."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()
