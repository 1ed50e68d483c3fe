"""The grammar of designs as they are typed: "attnres:block_size=4,heads=8+vres" and back."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnres_cli.errors import UsageError, VariantError, unknown
from attnres_cli.nn import plugins
from attnres_cli.nn.addon import Addon, Composed
from attnres_cli.nn.residual import Residual, Value, presets, registry

_BOOLS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


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
        return _BOOLS[text.lower()]
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
    """A value as names have it: on, off, none, or itself."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


@dataclass(frozen=True)
class Variant:
    """A residual design with its options, and add-ons on it. `str()` gives the spec with sorted
    options and without defaults, so that equal designs have equal names: `x0` is `standard+x0`.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    addons: tuple[Variant, ...] = ()

    def __str__(self) -> str:
        options = ",".join(f"{key}={write_value(value)}" for key, value in self.options)
        own = f"{self.name}:{options}" if options else self.name
        return "+".join((own, *map(str, self.addons)))

    @property
    def parts(self) -> tuple[Variant, ...]:
        """The stream, or first add-on, and the add-ons, each alone."""
        return (replace(self, addons=()), *self.addons)

    @property
    def classes(self) -> tuple[type[Residual], ...]:
        """What each of its parts is built of."""
        return tuple(registry()[part.name] for part in self.parts)

    def build(self, d_model: int, n_sublayers: int) -> Residual:
        """The design for one trunk. VariantError: the options clash or do not fit these sizes, or
        the parts do not go together. UsageError: one is no module, as its constructor does not call
        its parent's.
        """
        try:
            parts = [part._alone(d_model, n_sublayers) for part in self.parts]  # noqa: SLF001
            if len(parts) == 1:
                return parts[0]
            if isinstance(parts[0], Addon):
                stream = registry()["standard"](d_model, n_sublayers)
                named = dict(zip([part.name for part in self.parts], parts, strict=True))
            else:
                stream = parts[0]
                named = dict(zip([part.name for part in self.addons], parts[1:], strict=True))
            return Composed(stream, named)  # type: ignore[arg-type]
        except VariantError as error:
            raise VariantError(f"{self}: {error}") from error

    def _alone(self, d_model: int, n_sublayers: int) -> Residual:
        cls = registry()[self.name]
        design = cls(d_model, n_sublayers, **dict(self.options))
        if "n_sublayers" not in vars(design):
            raise UsageError(f"{plugins.place_of(cls.__init__)}: {plugins.SUPER_FIRST}")
        return design

    def at_depth(self, n_sublayers: int) -> Variant:
        """The simplest spec of the same design in a trunk of this depth."""
        return _joined([part._simplest(n_sublayers) for part in self.parts])  # noqa: SLF001

    def _simplest(self, n_sublayers: int) -> Variant:
        cls = registry()[self.name]
        return _canonical(self.name, cls.canonical_options(dict(self.options), n_sublayers))


def _joined(parts: Sequence[Variant]) -> Variant:
    """The design that these parts are, a stream and add-ons. Raises VariantError where they are
    not, or one is there twice.
    """
    first, *others = parts
    for part in others:
        if not issubclass(registry()[part.name], Addon):
            known = [name for name, cls in registry().items() if issubclass(cls, Addon)]
            raise VariantError(
                f"{part.name} is no add-on, to stand after a '+': {', '.join(known)}"
            )
    if str(first) == "standard" and others:
        first, *others = others
    is_addon = issubclass(registry()[first.name], Addon)
    addons = [first, *others] if is_addon else others
    addons = sorted(addons, key=lambda part: (registry()[part.name].order, part.name))  # type: ignore[attr-defined]
    for one, other in itertools.pairwise(sorted(part.name for part in addons)):
        if one == other:
            raise VariantError(f"{one} is given twice")
    first, *others = addons if is_addon else [first, *addons]
    return replace(first, addons=tuple(others))


def _canonical(name: str, options: Mapping[str, Value]) -> Variant:
    known = options_of(registry()[name])
    kept = {key: value for key, value in options.items() if value != known[key].default}
    return Variant(name, tuple(sorted(kept.items())))


def parse(text: str) -> Variant:
    """Read a spec `name` or `name:option=value,option=value`, with add-ons as `+name:option=value`;
    the name may be a preset's, whose options then hold where no others are given. Raises
    VariantError for an unknown name or option (with the nearest known one), a value not of the
    option's type, an option given twice, a part that is no add-on.
    """
    found = [_parse(part) for part in _split(text)]
    return _joined([part for each in found for part in each.parts])


def _split(text: str) -> list[str]:
    """Its parts: a + begins one where a design's name follows, and else where no option goes on, as
    in kind=rw+lr and 1e+3.
    """
    known, parts = {*registry(), *presets()}, [""]
    for number, piece in enumerate(text.strip().split("+")):
        begins = piece.strip().partition(":")[0] in known or "=" not in parts[-1]
        if number and begins:
            parts.append(piece)
        else:
            parts[-1] += f"+{piece}" if number else piece
    return parts


def _parse(text: str) -> Variant:
    name, colon, rest = text.strip().partition(":")
    known, preset = registry(), presets().get(name)
    if name not in known and preset is None:
        own = "; one of your own: --plugin FILE, or ATTNRES_PLUGINS"
        raise VariantError(unknown("variant", name, [*known, *presets()]) + own)
    held: Mapping[str, Value] = {}
    if isinstance(preset, str):
        if colon:
            raise VariantError(f"{name} is {preset}: give options there")
        return parse(preset)
    if preset is not None:
        name, held = preset
    declared = options_of(known[name])
    options: dict[str, Value] = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise VariantError(f"{text}: expected option=value, got '{part}'")
        if key not in declared:
            told = unknown(f"option of {name}", key, declared)
            raise VariantError(f"{text}: {told}: `attnres variants {name}` explains them")
        if key in options:
            raise VariantError(f"{text}: option '{key}' is given twice")
        try:
            options[key] = declared[key].parse(value)
        except ValueError as error:
            raise VariantError(f"{text}: {key} {error}") from None
    return _canonical(name, {**held, **options})
