"""Tokens per second of `standard` in attnres's own training, over those of `plain.py`.

    python benchmarks/trainer.py cpu --json trainer.json
    python benchmarks/trainer.py gpu --json trainer_gpu.json

Ours is a worker as `attnres ablate` starts it, with all it does besides training: a study, a
heartbeat, checkpoints, the curve, and whatever the loop records. At every point of its curve (each
step, where a run has up to a hundred) it stops for as long as the plain script takes for as many
steps, so that the two take turns in one process, on equal shapes and equal data;
a ratio is that of neighbouring turns. CPU time is the process's own, which other programs do not
lengthen. Ours is what a recipe of that shape trains by default, the script's has the operations of
nanoGPT. What a run does once (it is evaluated at its start and its end, and compiled) is not
counted.

Needs attnres installed; `plain.py` needs torch and numpy alone.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, facts, finish, save, spread_text, started
from plain import Config, Plain

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.data import sources
from attnres_cli.errors import AttnresError
from attnres_cli.lab.workers.worker import Job, work
from attnres_cli.nn import cost
from attnres_cli.records.run import Event, RunSpec, Status
from attnres_cli.store.store import Store
from attnres_cli.train.device import settings as settings_of

TARGET = 0.97
SMALL = Config(
    n_layers=6, d_model=64, n_heads=4, seq_len=64, vocab_size=256, batch_size=16,
)  # fmt: skip
"""The recipe `quick`."""
MIDDLE = Config()
LARGE = Config(
    n_layers=16, d_model=1024, n_heads=16, seq_len=2048, vocab_size=32768, batch_size=16,
    device="cuda",
)  # fmt: skip
WAYS = [(compiled, dtype) for compiled in (False, True) for dtype in ("float32", "bfloat16")]
KINDS = {"cpu": {"quick": SMALL, "middle": MIDDLE}, "gpu": {"large": LARGE}}


@dataclass
class Turns:
    """What a worker asks and reports to; every report of the curve is the plain script's turn.

    Attributes:
        run_id: of the one run that it is given.
        steps: that a turn takes, as the curve's points lie.
        seconds: of ours and of plain's, one each per turn.
        cpu_seconds: the same of the process's CPU time, which other programs do not lengthen.
    """

    plain: Plain
    run_id: int
    step: int = 0
    last: tuple[float, float] | None = None
    steps: list[int] = field(default_factory=list)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    cpu_seconds: list[tuple[float, float]] = field(default_factory=list)

    def recv(self) -> tuple[int, ...]:
        """The run, and none after it."""
        return (self.run_id,) if self.last is None else ()

    def send(self, event: Event | AttnresError | None) -> None:
        """A turn ends here, if this is a point of the curve after the first."""
        now = clocks()
        if isinstance(event, AttnresError):
            raise event
        if event is None or event.done or event.step == 0:
            return
        n_steps = event.step - self.step
        self.step = event.step
        if self.last is not None:
            before = clocks()
            self.plain.train(n_steps)
            after = clocks()
            self.steps.append(n_steps)
            for k, kept in enumerate((self.seconds, self.cpu_seconds)):
                kept.append((now[k] - self.last[k], after[k] - before[k]))
        self.last = clocks()

    def close(self) -> None:
        """There is nothing to close."""


def clocks() -> tuple[float, float]:
    """Wall seconds and the process's CPU seconds."""
    return time.perf_counter(), time.process_time()


def recipe_of(config: Config, path: Path) -> Recipe:
    """The recipe of the plain script's shape."""
    model = ("n_layers", "d_model", "n_heads", "seq_len")
    values = asdict(config)
    tokens_per_step = config.batch_size * config.seq_len
    return validate(
        {
            "name": "plain",
            "model": {name: values[name] for name in model},
            "data": {"source": "nanogpt", "path": str(path), "vocab_size": config.vocab_size},
            "optim": {"lr": config.lr, "warmup_fraction": 0.05},
            "train": {
                "tokens": config.steps * tokens_per_step,
                "batch_size": config.batch_size,
                "eval_tokens": tokens_per_step,
                "n_evals": 1,
                "precision": {"float32": "fp32", "bfloat16": "bf16"}[config.dtype],
                "compile": "on" if config.compile else "off",
            },
        },
        "plain",
    )


