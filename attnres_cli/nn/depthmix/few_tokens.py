"""A history of few tokens without gradients, as generation has them: few calls per site.

With few tokens time is the number of calls. Sources lie in one buffer, scores in another, so that
a source takes a copy, a product with its later sites' queries, a norm and a division, and a read
one softmax and one product. Each source has a slot, known in advance; a slot is used again when its
source is gone. Everything that changes from token to token is written in place into the same
buffers, whose views are made once: a thread keeps the last ones it used.

`Buffers` do what they can in this way, and say where they cannot: an engine goes on (`History`).

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

_BESIDE = 16
"""Numbers in a slot beside its source's: the first makes the slot's norm sqrt(v . v + D eps)."""


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
    """Views of a source's slot: (B, T, D), or (B, T, H, D/H), and (H, N, D/H), and all of it; of
    its queries (H, D/H, R) and of its scores (H, N, R), and which of these are not read. `before`
    had the slot, and its last site is before `stop`.
    """

    slot: Tensor
    per_head: Tensor
    with_eps: Tensor
    queries: Tensor | None
    scores: Tensor
    unread: Tensor | None
    before: int
    stop: int


class Buffers:
    """What all tokens of one shape share. Histories have them, each by the number of its newest
    source.

    Attributes:
        newest: the number of the source that was put last.
        made: the histories that have them, by number.
        sites: by number, the first site that its history has not read yet.
        floors: by number, the first that was not read when its source was put.
    """

    def __init__(self, scoring: Scoring, v: Tensor, key: object) -> None:
        self.key, self.visible, self.shape, self.kind = key, scoring.visible, v.shape, v.dtype
        self.layout = layout_of(scoring.visible)
        self.plan = plan_of(scoring.visible, self.layout)
        learned = scoring.table if scoring.query is None else scoring.query
        assert learned is not None
        self.dtype = torch.promote_types(wide(v), learned.dtype)
        self.heads, self.norm, self.gain = scoring.heads, scoring.norm, scoring.gain is not None
        self.made: list[weakref.ref[object] | None] = [None] * len(self.plan.slots)
        self.sites, self.floors = [0] * len(self.plan.slots), [0] * len(self.plan.slots)
        self.newest = 0
        self.device, self.inference = v.device.type, torch.is_inference_mode_enabled()
        sites, slots, n = len(self.visible), max(self.plan.slots) + 1, v.shape[0] * v.shape[1]
        self.unread = 0.0 if self.norm == "none" else -torch.inf
        width = v.shape[-1] // self.heads
        size = (self.heads * n, slots, width + _BESIDE)
        self.slots = torch.zeros(size, dtype=self.dtype, device=v.device)
        self.slots[..., width] = (width * scoring.eps) ** 0.5
        self.values = self.slots[..., :width]
        self.scores = self.slots.new_full((sites, self.heads * n, slots), self.unread)
        self.weights = self.slots.new_empty(self.heads * n, 1, slots)
        self.is_plain = self.heads == 1 == v.shape[1] and self.kind is self.dtype
        self.queries = None
        if scoring.query is not None:
            self.queries = self.values.new_zeros(scoring.query.shape)
            self.zero = scoring.query.detach().new_zeros(())
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
            self.slots[:, slot].view(heads, batch * time, -1),
            queries,
            self.scores[rows, :, slot].view(len(readers), heads, batch * time).permute(1, 2, 0),
            torch.tensor([row < 0 for row in pairs], device=here.device) if -1 in pairs else None,
            before,
            self.layout.readers[before].stop if before >= 0 else 0,
        )

    def _read(self, site: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Views of a site's scores, of as many weights as slots up to its last, and of these, and
        its newest source.
        """
        seen = self.visible[site]
        n = 1 + max((self.plan.slots[i] for i in seen), default=0)
        scores, newest = self.scores[site].unsqueeze(1), max(seen, default=0)
        weights = scores if self.norm == "none" else self.weights
        return scores, weights[..., :n], self.values[:, :n], newest

    def is_open(self) -> bool:
        """Whether sources may be put here now, and read."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled(self.device):
            return False
        return not self.inference or torch.is_inference_mode_enabled()  # else torch refuses

    def are_free(self) -> bool:
        """Whether no history has them any more."""
        return all(made is None or made() is None for made in self.made)

    def _learn(self, scoring: Scoring) -> None:
        """Take what is learned as it is now."""
        if self.queries is not None:
            assert scoring.query is not None
            if scoring.gain is None:
                self.queries.copy_(scoring.query)
            else:  # times the root of D, which the slots' norms have too
                root, query = self.shape[-1] ** 0.5, scoring.query
                torch.addcmul(self.zero, query, scoring.gain, value=root, out=self.queries)
            return
        assert scoring.table is not None
        sites, _, slots = self.scores.shape
        scores = self.scores.view(sites, self.heads, -1, slots).permute(0, 3, 1, 2)
        scores[self.pairs[0], self.pairs[1]] = scoring.table.to(self.dtype).unsqueeze(-1)

    def begin(self, scoring: Scoring, v: Tensor) -> None:
        """Put v_0, with what is learned as it is now."""
        self._learn(scoring)
        self.newest = self.sites[0] = 0
        self._put(self.places[0], v)

    def put(self, j: int, v: Tensor, to_newest: bool) -> bool:
        """Put v_j, v or the source before it plus v, if that can be."""
        if self.newest != j - 1 or j >= len(self.places) or not self.is_open():
            return False
        place = self.places[j]
        if place.stop > self.floors[j - 1] or not (v.dtype is self.dtype or v.dtype is self.kind):
            return False
        if place.before >= 0:
            for made in self.made[place.before : j - 1]:
                if made is not None and made() is not None:  # it may still be read
                    return False
        self.newest, self.sites[j], self.floors[j] = j, self.sites[j - 1], self.sites[j - 1]
        self._put(place, v, self.places[j - 1].slot if to_newest else None)
        return True

    def _put(self, place: _Place, v: Tensor, beside: Tensor | None = None) -> None:
        """Write a source, v or v plus another, and its score at each site that reads it:
        (v . W_l) / rms(v).
        """
        if self.heads > 1:
            v = v.unflatten(-1, (self.heads, -1))
        if beside is None:
            place.slot.copy_(v)
        else:
            torch.add(beside, v, out=place.slot)
        if place.queries is None:
            return
        scores = torch.bmm(place.per_head, place.queries)
        if self.gain:
            dim = -1 if self.heads == 1 else (0, 2)
            norm = torch.linalg.vector_norm(place.with_eps, dim=dim, keepdim=True)
            torch.div(scores, norm, out=place.scores)
        else:
            place.scores.copy_(scores)
        if place.unread is not None:
            place.scores.masked_fill_(place.unread, self.unread)

    def read(self, j: int, site: int) -> Tensor | None:
        """The weighted sum (B, T, D) that a site sees of v_0..v_j; None if that cannot be."""
        scores, weights, values, newest = self.reads[site]
        if site < self.floors[j] or newest > j or not self.is_open():
            return None
        self.sites[j] = max(self.sites[j], site + 1)
        if self.norm == "softmax":
            torch.softmax(scores, -1, out=self.weights)
        elif self.norm == "sigmoid":
            torch.sigmoid(scores, out=self.weights)
        h = torch.bmm(weights, values)
        if self.is_plain:
            return h
        if self.heads > 1:
            h = h.view(self.heads, -1, h.shape[-1]).transpose(0, 1).reshape(self.shape)
        return h.to(self.kind).view(self.shape)

    def sources(self, j: int) -> Mapping[int, Tensor]:
        """Copies by number of those of v_0..v_j that a site may still read, and v_j."""
        readers = self.layout.readers
        held = [i for i in range(j) if readers[i].stop > self.floors[j]]
        copies = {i: self.places[i].slot.clone() for i in (*held, j)}
        return {i: copy.reshape(self.shape) for i, copy in copies.items()}


_kept = threading.local()
"""The buffers that a thread used last."""


def start(scoring: Scoring, v: Tensor) -> Buffers | None:
    """Buffers with the first source v (B, T, D), where it is one of few tokens without gradients
    whose scores are those of the scoring's own queries, or of a table.
    """
    if torch.is_grad_enabled() or v.numel() > FEW or not v.numel() or not _can(scoring, v):
        return None
    how = (scoring.heads, scoring.norm, scoring.eps, scoring.gain is None, scoring.query is None)
    learned = scoring.table if scoring.query is None else scoring.query
    assert learned is not None
    key = (v.shape, v.dtype, v.device, learned.dtype, torch.is_inference_mode_enabled(), how)
    buffers: Buffers | None = getattr(_kept, "buffers", None)
    captured = v.is_cuda and torch.cuda.is_current_stream_capturing()
    fits = buffers is not None and buffers.key == key and buffers.visible is scoring.visible
    if buffers is None or captured or not (fits and buffers.are_free()):
        buffers = Buffers(scoring, v, key)
        if not captured:
            _kept.buffers = buffers
    buffers.begin(scoring, v)
    return buffers


def _can(scoring: Scoring, v: Tensor) -> bool:
    own = scoring.query is None and scoring.table is None
    if own or scoring.plain or type(v) is not Tensor or v.device.type not in ("cpu", "cuda"):
        return False
    return not torch.is_autocast_enabled(v.device.type)
