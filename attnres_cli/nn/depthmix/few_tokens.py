"""A history of few tokens without gradients, as generation has them: few calls per site.

With few tokens time is the number of calls. Sources lie in one buffer, scores in another, so that
a source takes a copy, a product with its later sites' queries and its rms, and a read one softmax
and one product. Each source has a slot, known in advance; a slot is used again when its source is
gone. Everything that changes from token to token is written in place into the same buffers, whose
views are made once: a thread keeps the last ones it used.

`Few` answers what it can in this way, and None else: it is then left for an engine (`History`).

Letters: N tokens, D width, H heads, S slots, R sites that read a source.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.scoring import Layout, Scoring, Visible, layout_of, wide

FEW = 2**14
"""Numbers in a source up to which tokens are few."""


class Plan(NamedTuple):
    """Where sources lie, if every site reads as soon as its sources are made.

    Attributes:
        slots: of each source; lower ones are taken first.
        before: the source that had the slot last, or -1. It is gone for the source before, too, so
            that a history may branch where it is.
    """

    slots: tuple[int, ...]
    before: tuple[int, ...]


def plan_of(visible: Visible, layout: Layout) -> Plan:
    """The plan of a layout."""
    newest = [max(sources, default=-1) for sources in visible]
    slots: list[int] = []
    before: list[int] = []
    holders: list[int] = []  # by slot
    for j in range(len(layout.readers)):
        read = next((s for s, i in enumerate(newest) if i >= j - 1), len(newest))
        gone = [i for i in sorted(holders) if i < j - 1 and layout.readers[i].stop <= read]
        slot = min((slots[i] for i in gone), default=len(holders))
        before.append(holders[slot] if slot < len(holders) else -1)
        holders[slot : slot + 1] = [j]
        slots.append(slot)
    return Plan(tuple(slots), tuple(before))


class _Place(NamedTuple):
    """Views of a source's slot: (B, T, D), or (B, T, H, D/H), and (H, N, D/H); of its queries (H,
    D/H, R) and of its scores (H, N, R), and which of these are not read. `before` had the slot, and
    its last site is before `stop`.
    """

    slot: Tensor
    per_head: Tensor
    queries: Tensor | None
    scores: Tensor
    unread: Tensor | None
    before: int
    stop: int


class _Buffers:
    """What all tokens of one shape share. `made` are the histories that have them, by number of
    sources; `newest` is the number of the source that was put last.
    """

    def __init__(self, scoring: Scoring, v: Tensor, key: object) -> None:
        self.key, self.visible, self.shape, self.kind = key, scoring.visible, v.shape, v.dtype
        self.layout = layout_of(scoring.visible)
        self.plan = plan_of(scoring.visible, self.layout)
        learned = scoring.table if scoring.query is None else scoring.query
        assert learned is not None
        self.dtype = torch.promote_types(wide(v), learned.dtype)
        self.heads, self.norm, self.eps = scoring.heads, scoring.norm, v.shape[-1] * scoring.eps
        self.gain = scoring.gain is not None
        self.made: list[weakref.ref[Few] | None] = [None] * len(self.plan.slots)
        self.newest = 0
        self.device, self.inference = v.device.type, torch.is_inference_mode_enabled()
        sites, slots, n = len(self.visible), max(self.plan.slots) + 1, v.shape[0] * v.shape[1]
        self.unread = 0.0 if self.norm == "none" else -torch.inf
        size = (self.heads * n, slots, v.shape[-1] // self.heads)
        self.values = torch.zeros(size, dtype=self.dtype, device=v.device)
        self.scores = self.values.new_full((self.heads * n, sites, slots), self.unread)
        self.queries = None
        if scoring.query is not None:
            self.queries = self.values.new_zeros(scoring.query.shape)
        else:
            pairs = [(s, self.plan.slots[i]) for s, seen in enumerate(self.visible) for i in seen]
            self.pairs = torch.tensor(pairs, device=v.device).unbind(-1)
        self.places = [self._place(j) for j in range(len(self.plan.slots))]
        self.reads = [self._read(site) for site in range(sites)]

    def _place(self, j: int) -> _Place:
        batch, time, _ = self.shape
        slot, heads = self.plan.slots[j], self.heads
        here = self.values[:, slot]
        whole = here.view(heads, batch, time, -1).permute(1, 2, 0, 3)
        readers, pairs, before = self.layout.readers[j], self.layout.pairs[j], self.plan.before[j]
        rows, queries = slice(readers.start, readers.stop), None
        if self.queries is not None and readers:
            queries = self.queries[rows].view(len(readers), heads, -1).permute(1, 2, 0)
        return _Place(
            whole.squeeze(2) if heads == 1 else whole,
            here.view(heads, batch * time, -1),
            queries,
            self.scores[:, rows, slot].view(heads, batch * time, -1),
            torch.tensor([row < 0 for row in pairs], device=here.device) if -1 in pairs else None,
            before,
            self.layout.readers[before].stop if before >= 0 else 0,
        )

    def _read(self, site: int) -> tuple[Tensor, Tensor, int]:
        """Views of a site's scores and of the slots up to its last, and its newest source."""
        seen = self.visible[site]
        n = 1 + max((self.plan.slots[i] for i in seen), default=0)
        return self.scores[:, site : site + 1, :n], self.values[:, :n], max(seen, default=0)

    def suit(self, dtype: torch.dtype) -> bool:
        """Whether a source of this type may be put here now, or read."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled(self.device):
            return False
        if self.inference and not torch.is_inference_mode_enabled():  # torch refuses to write
            return False
        return dtype is self.dtype or dtype is self.kind

    def are_free(self) -> bool:
        """Whether no history has them any more."""
        return all(made is None or made() is None for made in self.made)

    def learn(self, scoring: Scoring) -> None:
        """Take what is learned as it is now."""
        if self.queries is not None:
            assert scoring.query is not None
            if scoring.gain is None:
                self.queries.copy_(scoring.query)
            else:  # times the root of D, which the sources' norms lack
                torch.mul(scoring.query, scoring.gain, out=self.queries)
                self.queries.mul_(self.shape[-1] ** 0.5)
            return
        assert scoring.table is not None
        scores = self.scores.view(self.heads, -1, *self.scores.shape[1:])
        scores[:, :, self.pairs[0], self.pairs[1]] = scoring.table.to(self.dtype).t().unsqueeze(1)


class Few:
    """Sources v_0..v_j of few tokens. Never changed in place, but for `site`, the first that was
    not read yet; sites before `floor` were read before v_j was made.
    """

    __slots__ = ("__weakref__", "buffers", "floor", "number", "site")

    def __init__(self, buffers: _Buffers, number: int, floor: int) -> None:
        self.buffers, self.number, self.floor, self.site = buffers, number, floor, floor
        buffers.made[number], buffers.newest = weakref.ref(self), number

    def append(self, v: Tensor, *, to_newest: bool = False) -> Few | None:
        """With one more source, v or the newest one plus v."""
        buffers, newest = self.buffers, self.number
        if buffers.newest != newest or newest + 1 >= len(buffers.places):
            return None
        place = buffers.places[newest + 1]
        if place.stop > self.floor or not buffers.suit(v.dtype):
            return None
        if place.before >= 0:
            for made in buffers.made[place.before : newest]:
                if made is not None and made() is not None:  # it may still be read
                    return None
        if buffers.heads > 1:
            v = v.unflatten(-1, (buffers.heads, -1))
        if to_newest:
            torch.add(buffers.places[newest].slot, v, out=place.slot)
        else:
            place.slot.copy_(v)
        _score(place, buffers)
        return Few(buffers, newest + 1, self.site)

    def read(self, site: int) -> Tensor | None:
        """The weighted sum (B, T, D) that a site sees."""
        buffers = self.buffers
        scores, values, newest = buffers.reads[site]
        if site < self.floor or newest > self.number or not buffers.suit(buffers.dtype):
            return None
        self.site = max(self.site, site + 1)
        if buffers.norm == "softmax":
            scores = torch.softmax(scores, -1)
        elif buffers.norm == "sigmoid":
            scores = torch.sigmoid(scores)
        h = torch.bmm(scores, values)
        if buffers.heads > 1:
            h = h.view(buffers.heads, -1, h.shape[-1]).transpose(0, 1).reshape(buffers.shape)
        if buffers.dtype is not buffers.kind:
            h = h.to(buffers.kind)
        return h.view(buffers.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of v_0, which reads return."""
        return self.buffers.kind

    @property
    def sources(self) -> Mapping[int, Tensor]:
        """Copies by number of those that a site may still read, and the newest."""
        buffers, readers = self.buffers, self.buffers.layout.readers
        held = (i for i in range(self.number + 1) if readers[i].stop > self.floor)
        copies = {i: buffers.places[i].slot.clone() for i in {*held, self.number}}
        return {i: copies[i].reshape(buffers.shape) for i in sorted(copies)}


