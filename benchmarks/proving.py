"""What it costs a run to prove itself (attnres_cli/train/proving.py), beside the run's own time.

    python benchmarks/proving.py --json proving.json

Both proofs of a run, before its first step and after its last, timed in turn with training steps
and an evaluation, from which the time of a whole run follows. attnres is installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, save, started

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.records.run import RunSpec
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.proving import prove, prove_start
from attnres_cli.train.trainer import Trainer

ARMS = ("standard", "attnres", "mhc")
TARGET = {"quick": 0.01, "smoke": None}  # of a run; seconds are enough where it is short
STEPS = 4


def main() -> None:
    """Three designs on the recipes quick and smoke."""
    parser = arguments("what proofs cost a run", rounds=5)
    given = parser.parse_args()
    device = started(given.threads, "cpu")
    results: list[dict[str, Any]] = []
    for name in ("smoke",) if given.quick else ("quick", "smoke"):
        for spec in ARMS[:1] if given.quick else ARMS:
            found = _measured(name, spec, given.rounds)
            results.append(found)
            print(
                f"{name:6} {spec:9} proofs {found['proofs_s']:6.3f} s of {found['run_s']:6.1f} s: "
                f"{found['share']:.2%}"
            )
    document = {"benchmark": "proving", "machine": facts(device, given.threads)}
    save(document | {"target": TARGET, "results": results}, given.json)


def _measured(name: str, spec: str, rounds: int) -> dict[str, Any]:
    recipe = load(name)
    tokens = sources.load(recipe)
    settings = settings_of(recipe, "cpu", 1, 0.0)
    run = RunSpec(recipe, spec, 0, tokens.fingerprint)
    trainer = Trainer(run, tokens, settings, torch.device("cpu"))
    trainer.step(0)
    times: dict[str, list[float]] = {"proofs": [], "steps": [], "evaluation": []}
    for _ in range(rounds):
        times["proofs"].append(_seconds(lambda: (prove_start(trainer), prove(trainer))))
        times["steps"].append(_seconds(lambda: [trainer.step(n).item() for n in range(STEPS)]))
        times["evaluation"].append(_seconds(trainer.evaluate))
    proofs, steps, evaluation = map(statistics.median, times.values())
    whole = steps / STEPS * recipe.steps + evaluation * (recipe.train.n_evals + 1)
    return {
        "recipe": name,
        "arm": spec,
        "proofs_s": proofs,
        "run_s": whole,
        "share": proofs / whole,
    }


def _seconds(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


if __name__ == "__main__":
    main()