def measured(config: Config, threads: int) -> dict[str, Any]:
    """One setting: both trained in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        drawn = np.random.default_rng(0).integers(config.vocab_size, size=4_000_000)
        drawn.astype(np.uint16).tofile(path)
        recipe = recipe_of(config, path)
        settings = settings_of(recipe, config.device, threads, run_flops=0.0)
        tokens = sources.load(recipe)
        spec = RunSpec(recipe, "standard", 0, tokens.fingerprint)
        plain = Plain(config, path)
        study = f"{folder}/study.db"
        store = Store.open(study, create=True)
        (record,) = store.plan([spec], tokens.description)
        plain.train(3)
        turns = Turns(plain, record.id)
        work(0, Job(study, config.device, settings, recipe), turns)
        (ended,) = store.runs(ids=[record.id])
    if ended.status is not Status.COMPLETE:
        raise RuntimeError(f"the run ended as {ended.status}: {ended.error}")
    return result_of(config, turns)


def result_of(config: Config, turns: Turns) -> dict[str, Any]:
    """Ratios of tokens per second: plain's time over ours."""
    ratio, cpu_ratio = (
        cost.spread([theirs / ours for ours, theirs in pairs])
        for pairs in (turns.seconds, turns.cpu_seconds)
    )
    n_tokens = [steps * config.batch_size * config.seq_len for steps in turns.steps]
    speeds = [
        cost.spread([n / pair[k] for n, pair in zip(n_tokens, turns.seconds, strict=True)])
        for k in (0, 1)
    ]
    return {
        "config": asdict(config),
        "turns": len(turns.steps),
        "ratio": ratio._asdict(),
        "cpu_ratio": cpu_ratio._asdict(),
        "tokens_per_second": speeds[0]._asdict(),
        "plain_tokens_per_second": speeds[1]._asdict(),
        "steps": turns.steps,
        "seconds": turns.seconds,
        "target": TARGET,
    }


def cases(kind: str, only: list[str] | None) -> Iterator[tuple[str, Config]]:
    """Every setting by its name, as `middle compiled bfloat16`."""
    for (name, config), (compiled, dtype) in itertools.product(KINDS[kind].items(), WAYS):
        label = f"{name} {'compiled' if compiled else 'eager'} {dtype}"
        if not only or all(word in label for word in only):
            yield label, replace(config, compile=compiled, dtype=dtype)


def main() -> None:
    """Run every setting of a kind, one after the other."""
    parser = arguments("tokens per second of `standard` over those of plain.py", rounds=99)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--only", nargs="+", help="words of the settings to run")
    given = parser.parse_args()
    device = started(given.threads, "cuda" if given.kind == "gpu" else "cpu")
    results: list[dict[str, Any]] = []
    document = {"benchmark": "trainer", "machine": facts(device, given.threads), "results": results}
    for label, config in cases(given.kind, given.only):
        if given.quick:
            config = replace(config, n_layers=2, d_model=32, n_heads=2, seq_len=16)
        steps = given.rounds + 1
        result = measured(replace(config, steps=steps), given.threads)
        ratio, cpu = cost.Spread(**result["ratio"]), cost.Spread(**result["cpu_ratio"])
        speed = result["tokens_per_second"]["median"]
        print(
            f"{label:28} {speed:>10,.0f} tokens/s   of plain's {spread_text(ratio)}   "
            f"target {TARGET}   CPU time {spread_text(cpu)}",
            flush=True,
        )
        results.append({"setting": label, **result})
        save(document, given.json)
    finish(document, given.json, [])


if __name__ == "__main__":
    main()
