"""What tuning chose for each design of a study: the tables and the figure of docs/results/rates.md.

    xz -dk docs/results/rates.db.xz
    python benchmarks/rates.py docs/results/rates.db --figure docs/results/multipliers.svg

The study is one by `attnres ablate --plan rates`, finished or not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from math import isfinite
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from attnres_cli.config.arms import LR, SCALE
from attnres_cli.config.recipe import load
from attnres_cli.lab.protocol import SEEDS, decided
from attnres_cli.lab.tune import losses_of
from attnres_cli.records.comparison_terms import Trial, Tuned, settings_text
from attnres_cli.records.run import RunRecord
from attnres_cli.report.figures import comparison
from attnres_cli.report.figures.drawing import Drawing, picture
from attnres_cli.report.figures.style import house_style
from attnres_cli.store.store import Store
from attnres_cli.verdict.caveats import OF_MOVING
from attnres_cli.verdict.numbers import interval

SHARED = load("quick", ["optim.lr=8e-3"]).optim
DRAWN = ("attnres", "attnres:score=static", "denseformer", "x0", "unet", "layerscale")

Settings = dict[tuple[tuple[str, float], ...], list[RunRecord]]
"""By the keys that differ from the shared recipe, `optim.lr` first: the runs, by seed."""


def settings_of(store: Store) -> dict[str, Settings]:
    """By design, what was tried on all tuning seeds."""
    found: dict[str, Settings] = {}
    before = SHARED.model_dump()
    for run in sorted(store.runs(curves=False), key=lambda run: run.seed):
        if run.seed in SEEDS and run.result is not None:
            now = store.recipe(run.recipe_digest).optim.model_dump()
            own = [(f"optim.{k}", now[k]) for k in now if k != "lr" and now[k] != before[k]]
            key = ((LR, now["lr"]), *own)
            found.setdefault(run.variant, {}).setdefault(key, []).append(run)
    return {
        variant: {key: runs for key, runs in tried.items() if len(runs) == len(SEEDS)}
        for variant, tried in found.items()
    }


def tuned(tried: Settings) -> Tuned | None:
    """What the protocol decides; None where a design has not all of its runs."""
    trials = [
        Trial(key, tuple(loss if isfinite(loss) else None for loss in losses_of(runs).values()))
        for key, runs in tried.items()
    ]
    rates = sorted((each for each in trials if len(each.changes) == 1), key=lambda e: e.changes)
    more = [each for each in trials if len(each.changes) > 1]
    more.sort(key=lambda each: each.changes[1])
    if len(more) < 3:
        return None
    is_line = all(key == SCALE for each in more for key, _ in each.changes[1:])
    return decided(SHARED.lr, rates, more, on_a_line=is_line)


def row(variant: str, how: Tuned) -> str:
    """Losses by rate and by second number, and what was chosen."""
    rates = ", ".join(
        f"{lr:g} {_mean(loss)}" for lr, loss in zip(how.rates, how.losses, strict=True)
    )
    more = ", ".join(f"{settings_text(e.changes)} {_mean(e.mean)}" for e in how.second)
    missed = "an edge was best" if how.is_on_edge else f"{how.regret:.4f}"
    return f"| `{variant}` | {rates} | {more} | {how.text} | {missed} |"


def _mean(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.4f}"


def moved(store: Store, variant: str, tried: Settings, how: Tuned) -> list[str]:
    """How far each parameter moved at the best rate, by multiplier."""
    known = [pair for pair in zip(how.losses, how.rates, strict=True) if pair[0] is not None]
    rate = min(known)[1]
    shares: dict[str, list[str]] = {}
    for key in sorted(key for key in tried if key[0] == (LR, rate)):
        probes = store.probes([run.id for run in tried[key]], only=OF_MOVING)
        last = [each[-1] for each in probes.values() if each]
        names = last[0].added.split(", ") if last else []
        for name, each in zip(names, zip(*(p.moved for p in last), strict=True), strict=True):
            shares.setdefault(name, []).append(f"{fmean(each):.3f}")
    return [f"| `{variant}`: {name} | {' | '.join(each)} |" for name, each in shares.items()]


def draw(found: dict[str, Tuned], path: Path) -> None:
    """Loss against the multiplier."""
    arms = [SimpleNamespace(variant=v, own=SimpleNamespace(how=found[v])) for v in DRAWN]
    chapter = SimpleNamespace(comparison=SimpleNamespace(arms=arms, baseline="standard"))
    with house_style():
        figure = comparison.draw_multipliers(chapter)
    drawing = Drawing("multipliers", "Learning rate of what a design adds", "", figure)
    path.write_bytes(picture(drawing, path.suffix.removeprefix(".")))


def on_three_terms(told: dict[str, Any]) -> list[str]:
    """A row for each arm of a tuned report in JSON: its difference at the shared rate, at its own
    and at its own settings, and the verdict of the last.
    """
    rows = []
    for arm in told["arms"]:
        beside = arm.get("beside", {})
        found = [beside.get("shared"), beside.get("own_rate"), arm["difference"]]
        cells = [_difference(each) for each in found]
        rows.append(f"| `{arm['variant']}` | {' | '.join([*cells, arm['verdict']])} |")
    return rows


def _difference(one: dict[str, Any] | None) -> str:
    return "-" if one is None else interval(one["mean"], one["interval"], "+.4f")


def compared(study: str) -> list[str]:
    """The rows of the study's tuned comparison, once it has all of its runs; else none."""
    digest = load("quick", ["optim.lr=8e-3"]).at_rate(SHARED.lr).digest
    command = [sys.executable, "-m", "attnres_cli", "report", "--study", study, "--format", "json"]
    done = subprocess.run([*command, "--recipe", digest, "-q"], capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        return [done.stderr.strip()]
    told = json.loads(done.stdout)
    every = [told, *told["more"]]
    return [row for one in every if one["terms"]["is_tuned"] for row in on_three_terms(one)]


def main() -> None:
    """Print the tables; draw the figure if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study")
    parser.add_argument("--figure", type=Path)
    typed = parser.parse_args()
    store = Store.open(typed.study, create=False)
    tried = settings_of(store)
    found = {variant: how for variant, each in tried.items() if (how := tuned(each)) is not None}
    print("\n".join(row(variant, how) for variant, how in found.items()), "\n")
    for variant, how in found.items():
        print("\n".join(moved(store, variant, tried[variant], how)))
    print("\n".join(["", *compared(typed.study)]))
    if typed.figure:
        draw(found, typed.figure)


if __name__ == "__main__":
    main()
