"""`--retry-failed` trains the failed runs of a search once more; here they end without training."""

from __future__ import annotations

from collections.abc import Callable

from optuna.trial import TrialState
from untrained import LEAKS, Bench, deep_is_good

from attnres_cli.lab.search import studies
from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import State
from attnres_cli.report.search_words import failures
from attnres_cli.verdict.optima import find


def fails(seed: int) -> Callable[[RunRecord], float | None]:
    """`standard` fails on this seed."""
    ours = ("standard", seed)
    return lambda run: None if (run.variant, run.seed) == ours else deep_is_good(run)


def listed(bench: Bench) -> list[tuple[str, str, str]]:
    return failures(find(bench.found, bench.store.runs()))


def standard(bench: Bench) -> list[State]:
    return [trial.state for trial in bench.found.families[0].trials]


def test_failed_first_looks_are_trained_again_only_when_asked_for_and_then_count(bench):
    failed = bench(n_trials=1).run(fails(0))
    lost = listed(failed)
    digests = {t.recipe_digest for t in failed.found.families[0].trials}
    assert set(standard(failed)) == {State.FAILED}
    assert len(lost) == len(failed.experiment.failed) == len(digests)

    later = {"retry_failed": True, "retry_before": "2020"}  # these failed since
    for how in ({}, later):
        untouched = bench(n_trials=1).run(fails(0), **how)
        assert digests.isdisjoint(digest for digest, _, seed in untouched.trained if seed == 0)

    twice = bench(n_trials=1).run(fails(0), retry_failed=True)
    runs = [run for run in twice.trained if run[1] == "standard"]
    assert len(runs) == len(set(runs)) > 0
    assert set(standard(twice)) == {State.FAILED}
    assert listed(twice)[: len(lost)] == lost
    assert len(listed(twice)) == len(twice.experiment.failed)

    again = bench(n_trials=1).run(retry_failed=True)
    assert State.FAILED not in standard(again)
    assert digests <= {digest for digest, _, seed in again.trained if seed == 0}
    assert (listed(again), again.experiment.failed) == ([], set())
    kept = again.families[0].tried()
    assert digests <= {p.recipe.digest for t, p in kept if t.state is TrialState.COMPLETE}
    assert bench(n_trials=1).run().trained == []


def test_a_first_look_that_fails_its_proof_is_no_result_however_low_and_is_trained_again(bench):
    failed = bench(n_trials=1).run(lambda run: LEAKS if run.variant == "standard" else 1.0)
    assert set(standard(failed)) == {State.FAILED}
    assert failed.experiment.failed

    again = bench(n_trials=1).run(retry_failed=True)
    assert State.FAILED not in standard(again)


def test_failed_confirmations_are_listed_and_trained_again(bench):
    failed = bench(n_trials=1).run(fails(2))
    lost = listed(failed)
    assert len(lost) == len(failed.experiment.failed) > 0
    assert all(name == "standard" and point.endswith(", seed 2") for name, point, _ in lost)
    assert {error for *_, error in lost} == {"it failed"}

    untouched = bench(n_trials=1).run()
    assert (untouched.trained, len(untouched.experiment.failed)) == ([], len(lost))
    again = bench(n_trials=1).run(retry_failed=True)

    assert {(name, seed) for _, name, seed in again.trained} == {("standard", 2)}
    assert len(again.trained) == len(lost)
    assert (listed(again), again.experiment.failed) == ([], set())


def test_a_failed_shape_that_was_best_for_another_design_is_listed_and_tried_again(bench):
    made = bench(n_trials=1)
    tried, attnres = made.families
    assert tried.ask(1, 1) == 1
    ((_, point),) = tried.counted()
    attnres.add(attnres.at(next(p.trunk for p in tried.points.points if p is not point)), (1.0,))
    first = point.recipe.digest

    made.run(lambda run: 2.0 if run.variant != "standard" or run.recipe_digest == first else None)

    (extra,) = [t for t in made.found.families[0].trials if t.is_extra]
    assert extra.state is State.FAILED
    assert len(listed(made)) == len(made.experiment.failed) == 3  # the first look, two fresh seeds
    assert bench(n_trials=1).run().trained == []
    assert len(tried.study.get_trials()) == 2  # it is written down once

    again = bench(n_trials=1).run(retry_failed=True)

    assert sorted(seed for _, _, seed in again.trained) == [0, 1, 2]
    (extra,) = [t for t in again.found.families[0].trials if t.is_extra]
    assert extra.state is State.COMPLETE
    assert listed(again) == []


def test_samplers_that_proposed_before_the_last_are_named(bench):
    done = bench(n_trials=1, kind="grid").run()
    study = done.families[0].study
    for told in ("tpe: 4 points", "gp: 4 points", "gp: 5 points", "tpe: 6 points", ""):
        studies.keep_asked(study, done.search, told)
    assert done.found.families[0].sampler == "tpe: 6 points; before: grid, gp"


def test_the_sampler_shown_is_the_last_that_had_something_to_propose(bench):
    done = bench(n_trials=1, kind="grid").run()
    studies.keep_asked(done.families[0].study, done.search, "")
    assert done.families[0].n_to_ask(1) == 0
    assert done.found.families[0].sampler == "grid: as asked"
