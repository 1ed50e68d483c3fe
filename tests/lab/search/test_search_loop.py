"""A search's trials and runs: how many, failures, dead processes, several commands; untrained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
from optuna.trial import TrialState
from studies import FACTS
from untrained import SEARCH, Bench, deep_is_good, opposed

from attnres_cli.config.recipe import load
from attnres_cli.lab import searching
from attnres_cli.lab.search import studies
from attnres_cli.lab.search.families import unless_ended
from attnres_cli.lab.search.proposals import Feasible
from attnres_cli.records.run import RunRecord, RunSpec, Status
from attnres_cli.records.search_records import State, fresh_seeds
from attnres_cli.stats.optima import likeliest_common
from attnres_cli.verdict.optima import find


def states(bench: Bench) -> list[State]:
    return [trial.state for family in bench.found.families for trial in family.trials]


def test_each_design_gets_its_trials_once_and_the_best_are_confirmed_on_fresh_seeds(finished):
    assert len(set(finished.trained)) == len(finished.trained)
    assert set(states(finished)) == {State.COMPLETE}
    confirmed = {(digest, name) for digest, name, seed in finished.trained if seed in (1, 2)}
    for family in finished.found.families:
        assert len(family.trials) in (4, 5, 6)  # and the shape that was best for the other
        assert family.sampler == "tpe: as asked"
        best = min(family.trials, key=lambda trial: trial.values)
        assert (best.recipe_digest, best.variant) in confirmed
    by_design = Counter(name.partition(":")[0] for _, name in confirmed)
    assert by_design["standard"] == by_design["attnres"]


def test_the_two_shapes_with_the_lowest_sum_of_first_looks_are_confirmed_too(finished):
    """Each design is best at an end, and next best in the middle."""
    losses = [{1: 1.0, 2: 3.0, 3: 2.2, 4: 5.0}, {4: 1.0, 3: 2.0, 2: 2.9, 1: 5.0}]
    assert likeliest_common(*losses) == [3, 2]
    assert likeliest_common(losses[0], {4: 1.0}) == [4]  # the other has not tried the others

    first = []  # without the shapes that were added because they were best for the other
    for family, found in zip(finished.families, finished.found.families, strict=True):
        asked = {t.recipe_digest for t in found.trials if not t.is_extra}
        trunks = {p.trunk for p in family.points.points if p.recipe.digest in asked}
        first.append({trunk: loss for trunk, loss in family.lowest().items() if trunk in trunks})
    common = likeliest_common(*first)

    fresh = {digest for digest, _, seed in finished.trained if seed == 1}
    digests = {p.trunk: p.recipe.digest for p in finished.families[0].points.points}
    assert len(common) == 2
    assert set(common) - {min(each, key=each.__getitem__) for each in first}  # nobody's best
    assert {digests[trunk] for trunk in common} <= fresh


def test_the_number_of_trials_is_a_total(continued):
    again, more = continued(n_trials=4).run(opposed), continued(n_trials=6).run(opposed)
    assert again.trained == []
    assert 2 <= len([seed for *_, seed in more.trained if seed == 0]) <= 2 * 2
    assert more.found.n_trials == 6


def test_a_search_that_dies_twice_ends_as_one_that_did_not(bench, finished):
    for _ in range(2):
        dying = bench(n_trials=4)
        with pytest.raises(KeyboardInterrupt):
            dying.run(opposed, stop_after=2)
        left = [run.id for run in dying.store.runs() if run.status is Status.RUNNING]
        for run in left:  # its process is gone
            dying.store.let_go(run)
    whole = bench(n_trials=4).run(opposed)

    one, other = (
        [[(t.recipe_digest, t.variant) for t in family.trials] for family in each.found.families]
        for each in (whole, finished)
    )
    assert one == other


def test_failed_trials_do_not_count_and_a_diverged_run_is_the_worst_answer(bench):
    outcomes, seen = iter([math.nan, None, None]), list[str]()

    def outcome(run: RunRecord) -> float | None:
        seen.append(run.recipe_digest)
        return next(outcomes, deep_is_good(run))

    done = bench().run(outcome)

    assert states(done).count(State.FAILED) == 2
    for family in done.found.families:
        asked = [trial for trial in family.trials if not trial.is_extra]
        assert [trial.state for trial in asked].count(State.COMPLETE) == 3
    assert len(done.experiment.failed) == 2
    assert len(bench().run().experiment.failed) == 2  # and the next time
    family, found = done.families[0], done.found.families[0]
    (first,) = [trial for trial in found.trials if trial.recipe_digest == seen[0]]
    assert first.values == (math.inf,)
    (point,) = [p for p in family.points.points if p.recipe.digest == seen[0]]
    assert family.best()
    assert point not in family.best()  # and it is not confirmed
    assert point.trunk not in family.lowest()


def test_a_search_in_which_everything_fails_ends(bench):
    done = bench(n_trials=2).run(lambda _run: None)
    assert set(states(done)) == {State.FAILED}
    assert len(states(done)) <= 2 * 4


def test_first_looks_that_the_study_already_holds_are_not_trained(bench):
    held = bench(n_trials=2)
    for family in held.families:  # as an ablation may have left them
        for record in held.runner.first(family.points.points):
            if (claimed := held.store.claim([record.id])) is not None:
                held.end(claimed, deep_is_good(claimed))
    held.trained.clear()
    held.run()
    assert [seed for *_, seed in held.trained if seed == 0] == []


@pytest.mark.slow
def test_a_trial_whose_run_is_removed_meanwhile_gets_a_new_one_never_another_trials(bench):
    searching = bench(n_trials=2)
    store, gone = searching.store, []

    def outcome(run: RunRecord) -> float:
        waiting = [r for r in store.runs() if r.status is Status.PENDING]
        if waiting and not gone:  # what another command may do while this one trains
            gone.append(waiting[-1].id)
            store.remove(gone)
            spec = RunSpec(load("smoke"), "rezero", 7, FACTS.fingerprint)
            (other,) = store.plan([spec], FACTS)
            searching.end(store.claim([other.id]), 0.001)
        return deep_is_good(run)

    searching.run(outcome)

    assert gone
    for family in searching.found.families:
        assert [t.state for t in family.trials if not t.is_extra] == [State.COMPLETE] * 2
        assert min(trial.values[0] for trial in family.trials) > 2.0


def test_a_trial_of_a_dead_process_without_a_run_is_void(bench):
    dying = bench(n_trials=2)
    dying.families[0].study.ask()  # it dies before it has asked for any dimension
    done = bench(n_trials=2).run()
    trials = done.families[0].study.get_trials()
    assert (trials[0].state, studies.VOID in trials[0].user_attrs) == (TrialState.FAIL, True)
    assert 0 not in [trial.number for trial in done.found.families[0].trials]
    assert len([t for t in trials if t.state is TrialState.COMPLETE]) in (2, 3, 4)


def test_two_commands_at_once_ask_for_no_more_trials_than_wanted(bench):
    one, other = bench(n_trials=3), bench(n_trials=3)
    one.families[0].ask(2, 2)
    asking, asked, sample = Event(), [], Feasible.sample_relative
    thread = Thread(target=lambda: asked.append(other.families[0].ask(3, 1)))

    def slow(*arguments: Any) -> dict[str, Any]:
        if not asking.is_set():
            asking.set()
            thread.start()
            other.families[0].running()  # it does not touch what is being asked for
            thread.join(0.5)
            assert not asked  # it waits
        return sample(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feasible, "sample_relative", slow)
        assert one.families[0].ask(3, 1) == 1
    thread.join()

    assert asked == [0]
    trials = one.families[0].study.get_trials()
    assert [trial.state for trial in trials] == [TrialState.RUNNING] * 3


def test_a_command_confirms_on_its_own_seeds_whatever_another_asks_for_meanwhile(bench):
    one = bench(n_trials=1).run(confirmed=0)
    for others in ((), (8, 9)):
        (family, _) = one.families
        studies.keep_asked(family.study, replace(one.search, confirm_seeds=others), "tpe")
        assert searching._fresh_seeds(one.search, one.store, one.study) == (1, 2)


def test_commands_that_ask_for_other_seeds_at_once_forget_none(continued, monkeypatch):
    made, read = [continued(), continued()], studies._seeds_of

    def slowly(asked: Mapping[str, Any]) -> list[int]:
        found = read(asked)
        sleep(0.1)
        return found

    def ask(one: Bench, seeds: tuple[int, ...]) -> None:
        one.families[0].keep_asked(replace(one.search, confirm_seeds=seeds), "grid")

    monkeypatch.setattr(studies, "_seeds_of", slowly)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, made, [(5, 6), (8, 9)]))

    held = made[0].found
    assert {*held.earlier_seeds, *held.confirm_seeds} == {1, 2, 5, 6, 8, 9}


def test_seeds_that_were_trained_stay_in_the_verdict_whichever_are_typed_later(continued):
    made = continued()
    kept = made.families[0].study
    for seeds in (1, 2), (2, 3), (2, 3):
        studies.keep_asked(kept, replace(SEARCH, confirm_seeds=seeds), "grid: all")

    found = made.found
    assert (found.confirm_seeds, found.earlier_seeds) == ((2, 3), (1, 2))
    shape = found.families[0].trials[0]
    held = (shape.recipe_digest, shape.variant)
    assert fresh_seeds(found, {(*held, 1, found.fingerprint, "")}) == (1, 2, 3)
    assert fresh_seeds(found, {(*held, 1, "other data", "")}) == (2, 3)
    assert fresh_seeds(found, {("0" * 12, shape.variant, 1, found.fingerprint, "")}) == (2, 3)
    assert find(found, made.store.runs()).search.confirm_seeds == (1, 2, 3)


def test_two_goals_are_kept_in_their_order(bench):
    done = bench(n_trials=1, kind="nsga2", goals=2).run()
    values = [trial.values for family in done.found.families for trial in family.trials]
    assert all(2 <= loss < 3 < flops for loss, flops in values)


def test_a_trial_that_another_process_has_just_ended_stays_as_it_is(bench):
    made = bench(n_trials=1)
    study, storage = made.families[0].study, made.storage
    trial = study.ask(made.families[0].points.distributions)
    study.tell(trial, 2.5)

    with unless_ended():
        storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    with unless_ended():
        storage.set_trial_user_attr(trial._trial_id, "void", "too late")

    (kept,) = study.get_trials()
    assert (kept.state, kept.value, kept.user_attrs) == (TrialState.COMPLETE, 2.5, {})
    with pytest.raises(RuntimeError, match="another reason"), unless_ended():
        raise RuntimeError("another reason")
