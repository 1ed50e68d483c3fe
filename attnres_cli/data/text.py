"""Source text: files that are texts as they stand, or rows of which a column is read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from attnres_cli.config.recipe import Data
from attnres_cli.data import columns, documents, rows
from attnres_cli.data.documents import Document, Files
from attnres_cli.errors import DataError
from attnres_cli.files import path_of

_VERSION = 2  # of what rows become, in the names of what is kept of them


@dataclass(frozen=True)
class Found:
    """What lies at data.path and data.val_path; where these are rows, their splits."""

    config: Data
    train: Files
    val: Files | None
    train_rows: rows.Splits | None
    val_rows: rows.Splits | None

    def documents(self) -> tuple[list[Document], list[Document] | None, tuple[str, ...]]:
        """Those that train; those of data.val_path, data.val_split or the rows' own split that
        validate, None if there are none; remarks.
        """
        config, name = self.config, None
        if self.train_rows is not None:
            name = self.train_rows.training(config.split)
        train, remarks = self._read(self.train, self.train_rows, name)
        if self.val is not None:
            val_name = config.val_split
            if self.val_rows is not None and val_name is None:
                val_name = self.val_rows.validating("") or self.val_rows.training(None)
            val, more = self._read(self.val, self.val_rows, val_name)
            return train, val, tuple(dict.fromkeys(remarks + more))
        if self.train_rows is None:
            return train, None, remarks
        val_name = config.val_split or self.train_rows.validating(str(name))
        if val_name == name:
            raise DataError(
                f"data.split and data.val_split are both {name}: validation on what was trained on "
                "says nothing"
            )
        others = [each for each in self.train_rows.by_name if each not in (name, val_name)]
        remarks += (f"not read: split {documents.listed(others)}",) if others else ()
        if val_name is None:
            return train, None, remarks
        own = () if config.val_split else (f"their own split {val_name} validates",)
        val, more = self._read(self.train, self.train_rows, val_name)
        return train, val, tuple(dict.fromkeys(remarks + own + more))

    def _read(
        self, found: Files, held: rows.Splits | None, name: str | None
    ) -> tuple[list[Document], tuple[str, ...]]:
        if held is None:
            texts = documents.texts(found)
            return texts.documents, texts.remarks
        column, label = self.config.column or "text", f"{found.key} {name}"
        read, remarks = rows.documents(held, str(name), column, label)
        return read, held.remarks + remarks

    def stamp(self, tokenizer: str) -> str | None:
        """32 hex digits over all that decides the tokens of rows, with the size and time of each
        file instead of its content; None where there are only texts.
        """
        if self.train_rows is None and self.val_rows is None:
            return None
        held = self.config.model_dump(exclude={"path", "val_path", "tokenizer"})
        if held["documents"] == "joined":
            del held["documents"]
        places = [found for found in (self.train, self.val) if found is not None]
        stats = [
            [each.name, str(each.path.resolve()), (at := each.path.stat()).st_size, at.st_mtime_ns]
            for found in places
            for each in found.files
        ]
        facts = json.dumps([_VERSION, held, tokenizer, stats, len(self.train.files)])
        return hashlib.sha256(facts.encode(errors="surrogatepass")).hexdigest()[:32]


def found(config: Data) -> Found:
    """What lies at the paths of a recipe. Raises DataError where that is nothing to read."""
    is_file = config.tokenizer is not None and config.tokenizer.endswith(".json")
    tokenizer = path_of(str(config.tokenizer), "data.tokenizer").resolve() if is_file else None
    named = [key for key in ("column", "split", "val_split") if getattr(config, key) is not None]
    train, val = documents.files_of(config.path, but=tokenizer), None
    if config.val_path is not None:
        val = documents.files_of(config.val_path, "data.val_path", tokenizer)
        _refuse_nested(train, val)
    train_rows = rows.splits(train, is_asked=bool(named))
    val_rows = None if val is None else rows.splits(val, is_asked=bool(named))
    if named and train_rows is None and val_rows is None:
        raise DataError(
            f"data.{named[0]} is for rows (JSON Lines, CSV, Parquet, Arrow), and {train.path} "
            "holds plain text"
        )
    return Found(config, train, val, train_rows, val_rows)


def likely_column(path: Path) -> str | None:
    """The column that rows there have text in, if only one has and it is not the default."""
    try:
        held = rows.splits(documents.files_of(path), is_asked=False)
        sizes = {} if held is None else columns.sizes(next(iter(held.by_name.values()))[0])
    except DataError:
        return None
    texts = [name for name, size in sizes.items() if size]
    return texts[0] if len(texts) == 1 and "text" not in sizes else None


def _refuse_nested(train: Files, val: Files) -> None:
    """Raise DataError where a file of one of them is a file of the other, or may become one."""
    one, other = train.path.resolve(), val.path.resolve()
    both = ({each.path.resolve() for each in found.files} for found in (train, val))
    if one.is_relative_to(other) or other.is_relative_to(one) or set.intersection(*both):
        raise DataError(
            f"data.path {train.path} and data.val_path {val.path} share files: validation on what "
            "was trained on says nothing; move the validation text beside, not below"
        )
