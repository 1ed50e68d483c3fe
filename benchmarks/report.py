"""How long `attnres report` takes on a study of a thousand runs, as a command of its own.

    python benchmarks/report.py --json report.json

Two studies: recipe quick in ten sizes, five arms and 20 seeds each, as a study grows; and one size
with 200 seeds. Every run has the 101 points and four probes that training leaves. Losses are drawn,
nothing is trained. Formats take turns; wall and processor seconds are medians with quartiles, that
of an interpreter which does nothing stands beside them.
"""

from __future__ import annotations

import math
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, save, spread_text, started

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.config.shipped import suite
from attnres_cli.nn import cost
from attnres_cli.records.run import (
    DataDescription,
    Point,
    Probe,
    RunResult,
    RunSpec,
    Settings,
    Status,
)
from attnres_cli.store.store import Store

TARGET_S = 1.0
ROOT = Path(__file__).resolve().parent.parent
FACTS = DataDescription(
    "0123456789abcdef", "stdlib", 12_079_736, 256, 11_462_018, 617_718, 3.36, 2.39
)
SETTINGS = Settings("cpu", "A CPU", "fp32", compiled=False, threads=1, engine="eager")
VERSIONS = {"attnres": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
STUDIES = {"10 sizes x 5 arms x 20 seeds": (10, 20), "1 size x 5 arms x 200 seeds": (1, 200)}
COMMANDS = {
    "an interpreter": ["-c", "pass"],
    "report": ["-m", "attnres_cli", "report"],
    "report --format json": ["-m", "attnres_cli", "report", "--format", "json"],
    "report --format html": ["-m", "attnres_cli", "report", "--format", "html"],
}


def build(path: Path, n_sizes: int, n_seeds: int) -> int:
    """A study of complete runs at that path; how many."""
    store, drawn, arms = (
        Store.open(str(path), create=True),
        np.random.default_rng(0),
        suite("attnres"),
    )
    held = sqlite3.connect(path)  # or the last one to leave writes its log back, run by run
    held.execute("SELECT * FROM attnres_schema").fetchall()
    for size in range(n_sizes):
        recipe = load("quick", [f"model.n_layers={2 + size}"])
        luck = [drawn.normal(0, 0.02) for _ in range(n_seeds)]
        specs = [
            RunSpec(recipe, arm, seed, FACTS.fingerprint) for seed in range(n_seeds) for arm in arms
        ]
        ids = [record.id for record in store.plan(specs, FACTS)]
        while (record := store.claim(ids[: len(arms)])) is not None:
            loss = 1.7 - size / 50 + arms.index(record.variant) / 200 + luck[record.seed]
            result = ended(recipe, loss + drawn.normal(0, 0.01), drawn)
            store.finish(replace(record, status=Status.COMPLETE, result=result, versions=VERSIONS))
            ids.remove(record.id)
    held.close()
    return n_sizes * n_seeds * len(arms)


def ended(recipe: Recipe, loss: float, drawn: np.random.Generator) -> RunResult:
    """A run that came down from ln(256) to that loss, with a curve and probes of real size."""
    steps, first = recipe.steps, math.log(256)
    points = [Point(0, None, first)]
    for i in range(1, 101):
        now = loss + (first - loss) * math.exp(-i / 15) + drawn.normal(0, 0.02)
        points.append(Point(round(steps * i / 100), now, loss if i in (50, 100) else None))
    return RunResult(
        status=Status.COMPLETE,
        val_loss=loss,
        initial_loss=first,
        steps=steps,
        tokens=steps * recipe.tokens_per_step,
        step_s=0.05,
        tokens_per_second=20_000.0,
        train_s=20.0,
        peak_bytes=5 * 10**8,
        n_params=334_656,
        flops_per_token=2_000_000,
        settings=SETTINGS,
        curve=tuple(points),
        probes=tuple(probe(steps * i // 4, 2 * recipe.model.n_layers + 1) for i in (0, 1, 2, 4)),
    )


def probe(step: int, sites: int) -> Probe:
    """What one look into a model of so many sites leaves: uniform weights over what came before."""
    mixing = tuple(
        tuple(1 / (l + 1) if i <= l else 0.0 for i in range(sites)) for l in range(sites)
    )
    row = tuple(1.0 + l / sites for l in range(sites))
    return Probe(step, row, row, row, row, row, row, row, row, mixing)


def timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a process."""
    environment, before, begun = (
        os.environ | {"PYTHONPATH": str(ROOT)},
        processor(),
        time.perf_counter(),
    )
    whole = [sys.executable, *command]
    subprocess.run(whole, cwd=folder, env=environment, check=True, capture_output=True)  # noqa: S603
    return time.perf_counter() - begun, processor() - before


def processor() -> float:
    """Processor seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(name: str, folder: Path, titles: list[str], rounds: int) -> list[dict[str, Any]]:
    """Commands on the study in that folder, in turn."""
    seconds: dict[str, list[tuple[float, float]]] = {title: [] for title in titles}
    for number in range(rounds + 1):
        for title in titles:
            found = timed(COMMANDS[title], folder)
            if number:  # the first has read files that are cached from then on
                seconds[title].append(found)
    results = []
    for title, both in seconds.items():
        wall, used = (cost.spread([each[i] for each in both]) for i in (0, 1))
        target = TARGET_S if title == "report" else None
        print(
            f"{name:30} {title:22} {spread_text(wall)} s, processor {spread_text(used)} s, "
            f"target {target or '-'}",
            flush=True,
        )
        row = {"study": name, "command": title, "wall_s": wall._asdict()}
        results.append(row | {"processor_s": used._asdict(), "target_s": target})
    return results


def main() -> None:
    """Both studies, one after the other."""
    given = arguments("attnres report on a thousand runs", rounds=9).parse_args()
    device = started(given.threads, "cpu")
    results: list[dict[str, Any]] = []
    machine = facts(device, given.threads)
    document = {"benchmark": "report", "machine": machine, "results": results}
    studies, titles = list(STUDIES.items()), list(COMMANDS)
    for name, (n_sizes, n_seeds) in studies[:1] if given.quick else studies:
        with tempfile.TemporaryDirectory() as folder:
            n_runs = build(Path(folder) / "attnres.db", n_sizes, 2 if given.quick else n_seeds)
            print(f"{n_runs} runs")
            results += measured(
                name, Path(folder), titles[:2] if given.quick else titles, given.rounds
            )
        save(document, given.json)
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
