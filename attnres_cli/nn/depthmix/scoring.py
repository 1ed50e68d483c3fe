"""Scoring: who reads which source, and with what weight. All an engine has to know in advance."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Norm = Literal["softmax", "sigmoid", "none"]
Visible = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Scoring:
    """Weights of the sources i in visible[l] at site l.

        a_il = norm_i(s_il),   s_il = query_l . (gain_l * v_i / rms(v_i)) + table[pair (l, i)]
        h_l  = sum_i a_il v_i

    with one weight per head, that is per contiguous slice of the width; of the two terms of s_il
    either may be left out. Sources are numbered in the order in which they are made, sites in the
    order in which they read.

    Attributes:
        visible: for each site, the numbers of the sources it reads, ascending.
        norm: softmax over the sources, sigmoid of each, or none (the score itself is the weight).
        heads: slices of the width that have weights of their own; the rms is over the full width.
        query: (sites, d_model), or None: a read may then bring a query of its own, which may depend
            on the input.
        gain: (sites, d_model) of the keys' RMSNorm; None: keys are the raw sources.
        table: (pairs, heads), pairs in the order of `visible`, or None.
        eps: of the keys' RMSNorm.
        rank: keys are the last `rank` channels of a source, normalised over those; query and gain
            are then (sites, rank), and heads slice both the width and the rank. None: all channels.
        head_norm: the keys' rms is each head's own, not that of the full width.
        squashed: scores go through log sigmoid, so that softmax gives sigmoid(s_il) over its sum.
    """

    visible: Visible
    norm: Norm
    heads: int = 1
    query: Tensor | None = None
    gain: Tensor | None = None
    table: Tensor | None = None
    eps: float = 1e-6
    rank: int | None = None
    head_norm: bool = False
    squashed: bool = False

    @property
    def plain(self) -> bool:
        """Whether scores are left to plain autograd: they are other than what the engines' own
        scores and gradients are for, a query times keys normalised over the width.
        """
        other = self.table is not None or self.rank is not None or self.head_norm or self.squashed
        return self.query is not None and other

    def squash(self, scores: Tensor) -> Tensor:
        """What weights are made of, from scores."""
        return torch.nn.functional.logsigmoid(scores) if self.squashed else scores

    def key(self, v: Tensor) -> Tensor:
        """The channels of a source (..., d_model) that its key is made of."""
        return v if self.rank is None else v[..., -self.rank :]

    def biases(self, site: int) -> Tensor | None:
        """(1, 1, S, H) what the table adds to a site's scores, in float32 at least."""
        if self.table is None:
            return None
        table = self.table[self.pairs_of(site)]
        return table.to(wide(table))[None, None]

    def pairs_of(self, site: int) -> slice:
        """The rows of `table` that belong to a site."""
        before = sum(len(sources) for sources in self.visible[:site])
        return slice(before, before + len(self.visible[site]))

    def weights(self, scores: Tensor, dim: int) -> Tensor:
        """Scores made weights; `dim` is the sources'."""
        if self.norm == "softmax":
            return torch.softmax(scores, dim)
        return torch.sigmoid(scores) if self.norm == "sigmoid" else scores


class Layout(NamedTuple):
    """`visible`, turned around.

    Attributes:
        readers: for each source, the sites from the first to the last that reads it.
        pairs: for each source, the rows of a table at those sites; -1 where one does not read it.
    """

    readers: tuple[range, ...]
    pairs: tuple[tuple[int, ...], ...]

    def readers_of(self, source: int) -> range:
        """The sites from the first to the last that reads a source; none of one that is unseen."""
        return self.readers[source] if source < len(self.readers) else range(0)

    def carried(self, site: int, n_sources: int) -> list[int]:
        """Of so many sources the newest, and those that sites from this one on read."""
        older = range(n_sources - 1)
        return [*(i for i in older if self.readers_of(i).stop > site), n_sources - 1]


def layout_of(visible: Visible) -> Layout:
    """Who reads each source, in time linear in the pairs."""
    newest = max(max(seen) for seen in visible if seen)
    pairs: list[dict[int, int]] = [{} for _ in range(newest + 1)]
    row = 0
    for site, sources in enumerate(visible):
        for source in sources:
            pairs[source][site] = row
            row += 1
    readers = [range(min(rows), max(rows) + 1) if rows else range(0) for rows in pairs]
    rows_of = [
        tuple(rows.get(site, -1) for site in sites)
        for rows, sites in zip(pairs, readers, strict=True)
    ]
    return Layout(tuple(readers), tuple(rows_of))


@dataclass(frozen=True)
class EngineState:
    """What an engine has of a history. Never changed in place: engines return new ones.

    Attributes:
        scoring: who reads what.
        layout: the same, turned around.
        dtype: the type of v_0, which reads return.
        sources: by number, each (B, T, D): all, or without gradients those that a site may still
            read, and the newest.
        records: what the engine keeps of each beside it.
        n_sources: how many were made.
        site: the first that was not yet read; known without gradients only.
        group: what reads without a gradient have in common (grouped_reads.Group), or None.
        queries: (sites, D) with the gain folded in, where an engine keeps them.
    """

    scoring: Scoring
    layout: Layout
    dtype: torch.dtype
    sources: Mapping[int, Tensor] = field(default_factory=dict)
    records: Mapping[int, Any] = field(default_factory=dict)
    n_sources: int = 0
    site: int = 0
    group: Any = None
    queries: Tensor | None = None

    @property
    def newest(self) -> Tensor:
        """The source made last."""
        return self.sources[self.n_sources - 1]

    @property
    def newest_record(self) -> Any:
        """What the engine keeps of it; None before the first."""
        return self.records[max(self.records)] if self.records else None

    def with_source(self, v: Tensor, record: Any = None) -> EngineState:
        """The state with the next source. Without gradients it drops those whose sites were all
        read before this one was made: a site can be read again until then.
        """
        kept, number = list(self.sources), self.n_sources
        if not torch.is_grad_enabled():
            kept = [i for i in kept if self.layout.readers_of(i).stop > self.site]
        return replace(
            self,
            sources={**{i: self.sources[i] for i in kept}, number: v},
            records={**{i: self.records[i] for i in kept}, number: record},
            n_sources=number + 1,
        )


def wide(x: Tensor) -> torch.dtype:
    """The type that scores, weights and sums of x are computed in: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Scores and sums stay in float32. Entering torch's context where it is off costs 2 us."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()
