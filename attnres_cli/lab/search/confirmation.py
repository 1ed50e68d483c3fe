"""Which shapes of a search are trained on fresh seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.stats.optima import COMMON, likeliest_common


def chosen(families: Sequence[Family], k: int) -> dict[str, list[Point]]:
    """The points of every family, by its spec, at the k best shapes of each, and at the COMMON that
    are likeliest to be best for each two.
    """
    trunks = [trunk for family in families for trunk in _shapes(family.best(), k)]
    if k:
        lowest = [family.lowest() for family in families]
        for ours, theirs in itertools.combinations(lowest, 2):
            trunks += likeliest_common(ours, theirs)
    trunks = list(dict.fromkeys(trunks))
    return {family.spec: [family.at(trunk) for trunk in trunks] for family in families}


def _shapes(points: Sequence[Point], k: int) -> list[Trunk]:
    """The first k different shapes."""
    return list(dict.fromkeys(point.trunk for point in points))[:k]


def which(families: Sequence[Family], k: int, n_goals: int) -> str:
    """In words which shapes those are."""
    n_found = [len(_shapes(family.best(), k)) for family in families]
    together = f", and the {COMMON} best of each two together" if len(families) > 1 else ""
    return _best(k, n_found, n_goals) + together


def _best(k: int, n_found: Sequence[int], n_goals: int) -> str:
    """Which are the best of variants that have so many of the k wanted."""
    one_goal = n_goals == 1
    if max(n_found) < k:
        every = "all that each variant has" if one_goal else "all on the front of each variant"
        return f"{every}, fewer than the {k} wanted"
    best = f"the {'best' if k == 1 else f'{k} best'} of"
    best += " each variant" if one_goal else " the front of each variant"
    return best if min(n_found) == k else f"{best}, or all where there are fewer"
