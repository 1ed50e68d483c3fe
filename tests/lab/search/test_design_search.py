"""A search over designs: what is looked at, promoted, continued and shared; untrained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from searches import search
from studies import FACTS, SETTINGS
from untrained import Bench, Silent

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.lab import grid, protocol
from attnres_cli.lab.branches import _is_beginning
from attnres_cli.lab.experiment import Experiment, Place
from attnres_cli.lab.search import studies
from attnres_cli.lab.search.design_family import DesignFamily, DesignPoints, DesignRunner
from attnres_cli.lab.search.design_proposals import TOP
from attnres_cli.lab.search.designs import parse
from attnres_cli.lab.search.looks import Looks, shorter
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import FIRST_LOOK_SEED, FIRST_TUNING_SEED, RunRecord, Status
from attnres_cli.records.search_records import Designs, State
from attnres_cli.store.optuna import optuna_storage, turns
from attnres_cli.store.store import Store

SPACE = "attnres:norm=*,heads=1|2,agg=*;delta:gate=*;standard;+vres:weights=*|+x0"
RATES = [
    ("attnres", (("optim.lr", 4e-3),)),
    ("delta", (("optim.lr", 5e-3), ("optim.design_lr_scale", 3.0))),
    ("standard", (("optim.lr", 6e-3),)),
    ("vres", (("optim.design_lr_scale", 10.0), ("optim.lr", 7e-3))),
    ("vres+x0", (("optim.lr", 8e-3),)),
    ("x0", (("optim.design_lr_scale", 30.0), ("optim.lr", 9e-3))),
]


def made(budget: str = "tokens", recipe: Recipe | None = None, space: str = SPACE) -> Looks:
    whole = recipe or load("smoke", ["data.edition=1"]).model_copy(update={"arms": tuple(RATES)})
    shared = whole.at_rate(whole.optim.lr)
    tokens: Any = SimpleNamespace(fingerprint=FACTS.fingerprint, description=FACTS, vocab_size=256)
    plan = Plan(shared, (), (FIRST_LOOK_SEED,), ("cpu", "cpu"), SETTINGS, FACTS.fingerprint)
    return Looks(parse(space), whole, tokens, budget, plan)  # type: ignore[arg-type]


SIZED: dict[str, Any] = {}
"""Designs that were built for one of the benches: it takes longest."""


class DesignBench(Bench):
    """A search over designs, whose runs end without training."""

    def __init__(self, study: str, n_trials: int = 8, space: str = SPACE) -> None:
        self.study, self.trained = study, []
        looks = made(space=space)
        looks._sized = SIZED
        self.store = Store.open(study, create=True)
        opened = ExitStack()
        self.storage, self.close = opened.enter_context(optuna_storage(study)), opened.close
        self.alone = opened.enter_context(turns(study))
        about = Designs(looks.space.size, 1.0, (3584, 15872), "0" * 12, "0" * 12)
        self.search = search(
            (), recipe="smoke", recipe_digest="0" * 12, n_trials=n_trials,
            first_seed=FIRST_LOOK_SEED, confirm_seeds=(1, 2), designs=about,
        )  # fmt: skip
        held = studies.open_study(self.storage, self.search, ["designs"], "designs")
        opened_with = DesignPoints(looks), held, self.storage, self.alone, 0, study
        self.family = DesignFamily("designs", *opened_with, looks, 7, n_trials)
        self.families = [self.family]
        self.family.keep_asked(self.search, "tpe")
        self.experiment = Experiment(Place(study), self.store, looks.tokens, Silent())
        self.runner = DesignRunner(self.experiment, looks.plan, self.search, [self.family])

    @property
    def by_rung(self) -> list[list[str]]:
        """The designs that have looks with a quarter of the tokens, and with all."""
        (family,) = self.found.families
        asked = [t for t in family.trials if t.state is not State.FAILED]
        tokens = sorted({t.dimensions["tokens"] for t in asked})
        return [[t.variant for t in asked if t.dimensions["tokens"] == n] for n in tokens]


Make = Callable[..., DesignBench]


@pytest.fixture
def designs(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as opened:
        yield lambda **asked: opened.enter_context(
            closing(DesignBench(str(tmp_path / "attnres.db"), **asked))
        )


def loss(run: RunRecord) -> float:
    """The same for both looks of a design."""
    return 2.0 + sum(map(ord, run.variant)) % 97 / 97


def test_designs_are_looked_at_once_and_the_best_quarter_again_with_all_tokens(designs):
    done = designs().screen(loss)
    short, whole = done.by_rung

    assert len(set(short)) == len(short) == 8
    assert set(whole) <= set(short)
    assert 2 <= len(set(whole)) == len(whole) <= 5
    by_loss = sorted(short, key=lambda name: sum(map(ord, name)) % 97)
    assert {*by_loss[:2]} <= set(whole)
    assert done.family.best_designs(2) == by_loss[:2]
    assert {seed for *_, seed in done.trained} == {FIRST_LOOK_SEED}
    assert len(set(done.trained)) == len(done.trained)
    assert designs().screen(loss).trained == []


def test_the_number_of_designs_is_a_total(designs):
    designs(n_trials=4).screen(loss)
    more = designs(n_trials=6).screen(loss)
    assert len(more.by_rung[0]) == 6
    assert len([1 for *_, seed in more.trained]) == 2 + len(more.by_rung[1]) - 1


def test_of_few_designs_the_best_has_all_tokens_too(designs):
    short, whole = designs(n_trials=2).screen(loss).by_rung
    assert whole == [min(short, key=lambda name: sum(map(ord, name)) % 97)]


def test_a_space_of_few_designs_is_tried_whole(designs):
    short, whole = designs(n_trials=50, space="standard;delta:gate=*;+vres").screen(loss).by_rung
    delta = ["delta", "delta:gate=scalar", "delta:gate=vector"]
    every = [*delta, *(f"{name}+vres" for name in delta), "standard", "vres"]
    assert sorted(short) == sorted(every)
    assert len(whole) >= 2


@pytest.mark.slow
def test_a_search_that_dies_twice_ends_as_one_that_did_not(designs, tmp_path):
    for _ in range(2):
        dying = designs()
        with pytest.raises(KeyboardInterrupt):
            dying.screen(loss, stop_after=3)
        for run in [run.id for run in dying.store.runs() if run.status is Status.RUNNING]:
            dying.store.let_go(run)  # its process is gone
    with closing(DesignBench(str(tmp_path / "whole.db"))) as whole:
        assert designs().screen(loss).by_rung == whole.screen(loss).by_rung


@pytest.mark.slow
def test_two_commands_share_a_search(designs):
    both = [designs(), designs()]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda bench: bench.screen(loss), both))
    trained = [run for bench in both for run in bench.trained]
    assert len(set(trained)) == len(trained)
    assert len(both[0].by_rung[0]) == 8


def test_a_failed_look_does_not_count_and_a_diverged_one_is_never_promoted(designs):
    outcomes = iter([math.nan, None, None])
    odd: list[str] = []

    def outcome(run: RunRecord) -> float | None:
        try:
            value = next(outcomes)
        except StopIteration:
            return loss(run)
        odd.append(run.variant)
        return value

    done = designs().screen(outcome)
    short, whole = done.by_rung
    assert len(short) == 8
    assert not {*odd[1:]} & {*short}
    assert odd[0] in short
    assert odd[0] not in whole
    assert len(done.experiment.failed) == 2


def test_a_search_in_which_everything_fails_ends(designs):
    done = designs(n_trials=2).screen(lambda _run: None)
    (family,) = done.found.families
    assert {trial.state for trial in family.trials} == {State.FAILED}
    assert len(family.trials) <= 4


def test_first_looks_are_in_no_comparison():
    """Nor do they tune: what chose a design, or the rate of a part, never judges it."""
    assert FIRST_LOOK_SEED >= FIRST_TUNING_SEED
    assert FIRST_LOOK_SEED not in protocol.SEEDS


def settings_of(looks: Looks, name: str) -> tuple[float, float, dict[str, float]]:
    optim = looks.arm(name, TOP).recipe.optim  # type: ignore[union-attr]
    return optim.lr, optim.design_lr_scale, dict(optim.part_lr_scale)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("standard", (6e-3, 1.0, {})),
        ("attnres:norm=sigmoid", (4e-3, 1.0, {})),
        ("delta:gate=scalar", (5e-3, 3.0, {})),
        ("x0", (9e-3, 30.0, {})),
        ("delta+vres", (5e-3, 1.0, {"delta": 3.0, "vres": 10.0})),
        ("vres+x0", (8e-3, 1.0, {})),
        ("vres:weights=shared", (7e-3, 10.0, {})),
        ("x0+vres:weights=shared", None),
    ],
)
def test_a_design_has_the_rate_of_its_stream_and_each_part_the_multiple_of_its_own(name, settings):
    looks = made()
    if settings is None:
        name, settings = "vres:weights=shared+x0", (6e-3, 1.0, {"vres": 10.0, "x0": 30.0})
    assert settings_of(looks, name) == settings


def test_parts_of_which_the_recipe_says_nothing_are_tried_at_four_rates():
    looks = made(recipe=load("smoke", ["data.edition=1", "optim.part_lr_scale={x0: 5}"]))
    assert looks.untuned() == ["attnres", "delta", "vres"]
    arms = looks.at_multiples("vres")
    assert [arm.recipe.optim.design_lr_scale for arm in arms] == [1, 3, 10, 30]
    assert {arm.recipe.steps for arm in arms} == {7}
    looks.multiples["vres"] = 10.0
    assert settings_of(looks, "vres") == (2e-2, 10.0, {})
    assert settings_of(looks, "vres+x0") == (2e-2, 1.0, {"vres": 10.0, "x0": 5.0})


def test_the_best_are_compared_with_each_part_at_its_multiple():
    looks = made(recipe=load("smoke", ["data.edition=1", "optim.part_lr_scale={x0: 5, dca: 3}"]))
    looks.multiples["vres"] = 10.0
    assert dict(looks.compared().optim.part_lr_scale) == {"dca": 3.0, "vres": 10.0, "x0": 5.0}
    assert dict(made().compared().optim.part_lr_scale) == {"delta": 3.0, "vres": 10.0, "x0": 30.0}
    assert made().compared().optim.design_lr_scale == 1


def test_designs_have_the_parameters_of_the_baseline_or_its_tokens_alone():
    (base,) = grid.resolve(["standard"], made().plan.recipe, 256)
    equal, plain = made("params").arm("attnres", TOP), made("tokens").arm("attnres", TOP)
    assert abs(equal.n_params / base.n_params - 1) < 0.005 < plain.n_params / base.n_params - 1
    assert equal.recipe.steps == plain.recipe.steps == made().recipe.steps


def test_a_longer_look_goes_on_from_the_shorter_where_the_rate_is_level():
    wsd = ["optim.schedule=wsd", "optim.decay_fraction=0.3", "optim.warmup_fraction=0.05"]
    recipe = load("smoke", ["train.tokens=64k", *wsd])
    short = shorter(recipe)
    assert short.steps == recipe.steps // 4
    assert _is_beginning(short, recipe)
    assert not _is_beginning(shorter(load("smoke")), load("smoke"))


def test_losses_at_equal_time_are_those_less_what_the_time_is_worth(designs):
    bench = designs(n_trials=2)
    record = next(iter(bench.screen(loss).store.runs()))
    at = partial(replace, bench.runner, search=replace(bench.search, objectives=("time",)))
    step_s = record.result.step_s
    assert at(slope=0.2, baseline_step_s=step_s)._values(record) == (record.result.val_loss,)
    (later,) = at(slope=0.2, baseline_step_s=step_s / math.e)._values(record)
    assert later == pytest.approx(record.result.val_loss + 0.2)


def test_a_search_is_read_back_with_what_it_was_asked(designs):
    done = designs(n_trials=2).screen(loss)
    assert done.found.designs == done.search.designs
    assert done.found.families[0].sampler == "tpe"
    counts = Counter(trial.state for trial in done.found.families[0].trials)
    assert counts == {State.COMPLETE: 3}


def test_the_recipe_of_the_comparison_is_kept_and_makes_no_other_search(designs):
    bench = designs(n_trials=2)
    about = replace(bench.search.designs, compared_digest="1" * 12)
    told = replace(bench.search, designs=about)
    assert studies.name_of(told, ["designs"]) == studies.name_of(bench.search, ["designs"])
    bench.family.keep_asked(told, "")
    assert studies.read(bench.study)[0].designs == about
