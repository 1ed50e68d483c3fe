"""A dataset of the `datasets` library: by name from the hub, or a folder that it saved. Each row's
text is a document, which ends with a newline.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from attnres_cli.config.recipe import Data
from attnres_cli.data import cache
from attnres_cli.data.documents import Document
from attnres_cli.errors import DataError, required, unknown
from attnres_cli.files import path_of

_OWN = ("validation", "test")  # splits that validate if no other is named
_VERSION = 2  # of how rows become tokens
_SAVED = ("dataset_dict.json", "dataset_info.json")


def documents(config: Data) -> tuple[list[Document], list[Document] | None, tuple[str, ...]]:
    """Training documents, those of data.val_split, or else of the dataset's own split `validation`
    or `test`, None if there is neither; and a remark about that.

    Rows are held in memory, or, with data.streaming, in a file. Raises DataError where the package,
    dataset, split, column or text is missing.
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
    own = (name for name in _OWN if name in splits and name != config.split)
    name = config.val_split or next(own, None)
    remarks = (f"the dataset's own split {name} validates",) * (name != config.val_split)
    return train, None if name is None else _rows(config, splits, name), remarks


def stamp(config: Data, tokenizer: str) -> str | None:
    """32 hex digits over all that decides the tokens of a dataset by name, under which they are
    kept: it is downloaded once, and needs no net afterwards. None of a folder.
    """
    if config.path is None or path_of(config.path, "data.path", DataError).exists():
        return None
    held = config.model_dump(exclude={"tokenizer", "streaming"})
    return hashlib.sha256(json.dumps([_VERSION, held, tokenizer]).encode()).hexdigest()[:32]


def _splits(config: Data) -> Any:
    """Split by name. A saved dataset without splits has one, `train`."""
    package = required("datasets", "datasets", "data.source huggingface", DataError)
    path = path_of(str(config.path), "data.path", DataError)
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
    try:
        contents = _contents(config, splits[split], split)
        found: Sequence[bytes | memoryview] = (
            _on_disk(contents) if config.streaming else list(contents)
        )
    except DataError:
        raise
    except Exception as error:  # while it streams, anything of the above may come late
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"data.path {config.path}: split {split} ends in: {reason}") from error
    if not any(bytes(content).strip() for content in found):
        raise DataError(f"data.path {config.path}: split {split} holds no text in {column}")
    return [Document(f"{split} {number:012d}", content) for number, content in enumerate(found)]


def _contents(config: Data, rows: Any, split: str) -> Iterator[bytes]:
    column = str(config.column)
    for number, row in enumerate(itertools.islice(rows, config.rows)):
        text = row.get(column)
        if not isinstance(text, str):
            raise DataError(
                f"data.path {config.path}: row {number} of {split} has {type(text).__name__} in "
                f"{column}, expected text"
            )
        yield text.encode(errors="replace") + b"\n"


def _on_disk(contents: Iterator[bytes]) -> list[memoryview]:
    """The contents, mapped from a file without a name, which is gone when they are."""
    with tempfile.TemporaryFile(dir=cache.folder()) as file:
        sizes = [file.write(content) for content in contents]
        file.flush()
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if sizes else b"")
    ends = itertools.accumulate(sizes)
    return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]
