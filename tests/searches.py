"""Searches as Optuna and training would leave them: losses with a valley over the aspect."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import studies
from studies import VERSIONS

from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.search_records import Family, Search, State, Trial
from attnres_cli.stats.optima import likeliest_common

FINGERPRINT = "0123456789abcdef"
SHAPES = tuple(
    (n_layers, d_model, max(1, round(n_layers * heads)))
    for n_layers, d_model in ((14, 232), (9, 288), (7, 328), (6, 354), (5, 384))
    for heads in (0.3, 0.5, 0.7)
)
"""Layers, width and heads."""

SETTINGS = studies.SETTINGS
_SIZES = {"steps": 400, "tokens": 439_296, "n_params": 9_000_000, "flops_per_token": 19_000_000}
RESULT = replace(studies.RESULT, step_s=0.05, train_s=5.0, curve=(), **_SIZES)
OPTIMA = {"standard": 60.0, "attnres": 30.0}
"""The aspect at which each variant's valley is deepest."""


def trial(number: int, variant: str, sizes: tuple[int, int, int], **changes: object) -> Trial:
    """A complete trial of these layers, this width and so many heads."""
    n_layers, d_model, n_heads = sizes
    dimensions = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads}
    dimensions |= {"d_ff": 8 * d_model // 3, "aspect": d_model / n_layers}
    dimensions |= {"heads_per_layer": n_heads / n_layers, "tokens": 439_296}
    made = Trial(
        number=number,
        state=State.COMPLETE,
        dimensions=dimensions,
        variant=variant,
        recipe_digest=f"{n_layers:04x}{d_model:04x}{n_heads:04x}",
        n_params=12 * n_layers * d_model**2 + 256 * d_model,
        flops=72.0 * n_layers * d_model**2 * 439_296,
        values=(1.7,),
    )
    return replace(made, **changes)


def run(of: Trial, seed: int, loss: float, **changes: object) -> RunRecord:
    """The ended run of a trial's shape on a seed; a nan diverged."""
    status = Status.DIVERGED if math.isnan(loss) else Status.COMPLETE
    step_s = 0.004 * float(of.dimensions["n_layers"]) + 0.02 * (of.variant != "standard")
    result = replace(RESULT, val_loss=loss, status=status, step_s=step_s)
    identity = (of.recipe_digest, of.variant, seed, FINGERPRINT)
    made = RunRecord(1, "quick", *identity, status=status, result=result, versions=VERSIONS)
    return replace(made, **changes)


def search(families: Iterable[Family], **changes: object) -> Search:
    asked = {"recipe": "quick", "recipe_digest": "5821f707fa1b", "fingerprint": FINGERPRINT}
    asked |= {"space": "aspect=15..75,heads_per_layer=0.3..0.7", "budget": "params=9M"}
    asked |= {"tolerance": 0.02, "n_trials": 18, "first_seed": 0, "confirm_seeds": (1, 2, 3)}
    asked |= {"learning_rate": "the recipe's 0.01 at every shape: not scaled with width"}
    asked |= {"name": "5ea4c0ffee12", "objectives": ("val_loss",), "families": tuple(families)}
    return Search(**(asked | changes))


def family(variant: str, trials: Sequence[Trial], **changes: object) -> Family:
    return replace(Family(variant, tuple(trials), "grid: 15 shapes, 18 trials"), **changes)


def valleys(
    optima: Mapping[str, float] = OPTIMA,
    *,
    depth: float = 0.15,
    noise: float = 0.004,
    confirmed: int = 3,
    seeds: tuple[int, ...] = (1, 2, 3),
    seed: int = 0,
) -> tuple[Search, list[RunRecord]]:
    """A search with a valley in log(aspect) for each variant, with all of its runs, a failed trial
    and a running one. The best shapes of each variant by first look, and those likeliest to be best
    for two, are trained with fresh seeds for all variants.
    """
    random = np.random.default_rng(seed)
    luck = {s: random.normal(0, 0.02) for s in (0, *seeds)}
    found: dict[str, list[Trial]] = {}
    records: list[RunRecord] = []

    def loss(of: Trial, variant: str, s: int) -> float:
        away = math.log(float(of.dimensions["aspect"]) / optima[variant])
        heads = 0.03 * (float(of.dimensions["heads_per_layer"]) - 0.3)
        lower = 0.03 * (variant != "standard")
        return 1.6 - lower + depth * away**2 + heads + luck[s] + random.normal(0, noise)

    for variant in optima:
        trials = [trial(number, variant, sizes) for number, sizes in enumerate(SHAPES)]
        losses = {t.recipe_digest: loss(t, variant, 0) for t in trials}  # once for each shape
        trials = [replace(t, values=(losses[t.recipe_digest],)) for t in trials]
        records += [run(t, 0, t.values[0]) for t in trials]
        found[variant] = trials
    sizes = {
        t.recipe_digest
        for trials in found.values()
        for t in sorted(trials, key=lambda t: t.values[0])[:confirmed]
    }
    first = [{t.recipe_digest: t.values[0] for t in trials} for trials in found.values()]
    common = {d for two in itertools.combinations(first, 2) for d in likeliest_common(*two)}
    for digests in (sizes, common - sizes):
        for variant, trials in found.items():
            for t, s in itertools.product(trials, seeds):
                if t.recipe_digest in digests:
                    records.append(run(t, s, loss(t, variant, s)))
    families = [family(variant, _with_others(trials)) for variant, trials in found.items()]
    for other in families:
        records.append(_failure(other.trials[-2]))
    numbered = [replace(record, id=number) for number, record in enumerate(records, 1)]
    return search(families, confirm_seeds=seeds), numbered


def timed(made: Search) -> Search:
    """That search for a short step too: 4 ms per layer."""

    def step(t: Trial) -> Trial:
        return replace(t, values=(*t.values, 0.004 * t.dimensions["n_layers"])) if t.values else t

    families = (replace(held, trials=tuple(map(step, held.trials))) for held in made.families)
    return replace(made, families=tuple(families), objectives=("val_loss", "step_time"))


def _with_others(trials: Sequence[Trial]) -> list[Trial]:
    """These trials and two without an answer: one failed, one running."""
    found = list(trials)
    for state, sizes in (State.FAILED, (4, 96, 2)), (State.RUNNING, (16, 144, 8)):
        found.append(trial(len(found), trials[0].variant, sizes, state=state, values=()))
    return found


def _failure(of: Trial) -> RunRecord:
    error = "Traceback (most recent call last):\nRuntimeError: out of memory on <device 0>"
    return run(of, 0, 1.0, status=Status.FAILED, error=error, result=None, versions={})
