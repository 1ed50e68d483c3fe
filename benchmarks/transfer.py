"""Whether a learning rate that was tuned on a small model serves wider and deeper ones.

    python benchmarks/transfer.py coordinates --json coordinates.json
    python benchmarks/transfer.py rates --json rates.json
    python benchmarks/transfer.py tables coordinates.json rates.json

`coordinates` trains ten steps at widths 32 to 512 and depths 4 to 32, and tells how the sizes of
activations, logits and their changes go with the model's: exponents, 0 where they are flat.
`rates` trains 200k tokens at five rates a factor of 1.41 apart, two seeds each, at the base (32
wide, 4 layers), 128 wide, and 16 layers deep: by how many steps of the grid the best rate moves.
Both add to the file that they are given what it does not hold yet, so that they can be stopped.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.data import sources
from attnres_cli.nn import variant
from attnres_cli.records.run import RunSpec
from attnres_cli.stats.optima import parabola_vertex
from attnres_cli.train.device import settings as settings_of
from attnres_cli.train.trainer import Trainer

BASE = (32, 4)  # d_model, n_layers
WIDTHS, DEPTHS = (32, 64, 128, 256, 512), (4, 8, 16, 32)
SIZES = {"base": BASE, "128 wide": (128, 4), "16 layers": (32, 16)}
RATES = tuple(0.0226 * math.sqrt(2) ** k for k in range(-2, 3))
SEEDS = (0, 1)
TOKENS = 200_000
STEPS, SMALL, LONG = 4, 1e-3, 1_000_000  # of coordinates: few, that change little, of a long run
DESIGNS = {  # what each adds trains at so many times the rate, as it was tuned on `quick`
    "standard": 1, "attnres": 1, "denseformer": 10, "mudd": 1, "vres": 1,
    "attnres:block_size=4": 1, "mhc": 1, "hc": 1, "x0": 30, "attnres+vres": 1,
}  # fmt: skip
WAYS = [
    ("standard", "completep"), ("attnres", "completep"), ("standard", "none"),
    ("attnres", "mup"), *((spec, "completep") for spec in list(DESIGNS)[2:]),
]  # fmt: skip
"""Designs and transfers, in the order in which they are trained."""

Task = tuple[str, str, int, int, float, int]
"""Design, transfer, width, layers, learning rate, seed."""


def recipe_of(task: Task, tokens: int, warmup: float) -> Recipe:
    """What a task is trained under: heads of 16 numbers, as many as the width has."""
    spec, transfer, width, layers, lr, _ = task
    model = {"n_layers": layers, "d_model": width, "n_heads": width // 16, "seq_len": 64}
    base = {"d_model": BASE[0], "n_layers": BASE[1]}
    optim = {"lr": lr, "warmup_fraction": warmup, "design_lr_scale": float(DESIGNS[spec])}
    if transfer != "none":
        optim |= {"transfer": transfer, "base": base}
    train = {"tokens": tokens, "batch_size": 16, "eval_tokens": 65536, "n_evals": 1}
    sections = {"model": model, "data": {"edition": 2}, "optim": optim, "train": train}
    return validate(sections, "transfer")


def trainer_of(task: Task, tokens: int, warmup: float) -> Trainer:
    """A trainer before its first step."""
    torch.set_num_threads(1)
    recipe = recipe_of(task, tokens, warmup)
    data = sources.load(recipe)
    settings = settings_of(recipe, "cpu", 1, 0.0)
    name = str(variant.parse(task[0]))
    spec = RunSpec(recipe, name, task[-1], data.fingerprint)
    return Trainer(spec, data, settings, torch.device("cpu"))


def loss_of(task: Task) -> float:
    """The validation loss at the end, nats per token."""
    trainer = trainer_of(task, TOKENS, warmup=0.2)
    for step in range(trainer.spec.recipe.steps):
        trainer.step(step)
    return trainer.evaluate()


def coordinates_of(task: Task) -> dict[str, float]:
    """Root mean squares after some steps at the full rate: of what the head sees before its norm,
    of the change of what it sees after it, of logits, and of their change.
    """
    trainer = trainer_of(task, LONG, warmup=0)
    seen = torch.from_numpy(next(iter(trainer.tokens.eval_batches(4096, 16, 64))))[:, :-1]
    before = _looked_at(trainer, seen)
    for step in range(STEPS):
        trainer.step(step)
    after = _looked_at(trainer, seen)
    return {
        "stream": _size(after[0]),
        "logits": _size(after[2]),
        "change of hidden": _size(after[1] - before[1]),
        "change of logits": _size(after[2] - before[2]),
    }


@torch.no_grad()
def _looked_at(trainer: Trainer, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    model = trainer.model
    state = model.residual.start(model.embedded(tokens))
    state = model.advance(state, range(1, len(model.sublayers) + 1))
    stream = model.residual.finish(state)
    hidden = model.norm(stream)
    return stream, hidden, model.head(hidden)


def _size(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def tasks_of_rates() -> Iterator[Task]:
    """All, at the base once: there is nothing to transfer."""
    for (spec, transfer), size, lr, seed in product(WAYS, SIZES.values(), RATES, SEEDS):
        if transfer == "completep" or size != BASE:
            yield spec, transfer, *size, round(lr, 5), seed


def tasks_of_coordinates() -> Iterator[Task]:
    """Widths at the base's depth, depths at the base's width."""
    sizes = dict.fromkeys([*((w, 4) for w in WIDTHS), *((32, n) for n in DEPTHS)])
    for (spec, transfer), size, seed in product(WAYS, sizes, SEEDS):
        yield spec, transfer, *size, SMALL, seed


def completed(path: Path, kind: str, workers: int) -> None:
    """Train what the file does not hold yet, and write each result as it comes."""
    tasks, of = {
        "rates": (tasks_of_rates, loss_of),
        "coordinates": (tasks_of_coordinates, coordinates_of),
    }[kind]
    held = {tuple(row[:-1]) for row in read(path)}
    missing = [task for task in tasks() if task not in held]
    with ProcessPoolExecutor(workers) as pool, path.open("a", encoding="utf-8") as file:
        for task, found in zip(missing, pool.map(of, missing), strict=True):
            file.write(json.dumps([*task, found]) + "\n")
            file.flush()
            print(*task, found, flush=True)


def read(path: Path) -> list[list[Any]]:
    """The rows of a file, if it is there."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the sizes that values go with."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def coordinate_table(rows: list[list[Any]]) -> Iterator[str]:
    """A row of exponents for each design and transfer."""
    names = ("stream", "logits", "change of hidden", "change of logits")
    yield "| design, transfer | " + " | ".join(f"{n}: width, depth" for n in names) + " |"
    yield "|---" * (1 + len(names)) + "|"
    for spec, transfer in dict.fromkeys((r[0], r[1]) for r in rows):
        mine = [r for r in rows if (r[0], r[1]) == (spec, transfer)]
        cells = []
        for name in names:
            over = [_mean_by(mine, name, 2, BASE[1]), _mean_by(mine, name, 3, BASE[0])]
            cells.append(", ".join(f"{exponent(*zip(*each, strict=True)):+.2f}" for each in over))
        yield f"| `{spec}`, {transfer} | {' | '.join(cells)} |"


