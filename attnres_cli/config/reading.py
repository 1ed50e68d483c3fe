"""How a section of a recipe is read: numbers as people write them, keys that go together, and in
words what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from attnres_cli.errors import unknown

_COUNT = re.compile(r"([-+]?\d{1,12}(?:\.\d{1,12})?)([kMB])")
_SUFFIX = {"k": 10**3, "M": 10**6, "B": 10**9}


def parse_count(value: object) -> object:
    """1.5k -> 1500, 2M -> 2000000; anything that is not such a text is returned as it came."""
    if isinstance(value, str) and (match := _COUNT.fullmatch(value)):
        count = Decimal(match[1]) * _SUFFIX[match[2]]
        return int(count) if count == count.to_integral_value() else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def as_tuple(value: object) -> object:
    """YAML's lists, which cannot be hashed, as tuples."""
    return tuple(value) if isinstance(value, list) else value


def as_tuples(value: Any) -> Any:
    """What JSON holds, with tuples where there are lists."""
    if isinstance(value, dict):
        return {key: as_tuples(each) for key, each in value.items()}
    return tuple(as_tuples(each) for each in value) if isinstance(value, list) else value


def as_pairs(value: Any) -> Any:
    """A mapping as pairs sorted by key, which can be hashed; a study holds lists of pairs."""
    pairs = value.items() if isinstance(value, Mapping) else value
    is_pairs = isinstance(pairs, Collection) and not isinstance(pairs, str)
    if not is_pairs or not all(isinstance(pair, list | tuple) for pair in pairs):
        raise ValueError(f"expected a mapping such as {{x0: 30}}, got {value!r}")
    return tuple(sorted(tuple(pair) for pair in pairs))


def on_or_off(value: object) -> object:
    """The words on and off, which YAML reads as booleans, where a choice has them."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def text_of_path(value: object) -> object:
    """A folder's name may be a number, which YAML reads as one."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0, lt=2**53)]
Size = Annotated[Count, Field(le=2**24)]  # of a model or a batch: no machine has a larger one
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Unknown keys and wrong types are refused, nothing can be changed afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    _LATER: ClassVar[tuple[str, ...]] = ()
    """Keys newer than some studies: a recipe that does not set them keeps its meaning and digest.
    """

    def fixed(self) -> dict[str, Any]:
        """What a recipe's digest sees."""
        held = self.model_dump()
        unset = [key for key in self._LATER if held[key] == type(self).model_fields[key].default]
        return {key: value for key, value in held.items() if key not in unset}


Readers = Mapping[str, tuple[str, ...]]
"""By choice: the keys that mean something to it, of those that mean nothing to others."""


def refuse_unread(section: Section, choice: str, chosen: Collection[str], by: Readers) -> None:
    """Raise ValueError for a key that is set and that nothing chosen reads."""
    for key, about in type(section).model_fields.items():
        readers = [name for name, keys in by.items() if key in keys]
        if readers and getattr(section, key) != about.default and not set(chosen) & set(readers):
            raise ValueError(
                f"{key} is read with {choice}: {' or '.join(readers)}, got {choice}: "
                f"{', '.join(dict.fromkeys(chosen))}; add --set "
                f"{type(section).__name__.lower()}.{choice}={readers[0]}"
            )


def kinds(known: Collection[str]) -> BeforeValidator:
    """One kind, or a pattern of them as a tuple."""

    def read(value: object) -> object:
        found = tuple(value) if isinstance(value, list | tuple) else (value,)
        for kind in found:
            if kind not in known:
                raise ValueError(unknown("kind", str(kind), known))
        return found[0] if len(found) == 1 else found

    return BeforeValidator(read)


def explain(problem: Any, whole: type[BaseModel]) -> str:
    """One of pydantic's findings in such a section as `key: what is wrong, what came`."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *sections, key = problem["loc"]
        section = f"{'.'.join(sections)}: " if sections else ""
        if elsewhere := _sections_of(str(key), whole):
            names = " or ".join(f"'{each}.{key}'" for each in elsewhere)
            return f"{section}unknown key '{key}': did you mean {names}?"
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


def _sections_of(key: str, whole: type[BaseModel]) -> list[str]:
    """The sections that have a key of this name."""
    inner = {name: about.annotation for name, about in whole.model_fields.items()}
    sections = {name: of for name, of in inner.items() if isinstance(of, type(BaseModel))}
    return [name for name, of in sections.items() if key in of.model_fields]


def _keys(sections: Sequence[Any], level: type[BaseModel]) -> list[str]:
    for section in sections:
        level = level.model_fields[section].annotation  # type: ignore[assignment]
    return list(level.model_fields)
