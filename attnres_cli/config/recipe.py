"""Recipe: all that is held fixed between arms. Strict and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

from attnres_cli.config import complete, strict_yaml
from attnres_cli.config.sections import Data, Model, Optim, Section, Train, as_tuple
from attnres_cli.errors import RecipeError, unknown

__all__ = ["Data", "Model", "Optim", "Recipe", "Train"]

_GROWN = ("model", "optim", "train")  # what may differ over a ladder; the data may not


Rung = tuple[tuple[str, str | int | float | bool | None], ...]
"""What one size of a ladder changes: keys as --set takes them, and values."""


def _rungs(value: object) -> object:
    """Mappings as pairs, which can be hashed; a study holds them as pairs."""
    if not isinstance(value, list | tuple):
        return value
    found = []
    for each in value:
        pairs = list(each.items()) if isinstance(each, dict) else each
        if not isinstance(pairs, list | tuple):
            raise ValueError(f"each size is a mapping as {{model.n_layers: 4}}, got {each!r}")
        found.append(tuple(tuple(pair) if isinstance(pair, list) else pair for pair in pairs))
    return tuple(found)


class Recipe(Section):
    """One recipe, or with a ladder its `rungs`. Equal digests mean equal things held fixed."""

    name: str = ""
    description: str = ""
    variants: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()  # arms, if none are typed
    ladder: Annotated[tuple[Rung, ...], BeforeValidator(_rungs)] = ()
    model: Model
    data: Data = Data()
    optim: Optim
    train: Train

    @model_validator(mode="after")
    def _a_step_fits(self) -> Recipe:
        if self.train.tokens < self.tokens_per_step:
            raise ValueError(
                f"train.tokens must be at least one step of {self.tokens_per_step} tokens "
                f"(train.batch_size x model.seq_len), got {self.train.tokens}"
            )
        if self.train.eval_tokens < self.model.seq_len:
            raise ValueError(
                f"train.eval_tokens must be at least model.seq_len {self.model.seq_len}, "
                f"got {self.train.eval_tokens}"
            )
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimiser step."""
        return self.train.batch_size * self.model.seq_len

    @property
    def steps(self) -> int:
        """Optimiser steps of one run."""
        return self.train.tokens // self.tokens_per_step

    @property
    def digest(self) -> str:
        """12 hex digits over all that decides a run; of the data their content, not their place."""
        parts = {"data": self.data, "optim": self.optim, "train": self.train}
        fixed: dict[str, Any] = {name: part.fixed() for name, part in parts.items()}
        fixed["model"] = asdict(self.model.shape(vocab_size=1))  # however its sizes were given
        canonical = json.dumps(fixed, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def names() -> list[str]:
    """The recipes that come with the tool."""
    return complete.recipes("")


def text_of(name: str) -> str:
    """The YAML of a recipe, shipped (by name) or any (by path); RecipeError where there is none."""
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in names():
            raise RecipeError(unknown("recipe", name, names()) + ", or a path to a .yaml file")
        return (files("attnres_recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    return text_at(name, "recipe")


def text_at(name: str, what: str) -> str:
    """The text of a file that messages call `what`; RecipeError where there is none."""
    path = Path(name).expanduser()
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RecipeError(f"{what} {path} is no file")  # a pipe could be read for ever
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{what} {path} is not UTF-8 text") from error


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name or path, with `section.key=value` on top. Raises RecipeError."""
    origin = f"recipe {name}"
    values = strict_yaml.load(text_of(name), origin)
    if not isinstance(values, dict):
        raise RecipeError(f"{origin}: expected sections model, data, optim, train, found none")
    for override in overrides:
        _override(values, override)
        origin = f"recipe {name} with --set"
    values.setdefault("name", Path(name).stem)
    recipe = validate(values, origin)
    typed = {override.partition("=")[0].strip() for override in overrides}
    if "data.val_fraction" in typed and not recipe.data.is_divided:
        raise RecipeError(
            f"{origin}: data.val_fraction is not read where data.val_path or data.val_split says "
            "what validates, nor by generated tasks, which have no end to be kept for it; leave "
            "it out"
        )
    rungs(recipe, origin)
    return recipe


def rungs(recipe: Recipe, origin: str = "") -> list[Recipe]:
    """The recipes of a ladder, in its order and of its name: the recipe alone where it has none."""
    found = []
    for number, rung in enumerate(recipe.ladder, 1):
        where = f"{origin}: ladder, size {number}" if origin else f"ladder, size {number}"
        values = recipe.model_dump(exclude={"ladder"})
        for key, value in rung:
            section, _, name = key.partition(".")
            if section not in _GROWN or not name:
                raise RecipeError(
                    f"{where}: expected keys of {', '.join(_GROWN)}, as model.n_layers, got '{key}'"
                )
            values[section][name] = value
        found.append(validate(values, where))
    if len({each.digest for each in found}) < len(found):
        raise RecipeError(f"{origin}: ladder: two sizes are the same")
    return found or [recipe]


def validate(values: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe that these values make; RecipeError says what is wrong with them first."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        # a misspelt key first: it is why another one is missing
        first, *more = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        rest = f" (and {len(more)} more)" if more else ""
        raise RecipeError(f"{origin}: {explain(first)}{rest}") from None


def suite(name: str) -> list[str]:
    """The specs of a suite of variants that comes with the tool; RecipeError for other names."""
    return list(about_suite(name)["variants"])


def about_suite(name: str) -> dict[str, Any]:
    """What the file of a suite says: variants, description and, for searches, space."""
    if name not in suite_names():
        raise RecipeError(unknown("suite", name, suite_names()))
    return _shipped(f"suites/{name}.yaml")


@cache
def paper() -> dict[str, Any]:
    """The numbers of the Attention Residuals paper: losses by spec in `table4` (with Fig. 6), by
    size and spec in `table2`; the rest (`scaling`, `table3`, figures, `notes`) as the file says.
    """
    return _shipped("paper.yaml")


def suite_names() -> list[str]:
    """The suites that come with the tool."""
    return complete.suites("")


def _shipped(name: str) -> dict[str, Any]:
    text = (files("attnres_recipes") / name).read_text(encoding="utf-8")
    found: dict[str, Any] = strict_yaml.load(text, name)
    return found


def _override(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise RecipeError(f"--set takes section.key=value, got '{override}'")
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"--set {override}: '{section}' holds no keys")
    inner[key] = strict_yaml.load(text, f"--set {override}")


def explain(problem: Any, whole: type[BaseModel] = Recipe) -> str:
    """One of pydantic's findings as `key: what is wrong, what came`."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *sections, key = problem["loc"]
        section = f"{'.'.join(sections)}: " if sections else ""
        return section + unknown("key", str(key), _keys(sections, whole))
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "model_type":
        return f"{where}: expected a section with keys, got {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "int_type":
        message += " (as 2000000, 2M or 1.5k; k, M and B are known)"
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _keys(sections: Sequence[Any], level: type[BaseModel]) -> list[str]:
    for section in sections:
        level = level.model_fields[section].annotation  # type: ignore[assignment]
    return list(level.model_fields)
