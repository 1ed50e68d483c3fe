"""What can be typed after a search: its best shapes again, and the runs that a comparison lacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from attnres_cli.config import address
from attnres_cli.config.as_typed import PLUGIN, ablate_typed, overrides_of
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.search_records import Search, Trial
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Shape

RecipeOf = Callable[[str], Recipe]
"""The recipe of a digest, as a study holds it."""


def commands(finding: Finding, known: RecipeOf | None, study: str) -> list[tuple[str, str]]:
    """What to type, and what for: a variant's best shape again, or, in the same study, the runs
    without which two optima cannot be compared. Nothing where no recipe is known.
    """
    if known is None:
        return []
    search, where = finding.search, address.typed(study)
    best = [one.best for one in finding.optima if one.best]
    typed = [(f"{shape.family} again", again(search, shape, known)) for shape in best]
    for trial in (trial for pair in finding.pairs for trial in pair.lacking):
        typed.append(("to compare", _ablate(search, trial, known, where)))
    told = f" ({PLUGIN}: the plugin that has it)"
    return [
        (f"{name}{told if f'--plugin {PLUGIN}' in command else ''}", command)
        for name, command in dict.fromkeys(typed)
        if command
    ]


def again(search: Search, shape: Shape, known: RecipeOf) -> str:
    """The command that trains a shape again in a new study; empty if nothing typed does."""
    on = shape.settings
    where = [] if on is None else ["--device", on.device, "--engine", on.engine]
    return _ablate(search, shape.trial, known, [*where, "--study", "again.db"])


def _ablate(search: Search, trial: Trial, known: RecipeOf, more: Sequence[str]) -> str:
    """The command that trains all seeds of a trial's shape."""
    seeds = {search.first_seed, *search.confirm_seeds}
    if (found := overrides_of(known(trial.recipe_digest))) is None:
        return ""
    return shlex.join([*ablate_typed([trial.variant], *found, seeds), *more])
