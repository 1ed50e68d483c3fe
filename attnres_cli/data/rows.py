"""Files of rows, each of which is a document: which of a folder are read, and their splits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from attnres_cli.console import Progress
from attnres_cli.data import columns, spool
from attnres_cli.data.containers import JSON, RECORDS, ROWS, File
from attnres_cli.data.documents import Document, Files, listed
from attnres_cli.errors import DataError, unknown

OWN = ("validation", "test")  # splits that validate if no other is named
_WORDS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation",
    "val": "validation", "dev": "validation", "test": "test",
}  # fmt: skip
_SAVED = {"dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json"}
_BESIDE = re.compile(
    r"(readme|licen[cs]e|citation|notice|changelog|authors|copying|contributing|checksums?)\b.*"
    r"|.*\.(json|ya?ml|cff|bib|md5|sha256)",
    re.IGNORECASE,
)
"""Names of what lies beside data and is no text to train on."""


@dataclass(frozen=True)
class Splits:
    """Files of rows by the name of their split, and remarks on other files."""

    found: Files
    by_name: dict[str, list[File]]
    remarks: tuple[str, ...]

    def training(self, name: str | None) -> str:
        """The split that trains: the one named, else `train`, or the only one."""
        return name or ("train" if len(self.by_name) > 1 else next(iter(self.by_name)))

    def validating(self, but: str) -> str | None:
        """The split that validates where none is named."""
        return next((name for name in OWN if name in self.by_name and name != but), None)


@dataclass
class _Counts:
    """Rows that are not, or not wholly, what they should be."""

    without: int = 0
    replaced: int = 0


def splits(found: Files, *, is_asked: bool) -> Splits | None:
    """Files of rows at a path; None where it holds text instead. In a folder of both, what has more
    bytes is meant, but rows where a column or split is named (`is_asked`). Raises DataError where
    what is meant is not read.
    """
    saved, apart = _saved(found), [each for each in found.files if _name(each) not in _SAVED]
    if saved is not None:
        files = {each for its in saved.values() for each in its}
        return Splits(found, saved, _beside([each for each in apart if each not in files]))
    rows = [each for each in found.files if each.kind in (*ROWS, RECORDS)]
    others = [each for each in found.files if each not in rows]
    texts = [each for each in others if not _BESIDE.fullmatch(_name(each))]
    if found.path.is_file():
        others = texts = []
        if found.files[0].kind not in ("text", *ROWS):
            raise DataError(f"{found.key} {found.path} {found.files[0].remedy}")
    documents = [each for each in others if each.kind == JSON]
    if not rows and documents and not texts:
        raise DataError(
            f"{found.key} {found.path} holds no text: {documents[0].name} {documents[0].remedy}"
        )
    if not rows or not (is_asked or _bytes(rows) >= _bytes(texts)):
        return None
    for each in rows:
        if each.kind == RECORDS:
            raise DataError(f"{found.key}: {each.path} {each.remedy}")
    return Splits(found, _by_name(rows), _beside(others))


def _saved(found: Files) -> dict[str, list[File]] | None:
    """The splits that `save_to_disk` of the datasets library wrote, if it did."""
    by_path, by_split = {each.name: each for each in found.files}, dict[str, list[File]]()
    for file in found.files:
        state = _state(file) if _name(file) == "state.json" else {}
        if "_data_files" not in state:
            continue
        folder = PurePosixPath(file.name).parent
        is_split = (folder.parent / "dataset_dict.json").as_posix() in by_path
        split = folder.name if is_split else str(state.get("_split") or "train")
        for each in state["_data_files"]:
            name = (folder / each["filename"]).as_posix()
            if name not in by_path:
                raise DataError(f"{found.key} {found.path} lacks its file {name}: copy it again")
            by_split.setdefault(split, []).append(by_path[name])
    return by_split or None


def _state(file: File) -> dict[str, list[dict[str, str]]]:
    try:
        held = json.loads(file.path.read_bytes())
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def _name(file: File) -> str:
    return PurePosixPath(file.name).name


def _bytes(files: list[File]) -> int:
    return sum(each.path.stat().st_size for each in files)


def _beside(files: list[File]) -> tuple[str, ...]:
    names = [each.name for each in files]
    return (f"left out, beside rows: {listed(names)}",) if names else ()


def _by_name(files: list[File]) -> dict[str, list[File]]:
    """By words in the names of files, then of their folders; one file is all there is."""
    found: dict[str, list[File]] = {}
    for file in files:
        path = PurePosixPath(file.name)
        words = [w for part in (path.name, *path.parent.parts[::-1]) for w in _words(part)]
        split = next((_WORDS[word] for word in words if word in _WORDS), "")
        found.setdefault(split, []).append(file)
    if len(found) == 1:
        return {"train": files}
    rest = found.pop("", [])
    return found | ({"others" if "train" in found else "train": rest} if rest else {})


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z]+", name.lower())


def documents(
    held: Splits, name: str, column: str, label: str
) -> tuple[list[Document], tuple[str, ...]]:
    """The documents of a split, whose names begin with a label, and remarks. Raises DataError where
    it is not there, has no such column, or holds no text.
    """
    what = f"{held.found.key} {held.found.path}"
    if name not in held.by_name:
        raise DataError(f"{what}: {unknown('split', name, held.by_name)}")
    counts = _Counts()
    found = spool.Rows(label, *spool.mapped(_contents(held.by_name[name], column, counts)))
    if not len(found.ends):
        raise DataError(f"{what}: split {name} holds no text in column {column}")
    remarks = [f"{len(found.ends):,} rows of column {column} of split {name}"]
    if counts.without:
        remarks.append(f"{counts.without:,} rows of split {name} without text left out")
    if counts.replaced:
        remarks.append(f"half a character in {counts.replaced:,} rows replaced by ?")
    return found.documents(), tuple(remarks)


def _contents(files: list[File], column: str, counts: _Counts) -> Iterator[bytes]:
    """The texts of a column as UTF-8, without those that are empty or null."""
    progress = Progress("reading rows")
    for file in files:
        for number, value in enumerate(columns.column(file, column), 1):
            if value is None or value == "":
                counts.without += 1
                continue
            if not isinstance(value, str):
                raise DataError(
                    f"{file.path} row {number:,} has {type(value).__name__} in column {column}, "
                    "expected text"
                )
            try:
                content = value.encode()
            except UnicodeEncodeError:  # JSON can spell one half of a pair
                content = value.encode(errors="replace")
                counts.replaced += 1
            progress.add(len(content))
            yield content
