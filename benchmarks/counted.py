"""What a step of every design asks of a GPU, counted on a machine without one: launches, waits.

    VENV/bin/python benchmarks/counted.py --json counted.json
    VENV/bin/python benchmarks/counted.py standard mhc --ways eager compile graphs

VENV has a CUDA build of torch (`pip install torch` on Linux) and what attnres requires. The program
builds a stand-in for CUDA (standin/cuda.c; it needs gcc and CUDA's headers) and starts itself again
with it: torch, its compiler and Triton's are the real ones, kernels do nothing. It shows no values
and no times.

Per design, at the shape of recipe `quick` (or `--recipe`) in bfloat16 with the fused kernels: the
calls of a step, an evaluation, a checkpoint and its restoration, and the peak of memory beside the
plan's prediction; each line that waits for the device or copies memory that is not pinned; and what
breaks the capture of a step in a CUDA graph, which `--ways graphs` replays. The exit code is 1
where a step waits or cannot be captured, or an evaluation copies what is not pinned.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import arguments, save
from standin import build, counts

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.lab.step_memory import of_step
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.residual import registry
from attnres_cli.records.run import EVALUATION, GRAPHS, RunSpec, Settings
from attnres_cli.train.trainer import Trainer

WAYS = {"eager": "", "compile": EVALUATION, "graphs": GRAPHS}
WARM, STEPS = 3, 2  # steps before those that are counted, and these; graphs replay from the third


def trainer_of(spec: str, way: str, recipe: Recipe, tokens: Tokens) -> Trainer:
    """What trains a design in one of WAYS."""
    device, compiled = torch.device("cuda:0"), way != "eager"
    name = torch.cuda.get_device_name(device)
    settings = Settings("cuda", name, "bf16", compiled, 1, "triton", WAYS[way])
    return Trainer(RunSpec(recipe, spec, 0, tokens.fingerprint), tokens, settings, device)


def capture(trainer: Trainer) -> str:
    """What breaks the capture of a step's forward and backward pass; empty: nothing."""
    windows = trainer.batches.take(0).to(trainer.device)
    tokens, targets = windows[:, :-1], windows[:, 1:]
    torch.cuda.synchronize()
    with counts.counting() as found:
        try:
            with (
                torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"),
                engines.use(trainer.settings.engine),
                torch.autocast("cuda", torch.bfloat16),
            ):
                trainer.forward(tokens, targets).backward()
        except Exception as error:
            lines = [line for line in found.lines if line.startswith("wait in a capture")]
            return next(iter(lines), str(error).partition("\n")[0])
    return ""


def entry_of(spec: str, way: str, recipe: Recipe, tokens: Tokens) -> dict[str, Any]:
    """The counts of a design; `memory` is the peak of all calls but the capture, in bytes."""
    torch.cuda.reset_peak_memory_stats()
    trainer = trainer_of(spec, way, recipe, tokens)
    trainer.evaluate()
    for step in range(WARM):
        trainer.step(step)
    found: dict[str, Any] = {"design": spec, "way": way}

    def steps() -> None:
        for step in range(WARM, WARM + STEPS):
            trainer.step(step)

    kept: dict[str, Any] = {}
    calls: dict[str, Callable[[], object]] = {
        "step": steps,
        "evaluation": trainer.evaluate,
        "checkpoint": lambda: kept.update(trainer.tensors()),
        "restoration": lambda: trainer.restore(kept),
    }
    for name, call in calls.items():
        torch.cuda.synchronize()
        made = counts.counted(call)
        found[name] = {"calls": made.calls, "lines": dict(made.lines)}
    for name, n in found["step"]["calls"].items():
        found["step"]["calls"][name] = n / STEPS
    predicted = of_step(trainer.spec, tokens, trainer.settings)
    found["memory"] = {"peak": torch.cuda.max_memory_allocated()}
    found["memory"]["predicted"] = predicted.peak if predicted else None
    if way == "eager":
        found["capture"] = capture(trainer)
    return found


def wrong_in(entry: dict[str, Any]) -> list[str]:
    """What must not be: waits in a step, pageable copies in an evaluation, no capture."""
    step, evaluation = entry["step"]["lines"], entry["evaluation"]["lines"]
    bad = [*step, *(line for line in evaluation if line.startswith("pageable"))]
    bad += [f"no capture: {why}"] if (why := entry.get("capture")) else []
    return [f"{entry['design']}, {entry['way']}: {line}" for line in bad]


def show(entry: dict[str, Any]) -> None:
    """A line of the table, and what waits."""
    calls = entry["step"]["calls"]
    launches = " + ".join(f"{calls[name]:,.0f}" for name in ("launches", "cublas", "triton"))
    others = "  ".join(
        f"{name} {sum(entry[name]['calls'][each] for each in ('pageable', 'waits'))}"
        for name in ("evaluation", "checkpoint", "restoration")
    )
    memory = "  ".join(f"{name} {(n or 0) / 1e6:,.1f} MB" for name, n in entry["memory"].items())
    print(
        f"{entry['design']:14} {entry['way']:8} {launches:>20}  replays {calls['replays']:.0f}  "
        f"waits {calls['waits']:.0f}  {others}  {memory}  {entry.get('capture', '')}"
    )
    sys.stdout.flush()


def main() -> None:
    """All designs of the registry."""
    parser = arguments("launches and waits of a step, by a stand-in for CUDA", rounds=1)
    parser.add_argument("designs", nargs="*", default=list(registry()))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager"])
    parser.add_argument("--recipe", default="quick", help="whose shape and batch are counted")
    given = parser.parse_args()
    if "libcuda.so.1" not in os.environ.get("LD_PRELOAD", ""):
        if torch.version.cuda is None:
            sys.exit(f"torch {torch.__version__} is built without CUDA: pip install torch")
        library = build.build(Path(tempfile.gettempdir()) / f"attnres-standin-{os.getuid()}")
        again = [sys.executable, *sys.argv]
        os.execve(sys.executable, again, build.variables(library))  # noqa: S606
    results: list[dict[str, Any]] = []
    document = {"benchmark": "counted", "torch": torch.__version__, "results": results}
    recipe, wrong = load(given.recipe), list[str]()
    tokens = sources.load(recipe)
    for spec in given.designs[:1] if given.quick else given.designs:
        for way in given.ways:
            entry = entry_of(spec, way, recipe, tokens)
            results.append(entry)
            show(entry)
            wrong += wrong_in(entry)
            save(document, given.json)
    for line in wrong:
        print(f"wrong: {line}")
    sys.stdout.flush()
    os._exit(1 if wrong else 0)  # torch aborts at exit, whose device is none


if __name__ == "__main__":
    main()
