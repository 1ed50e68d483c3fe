"""Documents: texts by name, from files or the standard library, split into train and validation."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import mmap
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from attnres_cli.console import harmless
from attnres_cli.data import spool
from attnres_cli.data.containers import JSON, REMEDIES, TEXT, File, recognized
from attnres_cli.data.spool import Document as Document
from attnres_cli.errors import DataError
from attnres_cli.files import path_of

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FEWEST_FILES = 100
_HEAD = 8000  # bytes in which a NUL tells that a file is no text, as git has it
_CONTROLS = bytes({*range(32), 127} - {*b"\a\b\t\n\v\f\r\x1b"})
_MOST_CONTROLS = 0.01  # of a text that is not UTF-8; of compressed data they are a tenth
_NAMED = 5  # files in a line
_IN_MEMORY = 2**26  # bytes of a text up to which it is not mapped
_PIECE = 2**20


@dataclass(frozen=True)
class Texts:
    """The texts of a path, and what is to be said of them: encodings, files that are left out."""

    documents: list[Document]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """The visible files at a path that the recipe calls `key`, and symlinked folders below it."""

    key: str
    path: Path
    files: tuple[File, ...]
    links: tuple[str, ...] = ()


def files_of(given: str | Path | None, key: str = "data.path", but: Path | None = None) -> Files:
    """The file, or every visible file below the folder, and not `but`. Raises DataError, which
    calls the path `key`, where it cannot be read.
    """
    if given is None:
        raise DataError("data.source text needs a file or folder: --set data.path=FILE_OR_FOLDER")
    path = path_of(given, key, DataError)
    try:
        if not path.exists():
            raise DataError(f"{key} {path} does not exist: --set {key}=FILE_OR_FOLDER")
        if not (path.is_dir() or path.is_file()):
            raise DataError(f"{key} {path} is no file or folder")
        if not path.is_dir():
            return Files(key, path, (recognized(path.name, path),))
        links: list[str] = []
        paths = _folder(path, but, links)
        named = [(each.relative_to(path).as_posix(), each) for each in paths]
        return Files(key, path, tuple(recognized(*each) for each in named), tuple(links))
    except OSError as error:
        raise DataError(f"{key} {path} cannot be read: {error.strerror}") from error


def of_path(given: str | Path | None, key: str = "data.path", but: Path | None = None) -> Texts:
    """The texts of `files_of`. Raises DataError where there is none, too."""
    return texts(files_of(given, key, but))


def texts(found: Files) -> Texts:
    """The files that are text as they stand, and remarks on the others."""
    try:
        every = [Document(file.name, _content(file)) for file in found.files if is_plain(file)]
    except OSError as error:
        raise DataError(f"{found.key} {found.path} cannot be read: {error.strerror}") from error
    kinds = [(encoding(each.content), each.name) for each in every if len(each.content)]
    of = {kind: [name for its, name in kinds if its == kind] for kind in _SAID}
    remarks = [f"{said}: {listed(of[kind])}" for kind, said in _SAID.items() if of[kind]]
    remarks += _left_out([file for file in found.files if not is_plain(file)])
    if found.links:
        remarks.append(f"symlinked folders followed: {listed(found.links)}")
    kept = {name for kind, name in kinds if kind in (UTF_8, OTHER)}
    if not kept:
        empty = "it is empty" if found.path.is_file() else "no file in it is visible and not empty"
        raise DataError(f"{found.key} {found.path} holds no text: {'; '.join(remarks) or empty}")
    return Texts([d for d in every if d.name in kept], tuple(remarks) or ("all UTF-8",))


def is_plain(file: File) -> bool:
    """Whether a file is a text as it stands. In a folder of texts, JSON is one too."""
    return file.kind in (TEXT, JSON)


def _left_out(files: list[File]) -> list[str]:
    """A remark on containers of each kind."""
    kinds = dict.fromkeys(file.kind for file in files)
    of = {kind: [file.name for file in files if file.kind == kind] for kind in kinds}
    rows = "rows of text are read if data.path names the file"
    return [
        f"left out, as {kind} ({REMEDIES.get(kind, rows)}): {listed(of[kind])}" for kind in kinds
    ]


def _content(file: File) -> bytes | memoryview:
    """Of a small file in memory; a large one is mapped, unpacked before if need be."""
    if not file.packing and file.path.stat().st_size <= _IN_MEMORY:
        return file.path.read_bytes()
    with file.opened() as stream:
        if not file.packing:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        start = stream.read(_IN_MEMORY + 1)
        if len(start) <= _IN_MEMORY:
            return start
        rest = iter(lambda: stream.read(_PIECE), b"")
        return spool.mapped(itertools.chain([start], rest))[0]


UTF_8, UTF_16, OTHER, NO_TEXT = "utf-8", "utf-16", "other", "none"

_SAID = {
    OTHER: "not UTF-8, taken as the bytes they are (Latin-1 or the like)",
    UTF_16: "left out, as UTF-16 (iconv -f UTF-16 -t UTF-8 makes text of it)",
    NO_TEXT: "left out, as no text",
}


def encoding(content: bytes | memoryview) -> str:
    """Of a file. NO_TEXT has a NUL among its first 8000 bytes, or is not UTF-8 and more than one
    byte in a hundred is a control character. A last character that is cut off does no harm.
    """
    head = bytes(content[:_HEAD])
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return UTF_16
    if b"\0" in head:
        return NO_TEXT
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(content), _PIECE):
            decoder.decode(content[start : start + _PIECE])
    except UnicodeDecodeError:
        pieces = (bytes(content[at : at + _PIECE]) for at in range(0, len(content), _PIECE))
        controls = sum(len(piece) - len(piece.translate(None, _CONTROLS)) for piece in pieces)
        return NO_TEXT if controls > _MOST_CONTROLS * len(content) else OTHER
    return UTF_8


def listed(every: Sequence[str]) -> str:
    """`a, b`; of more than a few how many more; on one line, whatever they are called."""
    names = [harmless(name).replace("\n", r"\n") for name in every[:_NAMED]]
    more = len(every) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _folder(root: Path, but: Path | None, links: list[str]) -> list[Path]:
    """Its files. Names of symlinked folders below it are added to `links`."""
    found = []
    above: dict[Path, frozenset[Path]] = {}  # real folders on the way to each folder
    walk = os.walk(root, onerror=_refuse, followlinks=True)  # rglob passes errors over
    for folder, subfolders, files in walk:
        here, way = Path(folder), above.get(Path(folder).parent, frozenset[Path]())
        if here.resolve() in way:
            raise DataError(f"{here} links to a folder above it: remove this symbolic link")
        above[here] = way | {here.resolve()}
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
        inside = [here / name for name in subfolders]
        links += [path.relative_to(root).as_posix() for path in inside if path.is_symlink()]
        found += [here / name for name in files if name[0] != "."]
    return sorted(path for path in found if path.is_file() and path.resolve() != but)


def _refuse(error: OSError) -> NoReturn:
    raise error


def standard_library() -> list[Document]:
    """Every .py file of the running Python's standard library, without tests and build settings."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if _belongs(name)]
        paths += [Path(folder, name) for name in files if name.endswith(".py") and _belongs(name)]
    found = [
        Document(path.relative_to(root).as_posix(), path.read_bytes())
        for path in sorted(paths)
        if not path.is_symlink()
    ]
    if len(found) < _FEWEST_FILES:
        raise DataError(
            f"this Python has only {len(found)} source files in {root}: "
            "use your own text with --set data.source=text --set data.path=FILE_OR_FOLDER"
        )
    return found


