"""What a search has found: the best shapes of each variant, and whether their optima differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Cell, Search, Trial, fresh_seeds
from attnres_cli.stats.optima import CommonBest, common_best, likeliest_common
from attnres_cli.stats.pairs import holm
from attnres_cli.stats.power import seeds_needed
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.codes import of_one_code, shown
from attnres_cli.verdict.comparison import version
from attnres_cli.verdict.shape_results import Optimum, Shape, named, optimum, sizes, untested


@dataclass(frozen=True)
class Pair:
    """Two variants, and whether one shape can be best for both.

    Attributes:
        test: None where none is possible; then `reason` says why.
        cells: the shapes that were tested, in the test's order, of `n_tried` that either has tried.
        choices: the shape that the first look chose for each, among its confirmed ones.
        lacking: trials whose fresh seeds would make the test possible.
        p: of the test, corrected for the number of pairs (Holm).
        needed: fresh seeds that would find such a difference, where it was not found.
    """

    both: tuple[Optimum, Optimum]
    test: CommonBest | None = None
    cells: tuple[Cell, ...] = ()
    n_tried: int = 0
    choices: tuple[Shape, ...] = ()
    reason: str = ""
    lacking: tuple[Trial, ...] = ()
    p: float | None = None
    needed: int | None = None

    @property
    def names(self) -> list[str]:
        """The variants."""
        return [one.family.variant for one in self.both]

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
    ended = [run for run in kept if run.result is not None]
    search = replace(search, confirm_seeds=fresh_seeds(search, {run.identity for run in ended}))
    mine = {(run.variant, run.recipe_digest, run.seed): run for run in kept}
    optima = tuple(optimum(search, family, mine) for family in search.families)
    pairs = [_tested(Pair(both), search) for both in itertools.combinations(optima, 2)]
    settings = [run.result.settings for run in ended if run.result is not None]
    return Finding(
        search=search,
        optima=optima,
        pairs=_corrected(pairs),
        versions=tuple(sorted({version(run) for run in ended})),
        settings=tuple(sorted({f"{each.numerics} on {each.device_name}" for each in settings})),
    )


def _tested(pair: Pair, search: Search) -> Pair:
    """With the test of the shapes that both variants have with all fresh seeds, against those that
    their first looks chose. Of a shape with several options, the first look's count.
    """
    ours, theirs = pair.both
    told = [f"{one.family.variant}: {one.reason}" for one in pair.both if one.reason]
    if reason := next(iter(told), untested(search, ours.confirmed + theirs.confirmed)):
        return replace(pair, reason=reason)
    fresh = [_by_cell([s for s in one.shapes if s.is_confirmed]) for one in pair.both]
    chosen = tuple(next(iter(by_cell.values())) for by_cell in fresh)  # shapes are by first look
    pair = _unpaired(replace(pair, choices=chosen), fresh)
    if pair.reason:
        return pair
    common = [cell for cell in fresh[0] if cell in fresh[1]]
    n_tried = len({shape.cell for one in pair.both for shape in one.shapes})
    if len(common) < 2:
        alone = f"one shape of {n_tried} has fresh seeds for both, `--confirm 2` gives it a rival"
        return replace(pair, reason="both have one shape alone" if n_tried < 2 else alone)
    losses = [
        np.array([[by_cell[c].fresh[seed] for seed in search.confirm_seeds] for c in common])
        for by_cell in fresh
    ]
    places = [common.index(shape.cell) for shape in chosen]
    try:
        test = common_best(losses[0], losses[1], places[0], places[1])
    except ValueError as error:
        return replace(pair, reason=str(error))
    if test.p < ALPHA and (unruled := _unruled(pair, common)).reason:
        return unruled
    return replace(pair, test=test, cells=tuple(common), n_tried=n_tried)


def _unpaired(pair: Pair, fresh: Sequence[dict[Cell, Shape]]) -> Pair:
    """With the reason if a variant has no fresh seeds at the shape that the other's chose."""
    lacking, told = [], []
    for one, by_cell, other in zip(pair.both, fresh, reversed(pair.choices), strict=True):
        if other.cell not in by_cell:
            known = _by_cell(one.shapes).get(other.cell)
            lacking += [known.trial] if known else []
            what = "all fresh seeds" if known else "any seed"
            told.append(f"{one.family.variant} has not been trained with {what} at {named(other)}")
    return replace(pair, reason="; ".join(told), lacking=tuple(lacking))


def _unruled(pair: Pair, common: Sequence[Cell]) -> Pair:
    """With the reason why optima that differ may be one, and the trials that would tell."""
    ours, theirs = pair.both
    if ours.confirmed[0].cell == theirs.confirmed[0].cell:
        why = "both are lowest at one shape, with options that a first look did not choose"
        return replace(pair, reason=why)
    tried = [_by_cell(one.shapes) for one in pair.both]
    first = [{cell: shape.promised for cell, shape in by_cell.items()} for by_cell in tried]
    likely = [cell for cell in likeliest_common(first[0], first[1]) if cell not in common]
    if not likely:
        return pair
    why = f"{sizes(likely[0])} may be best for both and lacks fresh seeds"
    lacking = tuple(by_cell[cell].trial for by_cell in tried for cell in likely)
    return replace(pair, reason=why, lacking=lacking)


def _by_cell(shapes: Sequence[Shape]) -> dict[Cell, Shape]:
    """Of each cell the shape of the lowest first look, in the order of the shapes given."""
    found: dict[Cell, Shape] = {}
    for shape in shapes:
        found.setdefault(shape.cell, shape)
    return found


def _corrected(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """With p corrected for the number of pairs (Holm), and the seeds that would find more."""
    tests = [(place, pair.test) for place, pair in enumerate(pairs) if pair.test is not None]
    found = list(pairs)
    for (place, test), p in zip(tests, holm([test.p for _, test in tests]), strict=True):
        needed = None
        if p >= ALPHA and test.mean > 0 and test.sd > 0:
            needed = seeds_needed(test.mean, test.sd, 2 * ALPHA / len(tests))  # one-sided
        found[place] = replace(pairs[place], p=p, needed=needed)
    return tuple(found)
