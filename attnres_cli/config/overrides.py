"""What is typed as --set on top of what a recipe's file says, before either is checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attnres_cli.config import arms as own
from attnres_cli.config import strict_yaml
from attnres_cli.config.sections import Data
from attnres_cli.errors import RecipeError


def parted(override: str) -> tuple[str, str, str]:
    """Key, `=` and value of `section.key=value`; designs among the keys have `=` of their own."""
    if override.startswith("arms."):
        return override.rpartition("=")
    return override.partition("=")


def put(values: dict[str, Any], override: str) -> None:
    """Set what `section.key=value` says. Raises RecipeError where it says nothing."""
    path, equals, text = parted(override)
    place = own.place_of(path.strip())
    *sections, key = ("arms", *place) if place else path.strip().split(".")
    if not equals or not key:
        raise RecipeError(f"--set takes section.key=value, got '{override}'")
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"--set {override}: '{section}' holds no keys")
    if takes_text(path.strip()):
        inner[key] = text or None  # as it was typed, whatever YAML would make of it
    else:
        inner[key] = strict_yaml.load(text, f"--set {override}")


def takes_text(path: str) -> bool:
    """Whether a key is of text, such as `data.path`; nothing after its `=` unsets it."""
    section, _, key = path.partition(".")
    field = Data.model_fields.get(key) if section == "data" else None
    return field is not None and field.annotation == (str | None)


def drop_edition(data: dict[str, Any]) -> None:
    """Drop the file's edition of the standard library's text if --set names another source."""
    if data.get("source") != "stdlib":
        data.pop("edition", None)


def drop_arms(values: dict[str, Any], typed: Collection[str]) -> str:
    """Take what a file says of designs out of it, if they have a key that is typed for all: that
    key.
    """
    arms, ladder = values.get("arms"), values.get("ladder")
    of_arms = list(arms.values()) if isinstance(arms, dict) else []
    held = {key for one in _dicts(of_arms) for key in one}
    places = [(rung, key, own.place_of(key)) for rung in _dicts(ladder) for key in list(rung)]
    held |= {place[1] for _, _, place in places if place}
    if not (found := sorted(held & set(typed))):
        return ""
    values.pop("arms", None)
    for rung, key, place in places:
        if place:
            del rung[key]
    return found[0]


def drop_of_sizes(values: dict[str, Any], typed: Collection[str]) -> str:
    """Take keys that are typed for all sizes out of the file's single ones; one of them."""
    places, found = {own.place_of(key) for key in typed} - {None}, ""
    for size in _dicts(values.get("ladder")):
        for key in [key for key in size if key in typed or own.place_of(key) in places]:
            found = key
            del size[key]
    return found


def _dicts(value: object) -> list[dict[str, Any]]:
    """What of a list can be looked into; what is wrong with the others is said later."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
