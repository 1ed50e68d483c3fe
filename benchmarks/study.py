"""The study under many processes: what it costs beside tiny trials, and how fast runs are claimed.

    python benchmarks/study.py --json study.json
    python benchmarks/study.py --study postgresql+psycopg://user@host/empty --json study_server.json

In a file (and then on each server that is given) sixteen processes share 320 trials: each is
claimed, trained for ten steps of the recipe `smoke`, and recorded with a curve of ten points. In
turn with that, the same processes train the same trials without a study; the ratio is that of
neighbouring times. After each round every trial must be there once, as it was trained. Besides,
runs are claimed and recorded without any training. A server needs an empty database; what it does
before it says that a transaction is kept (fsync, synchronous_commit) stands with its results. Give
`--study` twice to compare two servers, or one that waits for its disk with one that does not:

    ... --study URL/one --study "URL/other?options=-c%20synchronous_commit%3Doff"

Needs attnres installed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, save, spread_text, started
from plain import Config
from trainer import recipe_of

from attnres_cli.config import address
from attnres_cli.config.recipe import Recipe
from attnres_cli.data import sources
from attnres_cli.nn import cost
from attnres_cli.records.run import DataDescription, Point, RunResult, RunSpec, Settings, Status
from attnres_cli.store import postgres
from attnres_cli.store.store import Store
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

TINY = Config(
    n_layers=2, d_model=32, n_heads=2, seq_len=32, vocab_size=256, batch_size=16, steps=10,
)  # fmt: skip
TARGET = 2.0
CLAIMS_PER_MINUTE = 1000
N_PROCESSES, N_TRIALS = 16, 320


@dataclass(frozen=True)
class Order:
    """What a process is told: to train these seeds by itself; or to take runs from a study, and
    train them or not.
    """

    seeds: tuple[int, ...] = ()
    study: str = ""
    run_ids: tuple[int, ...] = ()
    trains: bool = True


def trials(path: Path, pipe: Connection) -> None:
    """A process: does what it is ordered until it is told None, and says what it has done."""
    torch.set_num_threads(1)
    recipe = recipe_of(TINY, path)
    tokens = sources.load(recipe)
    settings = settings_of(recipe, "cpu", 1, run_flops=0.0)

    def trained(seed: int, is_real: bool = True) -> RunResult:
        if not is_real:
            return result_of(recipe, settings, [5.5] * TINY.steps)
        spec = RunSpec(recipe, "standard", seed, tokens.fingerprint)
        trainer = Trainer(spec, tokens, settings, torch.device("cpu"))
        losses = [trainer.step(step).item() for step in range(TINY.steps)]
        return result_of(recipe, settings, losses)

    trained(0)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        try:
            done = {seed: trained(seed).val_loss for seed in order.seeds}
            if order.study:
                store = Store.open(order.study, create=True)
                while (claimed := store.claim(order.run_ids)) is not None:
                    result = trained(claimed.seed, order.trains)
                    ended = replace(claimed, status=Status.COMPLETE, result=result, versions={})
                    store.finish(ended)
                    done[claimed.seed] = result.val_loss
        except Exception as error:  # as a lock; counted, not survived
            pipe.send(repr(error))
            return
        pipe.send(done)


def result_of(recipe: Recipe, settings: Settings, losses: Sequence[float]) -> RunResult:
    """A result with a curve of one point per step; times are none."""
    points = tuple(Point(step, loss, loss) for step, loss in enumerate(losses, 1))
    return RunResult(
        status=Status.COMPLETE, val_loss=losses[-1], initial_loss=losses[0], steps=TINY.steps,
        tokens=recipe.train.tokens, step_s=0.0, tokens_per_second=0.0, train_s=0.0, peak_bytes=0,
        n_params=0, flops_per_token=0, settings=settings, curve=points,
    )  # fmt: skip


class Crew:
    """Processes that wait for orders."""

    def __init__(self, n: int, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(n)]
        for _, theirs in pairs:
            context.Process(target=trials, args=(path, theirs), daemon=True).start()
        self._pipes = [ours for ours, _ in pairs]
        for pipe in self._pipes:
            pipe.recv()

    def do(self, orders: Sequence[Order]) -> tuple[float, list[dict[int, float]]]:
        """Seconds until all have done what they were told, and what each did: loss by seed.

        Ends the program where one of them failed.
        """
        started_at = time.perf_counter()
        for pipe, order in zip(self._pipes, orders, strict=True):
            pipe.send(order)
        answers = [pipe.recv() for pipe in self._pipes]
        seconds = time.perf_counter() - started_at
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            sys.exit(f"{len(errors)} of {len(answers)} processes failed: {errors[0]}")
        return seconds, answers

    def end(self) -> None:
        """Let them go home."""
        for pipe in self._pipes:
            pipe.send(None)


def planned(study: str, recipe: Recipe, known: DataDescription, seeds: range) -> tuple[int, ...]:
    """The numbers of waiting runs, one for each seed."""
    specs = [RunSpec(recipe, "standard", seed, known.fingerprint) for seed in seeds]
    return tuple(record.id for record in Store.open(study, create=True).plan(specs, known))


def check(study: str, ids: Sequence[int], done: Sequence[dict[int, float]]) -> None:
    """End the program unless every run is there once, with the curve that its process had."""
    store = Store.open(study, create=False)
    records, standings = store.runs(ids=ids), store.standings(ids)
    counts = Counter(seed for each in done for seed in each)
    losses = {seed: loss for each in done for seed, loss in each.items()}
    for record in records:
        result = record.result
        whole = result is not None and len(result.curve) == TINY.steps
        equal = whole and result is not None and result.val_loss == losses.get(record.seed)
        if not equal or counts[record.seed] != 1 or standings[record.id].attempts != 1:
            sys.exit(f"run {record.id} is not there once, as it was trained: {record.status}")


def beside_trials(
    name: str, crew: Crew, n: int, studies: Sequence[str], path: Path, n_trials: int
) -> dict[str, Any]:
    """Trials with a study over the same without one, round by round, a study each."""
    recipe = recipe_of(TINY, path)
    known = sources.load(recipe).description
    with_s, without_s = [], []
    for number, study in enumerate(studies):
        seeds = range(number * n_trials, (number + 1) * n_trials)
        seconds, _ = crew.do([Order(tuple(seeds[process::n])) for process in range(n)])
        without_s.append(seconds)
        ids = planned(study, recipe, known, seeds)
        seconds, done = crew.do([Order(study=study, run_ids=ids)] * n)
        with_s.append(seconds)
        check(study, ids, done)
    ratio = cost.ratio(with_s, without_s)
    print(
        f"{name}: {n} processes, {n_trials} trials, none lost, none twice: "
        f"{cost.spread(with_s).median:.1f} s, {cost.spread(without_s).median:.1f} s without a "
        f"study, ratio {spread_text(ratio)}, target at most {TARGET:g}",
        flush=True,
    )
    return {
        "study": name, "what": "trials", "processes": n, "trials": n_trials, "with_s": with_s,
        "without_s": without_s, "ratio": ratio._asdict(), "target": TARGET,
    }  # fmt: skip


def claims(
    name: str, crew: Crew, n: int, study: str, path: Path, n_runs: int, first_seed: int, rounds: int
) -> dict[str, Any]:
    """Runs claimed and recorded, each with a curve of ten points, without training."""
    recipe = recipe_of(TINY, path)
    known, per_minute = sources.load(recipe).description, []
    for number in range(rounds):
        begin = first_seed + number * n_runs
        ids = planned(study, recipe, known, range(begin, begin + n_runs))
        seconds, done = crew.do([Order(study=study, run_ids=ids, trains=False)] * n)
        per_minute.append(60 * n_runs / seconds)
        check(study, ids, done)
    spread = cost.spread(per_minute)
    print(
        f"{name}: {n} processes claim and record {spread_text(spread, digits=0)} runs a minute, "
        f"none lost, none twice; target at least {CLAIMS_PER_MINUTE}",
        flush=True,
    )
    return {
        "study": name, "what": "claims", "processes": n, "runs": n_runs, "per_minute": per_minute,
        "target": CLAIMS_PER_MINUTE,
    }  # fmt: skip


def of_server(study: str) -> dict[str, str]:
    """Version of a server, and what it does before it says that a transaction is kept."""
    names = ("server_version", "fsync", "synchronous_commit")
    with postgres.engine_of(study, readonly=True).connect() as connection:
        return {name: connection.execute(text(f"SHOW {name}")).scalar_one() for name in names}


def main() -> None:
    """A file, then the servers if there are any."""
    parser = arguments("what a study costs beside trials, and how fast it gives them out", rounds=3)
    parser.add_argument(
        "--study", type=address.withhold, action="append", default=[],
        help="URL of an empty database, besides; several, of one password, one after the other",
    )  # fmt: skip
    given = parser.parse_args()
    n, n_trials = (2, 6) if given.quick else (N_PROCESSES, N_TRIALS)
    device = started(given.threads, "cpu")
    results: list[dict[str, Any]] = []
    document = {"benchmark": "study", "machine": facts(device, given.threads), "results": results}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        drawn = np.random.default_rng(0).integers(256, size=1_000_000)
        drawn.astype(np.uint16).tofile(path)
        crew = Crew(n, path)
        files = [str(Path(folder) / f"{number}.db") for number in range(given.rounds)]
        results.append(beside_trials("sqlite", crew, n, files, path, n_trials))
        results.append(claims("sqlite", crew, n, f"{folder}/c.db", path, n_trials, 0, given.rounds))
        for study in given.study:
            server, rounds = of_server(study), given.rounds
            print(", ".join(f"{name} {value}" for name, value in server.items()))
            found = [
                beside_trials("postgresql", crew, n, [study] * rounds, path, n_trials),
                claims("postgresql", crew, n, study, path, n_trials, rounds * n_trials, rounds),
            ]
            results.extend(each | {"server": server} for each in found)
        crew.end()
    save(document, given.json)
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
