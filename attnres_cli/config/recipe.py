"""Recipe: all that is held fixed between arms. Strict and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from attnres_cli.config import arms as own
from attnres_cli.config import complete, strict_yaml
from attnres_cli.config import overrides as overrides_
from attnres_cli.config.margin import Margin
from attnres_cli.config.reading import Section, as_pairs, as_tuple, as_tuples, explain
from attnres_cli.config.sections import Data, Model, Optim, Train
from attnres_cli.errors import AttnresError, RecipeError, unknown
from attnres_cli.files import check_name, path_of, read_text

__all__ = ["Data", "Model", "Optim", "Recipe", "Train"]

_MOST_BYTES = 2**16  # of a recipe or a preregistration; reading as much takes a second
_GROWN = ("model", "optim", "train", "arms")  # what may differ over a ladder; the data may not


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


Regrets = tuple[tuple[str, Annotated[float, Field(ge=0)] | None], ...]
"""By design: what its tuning may have missed, nats per token; None where an edge was best."""


Drop = tuple[Annotated[float, Field(gt=0)], float, Annotated[float, Field(ge=0)], int]
"""A multiple of the tokens, and what `standard` ends lower by there: nats per token, their standard
error, and the number of seeds.
"""


Name = Annotated[str, AfterValidator(lambda name: check_name(name, "name"))]


class Recipe(Section):
    """One recipe, or with a ladder its `rungs`. Equal digests mean equal things held fixed.

    slope: a measured fact, of which the digest knows nothing: what `standard` ends lower by at
    other budgets of tokens, or how many nats per token it gains per e-fold of them. So is `regret`:
    by how much tuning may have missed the best settings of each design. `load` drops the slope
    where --set changes what it was measured on, and the regret where it changes settings: on
    another text, or over other tokens, kept settings may be off by no less.

    An arm's runs are under `of(variant)`, which has that arm's settings and no `arms`.
    """

    name: Name = ""
    description: str = ""
    variants: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()  # arms, if none are typed
    margin: Margin = None  # the difference that does not matter; no part of the digest
    ladder: Annotated[tuple[Rung, ...], BeforeValidator(_rungs)] = ()
    slope: Annotated[
        Annotated[float, Field(gt=0)] | tuple[Drop, ...] | None, BeforeValidator(as_tuples)
    ] = None
    regret: Annotated[Regrets, BeforeValidator(as_pairs)] = ()
    model: Model
    data: Data = Data()
    optim: Optim
    arms: Annotated[own.Arms, BeforeValidator(own.as_pairs)] = ()  # what designs have of their own
    train: Train

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_rates(cls, values: Any) -> Any:
        """Published studies hold recipes with a key `rates` that says nothing."""
        if isinstance(values, dict) and not values.get("rates", True):
            return {key: value for key, value in values.items() if key != "rates"}
        return values

    @model_validator(mode="after")
    def _arms_are_sound(self) -> Recipe:
        for name, changes in self.arms:
            try:
                own.changed(self.optim, changes)
            except ValidationError as error:
                raise ValueError(f"arms.{name}.optim.{explain(error.errors()[0], Optim)}") from None
        return self

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

    @model_validator(mode="after")
    def _documents_can_be_isolated(self) -> Recipe:
        if self.data.documents == "isolated" and "kda" in self.model.attention:
            raise ValueError(
                "data.documents isolated needs softmax or mla attention, kda carries state across "
                "documents: --set model.attention=softmax"
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

    def at(self, tokens: int) -> Recipe:
        """The same with another budget of tokens; its slope is another one."""
        train = self.train.model_copy(update={"tokens": tokens})
        return self.model_copy(update={"train": train, "slope": None})

    @property
    def digest(self) -> str:
        """12 hex digits over all that decides a run; of the data their content, not their place."""
        parts = {"data": self.data, "optim": self.optim, "train": self.train}
        fixed: dict[str, Any] = {name: part.fixed() for name, part in parts.items()}
        fixed["model"] = self.model.shape(vocab_size=1).fixed()  # however its sizes were given
        fixed |= own.fixed(self.arms)
        canonical = json.dumps(fixed, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def at_rate(self, lr: float) -> Recipe:
        """The recipe with this learning rate, and all else alike, for every design."""
        return self._with(self.optim.model_copy(update={"lr": lr}))

    def changed(self, *changes: own.Setting) -> Recipe:
        """The recipe with these keys for every design, such as ("optim.lr", 4e-3)."""
        return self._with(own.changed(self.optim, changes))

    def of(self, variant: str) -> Recipe:
        """What the design of that canonical name is trained under; see `named`."""
        return self.changed(*dict(self.arms).get(variant, ()))

    def _with(self, optim: Optim) -> Recipe:
        standard = own.changed(self.optim, dict(self.arms).get("standard", ()))
        slope = self.slope if optim == standard else None
        return self.model_copy(update={"optim": optim, "arms": (), "regret": (), "slope": slope})

    def named(self, canonical: Callable[[str], str]) -> Recipe:
        """The recipe with `arms` by canonical names. RecipeError where two are of one design."""
        typed: dict[str, str] = {}
        for spec, _ in (*self.arms, *self.regret):
            try:
                other = typed.setdefault(canonical(spec), spec)
            except AttnresError as error:
                raise RecipeError(f"recipe {self.name}: arms: {error}") from None
            if other != spec:
                raise RecipeError(
                    f"recipe {self.name}: arms: {other} and {spec} are one design at this depth: "
                    "leave one out"
                )
        parts: dict[str, Any] = {"arms": dict(self.arms), "regret": dict(self.regret)}
        renamed = {
            key: tuple(sorted((name, held[spec]) for name, spec in typed.items() if spec in held))
            for key, held in parts.items()
        }
        return self.model_copy(update=renamed)


def text_of(name: str) -> str:
    """The YAML of a recipe, shipped (by name) or any (by path); RecipeError where there is none."""
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in (known := complete.recipes()):
            raise RecipeError(unknown("recipe", name, known) + ", or a path to a .yaml file")
        return (files("attnres_recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    return text_at(name, "recipe")


def text_at(name: str, what: str) -> str:
    """The text of a file that messages call `what`; RecipeError where there is none."""
    text = read_text(path_of(name, what, RecipeError), what, RecipeError, _MOST_BYTES)
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def load(
    name: str, overrides: Sequence[str] = (), note: Callable[[str], None] = lambda _line: None
) -> Recipe:
    """The recipe of that name or path, with `section.key=value` on top. `optim.key=value` is one
    value for every design: where designs of the file have their own, what the file says of designs
    is dropped, and `note` is told so. Raises RecipeError.
    """
    origin = f"recipe {name}"
    values = strict_yaml.load(text_of(name), origin)
    if not isinstance(values, dict):
        raise RecipeError(f"{origin}: expected sections model, data, optim, train, found none")
    typed = {overrides_.parted(override)[0].strip() for override in overrides}
    if common := overrides_.drop_arms(values, typed):
        note(
            f"--set {common} is one value for every arm: what recipe {name} has by design is left "
            "out"
        )
    if common := overrides_.drop_of_sizes(values, typed):
        note(f"--set {common} is one value for every size of the ladder")
    for override in overrides:
        overrides_.put(values, override)
        origin = f"recipe {name} with --set"
    if typed - {"name", "description", "variants", "margin", "slope", "regret"}:
        changes_settings = any(key.partition(".")[0] in ("arms", "optim") for key in typed)
        for fact in {"slope", *(["regret"] if changes_settings else [])} - typed:
            values.pop(fact, None)
    if "data.source" in typed and "data.edition" not in typed:
        overrides_.drop_edition(values["data"])
    values.setdefault("name", Path(name).stem)
    recipe = validate(values, origin)
    if "data.val_fraction" in typed and not recipe.data.is_divided:
        raise RecipeError(
            f"{origin}: data.val_fraction is not read where data.val_path or data.val_split says "
            "what validates, nor by generated tasks, which have no end to be kept for it; leave "
            "it out"
        )
    rungs(recipe, origin)
    return recipe


def name_of(typed: str) -> str:
    """The recipe that is meant by a name, or by its file."""
    return Path(typed).stem if typed.endswith((".yaml", ".yml")) else typed


def rungs(recipe: Recipe, origin: str = "") -> list[Recipe]:
    """The recipes of a ladder, in its order and of its name: the recipe alone where it has none."""
    found = []
    for number, rung in enumerate(recipe.ladder, 1):
        where = f"{origin}: ladder, size {number}" if origin else f"ladder, size {number}"
        values = recipe.model_dump(exclude={"ladder", "slope"})
        arms: dict[str, dict[str, Any]] = {name: dict(changes) for name, changes in recipe.arms}
        values["arms"] = arms
        for key, value in rung:
            section, _, name = key.partition(".")
            if (place := own.place_of(key)) is not None:
                arms.setdefault(place[0], {})[place[1]] = value
            elif section not in _GROWN or not name or section == "arms":
                raise RecipeError(
                    f"{where}: expected keys of {', '.join(_GROWN)}, such as model.n_layers, got "
                    f"'{key}'"
                )
            else:
                values[section][name] = value
        _refuse_shadowed(recipe, [key for key, _ in rung], where)
        found.append(validate(values, where))
    if len({each.digest for each in found}) < len(found):
        raise RecipeError(f"{origin}: ladder: two sizes are the same")
    return found or [recipe]


def _refuse_shadowed(recipe: Recipe, keys: Sequence[str], where: str) -> None:
    """Raise RecipeError for a size with another `optim.lr` whose arms would keep the old rates."""
    for name, changes in recipe.arms:
        is_left = (name, own.LR) not in map(own.place_of, keys)
        if own.LR in keys and own.LR in dict(changes) and is_left:
            raise RecipeError(
                f"{where}: what sets optim.lr sets every rate, arms.{name}.optim.lr too"
            )


def validate(values: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe that these values make; RecipeError says what is wrong with them first."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        # a misspelt key first: it is why another one is missing
        first, *more = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        rest = f" (and {len(more)} more)" if more else ""
        raise RecipeError(f"{origin}: {explain(first, Recipe)}{rest}") from None
