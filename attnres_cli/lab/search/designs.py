"""The space of a search over designs as it is typed: `attnres:norm=*,heads=1|4;delta;+vres|+x0`.

| typed            | means                                                                     |
|------------------|---------------------------------------------------------------------------|
| name             | the stream with its defaults                                              |
| name:o=a|b,p=*   | its options o and p searched: o one of these, p one of all values          |
| name:*           | all its options searched                                                  |
| +name|+name:o=*  | add-ons that may be on any of the streams, at most two of them             |
|                  | (nothing) every stream with all its options, every add-on at its defaults |

All values of an option: both of a switch, every word, 1, 2, 4, 8 and the default of a whole number,
half, once and twice the default of another, and none where it may be none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch

from attnres_cli.errors import UsageError, VariantError, unknown
from attnres_cli.nn import variant
from attnres_cli.nn.addon import Addon
from attnres_cli.nn.residual import Value, registry
from attnres_cli.records.search_records import MOST_COUNTED

Choices = dict[str, Value]
"""What one design has: `stream`, `addon 1` and `addon 2` by name ("none" without), and the searched
options of each as `attnres.norm`. There is no `addon 2` where `addon 1` is none.
"""
Pick = Callable[[str, Sequence[Value]], Value]
NameOf = Callable[[Choices], str | None]

NONE = "none"
SLOTS = ("addon 1", "addon 2")
_WHOLE = (1, 2, 4, 8)
_DRAWN = 500
_EXAMPLE = "such as --designs 'attnres:norm=*,heads=1|4;+vres|+x0'"


@dataclass(frozen=True)
class Part:
    """A stream or an add-on, and the values that its searched options may have."""

    name: str
    options: Mapping[str, tuple[Value, ...]]

    @property
    def size(self) -> int:
        """How many combinations its options have."""
        return math.prod(map(len, self.options.values()))

    @cached_property
    def defaults(self) -> dict[str, Value]:
        """What the constructor gives those options that may have it."""
        declared = variant.options_of(registry()[self.name])
        found = {key: declared[key].default for key in self.options}
        return {key: value for key, value in found.items() if value in self.options[key]}


@dataclass(frozen=True)
class DesignSpace:
    """Streams with their options, and the add-ons that may be on each of them."""

    text: str
    streams: Mapping[str, Part]
    addons: Mapping[str, Part]

    @property
    def slots(self) -> tuple[str, ...]:
        """How many add-ons a design may have."""
        return SLOTS[: len(self.addons)]

    @property
    def size(self) -> int:
        """The number of raw combinations, those that are refused or equal included."""
        sizes = [addon.size for addon in self.addons.values()]
        with_addons = 1 + sum(sizes)
        if len(self.slots) == 2:  # two at once: the same twice has its options once
            with_addons += sum(sizes) + sum(sizes) ** 2 - sum(n * n for n in sizes)
        return sum(stream.size for stream in self.streams.values()) * with_addons

    def draw(self, pick: Pick) -> Choices:
        """The choices that `pick` makes, asked in a fixed order. It is not asked where there is but
        one value.
        """
        made: Choices = {}

        def choose(name: str, values: Sequence[Value]) -> Value:
            if name not in made:
                made[name] = pick(name, values) if len(values) > 1 else values[0]
            return made[name]

        part = self.streams[str(choose("stream", tuple(self.streams)))]
        for slot in (None, *self.slots):
            if slot is not None:
                name = choose(slot, (NONE, *self.addons))
                if name == NONE:
                    break
                part = self.addons[str(name)]
            for option, values in part.options.items():
                choose(f"{part.name}.{option}", values)
        return made

    def simpler(self, choices: Choices, source: random.Random) -> Iterator[Choices]:
        """The same stream and add-ons with one option more at its default each time, in an order
        that is drawn, until all are.
        """
        parts = (*self.streams.values(), *self.addons.values())
        defaults = {f"{part.name}.{key}": v for part in parts for key, v in part.defaults.items()}
        made = dict(choices)
        away = [name for name, value in made.items() if defaults.get(name, value) != value]
        for name in source.sample(away, len(away)):
            made = made | {name: defaults[name]}
            yield made

    def every(self) -> Iterator[Choices]:
        """All raw combinations."""
        path: list[int] = []
        while True:
            widths: list[int] = []

            def pick(_name: str, values: Sequence[Value], widths: list[int] = widths) -> Value:
                if len(widths) == len(path):
                    path.append(0)
                widths.append(len(values))
                return values[path[len(widths) - 1]]

            yield self.draw(pick)
            while path and path[-1] == widths[len(path) - 1] - 1:
                path.pop()
            if not path:
                return
            path[-1] += 1

    def name_of(self, choices: Mapping[str, Value], d_model: int, n_sublayers: int) -> str | None:
        """The canonical name of a design in a trunk of that depth; None where a constructor refuses
        it. Equal designs have equal names.
        """
        try:
            typed = variant.parse(spec_of(choices))
            with torch.device("meta"):
                typed.build(d_model, n_sublayers)
            return str(typed.at_depth(n_sublayers))
        except VariantError:
            return None

    def legal(self, name_of: NameOf) -> float:
        """The share of combinations that name_of names: of all, or of 500 drawn where they are more
        than 2,000.
        """
        if self.size <= MOST_COUNTED:
            names = [name_of(choices) for choices in self.every()]
        else:
            source = random.Random(0)  # noqa: S311
            draws = [self.draw(lambda _, values: source.choice(values)) for _ in range(_DRAWN)]
            names = [name_of(choices) for choices in draws]
        return sum(name is not None for name in names) / len(names)


def parts_of(choices: Mapping[str, Value]) -> list[str]:
    """The names of the stream and of the add-ons of a design."""
    named = [str(choices[key]) for key in ("stream", *SLOTS) if key in choices]
    return [name for name in named if name != NONE]


def spec_of(choices: Mapping[str, Value]) -> str:
    """The design as it is typed."""
    typed = []
    for part in parts_of(choices):
        own = {k: v for k, v in choices.items() if k.startswith(f"{part}.")}
        options = ",".join(
            f"{key.partition('.')[2]}={variant.write_value(value)}" for key, value in own.items()
        )
        typed.append(f"{part}:{options}" if options else part)
    return "+".join(typed)


def parse(text: str) -> DesignSpace:
    """The space of that text. Raises UsageError."""
    text = text.strip()
    parts = [part.strip() for part in text.split(";") if part.strip()]
    streams = [part for part in parts if not part.startswith("+")]
    added = [part for part in parts if part.startswith("+")]
    addons = [each.strip().removeprefix("+") for part in added for each in part.split("|+")]
    if not parts:
        names = {name: issubclass(cls, Addon) for name, cls in registry().items()}
        streams = [f"{name}:*" for name, is_addon in names.items() if not is_addon]
        addons = [name for name, is_addon in names.items() if is_addon]
    if not streams:
        raise UsageError(f"--designs has add-ons only: name the streams they stand on, {_EXAMPLE}")
    return DesignSpace(text, _read(streams, is_addon=False), _read(addons, is_addon=True))


def _read(texts: Sequence[str], *, is_addon: bool) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for text in texts:
        part = _part(text, is_addon=is_addon)
        if part.name in found:
            raise UsageError(f"--designs: {part.name} is given twice: leave one out")
        found[part.name] = part
    return found


def _part(text: str, *, is_addon: bool) -> Part:
    name, colon, rest = (each.strip() for each in text.partition(":"))
    known = {key: cls for key, cls in registry().items() if issubclass(cls, Addon) is is_addon}
    if name not in known:
        if name in registry():
            instead = f"type +{name}" if not is_addon else f"type ;{name} without the +"
            kind = "a stream" if is_addon else "an add-on"
            raise UsageError(f"--designs: {name} is {kind}: {instead}")
        kind = "add-on" if is_addon else "stream"
        raise UsageError("--designs: " + unknown(kind, name, tuple(known)))
    declared = variant.options_of(known[name])
    if rest == "*":
        return Part(name, {key: _all(option) for key, option in declared.items()})
    options: dict[str, tuple[Value, ...]] = {}
    for each in rest.split(",") if colon else ():
        key, _, values = (part.strip() for part in each.partition("="))
        if not values:
            raise UsageError(f"--designs {name}: expected option=values, got '{each}', {_EXAMPLE}")
        if key not in declared:
            raise UsageError("--designs: " + unknown(f"option of {name}", key, tuple(declared)))
        if key in options:
            raise UsageError(f"--designs {name}: option '{key}' is given twice")
        options[key] = _values(name, values, declared[key])
    return Part(name, options)


def _values(name: str, text: str, option: variant.Option) -> tuple[Value, ...]:
    if text == "*":
        return _all(option)
    try:
        return tuple(dict.fromkeys(option.parse(value.strip()) for value in text.split("|")))
    except ValueError as error:
        raise UsageError(f"--designs {name}: {option.name} {error}, or *") from None


def _all(option: variant.Option) -> tuple[Value, ...]:
    """The values that * stands for, those that are numbers in their order."""
    found: list[Value] = []
    inner = get_args(option.kind)
    is_union = any(isinstance(each, type) for each in inner)  # those of a Literal are words
    for kind in inner if is_union else (option.kind,):
        found += _of_kind(kind, option.default)
    return tuple(dict.fromkeys(found))


def _of_kind(kind: Any, default: Value) -> Sequence[Value]:
    if kind is type(None):
        return (None,)
    if kind is bool:
        return (False, True)
    if kind is int:
        return sorted({*_WHOLE, *([default] if isinstance(default, int) else [])})
    if kind is float:
        scale = float(default) if isinstance(default, int | float) else None
        return () if scale is None else sorted({scale / 2, scale, scale * 2})
    return get_args(kind)
