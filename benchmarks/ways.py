"""A training step of `standard` compiled and in bf16, as a ratio to the eager one in float32.

    python benchmarks/ways.py --json ways.json
    python benchmarks/ways.py --device cuda --json ways_gpu.json

The four take turns on equal batches, in attnres's own step. On a CPU bf16 pays where the processor
multiplies in it (AVX512_BF16, AMX): the first lines of the results say whether this one does.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, spread_text, started
from plain import Config
from trainer import LARGE, MIDDLE, WAYS, recipe_of

from attnres_cli.data import sources
from attnres_cli.nn import cost, measure
from attnres_cli.records.run import RunSpec
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

TARGETS = {("cpu", "compiled bfloat16"): 1.9}


def main() -> None:
    """Time the four ways in turn."""
    parser = arguments("compiled and bf16 steps, as ratios to eager float32", rounds=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    device = started(given.threads, given.device)
    config = MIDDLE if given.device == "cpu" else LARGE
    if given.quick:
        config = replace(config, n_layers=2, d_model=32, n_heads=2, seq_len=16)
    machine = facts(device, given.threads) | {"bf16": bf16_instructions()}
    with tempfile.TemporaryDirectory() as folder:
        times = measured(config, given.rounds, given.threads, Path(folder))
    results: list[dict[str, Any]] = []
    for name, seconds in times.items():
        ratio = cost.ratio(times["eager float32"], seconds)
        target = TARGETS.get((given.device, name))
        results.append(
            {"way": name, "step_s": cost.spread(seconds)._asdict(), "faster": ratio._asdict(),
             "target": target, "seconds": seconds}
        )  # fmt: skip
        print(
            f"{name:18} {spread_text(cost.spread(seconds), 1000, 1):>24} ms   times as fast "
            f"{spread_text(ratio)}   target {target or '-'}"
        )
    document = {"benchmark": "ways", "machine": machine, "config": asdict(config)}
    finish(document | {"results": results}, given.json, [])


def measured(
    config: Config, rounds: int, threads: int, folder: Path
) -> dict[str, tuple[float, ...]]:
    """Seconds of every way's steps, one per round."""
    path = folder / "tokens.bin"
    drawn = np.random.default_rng(0).integers(config.vocab_size, size=4_000_000)
    drawn.astype(np.uint16).tofile(path)
    calls: dict[str, Callable[[], object]] = {}
    for compiled, dtype in WAYS:
        recipe = recipe_of(replace(config, compile=compiled, dtype=dtype, steps=1000), path)
        settings = settings_of(recipe, config.device, threads, run_flops=0.0)
        tokens = sources.load(recipe)
        spec = RunSpec(recipe, "standard", 0, tokens.fingerprint)
        trainer = Trainer(spec, tokens, settings, measure.torch.device(config.device))
        numbers = itertools.count()
        name = f"{'compiled' if compiled else 'eager'} {dtype}"
        calls[name] = lambda trainer=trainer, numbers=numbers: trainer.step(next(numbers))
        for _ in range(3):
            calls[name]()
    return measure.in_turn(calls, rounds, measure.torch.device(config.device))


def bf16_instructions() -> str:
    """Those of this CPU that multiply bf16, as Linux names them."""
    path = Path("/proc/cpuinfo")
    flags = path.read_text(encoding="utf-8").split() if path.exists() else []
    found = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
    return " ".join(found) or "none"


if __name__ == "__main__":
    main()
