"""What a search has found: the best shapes of each variant, and whether their optima differ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Search, Trial, fresh_seeds
from attnres_cli.stats.optima import CommonBest, common_best, likeliest_common
from attnres_cli.stats.pairs import holm
from attnres_cli.stats.power import seeds_needed
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.codes import of_one_code, shown
from attnres_cli.verdict.comparison import version
from attnres_cli.verdict.shape_results import Cell, Optimum, Shape, named, optimum, sizes, untested


@dataclass(frozen=True)
class Pair:
    """Two variants, by their indices among the optima, and whether one shape can be best for both.

    Attributes:
        test: None where none is possible; then `reason` says why.
        cells: the shapes that were tested, in the test's order, of `n_tried` that either has tried.
        choices: the shape that the first look chose for each, among its confirmed ones.
        lacking: trials whose fresh seeds would make the test possible.
        p: of the test, corrected for the number of pairs (Holm).
        needed: fresh seeds that would find such a difference, where it was not found.
    """

    ours: int
    theirs: int
    test: CommonBest | None = None
    cells: tuple[Cell, ...] = ()
    n_tried: int = 0
    choices: tuple[Shape, ...] = ()
    reason: str = ""
    lacking: tuple[Trial, ...] = ()
    p: float | None = None
    needed: int | None = None

    @property
    def differ(self) -> bool:
        """Whether the optima do: no shape can be best for both."""
        return self.p is not None and self.p < ALPHA


@dataclass(frozen=True)
class Finding:
    """All that a search says: an optimum per family, in their order, and each two of them."""

    search: Search
    optima: tuple[Optimum, ...]
    pairs: tuple[Pair, ...]
    versions: tuple[str, ...]
    settings: tuple[str, ...]


def find(search: Search, runs: Sequence[RunRecord]) -> Finding:
    """What the study's runs say of a search. Nothing is trained or chosen by what judges."""
    names = {(t.variant, t.recipe_digest) for f in search.families for t in f.trials}
    on_data = [run for run in runs if run.fingerprint == search.fingerprint]
    tried = [run for run in on_data if (run.variant, run.recipe_digest) in names]
    kept, _ = of_one_code(tried, search.codes or [shown(run) for run in tried[:1]])
    mine = {(run.variant, run.recipe_digest, run.seed): run for run in kept}
    ended = {run.identity for run in mine.values() if run.result is not None}
    search = replace(search, confirm_seeds=fresh_seeds(search, ended))
    optima = tuple(optimum(search, family, mine) for family in search.families)
    pairs = [
        _pair(search, optima, ours, theirs)
        for ours, theirs in itertools.combinations(range(len(optima)), 2)
    ]
    results = [run.result for run in kept if run.result is not None]
    return Finding(
        search=search,
        optima=optima,
        pairs=_corrected(pairs),
        versions=tuple(sorted({version(run) for run in kept if run.result is not None})),
        settings=tuple(
            sorted({f"{r.settings.numerics} on {r.settings.device_name}" for r in results})
        ),
    )


def _pair(search: Search, optima: Sequence[Optimum], ours: int, theirs: int) -> Pair:
    """The test of two variants on the shapes that both have with all fresh seeds. Of a shape with
    several options, those that the variant's first look chose count.
    """
    found, both = Pair(ours, theirs), (optima[ours], optima[theirs])
    for one in both:
        if one.reason:
            return replace(found, reason=f"{one.family.variant}: {one.reason}")
    reason = untested(search, both[0].confirmed + both[1].confirmed)
    if reason:
        return replace(found, reason=reason)
    cells = [_by_cell([s for s in one.shapes if s.is_confirmed]) for one in both]
    chosen = tuple(next(iter(by_cell.values())) for by_cell in cells)  # shapes are by first look
    lacking: list[Trial] = []
    told = []
    for one, by_cell, other in zip(both, cells, reversed(chosen), strict=True):
        if other.cell not in by_cell:
            known = _by_cell(one.shapes).get(other.cell)
            lacking += [known.trial] if known else []
            what = "all fresh seeds" if known else "any seed"
            told.append(f"{one.family.variant} has not been trained with {what} at {named(other)}")
    if told:
        return replace(found, choices=chosen, reason="; ".join(told), lacking=tuple(lacking))
    return _tested(replace(found, choices=chosen), search, both, cells)


def _tested(
    found: Pair, search: Search, both: Sequence[Optimum], cells: Sequence[Mapping[Cell, Shape]]
) -> Pair:
    """The test of the confirmed shapes of two variants, by their cells, against those chosen."""
    common = [shape for shape in cells[0] if shape in cells[1]]
    n_tried = len({shape.cell for one in both for shape in one.shapes})
    if len(common) < 2:
        return replace(found, reason=_alone(n_tried))
    losses = [
        np.array([[by_cell[c].fresh[seed] for seed in search.confirm_seeds] for c in common])
        for by_cell in cells
    ]
    places = [common.index(shape.cell) for shape in found.choices]
    try:
        test = common_best(losses[0], losses[1], places[0], places[1])
    except ValueError as error:
        return replace(found, reason=str(error))
    if test.p < ALPHA:
        reason, lacking = _unruled(both, common)
        if reason:
            return replace(found, reason=reason, lacking=lacking)
    return replace(found, test=test, cells=tuple(common), n_tried=n_tried)


def _unruled(both: Sequence[Optimum], common: Sequence[Cell]) -> tuple[str, tuple[Trial, ...]]:
    """Why optima that differ may be one, and the trials whose fresh seeds would tell; or empty."""
    if both[0].confirmed[0].cell == both[1].confirmed[0].cell:
        return "both are lowest at one shape, with options that a first look did not choose", ()
    tried = [_by_cell(one.shapes) for one in both]
    first = [{cell: shape.promised for cell, shape in by_cell.items()} for by_cell in tried]
    likely = [cell for cell in likeliest_common(first[0], first[1]) if cell not in common]
    if not likely:
        return "", ()
    lacking = tuple(by_cell[cell].trial for by_cell in tried for cell in likely)
    return f"{sizes(likely[0])} may be best for both and lacks fresh seeds", lacking


def _alone(n_tried: int) -> str:
    """Why two optima cannot differ where both have one confirmed shape, the same."""
    if n_tried < 2:
        return "both have one shape alone"
    return f"one shape of {n_tried} has fresh seeds for both, `--confirm 2` gives it a rival"


def _by_cell(shapes: Sequence[Shape]) -> dict[Cell, Shape]:
    """Of each cell the shape of the lowest first look, in the order of the shapes given."""
    found: dict[Cell, Shape] = {}
    for shape in shapes:
        found.setdefault(shape.cell, shape)
    return found


def _corrected(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    tested = [pair for pair in pairs if pair.test is not None]
    p = holm([pair.test.p for pair in tested if pair.test is not None])
    by_pair = {(pair.ours, pair.theirs): q for pair, q in zip(tested, p, strict=True)}
    return tuple(
        _judged(pair, by_pair.get((pair.ours, pair.theirs)), len(tested)) for pair in pairs
    )


def _judged(pair: Pair, p: float | None, n_pairs: int) -> Pair:
    if pair.test is None or p is None:
        return pair
    needed = None
    if p >= ALPHA and pair.test.mean > 0 and pair.test.sd > 0:
        needed = seeds_needed(pair.test.mean, pair.test.sd, 2 * ALPHA / n_pairs)  # one-sided
    return replace(pair, p=p, needed=needed)
