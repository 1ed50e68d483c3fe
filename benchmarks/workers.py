"""Runs side by side on one CPU: a process per core with one thread each, over one with all cores.

    python benchmarks/workers.py --json workers.json

Each round the one process trains as many steps of `standard` as the others do together, and then
the others do; the ratio is that of their times. What `attnres ablate` chooses by: up to which width
several workers pay. Processes here are not bound to cores, as its workers are.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, save, spread_text, started
from trainer import SMALL, recipe_of

from attnres_cli.data import sources
from attnres_cli.nn import cost
from attnres_cli.records.machine import cores
from attnres_cli.records.run import RunSpec
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

TARGET = 1.5
WIDTHS = (64, 128, 256)
TARGETED = 128  # the widest that has a target
STEPS = 8  # of each process, per round


def trains(width: int, threads: int, path: Path, pipe: Connection) -> None:
    """A process: trains as many steps as it is told, and says when it has."""
    torch.set_num_threads(threads)
    config = replace(SMALL, d_model=width, d_ff=8 * -(-width // 3), steps=10_000)
    recipe = recipe_of(config, path)
    tokens = sources.load(recipe)
    settings = settings_of(recipe, "cpu", threads, run_flops=0.0)
    spec = RunSpec(recipe, "standard", 0, tokens.fingerprint)
    trainer, step = Trainer(spec, tokens, settings, torch.device("cpu")), 0
    while n_steps := pipe.recv():
        for _ in range(n_steps):
            trainer.step(step)
            step += 1
        pipe.send(n_steps)


def turn(pipes: list[Connection], n_steps: int) -> float:
    """Seconds until all of these have trained so many steps."""
    started_at = time.perf_counter()
    for pipe in pipes:
        pipe.send(n_steps)
    for pipe in pipes:
        pipe.recv()
    return time.perf_counter() - started_at


def measured(width: int, n_cores: int, rounds: int, path: Path) -> dict[str, Any]:
    """One width: seconds of both ways, round by round."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(1 + n_cores)]
    for number, (_, theirs) in enumerate(pairs):
        threads = n_cores if number == 0 else 1
        context.Process(target=trains, args=(width, threads, path, theirs), daemon=True).start()
        theirs.close()  # so that a process that ends early is noticed
    one, many = [pairs[0][0]], [ours for ours, _ in pairs[1:]]
    together, apart = [], []
    for number in range(rounds + 1):
        together.append(turn(one, STEPS * n_cores))
        apart.append(turn(many, STEPS))
        if number == 0:  # they have started, and warmed up
            together, apart = [], []
    for pipe in (*one, *many):
        pipe.send(0)
    ratio = cost.ratio(together, apart)
    target = TARGET if width <= TARGETED else None
    steps_per_second = n_cores * STEPS / cost.spread(apart).median
    print(
        f"width {width:4}   {steps_per_second:6.1f} steps/s   times those of one process "
        f"{spread_text(ratio)}   target {target or '-'}",
        flush=True,
    )
    return {
        "width": width, "faster": ratio._asdict(), "target": target, "one_s": together,
        "many_s": apart, "steps_per_second": steps_per_second,
    }  # fmt: skip


def main() -> None:
    """All widths, one after the other."""
    parser = arguments("a process per core over one process, by width", rounds=15)
    given = parser.parse_args()
    device, n_cores = started(given.threads, "cpu"), cores().n
    results: list[dict[str, Any]] = []
    machine = facts(device, given.threads) | {"cores": n_cores}
    document = {"benchmark": "workers", "machine": machine, "results": results}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        drawn = np.random.default_rng(0).integers(256, size=1_000_000)
        drawn.astype(np.uint16).tofile(path)
        for width in (16,) if given.quick else WIDTHS:
            results.append(measured(width, n_cores, given.rounds, path))
            save(document, given.json)
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