def _mean_by(rows: list[list[Any]], name: str, at: int, other: int) -> list[tuple[float, float]]:
    """(size, mean over seeds) over one of width (2) and depth (3), the other at the base."""
    sizes = sorted({r[at] for r in rows if r[5 - at] == other})
    of = {s: [r[-1][name] for r in rows if r[at] == s and r[5 - at] == other] for s in sizes}
    return [(size, fmean(values)) for size, values in of.items()]


def rate_table(rows: list[list[Any]]) -> Iterator[str]:
    """Losses by rate, and by how many steps of the grid the best one lies from the base's."""
    rates = ", ".join(f"{lr:.3g}" for lr in RATES)
    yield f"Mean losses at the rates {rates}; the best rate, and its move from the base's:\n"
    yield f"| design, transfer | {' | '.join(SIZES)} |"
    yield "|---" * (1 + len(SIZES)) + "|"
    for spec, transfer in WAYS:
        cells, base = [], None
        for size in SIZES.values():
            losses = by_rate(rows, (spec, "completep" if size == BASE else transfer, *size))
            if losses is None:
                break
            where = best(losses)
            base = where if base is None else base
            moved = "" if size == BASE else f", {where - base:+.1f}"
            shown = " ".join(f"{loss:.3f}" for loss in losses)
            cells.append(f"{shown}; {RATES[2] * 2 ** (where / 2):.3g}{moved}")
        if len(cells) == len(SIZES):
            yield f"| `{spec}`, {transfer} | {' | '.join(cells)} |"


def by_rate(rows: list[list[Any]], of: tuple[str, str, int, int]) -> list[float] | None:
    """Mean losses at each rate; None where not all have been trained."""
    found = {r[4]: [] for r in rows if tuple(r[:4]) == of}
    for r in rows:
        if tuple(r[:4]) == of:
            found[r[4]].append(r[-1])
    every = [found.get(round(lr, 5), []) for lr in RATES]
    return [fmean(each) for each in every] if all(len(e) == len(SEEDS) for e in every) else None


def best(losses: list[float]) -> float:
    """Where the loss is least, in steps from the middle of the grid: the vertex of the parabola
    through the best rate and its neighbours, or the rate itself at an edge.
    """
    at = min(range(len(losses)), key=losses.__getitem__)
    if not 0 < at < len(losses) - 1:
        return at - 2
    found = parabola_vertex([at - 1.0, float(at), at + 1.0], losses[at - 1 : at + 2])
    return (at if found is None else found) - 2


def main() -> None:
    """Train, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("coordinates", "rates", "tables"))
    parser.add_argument("files", nargs="*", type=Path, help="of coordinates and rates, for tables")
    parser.add_argument("--json", type=Path, help="what is added to")
    parser.add_argument("--workers", type=int, default=2)
    typed = parser.parse_args()
    if typed.what == "tables":
        of_coordinates, of_rates = map(read, typed.files)
        print("\n".join([*coordinate_table(of_coordinates), "", *rate_table(of_rates)]))
    else:
        completed(typed.json, typed.what, typed.workers)


if __name__ == "__main__":
    main()
