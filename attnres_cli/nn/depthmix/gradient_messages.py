"""A backward pass by pull: letters from reads to sources, and how a source answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.scoring import Scoring


class Letter(NamedTuple):
    """What a read leaves for its sources.

    Attributes:
        site: that read.
        seen: the numbers of its sources.
        g: (N, D) gradient of its sum.
        delta: (N, H) g . h per head, for a softmax.
        constants: (2, N, H) of the softmax: largest score, and reciprocal of the sum of
            exponentials.
        weights: (S, N, H), where the read brought its own query.

    """

    site: int
    seen: tuple[int, ...]
    g: Tensor
    delta: Tensor | None = None
    constants: Tensor | None = None
    weights: Tensor | None = None


class Made(NamedTuple):
    """A source and what was noted of it when it was made.

    Attributes:
        number: of the source.
        first: the first site that reads it.
        v: (N, D).
        leaf: (R, D) folded queries, or (R, H) scores of a table.
        z: (R, N, H) scores at its R readers; (R, 1, H) of a table.
        r: (N,) reciprocal rms, where keys are normalised.

    """

    number: int
    first: int
    v: Tensor
    leaf: Tensor | None
    z: Tensor | None
    r: Tensor | None


@dataclass
class Parcel:
    """The gradient of one source, as far as it is gathered.

    Attributes:
        acc: (N, D) sum of what came through mixes, or None so far.
        ds: rows of the source's scores, and (K, N, H) gradients of those, as they were gathered.

    """

    acc: Tensor | None = None
    ds: list[tuple[Sequence[int], Tensor]] = field(default_factory=list)

    def add(self, other: Parcel) -> None:
        """Take in another, of the same source."""
        if other.acc is not None:
            self.acc = other.acc if self.acc is None else self.acc + other.acc
        self.ds += other.ds

    def rows(self, number: int) -> Tensor:
        """(R, N, H) gradients of all R scores of the source, zero where there is none."""
        if len(self.ds) == 1 and list(self.ds[0][0]) == list(range(number)):
            return self.ds[0][1]
        found: dict[int, Tensor] = {}
        for rows, parts in self.ds:
            for row, part in zip(rows, parts.unbind(), strict=True):
                found[row] = found[row] + part if row in found else part
        none = torch.zeros_like(next(iter(found.values())))
        return torch.stack([found.get(row, none) for row in range(number)])


class Box:
    """Mail to a source and to those before it, by number of the backward pass that runs."""

    def __init__(self, before: Box | None) -> None:
        self.before = before
        self._letters: dict[int, list[Letter]] = {}
        self._parcels: dict[int, dict[int, Parcel]] = {}

    def post(self, letters: Sequence[Letter]) -> None:
        """Add letters."""
        self._letters.setdefault(_backward_pass(), []).extend(letters)

    def forward(self, parcels: dict[int, Parcel]) -> None:
        """Add parcels, by the number of their source."""
        held = self._parcels.setdefault(_backward_pass(), {})
        for number, parcel in parcels.items():
            held.setdefault(number, Parcel()).add(parcel)

    def take(self) -> tuple[list[Letter], dict[int, Parcel]]:
        """Remove and return what is there: letters by site, parcels by source."""
        letters = self._letters.pop(_backward_pass(), [])
        return sorted(letters, key=lambda letter: letter.site), self._parcels.pop(
            _backward_pass(), {}
        )


class Arithmetic(Protocol):
    """What computes: eager.py, in PyTorch, which documents it, or fused/arithmetic.py, in Triton.

    GATHERED_TOGETHER is how many sources in a row are served together, TRAINS_IN_PHASES whether
    reads are grouped in training too.
    """

    name: str
    GATHERED_TOGETHER: int
    TRAINS_IN_PHASES: bool

    def sites_together(self, n_sites: int) -> int:
        """How many sites share phase 1 of a read."""

    def scores(
        self, v: Tensor, leaf: Tensor | None, scoring: Scoring
    ) -> tuple[Tensor | None, Tensor | None]:
        """Scores of a source at all its readers, and its reciprocal rms."""

    def mix(
        self,
        sources: Sequence[Tensor],
        scores: Sequence[Tensor],
        scoring: Scoring,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        """The weighted sum of sources, and a softmax's constants."""

    def phase_one(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor], scoring: Scoring
    ) -> tuple[Tensor, Tensor | None]:
        """Mixes of the same sources for some sites, and the scores that stand for them."""

    def gather(
        self,
        mades: Sequence[Made],
        letters: Sequence[Letter],
        scoring: Scoring,
        starts: Sequence[Tensor | None],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What letters give to each of some sources, and to its scores."""

    def finish(
        self, made: Made, acc: Tensor, ds: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor]:
        """The gradients of a source and of its leaf."""


def group_of(number: int, size: int, n_sources: int) -> range:
    """The sources that are served together with this one: `size` in a row, or it alone."""
    start = number - number % size
    return range(start, start + size) if start + size <= n_sources else range(number, number + 1)


def is_shared(seen: tuple[int, ...], group: range) -> bool:
    """Whether the last source of a group answers a read for all of the group: they were all there
    when the read's newest source was made, and it saw them all.
    """
    return seen[-1] >= group[-1] and all(i in seen for i in group)


def answer(
    together: Sequence[Made],
    group: range,
    letters: Sequence[Letter],
    parcels: dict[int, Parcel],
    start: Tensor | None,
    scoring: Scoring,
    arithmetic: Arithmetic,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a source and of its leaf, None where there are none.

    Args:
        together: the sources of the group, if this one is the last of it; else this one alone.
        group: their numbers.
        letters: of all later reads.
        parcels: what has been gathered already, by source. That of this source is taken out; what
            is gathered on the way for the others of the group is put in.
        start: (N, D) gradient that reached the source by other ways, or None.
        scoring: the letters'.
        arithmetic: what computes.

    """
    made = together[-1]
    parcel = parcels.pop(made.number, Parcel())
    if start is not None:
        parcel.add(Parcel(start))
    mine = [letter for letter in letters if made.number in letter.seen]
    for letter in mine:
        if letter.weights is not None:
            parcel.add(Parcel(_own(made.number, letter)))
    learned = [letter for letter in mine if letter.weights is None]
    shared = [letter for letter in learned if is_shared(letter.seen, group)]
    alone = [letter for letter in learned if not is_shared(letter.seen, group)]
    if shared and made.number == group[-1]:
        for each in together[:-1]:
            parcels.setdefault(each.number, Parcel())
        held = [*(parcels[each.number] for each in together[:-1]), parcel]
        _gather(together, shared, held, scoring, arithmetic)
    if alone:
        _gather([made], alone, [parcel], scoring, arithmetic)
    if parcel.acc is None or not parcel.ds:
        return parcel.acc, None
    assert made.leaf is not None
    return arithmetic.finish(made, parcel.acc, parcel.rows(len(made.leaf)), scoring)


def _gather(
    mades: Sequence[Made],
    letters: Sequence[Letter],
    parcels: Sequence[Parcel],
    scoring: Scoring,
    arithmetic: Arithmetic,
) -> None:
    """Put what the letters give to each source into its parcel."""
    starts = [parcel.acc for parcel in parcels]
    accs, ds = arithmetic.gather(mades, letters, scoring, starts)
    for made, parcel, acc, parts in zip(mades, parcels, accs, ds, strict=True):
        parcel.acc = acc
        parcel.ds.append(([letter.site - made.first for letter in letters], parts))


def _own(source: int, letter: Letter) -> Tensor:
    """(N, D) what a read with a query of its own gives to a source: a_il g_l."""
    assert letter.weights is not None
    a = letter.weights[letter.seen.index(source)].unsqueeze(-1)  # (N, H, 1)
    return (a * letter.g.view(len(a), a.shape[1], -1)).flatten(-2)


def _backward_pass() -> int:
    """The number of the backward pass that is running, as torch's own checkpointing takes it."""
    return torch._C._current_graph_task_id()  # noqa: SLF001
