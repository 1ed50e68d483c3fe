"""What a table has of each row, said once: for terminals, pages, files and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Kind = Literal["code", "name", "number", "word", "text", "bar"]
Style = Literal["", "good", "bad", "warning", "strong"]
Row = TypeVar("Row")
Of = TypeVar("Of")


@dataclass(frozen=True)
class Field(Generic[Row, Of]):
    """One thing that tables of one kind have of a row, by its key and in its column.

    Without a key it is shown only, without a title it is in files only. `get` and `show` take the
    row and what the table is of; without `show` the value is text, `-` for None. `applies` says
    whether a table has the column at all. Kinds are explained in report/table.py.
    """

    key: str = ""
    get: Callable[[Row, Of], Any] = lambda _row, _of: None
    title: str = ""
    show: Callable[[Row, Of], str] | None = None
    kind: Kind = "number"
    is_optional: bool = False
    style: Callable[[Row], Style] = lambda _: ""
    applies: Callable[[Of], bool] = lambda _: True

    def text(self, row: Row, of: Of) -> str:
        """What its cell says of a row."""
        if self.show is not None:
            return self.show(row, of)
        value = self.get(row, of)
        return "-" if value is None else str(value)


def keys(fields: Iterable[Field[Any, Any]]) -> list[str]:
    """The columns of files."""
    return [field.key for field in fields if field.key]


def record(fields: Sequence[Field[Row, Of]], row: Row, of: Of) -> dict[str, Any]:
    """A row as plain values, by key."""
    return {field.key: field.get(row, of) for field in fields if field.key}
