"""Memory of a training step as counted before, beside what is then allocated at most.

    python benchmarks/predicted.py --json predicted.json
    python benchmarks/predicted.py --device cuda --json predicted_gpu.json

Counted: one step of the model, with tensors that have no numbers where it is not short
(lab/step_memory.py), which is what `attnres ablate --dry-run` prints. Measured: the third step's
peak, by the profiler on a CPU and by `torch.cuda.max_memory_allocated` on a GPU, with weights and
optimiser state. attnres is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, failure, finish, save, started

from attnres_cli.config.recipe import load
from attnres_cli.config.shipped import suite
from attnres_cli.data import sources
from attnres_cli.lab.bench import held_bytes
from attnres_cli.lab.step_memory import of_step
from attnres_cli.nn import measure
from attnres_cli.records.run import RunSpec
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

WIDE = ["model.d_model=256", "model.n_heads=4", "model.seq_len=256", "train.batch_size=8"]
SETTINGS: dict[str, list[str]] = {
    "quick": [],
    "wide": WIDE,
    "long": [*WIDE, "model.seq_len=2048", "train.batch_size=2"],
    "wide, 720 tokens": [*WIDE, "data.source=permutations", "data.degree=6"],
    "wide, checkpointing": [*WIDE, "train.checkpoint_activations=true"],
    "wide, micro-batches": [*WIDE, "train.micro_batch_size=2"],
    "wide, muon": [*WIDE, "optim.optimizer=muon"],
    "wide, bf16": [*WIDE, "train.precision=bf16"],
    "wide, compiled": [*WIDE, "train.compile=on"],
}
FEW = ("standard", "attnres", "attnres:block_size=4", "mhc")
TARGET = 0.15


def main() -> None:
    """All designs on quick's shape, a few in every other setting."""
    parser = arguments("memory of a step, counted and measured", rounds=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    given = parser.parse_args()
    device = started(given.threads, given.device)
    results: list[dict[str, Any]] = []
    document = {"benchmark": "predicted", "machine": facts(device, given.threads)}
    document |= {"target": TARGET, "results": results}
    wrong = []
    for name in given.settings[:1] if given.quick else given.settings:
        for spec in FEW if name != "quick" or given.quick else suite("all"):
            changes = [*SETTINGS[name], *(["model.n_layers=1"] if given.quick else [])]
            try:
                entry = compared(spec, changes, given.device, given.threads)
            except Exception as error:
                entry = {"wrong": failure(error, device)}
                wrong.append(f"{spec} ({name}): {entry['wrong']}")
            results.append({"setting": name, "variant": spec, **entry})
            told = entry.get("wrong") or (
                f"predicted {entry['predicted'] / 1e6:9.1f} MB, measured "
                f"{entry['measured'] / 1e6:9.1f}, ratio {entry['ratio']:.3f}"
            )
            print(f"{name:22} {spec:22} {told}", flush=True)
            save(document, given.json)
    finish(document, given.json, wrong)


def compared(spec: str, changes: list[str], device: str, threads: int) -> dict[str, Any]:
    """Bytes of a design's step, counted and measured."""
    recipe = load("quick", changes)
    tokens = sources.load(recipe)
    settings = settings_of(recipe, device, threads, run_flops=0.0)
    run = RunSpec(recipe, spec, 0, tokens.fingerprint)
    counted = of_step(run, tokens, settings)
    if counted is None:
        raise ValueError("it cannot be counted")
    on = started(threads, device)
    trainer = Trainer(run, tokens, settings, on)
    for step in range(2):
        trainer.step(step)
    measured = measure.peak_bytes(lambda: trainer.step(2), on) + held_bytes(trainer)
    ratio = counted.peak / measured
    return {"predicted": counted.peak, "measured": measured, "ratio": ratio}


if __name__ == "__main__":
    main()
