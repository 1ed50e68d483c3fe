"""Who has what in a pipeline, and what each hop sends: whole numbers alone, no torch.

P stages (ranks) of V virtual stages each hold C = P V chunks of sublayers; chunk c is on rank
c mod P. At each of the C - 1 hops the state of the residual goes to the next rank as values. Sent
*whole*, a hop takes all of them. Sent *cached*, it takes those that the receiving rank has not had:
what its chunk before this one received or made and still had at its end is there (cross-stage
caching, arXiv 2603.15031, section 4.1). Backward sends the gradient of every value back once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Way = Literal["whole", "cached"]
Cut = tuple[int, ...]
"""The values that a state consists of, by number: two states that share a value share its number.
"""


@dataclass(frozen=True)
class Cuts:
    """The states of a design after 0, 1, .. L sublayers, and the bytes per token of each value."""

    states: tuple[Cut, ...]
    bytes_of: Mapping[int, int]

    @property
    def n_sublayers(self) -> int:
        """L."""
        return len(self.states) - 1


@dataclass(frozen=True)
class Plan:
    """Which rank has which sublayers and values. Raises ValueError for fewer than two stages, or
    more chunks than sublayers.
    """

    cuts: Cuts
    stages: int
    virtual: int = 1
    way: Way = "cached"

    def __post_init__(self) -> None:
        if self.stages < 2 or self.virtual < 1:
            raise ValueError(
                f"a pipeline has two stages or more, each of one virtual stage or more: got "
                f"{self.stages} of {self.virtual}"
            )
        if self.n_chunks > self.cuts.n_sublayers:
            raise ValueError(
                f"{self.stages} stages of {self.virtual} virtual ones are {self.n_chunks} chunks, "
                f"of {self.cuts.n_sublayers} sublayers"
            )

    @property
    def n_chunks(self) -> int:
        """C."""
        return self.stages * self.virtual

    def sublayers(self, c: int) -> range:
        """Those of chunk c, counted from 1; chunks differ by one at most."""
        first, stop = (self.cuts.n_sublayers * i // self.n_chunks for i in (c, c + 1))
        return range(first + 1, stop + 1)

    def entering(self, c: int) -> Cut:
        """What chunk c begins with; nothing for the first, which begins with tokens."""
        return self.cuts.states[self.sublayers(c).start - 1] if c else ()

    def leaving(self, c: int) -> Cut:
        """The state at the end of chunk c."""
        return self.cuts.states[self.sublayers(c).stop - 1]

    def known(self, c: int) -> Cut:
        """Of what chunk c begins with, what it takes from its rank's cache."""
        if self.way == "whole" or c < self.stages:
            return ()
        had = self.leaving(c - self.stages)
        return tuple(value for value in self.entering(c) if value in had)

    def received(self, c: int) -> Cut:
        """Of what chunk c begins with, what the hop before it brings."""
        known = self.known(c)
        return tuple(value for value in self.entering(c) if value not in known)

    def kept(self, c: int) -> Cut:
        """What chunk c puts into its rank's cache: all that it is the first to have there, and that
        a later one takes.
        """
        later = self.known(c + self.stages) if c + self.stages < self.n_chunks else ()
        known = self.known(c)
        return tuple(value for value in later if value not in known)

    def hops(self, without: Cut = ()) -> list[int]:
        """Bytes per token of each hop, one direction; some values may be left out."""
        chunks = range(1, self.n_chunks)
        return [
            sum(self.cuts.bytes_of[v] for v in self.received(c) if v not in without) for c in chunks
        ]

    def cache(self, rank: int) -> int:
        """Bytes per token that a rank's cache holds at most, of each micro-batch that is under way.
        It holds no copies: they are tensors of the chunk that put them there, kept for longer.
        """
        mine = range(rank, self.n_chunks, self.stages)
        return sum(self.cuts.bytes_of[value] for c in mine for value in self.kept(c))


@dataclass(frozen=True)
class Planned:
    """A design in a pipeline, sent both ways, its values in float32.

    Attributes:
        n_blocks: N of the paper's equations; None for a design that they are not about.
        n_params: the design's own, which every rank has.
    """

    variant: str
    d_model: int
    whole: Plan
    cached: Plan
    n_blocks: int | None
    n_params: int

    def in_widths(self, n_bytes: int) -> float:
        """Bytes per token as a multiple of d_model numbers."""
        return n_bytes / (4 * self.d_model)

    @property
    def paper(self) -> tuple[Fraction | None, Fraction | None]:
        """Eq. 7 and 8."""
        if self.n_blocks is None:
            return None, None
        sizes = self.whole.stages, self.whole.virtual, self.n_blocks
        return paper_whole(*sizes), paper_cached(*sizes)


def paper_whole(stages: int, virtual: int, n_blocks: int) -> Fraction:
    """Eq. 7, blocks per token: C (C - 1) / 2 N_p, N_p blocks made by each of C chunks. The
    embedding is not counted.
    """
    chunks = stages * virtual
    return Fraction(chunks * (chunks - 1), 2) * Fraction(n_blocks, chunks)


def paper_cached(stages: int, virtual: int, n_blocks: int) -> Fraction:
    """Eq. 8: (P (P - 1) / 2 + (V - 1) P^2) N_p. Each later chunk is sent P chunks' blocks, though
    those of its own rank's chunk are among them: P - 1 would do.
    """
    hops = Fraction(stages * (stages - 1), 2) + (virtual - 1) * stages**2
    return hops * Fraction(n_blocks, stages * virtual)
