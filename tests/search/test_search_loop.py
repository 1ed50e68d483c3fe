"""Trials and their runs: total, failures, processes that die. No training here: runs are ended
through the store, as workers end them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState
from studies import FACTS, RESULT, SETTINGS, VERSIONS

from attnres_cli import variant
from attnres_cli.plan import Plan
from attnres_cli.recipe import load
from attnres_cli.run import RunRecord, Status
from attnres_cli.search import budget, points, proposals, read, space, studies
from attnres_cli.search.loop import Family, Laboratory, unless_ended
from attnres_cli.search.points import Point
from attnres_cli.store import Store
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.trials import Search, State

SPECS = ("standard", "attnres")
SEARCH = Search(
    name="0123abcd",
    recipe="smoke",
    recipe_digest="0" * 12,
    fingerprint=FACTS.fingerprint,
    budget="params=60000",
    tolerance=0.005,
    space="",
    objectives=("val_loss",),
    learning_rate="as it is",
    first_seed=0,
    confirm_seeds=(1, 2),
    n_trials=6,
    families=(),
)
Outcome = Callable[[RunRecord], float | None]
"""The loss of a run, None where it fails."""


def deep_is_good(run: RunRecord) -> float:
    return 2.0 + int(run.recipe_digest, 16) % 1000 / 1000


class Bench:
    """A study with a search in it, and a process that does its runs without training."""

    def __init__(self, path: Path, n_trials: int = 6, kind: str = "tpe", goals: int = 1) -> None:
        self.path, self.trained = str(path), []
        typed = [variant.parse(spec) for spec in SPECS]
        asked = space.parse("n_layers=1..6,n_heads=1|2|4,n_blocks=1..4", typed)
        recipe = load("smoke")
        grid = points.grid(typed, asked, budget.parse(["params=60k"], 1), recipe, 256)
        self.store = Store.open(self.path, create=True)
        self.storage = optuna_storage(self.path)
        objectives = ("val_loss", "flops")[:goals]
        self.search = replace(SEARCH, n_trials=n_trials, objectives=objectives)
        self.families = []
        for spec, found in zip(SPECS, grid.values(), strict=True):
            study = studies.open_study(self.storage, self.search, SPECS, spec)
            studies.keep_asked(study, self.search, f"{kind}: as asked")
            mapped, startup = proposals.Points(found), proposals.n_startup(kind, n_trials)
            study.sampler = proposals.Feasible(mapped, kind, 7, startup)
            self.families.append(Family(spec, mapped, study, startup))
        tokens: Any = SimpleNamespace(fingerprint=FACTS.fingerprint, facts=FACTS)
        plan = Plan(recipe, (), (0,), ("cpu", "cpu"), SETTINGS, FACTS.fingerprint)
        self.laboratory = Laboratory(
            study=self.path,
            store=self.store,
            storage=self.storage,
            tokens=tokens,
            plan=plan,
            objectives=objectives,
            n_trials=n_trials,
            first_seed=0,
            progress=None,  # type: ignore[arg-type]  # nothing is trained
            step_s=lambda _point: None,
            note=lambda _line: None,
        )

    def run(self, outcome: Outcome = deep_is_good, stop_after: int | None = None) -> Bench:
        """Search and confirm; with `stop_after` so many runs, then die."""

        def train(_points: Sequence[Point], _seeds: Sequence[int], ids: Sequence[int]) -> None:
            while (record := self.store.claim(ids)) is not None:
                if len(self.trained) == stop_after:
                    raise KeyboardInterrupt
                self.end(record, outcome(record))

        self.laboratory._train = train  # type: ignore[method-assign]
        self.laboratory.look(self.families)
        self.laboratory.confirm(self.families, 1, self.search.confirm_seeds)
        return self

    def end(self, record: RunRecord, loss: float | None) -> None:
        self.trained.append((record.recipe_digest, record.variant, record.seed))
        if loss is None:
            self.store.fail(record.id, "it failed", VERSIONS)
            return
        status = Status.DIVERGED if math.isnan(loss) else Status.COMPLETE
        result = replace(RESULT, val_loss=loss, status=status)
        self.store.finish(replace(record, status=status, result=result, versions=VERSIONS))

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()

    @property
    def found(self) -> Search:
        (search,) = read(self.path)
        return search


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made = []

    def make(**asked: Any) -> Bench:
        made.append(Bench(tmp_path / "attnres.db", **asked))
        return made[-1]

    yield make
    for each in made:
        each.close()


def looked(bench: Bench) -> dict[str, list[tuple[str, str]]]:
    return {
        f.variant: [(t.recipe_digest, t.variant) for t in f.trials] for f in bench.found.families
    }


def test_every_family_gets_as_many_trials_as_were_asked_for_and_no_run_twice(bench):
    done = bench().run()

    assert len(set(done.trained)) == len(done.trained)
    for family in done.found.families:
        assert len(family.trials) in (6, 7)  # and the shape that was best for the other
        assert {trial.state for trial in family.trials} == {State.COMPLETE}
        assert family.sampler == "tpe: as asked"


def test_the_total_is_what_was_asked_for_not_what_is_added(bench):
    bench().run()

    again, more = bench().run(), bench(n_trials=8).run()

    assert again.trained == []
    assert 2 <= len([seed for *_, seed in more.trained if seed == 0]) <= 2 * 2
    assert more.found.n_trials == 8


def test_a_search_that_died_goes_on_as_one_that_did_not(bench, tmp_path: Path):
    whole = bench().run()
    expected = looked(whole)
    (tmp_path / "attnres.db").rename(tmp_path / "whole.db")

    for _ in range(4):
        dying = bench()
        with pytest.raises(KeyboardInterrupt):
            dying.run(stop_after=1)
        left = [run.id for run in dying.store.runs() if run.status is Status.RUNNING]
        for run in left:  # its process is gone
            dying.store.let_go(run)
    bench().run()

    assert looked(bench()) == expected


def test_failed_trials_are_listed_and_do_not_count(bench):
    outcomes = iter([None, None, None])
    done = bench().run(lambda run: next(outcomes, deep_is_good(run)))

    states = [trial.state for family in done.found.families for trial in family.trials]
    assert states.count(State.FAILED) == 3
    assert states.count(State.COMPLETE) >= 12
    assert len(done.laboratory.failed) == 3
    assert len(bench().run().laboratory.failed) == 3  # and the next time


def test_a_search_in_which_everything_fails_ends(bench):
    done = bench(n_trials=2).run(lambda _run: None)

    trials = [trial for family in done.found.families for trial in family.trials]
    assert {trial.state for trial in trials} == {State.FAILED}
    assert len(trials) <= 2 * 4


def test_a_run_that_diverged_is_the_worst_answer_and_is_not_confirmed(bench):
    first: list[str] = []

    def outcome(run: RunRecord) -> float:
        first.append(run.recipe_digest)
        return math.nan if run.recipe_digest == first[0] else deep_is_good(run)

    done = bench().run(outcome)

    standard = done.found.families[0]
    (diverged,) = [trial for trial in standard.trials if trial.recipe_digest == first[0]]
    assert diverged.values == (math.inf,)
    assert all(digest != first[0] for digest, _, seed in done.trained if seed)


def test_what_the_study_holds_is_answered_without_training(bench, tmp_path: Path):
    bench().run()
    (tmp_path / "attnres.db").rename(tmp_path / "whole.db")
    other = bench()
    for family in other.families:  # as an ablation may have left them
        for record in other.laboratory._records(family.points.points, (0,)):
            claimed = other.store.claim([record.id])
            if claimed is not None:
                other.end(claimed, deep_is_good(claimed))
    other.trained.clear()

    other.run()

    assert [seed for *_, seed in other.trained if seed == 0] == []


def test_a_trial_of_a_dead_process_without_a_run_is_void_after_a_while(bench, monkeypatch):
    from datetime import timedelta

    from attnres_cli.search import loop

    dying = bench()
    dying.families[0].study.ask()  # it dies before it has asked for any dimension
    monkeypatch.setattr(loop, "_STALE", timedelta(0))

    done = bench().run()

    trials = done.families[0].study.get_trials()
    assert trials[0].state is TrialState.FAIL
    assert studies.VOID in trials[0].user_attrs
    assert 0 not in [trial.number for trial in done.found.families[0].trials]
    assert len([t for t in trials if t.state is TrialState.COMPLETE]) in (6, 7)


def test_the_best_shapes_of_each_are_confirmed_for_all_on_fresh_seeds(bench):
    done = bench().run()

    confirmed = {(digest, name) for digest, name, seed in done.trained if seed in (1, 2)}
    for family in done.found.families:
        best = min(family.trials, key=lambda trial: trial.values)
        assert (best.recipe_digest, best.variant) in confirmed
    by_design: dict[str, int] = {}
    for _, name in confirmed:
        design = name.partition(":")[0]
        by_design[design] = by_design.get(design, 0) + 1
    assert by_design["standard"] == by_design["attnres"]


def test_two_goals_are_kept_in_their_order(bench):
    done = bench(kind="nsga2", goals=2).run()

    for family in done.found.families:
        for trial in family.trials:
            assert len(trial.values) == 2
            assert 2 <= trial.values[0] < 3


def test_how_much_a_dimension_matters_is_told_where_there_are_enough_trials(bench):
    few, many = bench().run().found, bench(n_trials=12).run().found

    assert few.families[0].importance == {}
    importance = many.families[1].importance
    assert set(importance) == {"aspect", "heads_per_layer", "n_blocks"}
    assert sum(importance.values()) == pytest.approx(1)


def test_a_trial_that_another_process_has_just_ended_stays_as_it_is(bench):
    made = bench()
    study, storage = made.families[0].study, made.storage
    number = study.ask(made.families[0].points.distributions).number
    study_id = storage.get_study_id_from_name(study.study_name)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    study.tell(number, 2.5)

    with unless_ended():
        storage.set_trial_state_values(trial_id, TrialState.FAIL)
    with unless_ended():
        storage.set_trial_user_attr(trial_id, "void", "too late")

    (kept,) = study.get_trials()
    assert (kept.state, kept.value, kept.user_attrs) == (TrialState.COMPLETE, 2.5, {})
    with pytest.raises(RuntimeError, match="another reason"), unless_ended():
        raise RuntimeError("another reason")
