"""What can be typed after a search: its best shapes again, and the runs that a comparison lacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from attnres_cli.config import address
from attnres_cli.config import recipe as recipes
from attnres_cli.config.as_typed import PLUGIN, ablate_typed, overrides_of
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import RecipeError
from attnres_cli.records.search_records import Search, Trial
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Shape

RecipeOf = Callable[[str], Recipe]
"""The recipe of a digest, as a study holds it."""


def commands(finding: Finding, known: RecipeOf | None, study: str) -> list[tuple[str, str]]:
    """What to type, and what for: a variant's best shape again, or, in the same study, the runs
    without which two optima cannot be compared.
    """
    search, where = finding.search, address.typed(study)
    typed = [
        (f"{one.family.variant} again", again(search, one.best, known))
        for one in finding.optima
        if one.best
    ]
    for trial in (trial for pair in finding.pairs for trial in pair.lacking):
        words = _ablate(search, trial, known)
        typed.append(("to compare", shlex.join([*words, *where]) if words else ""))
    told = f" ({PLUGIN}: the plugin that has it)"
    return [
        (f"{name}{told if f'--plugin {PLUGIN}' in command else ''}", command)
        for name, command in dict.fromkeys(typed)
        if command
    ]


def again(search: Search, shape: Shape, known: RecipeOf | None) -> str:
    """The command that trains a shape again in a new study; empty if its recipe is not known."""
    words = _ablate(search, shape.trial, known)
    if words and shape.settings is not None:
        words += ["--device", shape.settings.device, "--engine", shape.settings.engine]
    return shlex.join([*words, "--study", "again.db"]) if words else ""


def _ablate(search: Search, trial: Trial, known: RecipeOf | None) -> list[str]:
    """The command that trains all seeds of a trial's shape, without its study."""
    found = overrides_of(known(trial.recipe_digest)) if known else _shipped(search, trial)
    if found is None:
        return []
    return ablate_typed([trial.variant], *found, {search.first_seed, *search.confirm_seeds})


def _shipped(search: Search, trial: Trial) -> tuple[str, list[str]] | None:
    """A trial's recipe and overrides, if the search's named recipe with its sizes is the same."""
    held = trial.dimensions
    sets = [f"model.{name}={held[name]}" for name in ("n_layers", "d_model", "n_heads", "d_ff")]
    sets += [f"optim.lr={held['lr']}"] if "lr" in held else []
    for more in ([], [f"train.tokens={held['tokens']}"]):
        try:
            if recipes.load(search.recipe, sets + more).digest == trial.recipe_digest:
                return search.recipe, sets + more
        except RecipeError:
            continue
    return None
