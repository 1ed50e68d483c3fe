"""The grammar of designs as they are typed: "attnres:block_size=4,heads=8" and back."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnres_cli.errors import UsageError, VariantError, unknown
from attnres_cli.nn import plugins
from attnres_cli.nn.residual import Residual, Value, presets, registry


@dataclass(frozen=True)
class Option:
    """One option of a design, as its constructor's signature declares it."""

    name: str
    kind: Any  # a type, a Literal, or a union of a type and None
    default: Value

    def parse(self, text: str) -> Value:
        """The value that `text` stands for; ValueError says which values the option has."""
        for part in _parts(self.kind):
            with contextlib.suppress(ValueError, KeyError):
                return _read(part, text)
        raise ValueError(f"must be {self.allowed()}, got '{text}'")

    def default_text(self) -> str:
        """The default as it is typed."""
        return write_value(self.default)

    def allowed(self) -> str:
        """What may be typed, in words: `on or off`, `a whole number or none`."""
        names = {bool: "on or off", int: "a whole number", float: "a number", type(None): "none"}
        parts = _parts(self.kind)
        return " or ".join(names.get(part) or " or ".join(typing.get_args(part)) for part in parts)


def _parts(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _read(part: Any, text: str) -> Value:
    """The value of one type; ValueError or KeyError where it has none of this text."""
    if part is type(None):
        return {"none": None}[text]
    if part is bool:
        return {"on": True, "off": False}[text]
    if part is int and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if part is float:
        return float(text)
    if text in typing.get_args(part):
        return text
    raise ValueError


@cache
def options_of(cls: type[Residual]) -> Mapping[str, Option]:
    """The options of a design by name, read from its constructor's signature. Raises VariantError
    for one whose type or default is missing, or cannot be typed on a command line.
    """
    named = inspect.signature(cls).parameters
    parameters = list(named.values())[2:]
    try:
        hints = typing.get_type_hints(cls.__init__)
        found = {p.name: Option(p.name, hints[p.name], p.default) for p in parameters}
        bad = any(each.default is inspect.Parameter.empty for each in parameters)
        if (
            bad
            or not all(option.allowed() for option in found.values())
            or list(named)[:2] != ["d_model", "n_sublayers"]
        ):
            raise TypeError
    except (TypeError, NameError, KeyError) as error:
        raise VariantError(
            f"{plugins.place_of(cls.__init__)}: it takes d_model and n_sublayers, then options of "
            "a type and a default, as `scale: float = 1.0` (int, float, bool, Literal of words, "
            f"any | None), got ({', '.join(map(str, named.values()))})"
        ) from error
    return types.MappingProxyType(found)


def write_value(value: Value) -> str:
    """A value as it is typed: on, off, none, or itself."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


@dataclass(frozen=True)
class Variant:
    """A residual design with its options; `str()` gives the spec with sorted options and without
    defaults, so that equal designs have equal names.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        options = ",".join(f"{key}={write_value(value)}" for key, value in self.options)
        return f"{self.name}:{options}" if options else self.name

    def build(self, d_model: int, n_sublayers: int) -> Residual:
        """The design for one trunk. VariantError: the options clash or do not fit these sizes.
        UsageError: it is no module, as its constructor does not call its parent's.
        """
        cls = registry()[self.name]
        try:
            design = cls(d_model, n_sublayers, **dict(self.options))
        except VariantError as error:
            raise VariantError(f"{self}: {error}") from error
        if "n_sublayers" not in vars(design):
            raise UsageError(f"{plugins.place_of(cls.__init__)}: {plugins.SUPER_FIRST}")
        return design

    def at_depth(self, n_sublayers: int) -> Variant:
        """The simplest spec of the same design in a trunk of this depth."""
        cls = registry()[self.name]
        return _canonical(self.name, cls.canonical_options(dict(self.options), n_sublayers))


def _canonical(name: str, options: Mapping[str, Value]) -> Variant:
    known = options_of(registry()[name])
    kept = {key: value for key, value in options.items() if value != known[key].default}
    return Variant(name, tuple(sorted(kept.items())))


def parse(text: str) -> Variant:
    """Read a spec `name` or `name:option=value,option=value`; the name may be a preset's, whose
    options then hold where no others are given. Raises VariantError for an unknown name or option
    (with the nearest known one), a value not of the option's type, an option given twice.
    """
    name, colon, rest = text.strip().partition(":")
    known, preset = registry(), presets().get(name)
    if name not in known and preset is None:
        own = "; one of your own: --plugin FILE, or ATTNRES_PLUGINS"
        raise VariantError(unknown("variant", name, [*known, *presets()]) + own)
    held: Mapping[str, Value] = {}
    if preset is not None:
        name, held = preset
    declared = options_of(known[name])
    options: dict[str, Value] = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise VariantError(f"{text}: expected option=value, got '{part}'")
        if key not in declared:
            raise VariantError(f"{text}: {unknown(f'option of {name}', key, declared)}")
        if key in options:
            raise VariantError(f"{text}: option '{key}' is given twice")
        try:
            options[key] = declared[key].parse(value)
        except ValueError as error:
            raise VariantError(f"{text}: {key} {error}") from None
    return _canonical(name, {**held, **options})
