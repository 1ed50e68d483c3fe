"""Scoring: who reads which source, and with what weight. All an engine has to know in advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Norm = Literal["softmax", "sigmoid", "none"]


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
        table: (pairs, heads), pairs in the order of `visible`, or None.
        eps: of the keys' RMSNorm.

    """

    visible: tuple[tuple[int, ...], ...]
    norm: Norm
    heads: int = 1
    query: Tensor | None = None
    gain: Tensor | None = None
    table: Tensor | None = None
    eps: float = 1e-6

    def readers(self, source: int) -> range:
        """The sites from the first to the last that reads a source; empty if none does."""
        found = [site for site, sources in enumerate(self.visible) if source in sources]
        return range(found[0], found[-1] + 1) if found else range(0)

    def pairs_of(self, site: int) -> slice:
        """The rows of `table` that belong to a site."""
        before = sum(len(sources) for sources in self.visible[:site])
        return slice(before, before + len(self.visible[site]))
