"""Settings by design: which keys of a recipe an arm has of its own."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Mapping
from typing import Any

from attnres_cli.config.sections import Optim
from attnres_cli.errors import unknown

Setting = tuple[str, str | int | float | bool]
"""A key of a recipe, such as `optim.lr`, and its value."""

Arms = tuple[tuple[str, tuple[Setting, ...]], ...]
"""By design, sorted by its name: keys such as `optim.lr`, sorted, and their values."""

_SECTION = "optim."
_KEYS = tuple(f"{_SECTION}{key}" for key in Optim.model_fields)
LR, SCALE = "optim.lr", "optim.design_lr_scale"


def as_pairs(value: object) -> object:
    """Mappings as pairs, which can be hashed; a study holds them as pairs."""
    return tuple(
        (name, tuple(sorted(_changes(name, changes).items())))
        for name, changes in sorted(_mapping("{attnres: {optim.lr: 4e-3}}", value).items())
    )


def _changes(name: str, value: object) -> dict[str, Any]:
    found = _mapping("{optim.lr: 4e-3}", value, f"{name}: ")
    for key in found:
        if key not in _KEYS:
            raise ValueError(f"{name}: {unknown('key', str(key), _KEYS)}")
        value = found[key]
        if not isinstance(value, str | int | float) or value in (math.inf, -math.inf):
            raise ValueError(f"{name}: {key}: expected a number or a word, got {value!r}")
    return {key: float(v) if type(v) is int else v for key, v in found.items()}


def _mapping(like: str, value: object, where: str = "") -> dict[str, Any]:
    pairs: Any = value.items() if isinstance(value, Mapping) else value
    is_pairs = isinstance(pairs, list | tuple | ItemsView)
    if not is_pairs or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ValueError(f"{where}expected a mapping such as {like}, got {value!r}")
    return dict(pairs)


def place_of(key: str) -> tuple[str, str] | None:
    """(design, key) of `arms.DESIGN.optim.KEY`; None for any other key. A design's name has signs
    of its own.
    """
    name, found, inner = key.removeprefix("arms.").rpartition(f".{_SECTION}")
    return (name, f"{_SECTION}{inner}") if key.startswith("arms.") and found else None


def fixed(arms: Arms) -> dict[str, Any]:
    """What a recipe's digest sees; learning rates alone by the key `rates`, as they once had."""
    held = {name: dict(changes) for name, changes in arms}
    if not held:
        return {}
    if all(set(changes) == {LR} for changes in held.values()):
        return {"rates": {name: changes[LR] for name, changes in held.items()}}
    return {"arms": held}


def changed(optim: Optim, changes: tuple[Setting, ...]) -> Optim:
    """The section with an arm's own keys. Raises pydantic's ValidationError."""
    own = {key.removeprefix(_SECTION): value for key, value in changes}
    return Optim.model_validate(optim.model_dump() | own)
