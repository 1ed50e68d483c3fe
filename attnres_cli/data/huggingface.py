"""A dataset of the `datasets` library: by name from the hub, or a folder that it saved.

Its rows' text is what is read, one document per row; a row ends with a newline.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from attnres_cli.config.recipe import Data
from attnres_cli.data import extras
from attnres_cli.data.tokens import Document
from attnres_cli.errors import DataError, unknown

_SAVED = ("dataset_dict.json", "dataset_info.json")


def documents(config: Data) -> tuple[list[Document], list[Document] | None]:
    """Training documents, and those of the validation split where data.val_split names one.

    All rows are held in memory: data.rows says how many of each split are read.

    Raises:
        DataError: the package is missing, no such dataset, split or column, or no text in it.

    """
    if config.path is None:
        raise DataError(
            "data.source huggingface needs a dataset: --set data.path=NAME, or the folder that "
            "save_to_disk wrote"
        )
    if config.split == config.val_split:
        raise DataError(
            f"data.split and data.val_split are both {config.split}: validation on what was "
            "trained on says nothing"
        )
    splits = _splits(config)
    train = _rows(config, splits, str(config.split))
    return train, None if config.val_split is None else _rows(config, splits, config.val_split)


def _splits(config: Data) -> Any:
    """Split by name. A saved dataset without splits has one, `train`."""
    package = extras.load("datasets", "data.source huggingface")
    path = Path(str(config.path)).expanduser()
    try:
        if any((path / name).is_file() for name in _SAVED):
            found = package.load_from_disk(str(path))
            return found if isinstance(found, dict) else {"train": found}
        name = str(path) if path.exists() else config.path
        return package.load_dataset(name, config.subset, streaming=bool(config.streaming))
    except Exception as error:  # network, files, formats: the library has errors of many kinds
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"data.path {config.path} cannot be loaded by the datasets library: {reason}"
        ) from error


def _rows(config: Data, splits: Any, split: str) -> list[Document]:
    if split not in splits:
        raise DataError(f"data.path {config.path}: {unknown('split', split, map(str, splits))}")
    columns, column = splits[split].column_names, str(config.column)
    if columns is not None and column not in columns:
        raise DataError(f"data.path {config.path}: {unknown('column', column, columns)}")
    found = []
    try:
        for number, row in enumerate(itertools.islice(splits[split], config.rows)):
            if not isinstance(row.get(column), str):
                kind = type(row.get(column)).__name__
                raise DataError(
                    f"data.path {config.path}: row {number} of {split} has {kind} in {column}, "
                    "expected text"
                )
            text = row[column].encode(errors="replace")
            found.append(Document(f"{split} {number:012d}", text + b"\n"))
    except DataError:
        raise
    except Exception as error:  # while it streams, anything of the above may come late
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"data.path {config.path}: split {split} ends in: {reason}") from error
    if not any(document.content.strip() for document in found):
        raise DataError(f"data.path {config.path}: split {split} holds no text in {column}")
    return found
