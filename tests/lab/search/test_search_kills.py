"""A search that is killed goes on: nothing is lost, nothing is tried twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from grids import done, started, statuses

from attnres_cli.lab.search.studies import read
from attnres_cli.records.run import Status
from attnres_cli.records.search_records import State
from attnres_cli.store.store import Store

SEARCH = ["search", "standard", "attnres", "--recipe", "smoke", "--budget", "params=60k"]
SEARCH += ["--space", "n_layers=1..6,n_heads=1|2|4,n_blocks=1..6", "--sampler", "tpe"]
SEARCH += ["--trials", "6", "--confirm", "1", "--seeds", "1", "--set", "train.tokens=4k"]


@pytest.mark.slow
def test_a_killed_search_goes_on_to_as_many_trials_as_asked_for(tmp_path: Path):
    with started(tmp_path, *SEARCH) as killed:
        killed.wait_for(lambda: statuses(tmp_path).count("complete") >= 7)  # TPE begins to learn
        killed.die()

    assert done(tmp_path, *SEARCH)

    (search,) = read(str(tmp_path / "attnres.db"))
    assert [family.variant for family in search.families] == ["standard", "attnres"]
    assert search.confirm_seeds == (1,)
    for family in search.families:
        designs = [(trial.recipe_digest, trial.variant) for trial in family.trials]
        assert len(set(designs)) == len(designs)
        assert {trial.state for trial in family.trials} == {State.COMPLETE}
        assert len(family.trials) in (6, 7)  # and a shape that was best for the other variant
        assert all(abs(trial.n_params / 60_000 - 1) <= 0.005 for trial in family.trials)
    runs = Store.open(str(tmp_path / "attnres.db"), create=False).runs()
    seeds = Counter(run.seed for run in runs)
    assert seeds[0] == sum(len(family.trials) for family in search.families)
    assert seeds[1] in (2, 4, 6, 8)  # up to two bests and two of both together, for each of two
    assert {run.status for run in runs} == {Status.COMPLETE}