_kept = threading.local()
"""The buffers that a thread used last."""


def start(scoring: Scoring, v: Tensor) -> Few | None:
    """The history of the first source v (B, T, D), where it is one of few tokens without gradients
    whose scores are those of the scoring's own queries, or of a table.
    """
    if torch.is_grad_enabled() or v.numel() > FEW or not v.numel() or not _can(scoring, v):
        return None
    how = (scoring.heads, scoring.norm, scoring.eps, scoring.gain is None, scoring.query is None)
    learned = scoring.table if scoring.query is None else scoring.query
    assert learned is not None
    key = (v.shape, v.dtype, v.device, learned.dtype, torch.is_inference_mode_enabled(), how)
    buffers: _Buffers | None = getattr(_kept, "buffers", None)
    captured = v.is_cuda and torch.cuda.is_current_stream_capturing()
    fits = buffers is not None and buffers.key == key and buffers.visible is scoring.visible
    if buffers is None or captured or not (fits and buffers.are_free()):
        buffers = _Buffers(scoring, v, key)
        if not captured:
            _kept.buffers = buffers
    buffers.learn(scoring)
    place = buffers.places[0]
    place.slot.copy_(v if scoring.heads == 1 else v.unflatten(-1, (scoring.heads, -1)))
    _score(place, buffers)
    return Few(buffers, 0, 0)


def _can(scoring: Scoring, v: Tensor) -> bool:
    own = scoring.query is None and scoring.table is None
    if own or scoring.plain or type(v) is not Tensor or v.device.type not in ("cpu", "cuda"):
        return False
    return not torch.is_autocast_enabled(v.device.type)


def _score(place: _Place, buffers: _Buffers) -> None:
    """Score a source at every site that reads it: (v . W_l) / rms(v)."""
    if place.queries is None:
        return
    scores = torch.bmm(place.per_head, place.queries)
    if buffers.gain:
        dim = -1 if buffers.heads == 1 else (0, 2)
        norm = torch.linalg.vector_norm(place.per_head, dim=dim, keepdim=True)
        torch.mul(scores, norm.square_().add_(buffers.eps).rsqrt_(), out=place.scores)
    else:
        place.scores.copy_(scores)
    if place.unread is not None:
        place.scores.masked_fill_(place.unread, buffers.unread)
