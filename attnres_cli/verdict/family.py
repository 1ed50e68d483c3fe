"""The family of a table: its seeds in the order in which they were planned, and when each arm is
looked at, at which rate. All of it is fixed before data: nothing depends on what runs gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnres_cli.records.run import Removed, RunRecord
from attnres_cli.stats.boundaries import nominal
from attnres_cli.stats.sequential import ALPHA, LEAST_SEEDS, every_seed, shares, sizes

BASELINE_FIRST = 0.5
"""Part of the rate where the baseline was trained before the first arm joined. Its losses may have
decided how many seeds it gets: with the whole rate, 2.4 %, the first look at one arm errs in 5.6 %
of studies whose user chooses so (benchmarks/workflows.py).
"""


@dataclass(frozen=True)
class Family:
    """All arms that a table has had, removed ones too.

    Attributes:
        seeds: in the order in which they were planned, by whichever arm was first to have them.
        planned: how many there were when the first arm joined the baseline.
        rates: by arm, its part of ALPHA.
        is_registered: whether the seeds are fixed: there is one look alone, at all of them.
        most: seeds of a table that was planned to grow until it is decided, with a look at each
            from five up; None of one that was planned with so many seeds.
    """

    seeds: tuple[int, ...]
    planned: int
    rates: Mapping[str, float]
    is_registered: bool
    most: int | None = None

    def spending(self, variant: str) -> Iterable[tuple[int, float]]:
        """(seeds, part of the rate) of every look at an arm."""
        rate, shared = self.rates[variant], sizes(self.planned)
        if self.most is not None:
            shared = iter(every_seed(self.most))
        elif self.is_registered:
            shared = iter([(max(LEAST_SEEDS, self.planned), 1.0)])
        return ((size, rate * share) for size, share in shared)

    def looks(self, variant: str) -> Iterable[tuple[int, float]]:
        """(seeds, rate of the t test) of every look at an arm."""
        return nominal(self.spending(variant))


def family(
    runs: Iterable[RunRecord | Removed],
    baseline: str,
    *,
    is_registered: bool = False,
    most: int | None = None,
) -> Family:
    """The family of the runs that a table has had. One command plans its runs at one moment: those
    of the first that has an arm beside the baseline are the plan, and each later moment at which
    arms join makes a group of its own.
    """
    first: dict[int, str] = {}  # when a seed was first planned
    joined: dict[str, str] = {}
    for run in runs:
        first[run.seed] = min(run.created_at, first.get(run.seed, run.created_at))
        joined[run.variant] = min(run.created_at, joined.get(run.variant, run.created_at))
    joined.pop(baseline, None)
    seeds = tuple(sorted(first, key=lambda seed: (first[seed], seed)))
    if is_registered or not joined:
        rates = dict.fromkeys(joined, ALPHA / max(1, len(joined)))
        return Family(seeds, len(seeds), rates, is_registered, most)
    groups = Counter(joined.values())
    moments = sorted(groups)
    counts = [groups[moment] for moment in moments]
    part = dict(zip(moments, shares(counts, grows=most is not None), strict=True))
    planned = sum(moment <= moments[0] for moment in first.values())
    alpha = ALPHA * (BASELINE_FIRST if min(first.values()) < moments[0] else 1)
    rates = {name: alpha * part[moment] for name, moment in joined.items()}
    return Family(seeds, planned, rates, is_registered, most)
