"""What a table has of each row, said once: for terminals, pages, files and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

Kind = Literal["code", "name", "number", "word", "text", "bar"]
Style = Literal["", "good", "bad", "warning", "strong"]
Row = TypeVar("Row")
Of = TypeVar("Of")


@dataclass(frozen=True)
class Field(Generic[Row, Of]):
    """One thing that tables of one kind have of a row, by its key and in its column.

    Without a key it is shown only, without a title it is in files only. `get` is the place of the
    value in the row, the key unless said, or takes the row and what the table is of. `show` is a
    format of the value, `-` for None, or takes the same two. `style` is by value. `applies` says
    whether a table has the column at all. Kinds are explained in report/table.py.
    """

    key: str = ""
    get: str | Callable[[Row, Of], Any] = ""
    title: str = ""
    show: str | Callable[[Row, Of], str] = "{}"
    kind: Kind = "number"
    is_optional: bool = False
    style: Mapping[str, Style] = field(default_factory=dict)
    applies: Callable[[Of], bool] = lambda _: True

    def value(self, row: Row, of: Of) -> Any:
        """What files have of a row."""
        return self.get(row, of) if callable(self.get) else at(row, self.get or self.key)

    def text(self, row: Row, of: Of) -> str:
        """What its cell says of a row."""
        if callable(self.show):
            return self.show(row, of)
        value = self.value(row, of)
        return "-" if value is None else self.show.format(value)


def keys(fields: Iterable[Field[Any, Any]]) -> list[str]:
    """The columns of files."""
    return [field.key for field in fields if field.key]


def record(fields: Sequence[Field[Row, Of]], row: Row, of: Of) -> dict[str, Any]:
    """A row as plain values, by key."""
    return {field.key: field.value(row, of) for field in fields if field.key}


def at(thing: Any, path: str) -> Any:
    """What stands at `difference.interval.0`: attributes, keys, places; None where a part is."""
    for name in path.split("."):
        if thing is None:
            return None
        if name.isdigit():
            thing = thing[int(name)]
        else:
            thing = thing[name] if isinstance(thing, Mapping) else getattr(thing, name)
    return thing


def picked(thing: Any, names: str) -> dict[str, Any]:
    """Some values of a thing, in the order of `names`: `key`, or `key=where.it.stands`."""
    pairs = [name.partition("=") for name in names.split()]
    return {key: at(thing, path or key) for key, _, path in pairs}
