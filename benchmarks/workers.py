"""Runs side by side on one CPU: a process per core with one thread each, over one with all cores.
And what a run costs beside its steps.

    python benchmarks/workers.py --json workers.json

Each round the pool of `attnres ablate` trains as many short runs of recipe `quick`'s shape as there
are cores, by one worker with all cores and by one each with one thread, in turn; the ratio is that
of the times from the first event to the last. Then one whole run of `quick` by one thread: which
shares of its time are steps, the evaluations that the recipe asks for, and the rest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, save, spread_text, started

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.lab.workers import cores as places
from attnres_cli.lab.workers import (
    pool,
    preload,  # noqa: F401 - what workers find imported
)
from attnres_cli.lab.workers.worker import Job, work_here
from attnres_cli.nn import cost
from attnres_cli.records.machine import cores
from attnres_cli.records.run import Event, RunSpec
from attnres_cli.store.store import Store
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

TARGET, MOST_SHARE = 1.5, 0.1
WIDTHS = (64, 128, 256)
TARGETED = 128  # the widest that has a target
TOKENS = "60k"  # of a run of a round, which is evaluated twice on 4096


def planned(recipe: Recipe, n_runs: int, folder: str) -> tuple[Store, list[int]]:
    """A new study in which so many runs wait."""
    tokens = sources.load(recipe)
    store = Store.open(str(Path(folder) / "study.db"), create=True)
    specs = [RunSpec(recipe, "standard", seed, tokens.fingerprint) for seed in range(n_runs)]
    return store, [run.id for run in store.plan(specs, tokens.description)]


def job(recipe: Recipe, folder: str, threads: int, on: tuple[int, ...] = ()) -> Job:
    """A worker with so many threads on the CPU."""
    settings = settings_of(recipe, "cpu", threads, run_flops=0.0)
    return Job(str(Path(folder) / "study.db"), "cpu", settings, recipe, on)


def trained(recipe: Recipe, n_workers: int, threads: int, n_runs: int) -> float:
    """Seconds of so many runs, from the first event to the last."""
    times: list[float] = []

    def on_event(event: Event | None) -> None:
        times.extend([time.perf_counter()] if event is not None else [])

    with tempfile.TemporaryDirectory() as folder:
        store, ids = planned(recipe, n_runs, folder)
        bound = places.shares(cores(), n_workers)
        jobs = [job(recipe, folder, threads, on) for on in bound]
        pool.run_all(store, jobs, lambda _n_free: ids, on_event)
    return times[-1] - times[0]


def measured(recipe: Recipe, n_cores: int, rounds: int) -> dict[str, Any]:
    """One width: seconds of both ways, round by round; every other one begins with the second."""
    ways: dict[str, Callable[[], float]] = {
        "one_s": lambda: trained(recipe, 1, n_cores, n_cores),
        "many_s": lambda: trained(recipe, n_cores, 1, n_cores),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(ways[name]())
    ratio, width = cost.ratio(times["one_s"], times["many_s"]), recipe.model.d_model
    target = TARGET if width <= TARGETED else None
    per_hour = 3600 * n_cores / cost.spread(times["many_s"]).median
    print(
        f"width {width:4}   {per_hour:6.0f} runs/h   times those of one process "
        f"{spread_text(ratio)}   target {target or '-'}",
        flush=True,
    )
    return {"width": width, "faster": ratio._asdict(), "target": target, **times}


@contextmanager
def clocked(name: str, spent: Counter[str]) -> Iterator[None]:
    """Add the seconds of this method of a trainer to what was spent."""
    method = getattr(Trainer, name)

    def timed(*given: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*given, **named)
        finally:
            spent[name] += time.perf_counter() - begun  # type: ignore[assignment]

    setattr(Trainer, name, timed)
    yield
    setattr(Trainer, name, method)


def shares(recipe: Recipe) -> dict[str, Any]:
    """The parts of a run's time, of everything that a worker does for it once it has started."""
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        store, ids = planned(recipe, 1, folder)
        begun = time.perf_counter()
        with clocked("step", spent), clocked("evaluate", spent):
            work_here(store, job(recipe, folder, 1), lambda _n_free: ids, lambda _event: None)
        whole = time.perf_counter() - begun
    steps, evaluations = (spent[name] / whole for name in ("step", "evaluate"))
    rest = 1 - steps - evaluations
    print(
        f"a run of {recipe.name}: {whole:.1f} s, {steps:.1%} steps, {evaluations:.1%} evaluations, "
        f"{rest:.1%} the rest   target {MOST_SHARE:.0%}"
    )
    return {"seconds": whole, "steps": steps, "evaluations": evaluations, "rest": rest}


def main() -> None:
    """All widths, one after the other, then the whole run."""
    parser = arguments("a process per core over one process, by width", rounds=5)
    given = parser.parse_args()
    device, n_cores = started(given.threads, "cpu"), cores().n
    results: list[dict[str, Any]] = []
    machine = facts(device, given.threads) | {"cores": n_cores}
    document = {"benchmark": "workers", "machine": machine, "results": results}
    short = ["train.tokens=" + TOKENS, "train.eval_tokens=4096", "train.n_evals=1"]
    for width in (16,) if given.quick else WIDTHS:
        recipe = load("smoke" if given.quick else "quick", [*short, f"model.d_model={width}"])
        results.append(measured(recipe, n_cores, given.rounds))
        save(document, given.json)
    document["run"] = shares(load("smoke" if given.quick else "quick"))
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
