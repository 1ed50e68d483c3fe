"""Scoring: who reads which source, and with what weight. All an engine has to know in advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Norm = Literal["softmax", "sigmoid", "none"]
Visible = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Scoring:
    """Weights of the sources i in visible[l] at site l.

        a_il = norm_i(s_il),   s_il = query_l . (gain_l * v_i / rms(v_i))    (query given)
                               s_il = table[pair (l, i)]                     (table given)
        h_l  = sum_i a_il v_i

    with one weight per head, that is per contiguous slice of the width. Sources are numbered in
    the order in which they are made, sites in the order in which they read.

    Attributes:
        visible: for each site, the numbers of the sources it reads, ascending.
        norm: softmax over the sources, sigmoid of each, or none (the score itself is the weight).
        heads: slices of the width that have weights of their own; the rms is over the full width.
        query: (sites, d_model), or None.
        gain: (sites, d_model) of the keys' RMSNorm; None: keys are the raw sources.
        table: (pairs, heads), pairs in the order of `visible`, or None. Neither query nor table:
            each read brings a query of its own, which may depend on the input.
        eps: of the keys' RMSNorm.

    """

    visible: Visible
    norm: Norm
    heads: int = 1
    query: Tensor | None = None
    gain: Tensor | None = None
    table: Tensor | None = None
    eps: float = 1e-6

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


def layout_of(visible: Visible) -> Layout:
    """Who reads each source, in time linear in the pairs."""
    pairs: list[dict[int, int]] = [{} for _ in range(1 + max(map(max, filter(None, visible))))]
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


def wide(x: Tensor) -> torch.dtype:
    """The type that scores, weights and sums of x are computed in: float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
