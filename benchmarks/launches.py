"""What a step costs on a GPU, eager, compiled, and by CUDA graphs, with its launches and waits.

    python benchmarks/launches.py --json launches.json
    python benchmarks/launches.py quick:standard quick:mudd large:attnres --ways eager compile

`quick` is the shape of that recipe; `large` has 16 layers of width 1024 and windows of 2,048
tokens. All is bfloat16, with the fused kernels. A design makes its step (forward, backward, clip,
fused AdamW) in several ways: `eager`; `compile`, torch.compile; `graphs`, torch.compile with
mode="reduce-overhead", which replays CUDA graphs. Launches, copies and waits of an eager step are
the calls to CUDA that torch's profiler sees. `off` is the largest difference of the losses of four
steps from those of the formula in float32, eager; for `large`, from the eager kernels.

Designs are compiled by a process each, all at once, and take turns when all are ready.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import sys
import threading
from collections import Counter
from multiprocessing.synchronize import Barrier, Semaphore
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import (
    Setting,
    Training,
    arguments,
    facts,
    failure,
    save,
    shape_of,
    spread_text,
    started,
)

from attnres_cli.nn import cost, measure
from attnres_cli.nn.depthmix import engines

PATIENCE_S = 180
"""For which the first design that is compiled waits for the last."""
WAYS = {"eager": None, "compile": "default", "graphs": "reduce-overhead"}
SHAPES = {
    "quick": (shape_of(6, 64, 64, 256, d_head=16), 16, tuple(WAYS)),
    "large": (shape_of(16, 1024, 2048, 32768), 4, ("compile",)),
}
"""Shapes, sequences of a batch, and the ways for which there is memory beside each other."""
CASES = (
    "large:standard", "large:attnres", "large:attnres:block_size=4", "quick:standard",
    "quick:attnres", "quick:attnres:block_size=4", "quick:hc", "quick:mudd", "quick:vres",
)  # fmt: skip


def training(case: str, way: str, engine: str, device: torch.device) -> Training:
    """A design in one of the ways."""
    name, _, spec = case.partition(":")
    shape, batch, _ = SHAPES[name]
    precision = "fp32" if engine == "reference" else "bf16"
    made = Training(spec, engine, Setting(name, shape, batch, precision, False, ()), device)
    if WAYS[way] is not None:
        made.forward = torch.compile(made.model, dynamic=False, mode=WAYS[way])
    return made


def losses(made: Training) -> list[float]:
    """Of four steps."""
    found = []
    for _ in range(4):
        loss = made.loss()
        found.append(loss.item())
        loss.backward()
        made.update()
    return found


def calls_of(made: Training) -> dict[str, int]:
    """Calls to CUDA in a step that launch, copy or wait."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        made.step()
    torch.cuda.synchronize()
    names = Counter(event.name for event in profile.events() if event.name.startswith("cu"))
    kinds = {"launches": "Launch", "copies": "Memcpy", "waits": "StreamSynchronize"}
    return {
        kind: sum(n for name, n in names.items() if word in name) for kind, word in kinds.items()
    }


def made_in(case: str, ways: list[str], device: torch.device) -> tuple[dict[str, Training], Any]:
    """What can be timed of a design, and its entry."""
    cuda = device.type == "cuda"
    engine = "triton" if cuda and engines.has_triton() else "eager"
    oracle = engine if case.startswith("large") else "reference"
    right = losses(training(case, "eager", oracle, device))
    if cuda:
        torch.cuda.empty_cache()
    made: dict[str, Training] = {}
    entry: dict[str, Any] = {"case": case}
    for way in SHAPES[case.partition(":")[0]][2]:
        if way not in ways:
            continue
        try:
            candidate = training(case, way, engine, device)
            found = losses(candidate)
            entry[way] = {"off": max(abs(a - b) for a, b in zip(found, right, strict=True))}
            made[way] = candidate
        except Exception as error:  # the others go on
            entry[way] = {"wrong": failure(error, device)}
    return made, entry


def measured(
    case: str, ways: list[str], rounds: int, kind: str, ready: Barrier,
    turn: Semaphore, next_turn: Semaphore, answers: Any,
) -> None:  # fmt: skip
    """One design's entry, put into `answers`."""
    torch.set_num_threads(1)
    measure.allow_compiling()
    device = torch.device(kind)
    try:
        made, entry = made_in(case, ways, device)
    except Exception as error:  # it takes no turns, but lets the next one have theirs
        made, entry = {}, {"case": case, "wrong": failure(error, device)}
    calls = {way: each.step for way, each in made.items()}
    times: dict[str, list[float]] = {way: [] for way in made}
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait(PATIENCE_S)
    for _ in range(rounds):
        turn.acquire(timeout=PATIENCE_S)
        for way, (seconds,) in measure.in_turn(calls, 1, device).items():
            times[way].append(seconds)
        next_turn.release()
    turn.acquire(timeout=PATIENCE_S)
    for way, seconds in times.items():
        entry[way] |= {"step_s": cost.spread(tuple(seconds))._asdict(), "seconds": seconds}
    if kind == "cuda" and "eager" in made:
        entry["calls"] = calls_of(made["eager"])
    next_turn.release()
    answers.put(entry)


def main() -> None:
    """All designs, in processes of their own."""
    parser = arguments("a step eager, compiled and by CUDA graphs; launches and waits", rounds=41)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="SHAPE:DESIGN")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    given = parser.parse_args()
    device = started(1, given.device)
    start, n = multiprocessing.get_context("spawn"), len(given.cases)
    ready, answers = start.Barrier(n), start.Queue()
    turns = [start.Semaphore(int(i == 0)) for i in range(n)]
    rounds = 3 if given.quick else given.rounds
    workers = [
        start.Process(
            target=measured,
            args=(
                case, given.ways, rounds, given.device, ready, turns[i], turns[(i + 1) % n], answers
            ),
        )
        for i, case in enumerate(given.cases)
    ]  # fmt: skip
    for worker in workers:
        worker.start()
    document = {"benchmark": "launches", "machine": facts(device, 1), "results": []}
    with contextlib.suppress(queue.Empty):
        while len(document["results"]) < n:
            document["results"].append(answers.get(timeout=2 * PATIENCE_S))
            _print(document["results"][-1])
            save(document, given.json)
    for worker in workers:
        worker.kill()


def _print(entry: dict[str, Any]) -> None:
    calls = "  ".join(f"{kind} {n}" for kind, n in entry.get("calls", {}).items())
    print(f"{entry['case']:28} {entry.get('wrong', calls)}")
    for way in WAYS:
        found = entry.get(way, {})
        if "step_s" in found:
            spread = cost.Spread(**found["step_s"])
            print(f"  {way:8} {spread_text(spread, 1000, 2):>26} ms, off {found['off']:.1e}")
        elif found:
            print(f"  {way:8} {found['wrong']}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
