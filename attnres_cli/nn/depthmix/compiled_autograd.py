"""Pull without side effects, for compilers: gradients travel by the edges of the graph alone.

The mathematics is pull.py's. A compiler cannot see a box that backward fills, so here each site
that is still to read has a port: two tensors without content that go from the making of one source
to the making of the next and end in the site's read. Their "gradients" are what a letter holds, g_l
and the softmax's constants, passed on unchanged from making to making. Each port has one consumer,
so nothing is added up, and the compiler sees a graph of plain operators.

Shapes: a port's tensors are (N, D) and (3, N, H); the latter's gradient is the largest score, the
reciprocal of the sum of exponentials, and g_l . h_l. Parcels (letters.py) travel by ports of their
own, (N, D) and (R, N, H), from the last source of a group to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.engine_state import Ledger
from attnres_cli.nn.depthmix.gather_autograd import parts, rows_for, scores_at, whole_leaf
from attnres_cli.nn.depthmix.gradient_messages import (
    Arithmetic,
    Letter,
    Made,
    Parcel,
    answer,
    group_of,
    is_shared,
)
from attnres_cli.nn.depthmix.scoring import Scoring, wide
from attnres_cli.nn.depthmix.unrolled import ListForm, noted_scores, query_scores, weighted_sum


class Port(NamedTuple):
    """The edges by which a read's gradient comes back."""

    g: Tensor
    info: Tensor


@dataclass
class Trail:
    """What a trace has used up, since a port serves one read: the newest source, and sites read."""

    newest: int
    read: set[int]


class Note(NamedTuple):
    """What is kept of a source: see pull.Note.

    `ports` are those after its making, by site; `parcels` those of the group that is not yet
    complete, by source.
    """

    made: Made
    whole: Tensor | None
    ports: dict[int, Port]
    parcels: dict[int, Port]
    trail: Trail


@dataclass(frozen=True)
class Ports:
    """The engine of fused kernels under torch.compile.

    No port brings back what plain scores learn by (Scoring.plain): these, and reads that all bring
    queries of their own, are the list form's, notes and all.
    """

    arithmetic: Arithmetic

    @property
    def name(self) -> str:
        """`triton`."""
        return self.arithmetic.name

    def append(self, ledger: Ledger, v: Tensor) -> Ledger:
        """One more source. Raises NotImplementedError where a history branches."""
        notes, number, scoring = ledger.notes, len(ledger.sources), ledger.scoring
        if _is_listed(scoring):
            return _LIST_FORM.append(ledger, v)
        layout = ledger.layout
        whole = notes[-1].whole if notes else whole_leaf(ledger, v)
        trail = notes[-1].trail if notes else Trail(-1, set())
        ports = notes[-1].ports if notes else _no_ports(scoring, v)
        if trail.newest != number - 1:  # a port has one consumer: two would add up their letters
            raise NotImplementedError("a history that branches cannot be compiled with Triton")
        trail.newest = number
        ports = {l: port for l, port in ports.items() if l not in trail.read}
        readers = layout.readers[number] if number < len(layout.readers) else range(0)
        leaf = rows_for(ledger, whole, number)
        group = group_of(number, self.arithmetic.GATHERED_TOGETHER, len(layout.readers))
        parcels = notes[-1].parcels if notes and number != group[0] else {}
        others = [ledger.notes[i].made for i in group[:-1]] if number == group[-1] else []
        facts = _Facts(
            number, readers.start, group, tuple(ports), tuple(parcels), scoring, self.arithmetic
        )
        z, r, *flat = _Make.apply(  # type: ignore[no-untyped-call]
            v,
            leaf,
            facts,
            tuple((each.number, each.first) for each in others),
            *(tensor for each in others for tensor in _filled(each)),
            *(tensor for port in (*ports.values(), *parcels.values()) for tensor in port),
        )
        pairs = [Port(flat[k], flat[k + 1]) for k in range(0, len(flat), 2)]
        kept = () if number == group[-1] else (*parcels, number)
        made = Made(
            number,
            readers.start,
            _flat(v).detach(),
            None if leaf is None else leaf.detach(),
            z if leaf is not None else None,
            r if scoring.gain is not None else None,
        )
        note = Note(
            made,
            whole,
            dict(zip(ports, pairs[: len(ports)], strict=True)),
            dict(zip(kept, pairs[len(ports) :], strict=True)),
            trail,
        )
        return replace(ledger, sources=(*ledger.sources, v), notes=(*notes, note))

    def read(self, ledger: Ledger, site: int, query: Tensor | None = None) -> tuple[Tensor, Ledger]:
        """h_l = sum_i a_il v_i; a site that is read again, or by a query of its own, is read in the
        list form.
        """
        scoring, note, first = ledger.scoring, ledger.notes[-1], ledger.sources[0]
        if _is_listed(scoring):
            return _LIST_FORM.read(ledger, site, query)
        if query is not None or site in note.trail.read:
            return _read_plainly(ledger, site, query), ledger
        note.trail.read.add(site)
        with torch.no_grad():
            sources, rows, ledger = parts(ledger, site, self.arithmetic)
        h = _Read.apply(  # type: ignore[no-untyped-call]
            *note.ports[site], scoring, self.arithmetic, first.dtype, *sources, *rows
        )
        return h.view(first.shape), ledger

    def scores(self, ledger: Ledger, site: int) -> Tensor:
        """(B, T, S, H) scores at a site, without a gradient."""
        if _is_listed(ledger.scoring):
            return _LIST_FORM.scores(ledger, site)
        batch, time, _ = ledger.sources[0].shape
        z = torch.stack(scores_at(ledger, site), dim=1)
        return z.unflatten(0, (batch, time)) if len(z) == batch * time else z.unsqueeze(0)


