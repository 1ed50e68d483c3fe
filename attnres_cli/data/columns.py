"""Rows of JSON Lines, CSV, TSV, Parquet and Arrow: their columns, and one of them, streamed."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import json
import shutil
from collections.abc import Iterator
from typing import IO, Any, NoReturn

from attnres_cli.data.containers import File
from attnres_cli.data.spool import unnamed
from attnres_cli.errors import DataError, required

_SHOWN = 100  # rows that tell which columns there are, and which hold text
_LISTED = 40
_AT_ONCE = 1000  # rows of Parquet in memory
_LONGEST_FIELD = 2**31 - 1  # of CSV, in characters

Row = dict[str, Any]


def column(file: File, name: str) -> Iterator[Any]:
    """The values of one column, row after row; None where a row has none. Raises DataError where
    the file has no such column, or is damaged.
    """
    if file.kind in ("Parquet", "Arrow"):
        yield from _arrow_column(file, name)
        return
    rows = _rows(file)
    first = list(itertools.islice(rows, _SHOWN))
    names = tuple(dict.fromkeys(key for row in first for key in row))
    if first and name not in names:
        refuse_without(file, name)
    yield from (row.get(name) for row in itertools.chain(first, rows))


def sizes(file: File) -> dict[str, int]:
    """The columns, and how many characters of text the first 100 rows hold in each. Numbers in a
    CSV are no text.
    """
    if file.kind in ("Parquet", "Arrow"):
        with _table(file) as (schema, batches):
            rows: list[Row] = [dict.fromkeys(schema.names)]
            texts = [each.name for each in schema if _is_text(each.type)]
            some = next(iter(batches(texts)), None)
            rows += some.slice(0, _SHOWN).to_pylist() if some is not None else []
    else:
        rows = list(itertools.islice(_rows(file), _SHOWN))
    found: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            size = len(value) if isinstance(value, str) and not _is_number(value) else 0
            found[key] = found.get(key, 0) + size
    return found


def refuse_without(file: File, name: str) -> NoReturn:
    """Raise DataError: the file has no column `name`; which it has, and what to type."""
    found = sizes(file)
    likely = max(found, key=lambda key: found[key], default=None)
    columns = ", ".join(list(found)[:_LISTED]) + (", ..." if len(found) > _LISTED else "")
    typed = f"--set data.column={likely}" if likely and found[likely] else "none holds text"
    raise DataError(f"{file.path} has no column {name}, only {columns or 'none'}: {typed}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(file: File) -> Iterator[Row]:
    return _json_lines(file) if file.kind == "JSON Lines" else _separated(file)


def _json_lines(file: File) -> Iterator[Row]:
    with file.opened() as stream:
        for number, line in enumerate(stream, 1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{file.path} line {number:,} is no JSON: {error}. Repair or remove this line"
                ) from error
            if not isinstance(row, dict):
                raise DataError(
                    f"{file.path} line {number:,} holds a {type(row).__name__}, expected an object "
                    'such as {"text": "..."}'
                )
            yield row


def _separated(file: File) -> Iterator[Row]:
    """Rows of CSV and TSV, by their header. A row of another length raises DataError."""
    csv.field_size_limit(_LONGEST_FIELD)
    with file.opened() as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        try:
            line = text.readline()
            mark = "\t" if file.kind == "TSV" else max(",;\t|", key=line.count)
            lines = itertools.chain([line], text)
            reader = csv.reader(lines, delimiter=mark, strict=True)
            header = next(reader, [])
            for row in reader:
                if row and len(row) != len(header):
                    raise DataError(
                        f"{file.path} line {reader.line_num:,} has {len(row)} fields, the header "
                        f"{len(header)}: put quotes around a field that holds {mark!r} or a newline"
                    )
                if row:
                    yield dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise DataError(f"{file.path} line {reader.line_num:,}: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file.path} is not UTF-8 ({error.reason}): iconv -f LATIN1 -t UTF-8 converts it"
            ) from error
        finally:
            text.detach()


def _arrow_column(file: File, name: str) -> Iterator[Any]:
    with _table(file) as (schema, batches):
        if name not in schema.names:
            refuse_without(file, name)
        kind = schema.field(name).type
        if not _is_text(kind) and str(kind) != "null":
            raise DataError(f"{file.path} has {kind} in column {name}, expected text")
        for batch in batches([name]):
            yield from batch.column(0).to_pylist()


def _is_text(kind: Any) -> bool:
    value = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    return str(value) in ("string", "large_string", "string_view")


@contextlib.contextmanager
def _table(file: File) -> Iterator[tuple[Any, Any]]:
    """Its schema, and a function that gives batches of rows with these columns only."""
    package = required("pyarrow", "data", str(file.path), DataError)
    try:
        with _seekable(file) as stream:
            if file.kind == "Parquet":
                parquet = required("pyarrow.parquet", "data", str(file.path), DataError)
                held = parquet.ParquetFile(stream)
                yield held.schema_arrow, lambda names: held.iter_batches(_AT_ONCE, columns=names)
                return
            is_file = stream.read(6) == b"ARROW1"
            stream.seek(0)
            reader = (package.ipc.open_file if is_file else package.ipc.open_stream)(stream)
            every = range(reader.num_record_batches) if is_file else None
            read = (reader.get_batch(n) for n in every) if every is not None else reader
            yield reader.schema, lambda names: (batch.select(names) for batch in read)
    except (package.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file.path} cannot be read as {file.kind}: {reason}") from error


@contextlib.contextmanager
def _seekable(file: File) -> Iterator[IO[bytes]]:
    """A file that is there, or unpacked into one that is not kept."""
    with file.opened() as stream:
        if not file.packing:
            yield stream
            return
        with unnamed() as whole:
            shutil.copyfileobj(stream, whole)
            whole.seek(0)
            yield whole
