"""The confirmation of a search: its best shapes are trained on fresh seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from attnres_cli.lab import grid
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trial_runner import TrialRunner
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.records.run import WAITS, Status
from attnres_cli.stats.optima import COMMON, likeliest_common
from attnres_cli.verdict.numbers import plural


def confirm(runner: TrialRunner, families: Sequence[Family], k: int, seeds: Sequence[int]) -> None:
    """Train the k best shapes of every family on fresh seeds, for all families; and the COMMON
    shapes likeliest to be best for each two. A shape that a family has not tried to the end is
    trained beyond the trials asked for, with the options of the family's best point.
    """
    chosen = runner.patiently(partial(_chosen, families, k))
    points = list(dict.fromkeys(point for found in chosen.values() for point in found))
    if not seeds or not points:
        return
    experiment, all_seeds = runner.experiment, (runner.search.first_seed, *seeds)
    records = runner.records(points, all_seeds)
    if any(record.status in WAITS for record in records):
        shapes = plural(len({point.trunk for point in points}), "shape")
        which = runner.patiently(partial(_which, families, k, len(runner.search.objectives)))
        on = ", ".join(map(str, seeds))
        experiment.watcher.note(f"confirming {shapes}, {which}, on seeds {on}")
    arms = tuple(runner.arm(point) for point in points)
    plan = grid.without(replace(runner.plan, arms=arms, seeds=all_seeds), records)
    experiment.train_missing(plan, records)
    for family in families:
        runner.patiently(partial(_add_extra, runner, family, chosen[family.spec]))


def _chosen(families: Sequence[Family], k: int) -> dict[str, list[Point]]:
    """The points of every family, by its spec, at the shapes that `confirm` names."""
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


def _which(families: Sequence[Family], k: int, n_goals: int) -> str:
    """In words which shapes those are."""
    n_found = [len(_shapes(family.best(), k)) for family in families]
    together = f", and the {COMMON} best of each two together" if len(families) > 1 else ""
    if max(n_found) < k:
        every = "all on the front of each variant" if n_goals > 1 else "all that each variant has"
        return f"{every}, fewer than the {k} wanted{together}"
    best = f"the {'best' if k == 1 else f'{k} best'} of"
    best += " the front of each variant" if n_goals > 1 else " each variant"
    return best + ("" if min(n_found) == k else ", or all where there are fewer") + together


def _add_extra(runner: TrialRunner, family: Family, points: Sequence[Point]) -> None:
    """Let Optuna know what was trained beyond the trials asked for, or failed there."""
    complete, tried = family.complete(), {point for _, point in family.kept()}
    new = [point for point in points if point not in complete]
    for point, record in zip(new, runner.first(new), strict=True):
        values = runner.values(record)
        if values is not None or (record.status is Status.FAILED and point not in tried):
            family.add(point, values)
