"""What a file is, by its content and not by its name alone; compressed files, opened."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attnres_cli.errors import DataError, required

TEXT = "text"
ROWS = ("JSON Lines", "CSV", "TSV", "Parquet", "Arrow")
RECORDS = "JSON array of objects"
JSON = "JSON document"
_JSONL, _CSV, _TSV, _PARQUET, _ARROW = ROWS

_HEAD = 2**16  # bytes that tell what a file is
_LONGEST_LINE = 2**26  # of JSON; and the largest document that is parsed to tell what it is
_LONG_JSON = re.compile(rb'\s*(\{\s*"[^"]*"\s*:|\[\s*("(?:[^"\\]|\\[^\n])*"|-?\d[\d.eE+-]*)\s*,)')
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PACKINGS = (".gz", ".zst", ".zstd")
_BY_SUFFIX = {".jsonl": _JSONL, ".ndjson": _JSONL, ".csv": _CSV, ".tsv": _TSV}
_MAGIC = {b"PAR1": _PARQUET, b"ARROW1": _ARROW, b"\xff\xff\xff\xff": _ARROW}
_JSON_LINES = "one object per line is read: jq -c .[] FILE > FILE.jsonl"
REMEDIES = {
    "zip archive": "unzip it",
    "tar archive": "unpack it",
    "bzip2 file": "bunzip2 it",
    "xz file": "unxz it",
    "7z archive": "unpack it",
    "lz4 file": "unlz4 it",
    "Feather file": "write Arrow or Parquet",
    "SQLite database": "export a table as CSV",
    "HDF5 file": "write text or Parquet",
    "Avro file": "write text or Parquet",
    "ORC file": "write text or Parquet",
    "NumPy array": "--set data.source=npy reads tokens",
    "pickle": "pickles are never loaded: write text or Parquet",
    "PDF": "pdftotext makes text of it",
    "file compressed twice": "unpack it once",
    RECORDS: _JSON_LINES,
    JSON: _JSON_LINES,
}
"""Containers that are not read, and what to do about each."""

_NAMED = (
    (re.compile(rb"PK(\x03\x04|\x05\x06|\x07\x08)"), "zip archive"),
    (re.compile(rb"(?s).{257}ustar"), "tar archive"),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2 file"),
    (re.compile(rb"\xfd7zXZ\0"), "xz file"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "7z archive"),
    (re.compile(rb"\x04\x22\x4d\x18"), "lz4 file"),
    (re.compile(rb"FEA1"), "Feather file"),
    (re.compile(rb"SQLite format 3\0"), "SQLite database"),
    (re.compile(rb"\x89HDF\r\n\x1a\n"), "HDF5 file"),
    (re.compile(rb"Obj\x01"), "Avro file"),
    (re.compile(rb"ORC[\x00-\x08\x0b-\x1f\x80-\xff]"), "ORC file"),
    (re.compile(rb"\x93NUMPY"), "NumPy array"),
    (re.compile(rb"\x80[\x02-\x05]"), "pickle"),
    (re.compile(rb"%PDF-\d"), "PDF"),
)


@dataclass(frozen=True)
class File:
    """A file by its name within its folder; what it is, and what is packed around that."""

    name: str
    path: Path
    kind: str = TEXT
    packing: str = ""

    @property
    def remedy(self) -> str:
        """`is a PDF: pdftotext makes text of it`, for a kind that is not read."""
        return f"is a {self.kind}: " + REMEDIES[self.kind].replace("FILE", self.path.name)

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Its content, unpacked. Raises DataError where it is damaged or cut off, as it is read."""
        try:
            with self.path.open("rb") as file:
                yield _unpacked(file, self)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{self.path} cannot be unpacked: {error}") from error


def recognized(name: str, path: Path) -> File:
    """The file, and what it is. Raises DataError where it cannot be unpacked; OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    packing = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), "")
    file_ = File(name, path, packing=packing)
    if packing:
        with file_.opened() as stream:
            head = stream.read(_HEAD)
    return File(name, path, _kind(head, file_), packing)


def _kind(head: bytes, file: File) -> str:
    if head.startswith(tuple(_PACKED)):
        return "file compressed twice"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    named = (kind for pattern, kind in _NAMED if pattern.match(head))
    return next(named, None) or _kind_of_text(head, file)


def _kind_of_text(head: bytes, file: File) -> str:
    suffixes = [each for each in file.path.suffixes if each.lower() not in _PACKINGS]
    suffix = suffixes[-1].lower() if suffixes else ""
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    kind = _json(file, suffix) if first in (b"{", b"[") else TEXT
    return _BY_SUFFIX.get(suffix, TEXT) if first and kind == TEXT else kind


def _json(file: File, suffix: str) -> str:
    """Of a file that begins as JSON does. Two objects on two lines are JSON Lines, as is one on one
    line, unless the file is called .json.
    """
    with file.opened() as stream:
        lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in _lines(stream))
        first = next(filter(None, lines), b"")
        second = next(filter(None, lines), None)
        if isinstance(_parsed(first), dict) and (
            suffix != ".json" if second is None else second.startswith(b"{")
        ):
            return _JSONL
    with file.opened() as stream:
        whole = stream.read(_LONGEST_LINE + 1)
    if len(whole) > _LONGEST_LINE:
        whole = whole.removeprefix(codecs.BOM_UTF8)
        records = re.match(rb'\s*\[\s*\{\s*"', whole)
        return RECORDS if records else JSON if _LONG_JSON.match(whole) else TEXT
    held = _parsed(whole)
    if isinstance(held, list) and held and isinstance(held[0], dict):
        return RECORDS
    return TEXT if held is None else JSON


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(_LONGEST_LINE):
        yield line


def _parsed(content: bytes) -> Any:
    """What it holds, None where it is no JSON."""
    try:
        return json.loads(content.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError):
        return None


def _unpacked(file: IO[bytes], of: File) -> IO[bytes]:
    if of.packing == "gzip":
        return gzip.open(file)  # type: ignore[return-value]
    if of.packing == "zstd":
        package = required("zstandard", "data", str(of.path), DataError)
        return io.BufferedReader(_Zstandard(file, package), _HEAD)
    return file


class _Zstandard(io.RawIOBase):
    """A stream of one frame after the other. Its end within a frame raises EOFError."""

    def __init__(self, file: IO[bytes], package: Any) -> None:
        self._file, self._package = file, package
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as one piece of the file reaches."""
        while not self._ready:
            is_done = self._frame is None or self._frame.eof
            piece = (self._frame.unused_data if self._frame and is_done else b"") or (
                self._file.read(_HEAD)
            )
            if not piece and not is_done:
                raise EOFError("it ends within a frame, as a download that was cut off")
            if not piece:
                return 0
            self._ready = memoryview(self._decompressed(piece))
        n = min(len(buffer), len(self._ready))
        buffer[:n], self._ready = self._ready[:n], self._ready[n:]
        return n

    def _decompressed(self, piece: bytes) -> bytes:
        if self._frame is None or self._frame.eof:
            self._frame = self._package.ZstdDecompressor().decompressobj()
        try:
            return bytes(self._frame.decompress(piece))
        except self._package.ZstdError as error:
            raise EOFError(str(error)) from error
