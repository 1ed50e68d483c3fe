"""Searches read back from Optuna's own tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import searches
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli.lab.search.studies import (
    EXTRA,
    name_of,
    of_other_code,
    open_study,
    read,
    run_attributes,
)
from attnres_cli.records.search_records import Search, Trial
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store


def ended(number: int, state: TrialState, loss: float, **more: object) -> FrozenTrial:
    """A trial of Optuna that has ended."""
    mine = searches.trial(number, "standard", (number + 1, 96, 2))
    return create_trial(
        state=state,
        params={"n_layers": number + 1},
        distributions={"n_layers": IntDistribution(1, 40)},
        value=loss,
        intermediate_values={1: loss},
        user_attrs={**run_attributes(mine), **more},
    )


@pytest.fixture
def trials_of(tmp_path: Path):
    """What is read of a study of one variant with these trials."""

    def read_back(*trials: FrozenTrial) -> tuple[Trial, ...]:
        path = str(tmp_path / "study.db")
        with optuna_storage(path) as storage:
            study = open_study(storage, searches.search(()), ["standard"], "standard")
            for trial in trials:
                study.add_trial(trial)
        (search,) = read(path)
        return search.families[0].trials

    return read_back


def test_pruned_trials_are_left_out_and_extra_ones_marked(trials_of):
    pruned = ended(1, TrialState.PRUNED, 0.1)  # by an older release
    assert pruned.value == 0.1  # Optuna keeps the last loss it got
    extra = ended(2, TrialState.COMPLETE, 2.5, **{EXTRA: True})

    found = trials_of(ended(0, TrialState.COMPLETE, 2.0), pruned, extra)

    assert [(t.number, t.values, t.is_extra) for t in found] == [
        (0, (2.0,), False),
        (2, (2.5,), True),
    ]


def test_a_search_by_other_code_is_another_search_and_is_named(tmp_path: Path):
    path = str(tmp_path / "study.db")
    Store.open(path, create=True)

    def by(code: str, **changes: object) -> Search:
        search = replace(searches.search(()), codes=(code,), **changes)
        return replace(search, name=name_of(search, ["standard"]))

    old, now, other = by("old"), by("now"), by("old", budget="params=3M")
    with optuna_storage(path) as storage:
        for search in (old, other):
            open_study(storage, search, ["standard"], "standard")

    assert old.name != now.name
    assert of_other_code(now, ["standard"], path) == [old.name]
    assert of_other_code(old, ["standard"], path) == []
    assert read(path)[0].codes == ("old",)