def _belongs(name: str) -> bool:
    # config-3.11-... and _sysconfigdata_... record how this interpreter was built
    return name not in _LEFT_OUT and not name.startswith(("config-", "_sysconfigdata"))


def parts(documents: list[Document], val_fraction: float) -> tuple[list[Document], list[Document]]:
    """Training and validation documents: whole files validate, in the order of their names' hashes,
    until they hold val_fraction of the bytes. A file of more than a tenth of that stays in
    training, so that none dominates; if the others are too few, the smallest go first. If one file
    would be most of what validates, the end of every file validates instead; if one file holds
    nearly all, its end.
    """
    ordered = by_path(documents)
    wanted = val_fraction * sum(len(document.content) for document in ordered)
    chosen = _validation_names(ordered, wanted)
    sizes = [len(document.content) for document in ordered if document.name in chosen]
    if sum(sizes) < wanted / 2:
        largest = max(ordered, key=lambda document: len(document.content))
        return _cut(ordered, {largest.name: round(wanted)})
    if 2 * max(sizes) > sum(sizes):
        return _cut(ordered, {d.name: _share(d, val_fraction) for d in ordered})
    val = [document for document in ordered if document.name in chosen]
    return [document for document in ordered if document.name not in chosen], val


def _cut(documents: list[Document], ends: dict[str, int]) -> tuple[list[Document], list[Document]]:
    """The documents without the ends, of so many bytes, of some, which come last; the ends."""
    train, val = [d for d in documents if d.name not in ends], []
    for document in documents:
        if document.name in ends:
            at = max(0, len(document.content) - ends[document.name])
            train.append(Document(document.name, document.content[:at]))
            val.append(Document(document.name, document.content[at:]))
    return train, [document for document in val if document.content]


def _share(document: Document, val_fraction: float) -> int:
    """Bytes of its end; at least one of it is on either side, where it has two."""
    n_bytes = len(document.content)
    return min(n_bytes - 1, max(1, round(val_fraction * n_bytes)))


def rule(train: list[Document], val: list[Document], val_fraction: float, what: str) -> str:
    """In words, what `parts` has done to documents, each of which is a `what`."""
    trained, share = {document.name for document in train}, f"{100 * val_fraction:.3g} %"
    cut = [document for document in val if document.name in trained]
    if not cut:
        return (
            f"whole {what}s validate, by the hashes of their names, up to {share} of the bytes: "
            f"{len(val)} of {len(train) + len(val)}"
        )
    if len(train) == 1:
        return f"the last {share} of the one {what} validates"
    if len(cut) == 1:
        return (
            f"the end of {listed([cut[0].name])}, {share} of all bytes, validates: it is nearly "
            f"all of {len(train)} {what}s"
        )
    return (
        f"the last {share} of each of {len(train)} {what}s validates: of whole {what}s one would "
        "be most of it"
    )


def by_path(documents: list[Document]) -> list[Document]:
    """The documents in the order of their names."""
    return sorted(documents, key=lambda document: document.name)


def name_hash(document: Document) -> bytes:
    """What orders documents when some of them are chosen: it depends on nothing but the name."""
    return hashlib.sha256(os.fsencode(document.name)).digest()


def _validation_names(ordered: list[Document], wanted: float) -> set[str]:
    chosen: set[str] = set()
    held = 0
    small = [d for d in ordered if len(d.content) <= wanted / 10]
    by_hash = sorted(small, key=name_hash)
    if sum(len(d.content) for d in small) < wanted:
        by_hash = sorted(ordered, key=lambda d: (len(d.content), name_hash(d)))
    for document in by_hash:
        if held >= wanted or len(chosen) == len(ordered) - 1:  # one file stays for training
            break
        chosen.add(document.name)
        held += len(document.content)
    return chosen
