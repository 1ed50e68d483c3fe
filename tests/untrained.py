"""A search whose runs end through the store, as workers end them, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from searches import search
from studies import FACTS, RESULT, SETTINGS, VERSIONS

from attnres_cli.config.recipe import load
from attnres_cli.lab.experiment import Experiment, Place
from attnres_cli.lab.search import budget, points, proposals, space, studies
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.trial_runner import TrialRunner
from attnres_cli.lab.workers.pool import Wanted
from attnres_cli.nn import variant
from attnres_cli.records import gates
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import Point as CurvePoint
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.search_records import Search
from attnres_cli.report.progress import ProgressDisplay
from attnres_cli.store.optuna import optuna_storage, turns
from attnres_cli.store.retry import patiently
from attnres_cli.store.store import Store

SPECS = ("standard", "attnres")
SEARCH = search((), recipe="smoke", recipe_digest="0" * 12, space="", confirm_seeds=(1, 2))
Outcome = Callable[[RunRecord], float | None]
"""The loss of a run, None where it fails."""


def deep_is_good(run: RunRecord) -> float:
    return 2.0 + int(run.recipe_digest, 16) % 1000 / 1000


LEAKS = 0.125
"""The loss of a run that fails its proof."""


def opposed(run: RunRecord) -> float:
    """A loss that puts the shapes of the two designs in opposite orders."""
    return deep_is_good(run) if run.variant == "standard" else 9.0 - deep_is_good(run)


class Silent:
    """A watcher that shows nothing."""

    def note(self, _line: object) -> None:
        pass

    warn = text = note

    @contextmanager
    def progress(self, *arguments: Any, **options: Any) -> Iterator[ProgressDisplay]:
        yield ProgressDisplay(*arguments, **options)


class Bench:
    """A study with a search, and a process that ends its runs without training."""

    def __init__(self, study: str, n_trials: int = 3, kind: str = "tpe", goals: int = 1) -> None:
        self.study, self.trained = study, []
        typed = [variant.parse(spec) for spec in SPECS]
        asked = space.parse("n_layers=1..6,n_heads=1|2,n_blocks=1..3", typed)
        recipe = load("smoke", ["data.edition=1"])
        grid = points.grid(typed, asked, budget.parse(["params=60k"], 1), recipe, 256)
        self.store = Store.open(self.study, create=True)
        opened = ExitStack()
        self.storage, self.close = opened.enter_context(optuna_storage(self.study)), opened.close
        self.alone = opened.enter_context(turns(self.study))
        objectives = ("val_loss", "flops")[:goals]
        self.search = replace(SEARCH, n_trials=n_trials, objectives=objectives)
        self.families = []
        for spec, found in zip(SPECS, grid.values(), strict=True):
            held = studies.open_study(self.storage, self.search, SPECS, spec)
            mapped, startup = proposals.Points(found), proposals.n_startup(kind, n_trials)
            held.sampler = proposals.Feasible(mapped, kind, 7, startup)
            opened_with = self.storage, self.alone, startup, self.study
            self.families.append(Family(spec, mapped, held, *opened_with))
            studies.keep_asked(held, self.search, f"{kind}: as asked")
        tokens: Any = SimpleNamespace(fingerprint=FACTS.fingerprint, description=FACTS)
        plan = Plan(recipe, (), (0,), ("cpu", "cpu"), SETTINGS, FACTS.fingerprint)
        self.experiment = Experiment(Place(self.study), self.store, tokens, Silent())
        self.runner = TrialRunner(self.experiment, plan, self.search, self.families)

    def run(
        self, outcome: Outcome = deep_is_good, stop_after: int = -1, confirmed: int = 1, **how: Any
    ) -> Bench:
        """Search, then confirm `confirmed` shapes of each design; die after `stop_after` runs."""
        self.screen(outcome, stop_after, **how)
        self.runner.confirm(confirmed, self.search.confirm_seeds)
        return self

    def screen(self, outcome: Outcome = deep_is_good, stop_after: int = -1, **how: Any) -> Bench:
        """Try what there is to try; die after `stop_after` runs."""

        def train(_plan: Plan, wanted: Wanted, _display: ProgressDisplay) -> None:
            while (ids := wanted(1)) is not None:
                if record := self.store.claim(ids):
                    if len(self.trained) == stop_after:
                        raise KeyboardInterrupt
                    self.end(record, outcome(record))
                elif not (claimed := self.store.owners(ids)):
                    return
                for run_id in () if record else claimed:  # a cut connection has not said it
                    patiently(partial(self.store.let_go, run_id), self.store.patience_s)

        place = replace(self.experiment.place, **how)
        self.experiment.place, self.experiment.train = place, train  # type: ignore[method-assign]
        if place.retry_failed:
            self.runner.retry()
        self.runner.screen()
        return self

    def end(self, record: RunRecord, loss: float | None) -> None:
        self.trained.append((record.recipe_digest, record.variant, record.seed))
        if loss is None:
            self.store.fail(record.id, "it failed", VERSIONS)
            return
        status = Status.DIVERGED if math.isnan(loss) else Status.COMPLETE
        steps = self.store.recipe(record.recipe_digest).steps
        curve = tuple(CurvePoint(n, loss if n else None, None) for n in range(steps + 1))
        result = replace(RESULT, val_loss=loss, status=status, curve=curve)
        if loss == LEAKS:
            result = replace(result, proofs=((gates.CAUSAL, "it sees a later token"),))
        self.store.finish(replace(record, status=status, result=result, versions=VERSIONS))

    @property
    def found(self) -> Search:
        (search,) = studies.read(self.study)
        return search
