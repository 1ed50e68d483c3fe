"""Trials that were pruned, as Optuna's own database holds them."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import searches
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli.lab.search.studies import EXTRA, open_study, read, run_attributes
from attnres_cli.records.search_records import Family, State
from attnres_cli.store.optuna import optuna_storage

DEPTHS = {"n_layers": IntDistribution(1, 40)}


def ended(number: int, state: TrialState, loss: float, **more: object) -> FrozenTrial:
    """A trial of Optuna that has ended; a pruned one keeps the last loss that it reported."""
    mine = searches.trial(number, "standard", (number + 1, 96, 2))
    return create_trial(
        state=state,
        params={"n_layers": number + 1},
        distributions=DEPTHS,
        value=loss,
        intermediate_values={1: loss},
        user_attrs={**run_attributes(mine), **more},
    )


def family(path: Path, trials: list[FrozenTrial]) -> Family:
    """What the report reads of a study with these trials."""
    with optuna_storage(str(path)) as storage:
        study = open_study(storage, searches.search(()), ["standard"], "standard")
        for trial in trials:
            study.add_trial(trial)
    (search,) = read(str(path))
    return search.families[0]


@pytest.fixture
def complete() -> list[FrozenTrial]:
    return [ended(i, TrialState.COMPLETE, 2.0 + 0.1 * (i % 7)) for i in range(14)]


def test_a_pruned_trial_has_no_value_and_no_part_in_what_the_loss_depends_on(
    tmp_path: Path, complete: list[FrozenTrial]
):
    pruned = [ended(20 + i, TrialState.PRUNED, 0.1) for i in range(6)]
    assert pruned[0].value == 0.1  # as `tell` leaves it

    without = family(tmp_path / "without.db", complete)
    held = family(tmp_path / "with.db", [*complete, *pruned])

    assert [t.state for t in held.trials] == [State.COMPLETE] * 14 + [State.PRUNED] * 6
    assert [t.values for t in held.trials[14:]] == [()] * 6
    assert held.importance == without.importance
    assert set(held.importance) == {"n_layers"}


def test_ten_trials_of_which_one_was_pruned_are_too_few_to_say_what_the_loss_depends_on(
    tmp_path: Path, complete: list[FrozenTrial]
):
    nine = [*complete[:9], ended(20, TrialState.PRUNED, 0.1)]

    assert family(tmp_path / "nine.db", nine).importance == {}
    assert family(tmp_path / "ten.db", complete[:10]).importance


def test_a_trial_beyond_those_asked_for_is_read_as_that(
    tmp_path: Path, complete: list[FrozenTrial]
):
    extra = ended(20, TrialState.COMPLETE, 2.0, **{EXTRA: True})

    found = family(tmp_path / "extra.db", [*complete, extra])

    assert [t.number for t in found.trials if t.is_extra] == [14]


def test_what_optuna_tells_of_a_pruned_trial_is_not_a_loss(tmp_path: Path):
    with optuna_storage(str(tmp_path / "told.db")) as storage:
        study = open_study(storage, searches.search(()), ["standard"], "standard")
        trial = study.ask(DEPTHS)
        trial.report(0.1, 1)
        number = trial.number
        for key, value in run_attributes(searches.trial(0, "standard", (4, 96, 2))).items():
            trial.set_user_attr(key, value)
        study.tell(number, state=optuna.trial.TrialState.PRUNED)
        assert study.trials[0].value == 0.1

    (search,) = read(str(tmp_path / "told.db"))

    assert [(t.state, t.values) for t in search.families[0].trials] == [(State.PRUNED, ())]
