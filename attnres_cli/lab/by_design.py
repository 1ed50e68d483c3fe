"""Settings by design: a plan at those of a recipe, and the recipe of those found here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from textwrap import wrap

from attnres_cli.config import address
from attnres_cli.config.arms import LR, SCALE, place_of
from attnres_cli.config.as_typed import as_yaml
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError
from attnres_cli.files import slug
from attnres_cli.lab.tune import adds_parameters
from attnres_cli.records.comparison_terms import BY_DESIGN, Given, Tuned
from attnres_cli.records.plan import Plan
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import Comparison


def by_design(plan: Plan) -> Plan:
    """The plan with each arm at its recipe's settings for it; unchanged where all share them. What
    adds no parameters has no use for a multiplier of their rate, and is the same run without.
    """
    if not plan.recipe.arms and plan.recipe.optim.design_lr_scale == 1:
        return plan
    own, regret, arms = dict(plan.recipe.arms), dict(plan.recipe.regret), []
    for arm in plan.arms:
        recipe, mine = plan.recipe.of(arm.variant), dict(own.get(arm.variant, ()))
        mine.pop(LR, None)
        if recipe.optim.design_lr_scale != 1 and not adds_parameters(arm, recipe):
            recipe = recipe.changed((SCALE, 1.0))
            mine.pop(SCALE, None)
        how = Given(
            recipe.optim.lr,
            is_own=arm.variant in own,
            changes=tuple(mine.items()),
            regret=regret.get(arm.variant),
            is_on_edge=arm.variant in regret and regret[arm.variant] is None,
        )
        arms.append(replace(arm, recipe=recipe, how=how))
    return replace(plan, arms=tuple(arms), terms=BY_DESIGN)


def write(recipe: Recipe, found: Sequence[Comparison | None], study: str) -> Path:
    """Write the recipe with the settings of these tuned comparisons, one of each of its sizes that
    was tuned; return where:
    NAME-tuned.yaml beside a study in a file, else here; NAME-tuned-2.yaml and so on where a file
    has other content. Raises UsageError where nothing can be written.
    """
    folder = Path() if address.is_url(study) else address.file_of(study).parent
    stem, text = slug(recipe.name).removesuffix("-tuned"), text_of(recipe, found)
    for number in count(1):
        path = folder / f"{stem}-tuned{f'-{number}' if number > 1 else ''}.yaml"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if not (path.is_file() and path.read_bytes() == text.encode()):
                continue
        except OSError as error:
            raise UsageError(
                f"settings by design: {path} cannot be written: {error.strerror}"
            ) from None
        return path
    raise AssertionError


def text_of(recipe: Recipe, of_sizes: Sequence[Comparison | None]) -> str:
    """The whole recipe as YAML, with the settings of these tuned comparisons, and how they were
    found. Those of a ladder's sizes stand with each size.
    """
    arms_of = [_arms(each) if each else {} for each in of_sizes]
    found = [_ordered(each) for each in of_sizes if each]
    told = ["Settings by design, found by `attnres ablate --tune-lr`."]
    for each in found:
        what = f"{labels.tokens(each)}, {labels.name(each.terms)}"
        told += [f"recipe {each.recipe} ({each.recipe_digest}), {what}", *labels.lines(each)]
    lines = [f"# {part}" for line in told for part in wrap(line, 97, subsequent_indent="  ")]
    arms = list(dict.fromkeys(name for each in arms_of for name in each))
    top = recipe.model_dump(include={"description", "margin", "slope"}) | {"variants": arms}
    top["regret"] = _regrets(found)
    lines += [f"{key}: {as_yaml(value)}" for key, value in top.items() if value]
    if recipe.ladder:
        lines.append("ladder:")
        for rung, own in zip(recipe.ladder, arms_of, strict=True):
            kept = {key: value for key, value in rung if place_of(key) is None}
            flat = {f"arms.{n}.{key}": v for n, mine in own.items() for key, v in mine.items()}
            lines.append(f"  - {as_yaml(kept | flat)}")
    sections = {"model", "data", "optim", "train"}
    values = recipe.model_dump(mode="json", include=sections, exclude_none=True)
    values |= {"arms": {} if recipe.ladder else arms_of[0], "train": values.pop("train")}
    for name, section in values.items():
        lines += [f"{name}:"] if section else []
        lines += [f"  {key}: {as_yaml(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _ordered(found: Comparison) -> Comparison:
    """The same with arms by name after the baseline, so that more seeds change no text."""
    arms = sorted(found.arms, key=lambda arm: (arm.variant != found.baseline, arm.variant))
    return replace(found, arms=tuple(arms))


def _arms(found: Comparison) -> dict[str, dict[str, object]]:
    return {name: {LR: how.lr, **dict(how.changes)} for name, how in _tuned(found).items()}


def _regrets(found: Sequence[Comparison]) -> dict[str, float | None]:
    """How much tuning may have missed, at the size where that is most; None where its optimum is at
    an edge.
    """
    most: dict[str, float] = {}
    for name, how in [pair for each in found for pair in _tuned(each).items()]:
        if how.rate_digest:
            most[name] = max(how.may_miss, most.get(name, 0.0))
    return {name: float(f"{n:.2g}") if math.isfinite(n) else None for name, n in most.items()}


def _tuned(found: Comparison) -> dict[str, Tuned]:
    own = [arm.own for arm in found.arms if arm.own is not None]
    return {each.variant: each.how for each in own if isinstance(each.how, Tuned)}
