"""Which recipes compute the same, however they were typed: they are one, and share their runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Optim
from attnres_cli.records.run import RunRecord, Settings


@cache
def computed(recipe: Recipe) -> str:
    """12 hex digits over what decides the losses at the end of runs: steps, not tokens. Precision
    and compiler are none of it, since a machine may decide them, nor is what changes no bit.
    """
    steps, train = recipe.steps, recipe.train
    own = {name: _optim(recipe.of(name).optim, steps) for name, _ in recipe.arms}
    shared, data = _optim(recipe.optim, steps), recipe.data.fixed()
    if not recipe.data.is_divided:
        del data["val_fraction"]
    fixed = {
        "model": recipe.model.shape(vocab_size=1).fixed(),
        "data": data,
        "optim": shared,
        "arms": {name: optim for name, optim in own.items() if optim != shared},
        "train": [steps, train.batch_size, train.rows, train.eval_tokens // recipe.model.seq_len],
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:12]


def _optim(optim: Optim, steps: int) -> dict[str, Any]:
    """What an optimiser does, fractions in the steps of train/optimizers.py."""
    held = optim.model_dump() | {"warmup": math.ceil(optim.warmup_fraction * steps)}
    if optim.schedule == "wsd":
        held["decay"] = max(1, round(optim.decay_fraction * steps))
    return {key: held[key] for key in held.keys() - {"warmup_fraction", "decay_fraction"}}


def may_agree(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes compute the same on some machine."""
    ways = ((each.train.precision, each.train.compile) for each in (one, other))
    same = all(a == b or "auto" in (a, b) for a, b in zip(*ways, strict=True))
    return same and computed(one) == computed(other)


def placed(held: Recipe, asked: Recipe) -> Recipe:
    """A recipe of a study with what the one asked for, which computes the same, says of here: its
    name, where its data are, and how ranks share a run. The digest does not see that.
    """
    of_data = {key: getattr(asked.data, key) for key in ("path", "val_path", "separator")}
    of_train = {key: getattr(asked.train, key) for key in ("parallel", "pipeline")}
    data, train = held.data.model_copy(update=of_data), held.train.model_copy(update=of_train)
    return held.model_copy(update={"name": asked.name, "data": data, "train": train})


def settings_of(records: Iterable[RunRecord]) -> dict[str, Settings]:
    """By recipe digest, how the first run of it was computed that has ended."""
    found: dict[str, Settings] = {}
    for run in records:
        if run.result is not None:
            found.setdefault(run.recipe_digest, run.result.settings)
    return found


def first_of(
    recipes: Mapping[str, Recipe], on: Mapping[str, Settings], fixed: Collection[str] = ()
) -> dict[str, str]:
    """By digest, that of the first recipe that computes the same; of the `fixed` ones before
    others. `on` says how runs of a recipe are computed, where that is known.
    """
    keys = {digest: _key(recipe, on.get(digest)) for digest, recipe in recipes.items()}
    first: dict[tuple[str, ...], str] = {}
    for digest in sorted(recipes, key=lambda each: each not in fixed):
        first.setdefault(keys[digest], digest)
    return {digest: first[key] for digest, key in keys.items()}


def _key(recipe: Recipe, on: Settings | None) -> tuple[str, ...]:
    train = recipe.train
    if on is None:
        return computed(recipe), train.precision, train.compile
    return computed(recipe), on.precision, on.compiler