_LIST_FORM = ListForm()


def _is_listed(scoring: Scoring) -> bool:
    return scoring.plain or (scoring.query is None and scoring.table is None)


class _Facts(NamedTuple):
    """What a making knows beside tensors: `sites` and `waiting` name the ports that reach it."""

    number: int
    first: int
    group: range
    sites: tuple[int, ...]
    waiting: tuple[int, ...]
    scoring: Scoring
    arithmetic: Arithmetic


class _Make(torch.autograd.Function):
    """(v, leaf, ports) -> (z, r, ports); backward gathers dv and d leaf from what ports bring.

    The last source of a group also takes the group's others, (v, leaf, z, r) each, and ends their
    parcels' ports; any other begins a port for its own parcel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        v: Tensor,
        leaf: Tensor | None,
        facts: _Facts,
        others: tuple[tuple[int, int], ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        z, r = facts.arithmetic.scores(_flat(v), leaf, facts.scoring)
        z = v.new_empty(0) if z is None else z
        r = v.new_empty(0) if r is None else r
        ctx.save_for_backward(v, leaf, z, r, *tensors[: 4 * len(others)])
        ctx.facts, ctx.others = facts, others
        ctx.mark_non_differentiable(z, r)
        ports = tensors[4 * len(others) :]
        last = facts.number == facts.group[-1]
        passed = ports[: 2 * len(facts.sites)] if last else ports
        own = () if last else _parcel_port(v, z)
        return z, r, *(port.clone() for port in passed), *own

    @staticmethod
    def backward(ctx: Any, _z: None, _r: None, *grads: Tensor) -> Any:
        v, leaf, z, r, *tensors = ctx.saved_tensors
        facts: _Facts = ctx.facts
        scoring, n_sites = facts.scoring, len(facts.sites)
        together = [
            _made(numbers, tensors[4 * k : 4 * k + 4], scoring)
            for k, numbers in enumerate(ctx.others)
        ]
        made = _made((facts.number, facts.first), (v, leaf, z, r), scoring)
        letters = [
            _letter(l, grads[2 * k], grads[2 * k + 1], scoring) for k, l in enumerate(facts.sites)
        ]
        letters = [letter for letter in letters if facts.number in letter.seen]
        parcels: dict[int, Parcel] = {}
        last = facts.number == facts.group[-1]
        if not last:
            parcels[facts.number] = _opened(made, facts, grads[-2], grads[-1])
        dv, dleaf = answer(
            [*together, made], facts.group, letters, parcels, None, scoring, facts.arithmetic
        )
        dv = None if dv is None else dv.to(v.dtype).view(v.shape)
        sent = [tensor for each in together for tensor in _closed(each, parcels)]
        back = (*grads[: 2 * n_sites], *sent) if last else grads[:-2]
        return dv, dleaf, None, None, *([None] * (4 * len(together))), *back


def _made(numbers: tuple[int, int], tensors: Sequence[Tensor], scoring: Scoring) -> Made:
    v, leaf, z, r = tensors
    scored = leaf is not None and leaf.numel() > 0
    return Made(
        *numbers,
        _flat(v),
        leaf if scored else None,
        z if scored else None,
        r if scoring.gain is not None else None,
    )


def _filled(made: Made) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(v, leaf, z, r), empty where there is none."""
    none = made.v.new_empty(0)
    rest = [none if each is None else each for each in (made.leaf, made.z, made.r)]
    return made.v, rest[0], rest[1], rest[2]


