"""Resolution: the least multiple of compute that `attnres ablate` would see in five minutes.

    nice python benchmarks/resolution.py
    nice python benchmarks/resolution.py --set train.batch_size=32 --set optim.lr=8e-3 --seeds 5

It says how good a recipe is at telling designs apart, and is blind to who wins: no mean is printed.
Into a study that it keeps and continues, with the functions behind `attnres ablate`, in one process
of one thread, it trains the arms on `--seeds` seeds, and `standard` at half and at double the
tokens for the slope of its loss. The time of a run is CPU time of that thread: of a step, the
median over rounds in which arms take turns, and of an evaluation, each as often as a run has it.
So other programs on the machine do not lengthen it.

For each arm: the sd of its paired difference, with its 95 % interval, and what plans see of it with
80 % power, in nats and as a multiple of compute: the default before (four arms, three seeds, Holm's
strictest step), the default now (one arm, seven seeds, the first look of stats/sequential.py), and
one arm with as many seeds as five minutes on two cores have time for. Needs attnres installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import facts

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.config.shipped import suite
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.lab.comparing import Request, ablation
from attnres_cli.lab.experiment import Place
from attnres_cli.lab.study_view import Held
from attnres_cli.records.run import RunSpec
from attnres_cli.report.progress import OnStderr
from attnres_cli.stats.power import detectable, multiplier, noise
from attnres_cli.stats.sequential import ALPHA, LEAST_SEEDS, first_rate
from attnres_cli.store.store import Store
from attnres_cli.train.device import settings
from attnres_cli.train.trainer import Trainer

BASELINE = "standard"
SECONDS, CORES = 300, 2
BEFORE_SEEDS, SEEDS = 3, 7
TIMED_STEPS = 40


@dataclass(frozen=True)
class Arm:
    """An arm: the differences of its losses from the baseline's, and CPU seconds of a run."""

    name: str
    differences: tuple[float, ...]
    seconds: float


def train(recipe: Recipe, arms: Sequence[str], seeds: int, study: str) -> None:
    """Train what the study lacks, one run at a time on one thread."""
    request = Request(arms, tuple(range(seeds)), BASELINE, "tokens", False, Place(study, 1))
    ablation(request, recipe, OnStderr()).compared()


def run_seconds(recipe: Recipe, arms: Sequence[str], tokens: Tokens) -> dict[str, float]:
    """CPU seconds of one run of each arm, on one thread."""
    on = settings(recipe, "cpu", 1, run_flops=0.0)
    trainers = {
        arm: Trainer(RunSpec(recipe, arm, 0, tokens.fingerprint), tokens, on, torch.device("cpu"))
        for arm in arms
    }
    steps: dict[str, list[float]] = {arm: [] for arm in arms}
    for step in range(TIMED_STEPS + 2):
        for arm, trainer in trainers.items():
            steps[arm].append(_cpu(lambda t=trainer, n=step: t.step(n % recipe.steps).item()))
    n_evals = recipe.train.n_evals + 1  # the first is before the first step
    return {
        arm: recipe.steps * statistics.median(steps[arm][2:]) + n_evals * _cpu(trainer.evaluate)
        for arm, trainer in trainers.items()
    }


def _cpu(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def measured(recipe: Recipe, arms: Sequence[str], study: str) -> tuple[list[Arm], float | None]:
    """The arms, the baseline first, and the slope, from the study."""
    tokens = sources.load(recipe)
    seconds = run_seconds(recipe, arms, tokens)
    store = Store.open(study, create=False)
    held = Held(store, study, store.runs(curves=False))
    chosen = held.choose(f"{recipe.digest}@{tokens.fingerprint}", BASELINE)
    comparison = held.comparisons(chosen)[0]
    base = {arm.variant: arm.losses for arm in comparison.arms}[BASELINE]
    found = [Arm(BASELINE, (), seconds[BASELINE])]
    for arm in comparison.arms:
        if arm.variant != BASELINE and arm.variant in seconds:
            shared = sorted(arm.losses.keys() & base.keys())
            pairs = tuple(arm.losses[seed] - base[seed] for seed in shared)
            found.append(Arm(arm.variant, pairs, seconds[arm.variant]))
    return found, comparison.rules.slope


def report(arms: Sequence[Arm], slope: float) -> None:
    """The tables."""
    base, *others = arms
    print(f"{'arm':36}{'s per run':>10}{'sd of the difference':>32}")
    print(f"{base.name:36}{base.seconds:10.1f}")
    for arm in others:
        spread = noise(arm.differences)
        low, high = spread.ci95
        text = f"{spread.sd:.4f} [{low:.4f}, {high:.4f}] of {spread.n}"
        print(f"{arm.name:36}{arm.seconds:10.1f}{text:>32}")
    print(f"\n{'plan':36}{'arm':36}{'sees':>7}  resolution")
    for arm in others:
        spread = noise(arm.differences)
        for name, n, rate in _plans(int(SECONDS * CORES / (base.seconds + arm.seconds))):
            sees = [detectable(n, sd, rate) for sd in (spread.sd, *spread.ci95)]
            worth, low, high = (multiplier(each, slope) for each in sees)
            text = f"{worth:.3f}x [{low:.2f}, {high:.2f}]"
            print(f"{name:36}{arm.name:36}{sees[0]:7.4f}  {text}")


def _plans(fitting: int) -> list[tuple[str, int, float]]:
    """Name, seeds and rate of one arm; `fitting` seeds of one arm beside the baseline take all of
    the time.
    """
    found = [
        (f"before: 4 arms x {BEFORE_SEEDS} seeds", BEFORE_SEEDS, ALPHA / 4),
        (f"now: 1 arm x {SEEDS} seeds", SEEDS, first_rate(1)),
    ]
    if fitting >= LEAST_SEEDS:
        found.append((f"5 minutes: 1 arm x {fitting} seeds", fitting, first_rate(1)))
    return found


def main() -> None:
    """Train, then tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--recipe", default="quick")
    parser.add_argument(
        "--set", action="append", default=[], help="key=value, as of attnres ablate"
    )
    parser.add_argument("--arms", nargs="+", default=suite("quick"))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="on which arms are trained")
    parser.add_argument("--slope-seeds", type=int, default=3)
    parser.add_argument("--study", default="resolution.db")
    typed = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])  # one thread, whatever it asks
    torch.set_num_threads(1)
    recipe = load(typed.recipe, typed.set)
    train(recipe, typed.arms, typed.seeds, typed.study)
    for tokens in (recipe.train.tokens // 2, recipe.train.tokens * 2):
        train(recipe.at(tokens), [BASELINE], typed.slope_seeds, typed.study)
    arms, slope = measured(recipe, typed.arms, typed.study)
    if slope is None:
        sys.exit("the loss of the baseline does not fall with its tokens: no resolution")
    text = ", ".join(f"{key} {value}" for key, value in facts(torch.device("cpu"), 1).items())
    print(f"{typed.recipe} {' '.join(typed.set)}: {recipe.steps} steps; {text}")
    print(f"slope of {BASELINE}: {slope:.3f} nats per e-fold of tokens\n")
    report(arms, slope)


if __name__ == "__main__":
    main()