def _parcel_port(v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of the shapes of a source's sum and of its scores' gradients."""
    acc = v.new_zeros((), dtype=wide(v)).expand(v[..., 0].numel(), v.shape[-1])
    rows = len(z) if z.numel() else 0
    heads = z.shape[-1] if z.numel() else 1
    return acc.clone(), acc.new_zeros(()).expand(rows, len(acc), heads).clone()


def _opened(made: Made, facts: _Facts, acc: Tensor, ds: Tensor) -> Parcel:
    """The parcel that came by a source's own port."""
    visible = facts.scoring.visible
    shared = [l for l in range(len(visible)) if visible[l] and is_shared(visible[l], facts.group)]
    if not shared:
        return Parcel()
    rows = [l - made.first for l in shared]
    return Parcel(acc, [([row], ds[row : row + 1]) for row in rows])


def _closed(made: Made, parcels: dict[int, Parcel]) -> tuple[Tensor | None, Tensor | None]:
    """What goes back by a source's port: its sum, and its scores' gradients."""
    parcel = parcels.get(made.number)
    if parcel is None or parcel.acc is None or made.leaf is None:
        return None, None
    return parcel.acc, parcel.rows(len(made.leaf))


class _Read(torch.autograd.Function):
    """(port) -> h; backward sends the gradient and the softmax's constants into the port."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        info: Tensor,
        scoring: Scoring,
        arithmetic: Arithmetic,
        dtype: torch.dtype,
        *tensors: Tensor,
    ) -> Tensor:
        half = len(tensors) // 2
        h, constants = arithmetic.mix(tensors[:half], tensors[half:], scoring, dtype)
        ctx.save_for_backward(h, h.new_empty(0) if constants is None else constants)
        ctx.heads = scoring.heads
        return h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        h, constants = ctx.saved_tensors
        unasked = [None] * (len(ctx.needs_input_grad) - 2)
        if not constants.numel():
            return g, None, *unasked
        product = g.to(wide(g)) * h
        delta = product.unflatten(-1, (ctx.heads, -1)).sum(dim=-1)
        return g, torch.cat((constants, delta.unsqueeze(0))), *unasked


def _no_ports(scoring: Scoring, first: Tensor) -> dict[int, Port]:
    """A port for every site that will mix: tensors that take no room."""
    n = first.shape[0] * first.shape[1]
    zero = first.new_zeros(())
    info = first.new_zeros((), dtype=wide(first))
    return {
        l: Port(zero.expand(n, first.shape[2]), info.expand(3, n, scoring.heads))
        for l, sources in enumerate(scoring.visible)
        if len(sources) > 1 or (sources and scoring.norm != "softmax")
    }


def _letter(site: int, g: Tensor, info: Tensor, scoring: Scoring) -> Letter:
    if scoring.norm != "softmax":
        return Letter(site, scoring.visible[site], g)
    return Letter(site, scoring.visible[site], g, info[2], info[:2])


def _read_plainly(ledger: Ledger, site: int, query: Tensor | None) -> Tensor:
    scoring = ledger.scoring
    if query is None and scoring.query is not None:
        query = scoring.query[site]
    scores = noted_scores(scoring, site, ()) if query is None else query_scores(ledger, site, query)
    sources = [ledger.sources[i] for i in scoring.visible[site]]
    h = weighted_sum(sources, scoring.weights(scores, dim=-2))
    return h.to(ledger.sources[0].dtype)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
