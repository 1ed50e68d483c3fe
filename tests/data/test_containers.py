"""Files of rows, compressed files and other containers: what is read, and what is refused."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inputs import changed

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import containers, sources, text
from attnres_cli.data.documents import of_path
from attnres_cli.data.tokens import Streams
from attnres_cli.errors import DataError, installing

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")

TEXTS = ['one, "two"', "caf\u00e9\n\nthree", "four\tfive", "ends with a newline\n", "{six}"]
ROWS = [{"id": n, "text": each, "meta": {"url": "x"}} for n, each in enumerate(TEXTS)]


def json_lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def separated(mark: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=mark).writerows([("text", "label"), *((t, 1) for t in TEXTS)])
    return out.getvalue().encode()


def parquet(columns: dict[str, Any]) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), out)
    return out.getvalue().to_pybytes()


def arrow(columns: dict[str, Any], new: Callable[..., Any]) -> bytes:
    table, out = pa.table(columns), pa.BufferOutputStream()
    with new(out, table.schema) as writer:
        writer.write_table(table, 2)
    return out.getvalue().to_pybytes()


COLUMNS = {"label": list(range(len(TEXTS))), "text": TEXTS}
SAME = {
    "a.jsonl": json_lines(ROWS),
    "a.csv": separated(","),
    "b.csv": b"\xef\xbb\xbf" + separated(";"),
    "a.tsv": separated("\t"),
    "a.parquet": parquet(COLUMNS),
    "a.arrow": arrow(COLUMNS, pa.ipc.new_stream),
    "b.arrow": arrow(COLUMNS, pa.ipc.new_file),
}


def packed(content: bytes, suffix: str) -> bytes:
    return {
        "": bytes,
        ".gz": gzip.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }[suffix](content)


def config(path: object, recipe: Recipe, **keys: Any) -> Recipe:
    return changed(recipe, data={"source": "text", "path": str(path), **keys})


def contents(path: object, recipe: Recipe, **keys: Any) -> list[str]:
    """The texts that train."""
    train, _, _ = text.found(config(path, recipe, **keys).data).documents()
    return [bytes(each.content).decode() for each in train]


def refusal(path: object, recipe: Recipe, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        contents(path, recipe, **keys)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", SAME)
def test_rows_are_the_same_documents_from_every_container(
    tmp_path: Path, tiny_recipe: Recipe, name: str, suffix: str
):
    (path := tmp_path / (name + suffix)).write_bytes(packed(SAME[name], suffix))
    assert contents(path, tiny_recipe) == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow", "b.arrow"])
def test_a_container_is_recognized_whatever_it_is_called(
    tmp_path: Path, tiny_recipe: Recipe, name: str
):
    for other in ("text", "a.txt", "a.csv", "a.bin"):
        (tmp_path / other).write_bytes(packed(SAME[name], ".gz" if other == "text" else ""))
        assert contents(tmp_path / other, tiny_recipe) == TEXTS


def long(n: int) -> bytes:
    return json_lines([{"text": f"row {number}: " + "text " * 40} for number in range(n)])


def test_tokens_are_those_of_the_texts_with_a_newline_between_and_are_kept(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    (path := tmp_path / "a.jsonl").write_bytes(long(200))
    tokens = sources.load(config(path, tiny_recipe))
    assert isinstance(tokens, Streams)
    both = [bytes(np.asarray(half[0 : len(half)])) for half in (tokens.train, tokens.val)]
    rows = [line for half in both for line in half.decode().split("\n")]
    assert sorted(rows) == sorted(json.loads(line)["text"] for line in long(200).splitlines())
    assert tokens.description.is_bytes
    assert "200 rows of column text" in str(tokens.split)

    monkeypatch.setattr(text.Found, "documents", None)  # rows are not read once more
    again = sources.load(config(path, tiny_recipe))
    assert (again.fingerprint, again.description) == (tokens.fingerprint, tokens.description)
    assert np.array_equal(again.batch(1, 2, 3, 4), tokens.batch(1, 2, 3, 4))
    monkeypatch.undo()


def test_a_changed_file_of_rows_is_read_again(tmp_path: Path, tiny_recipe: Recipe):
    (path := tmp_path / "a.jsonl").write_bytes(long(200))
    before = sources.load(config(path, tiny_recipe)).fingerprint
    path.write_bytes(long(201))
    assert sources.load(config(path, tiny_recipe)).fingerprint != before


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_packed_text_is_the_text_and_cut_off_it_is_refused(
    tmp_path: Path, tiny_recipe: Recipe, packing: str
):
    plain = "Plain text, as it is.\n" * 5000
    (path := tmp_path / f"a.txt{packing}").write_bytes(packed(plain.encode(), packing))
    assert contents(path, tiny_recipe) == [plain]
    path.write_bytes(path.read_bytes() * 2)  # one after the other, as pigz and zstd write them
    assert contents(path, tiny_recipe) == [plain * 2]
    path.write_bytes(path.read_bytes()[:-20])
    assert "a.txt" in refusal(path, tiny_recipe)
    path.write_bytes(packed(packed(b"text", packing), packing))
    assert "compressed twice" in refusal(path, tiny_recipe)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A DatasetDict of the datasets library, whose text is in a column of another name."""
    datasets = pytest.importorskip("datasets")
    splits = {
        name: datasets.Dataset.from_dict(
            {
                "id": [f"{name} {n}" for n in range(n_rows)],
                "content": [f"{name} {n} " * 9 for n in range(n_rows)],
                "lang": [7] * n_rows,
            }
        )
        for name, n_rows in (("train", 40), ("validation", 3), ("extra", 5))
    }
    shards = {"train": 2, "validation": 1, "extra": 1}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "ds"), num_shards=shards)
    (tmp_path / "ds/train/cache-0123.arrow").write_bytes(b"ARROW1 left over")
    return tmp_path / "ds"


def test_a_saved_dataset_is_read_by_column_and_split(saved: Path, tiny_recipe: Recipe):
    train, val, remarks = text.found(config(saved, tiny_recipe, column="content").data).documents()
    assert [bytes(each.content).decode() for each in train] == [
        f"train {n} " * 9 for n in range(40)
    ]
    assert [bytes(each.content) for each in val or []] == [
        f"validation {n} ".encode() * 9 for n in range(3)
    ]
    assert "not read: split extra" in remarks
    assert "left out, beside rows: train/cache-0123.arrow" in remarks
    named = {"column": "content", "split": "extra", "val_split": "train"}
    assert contents(saved, tiny_recipe, **named) == [f"extra {n} " * 9 for n in range(5)]
    assert contents(saved / "extra", tiny_recipe, column="content")[0] == "extra 0 " * 9

    assert "has no column text, only id, content, lang: --set data.column=content" in refusal(
        saved, tiny_recipe
    )
    assert "has int64 in column lang" in refusal(saved, tiny_recipe, column="lang")
    assert "did you mean 'train'" in refusal(saved, tiny_recipe, column="id", split="trian")
    assert "both train" in refusal(saved, tiny_recipe, column="id", val_split="train")
    next(saved.glob("train/data*.arrow")).unlink()
    assert "lacks its file train/data-" in refusal(saved, tiny_recipe, column="content")


def test_names_of_files_are_splits(tmp_path: Path, tiny_recipe: Recipe):
    for name in ("train-00000", "train-00001", "valid", "test", "more"):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines([{"text": name}]))
    (tmp_path / "README.md").write_text("about " * 500)
    train, val, remarks = text.found(config(tmp_path, tiny_recipe).data).documents()
    assert [bytes(each.content) for each in train] == [b"train-00000", b"train-00001"]
    assert [bytes(each.content) for each in val or []] == [b"valid"]
    assert "left out, beside rows: README.md" in remarks
    assert "not read: split test, others" in remarks
    held = tmp_path / "valid.jsonl"
    places = {"val_path": str(held)}
    train, val, _ = text.found(
        config(tmp_path / "test.jsonl", tiny_recipe, **places).data
    ).documents()
    assert [bytes(each.content) for each in (*train, *(val or []))] == [b"test", b"valid"]
    assert train[0].name != (val or [])[0].name


def test_of_text_and_rows_what_is_more_is_meant_unless_a_column_is_named(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "main.py").write_text("print()\n" * 50)
    (tmp_path / "package.json").write_text('{\n  "name": "code"\n}\n')
    (tmp_path / "cases.csv").write_text("text,label\nrow,1\n")
    (tmp_path / "list.json").write_text('[{"text": "row"}]')
    found = of_path(tmp_path)
    assert [each.name for each in found.documents] == ["main.py", "package.json"]
    assert [remark.split(" (")[0] for remark in found.remarks] == [
        "left out, as CSV", "left out, as JSON array of objects",
    ]  # fmt: skip
    (tmp_path / "list.json").unlink()
    assert contents(tmp_path, tiny_recipe, column="text") == ["row"]
    (tmp_path / "big.jsonl").write_bytes(long(9))
    assert len(contents(tmp_path, tiny_recipe)) == 10


def test_prose_and_code_that_look_like_rows_are_text(tmp_path: Path, tiny_recipe: Recipe):
    for content in (
        "text,label\nno,1\n",
        "[link](https://x.y) begins a page.\n",
        '{"quoted"} begins a sentence.\n',
        "{\n  int x;\n}\n",
        '[1, 2] is "JSON"\n[3]\n',
        "PK is short for Peter Kay, %PDF for nothing.\n",
    ):
        (path := tmp_path / "a.txt").write_text(content)
        assert contents(path, tiny_recipe) == [content]


def database(path: Path) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
    connection.close()
    return path.read_bytes()


def archived(mode: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    with mode(out) as archive:
        if isinstance(archive, tarfile.TarFile):
            archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
        else:
            archive.writestr("a.txt", "text")
    return out.getvalue()


def test_other_containers_are_refused_by_name_whatever_they_are_called(
    tmp_path: Path, tiny_recipe: Recipe
):
    out = io.BytesIO()
    np.savez(out, np.arange(9))
    tar = archived(lambda out: tarfile.open(fileobj=out, mode="w"))  # noqa: SIM115
    for content, words in (
        (archived(lambda out: zipfile.ZipFile(out, "w")), "zip archive"),
        (out.getvalue(), "zip archive"),
        (tar, "tar archive"),
        (gzip.compress(tar), "tar archive"),
        (bz2.compress(b"text"), "bzip2"),
        (lzma.compress(b"text"), "xz"),
        (database(tmp_path / "x"), "SQLite"),
        (b"\x89HDF\r\n\x1a\n\0", "HDF5"),
        (pickle.dumps(["text"]), "pickle"),
        (b"%PDF-1.7\nmore", "PDF"),
        (b'[{"text": "a"},\n {"text": "b"}]', "JSON array of objects"),
        (b'{\n "text": "a"\n}', "JSON document"),
    ):
        for name in ("a.txt", "a"):
            (tmp_path / name).write_bytes(content)
            message = refusal(tmp_path / name, tiny_recipe)
            assert f"is a {words}" in message, message
            assert ": " in message.partition(words)[2], message
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.json").write_bytes(b'[{"text": "a"}]')
    assert "jq -c" in refusal(tmp_path / "one", tiny_recipe)
    (tmp_path / "one/a.json").write_bytes(b'{"text": "a"}')
    assert "jq -c" in refusal(tmp_path / "one", tiny_recipe)


@pytest.mark.parametrize("content", [b'["a", "b"]', b"[1, -2.5e3]", b'{"a": 1}'])
def test_json_that_is_too_long_to_be_parsed_is_refused_too(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, content: bytes
):
    monkeypatch.setattr(containers, "_LONGEST_LINE", 8)
    for begin in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "a.json").write_bytes(begin + content)
        assert "JSON document" in refusal(tmp_path / "a.json", tiny_recipe)


def test_renamed_links_to_the_same_files_are_read_anew(tmp_path: Path, tiny_recipe: Recipe):
    (held := tmp_path / "held").mkdir()
    (links := tmp_path / "links").mkdir()
    for name in ("extra", "train", "valid"):
        (held / name).write_bytes(json_lines([{"text": f"{name}, a text"}] * 200))
        (links / f"{name}.jsonl").symlink_to(held / name)
    before = sources.load(config(links, tiny_recipe)).fingerprint
    (links / "extra.jsonl").rename(links / "a-train.jsonl")
    assert sources.load(config(links, tiny_recipe)).fingerprint != before


def test_a_linked_file_cannot_train_and_validate(tmp_path: Path, tiny_recipe: Recipe):
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
    (tmp_path / "train/a.txt").write_text("a text " * 500)
    (tmp_path / "val/b.txt").symlink_to(tmp_path / "train/a.txt")
    places = {"val_path": str(tmp_path / "val")}
    assert "share files" in refusal(tmp_path / "train", tiny_recipe, **places)


BROKEN = {
    "cut.jsonl": (json_lines(ROWS)[:-30], "line 5 is no JSON"),
    "lists.jsonl": (b'["a"]\n["b"]\n', "line 1 holds a list"),
    "prose.jsonl": (b"prose\n", "line 1 is no JSON"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 3}\n', "row 2 has int in column text"),
    "other.jsonl": (b'{"n": 3, "story": "a"}\n', "only n, story: --set data.column=story"),
    "numbers.csv": (b"a,b\n1,2\n", "only a, b: none holds text"),
    "uneven.csv": (b"text,label\na, b,1\n", "line 2 has 3 fields, the header 2"),
    "quote.csv": (b'text\n"a\n', "unexpected end of data"),
    "latin.csv": ("text\ncaf\u00e9\n".encode("latin-1"), "iconv"),
    "cut.parquet": (parquet(COLUMNS)[:-9], "cannot be read as Parquet"),
    "cut.arrow": (arrow(COLUMNS, pa.ipc.new_file)[:300], "cannot be read as Arrow"),
    "nested.parquet": (parquet({"text": [["a"], ["b"]]}), "has list<"),
    "null.parquet": (parquet({"text": pa.nulls(3)}), "holds no text in column text"),
    "header.csv": (b"text,label\n", "holds no text in column text"),
    "empty.jsonl": (b"", "it is empty"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_rows_that_cannot_be_read_are_refused_in_a_line_with_file_and_place(
    tmp_path: Path, tiny_recipe: Recipe, name: str
):
    content, words = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name, tiny_recipe)
    assert words in message
    assert name in message


def test_shards_of_another_schema_are_refused_by_name(tmp_path: Path, tiny_recipe: Recipe):
    (tmp_path / "a.jsonl").write_bytes(json_lines(ROWS))
    (tmp_path / "b.jsonl").write_bytes(b'{"body": "text"}\n')
    message = refusal(tmp_path, tiny_recipe)
    assert "b.jsonl has no column text, only body: --set data.column=body" in message


def test_rows_without_text_are_left_out_and_counted(tmp_path: Path, tiny_recipe: Recipe):
    rows = [{"text": "a"}, {"text": None}, {"text": ""}, {"n": 1}, {"text": "\ud83d"}]
    (tmp_path / "a.jsonl").write_bytes(json_lines(rows))
    assert contents(tmp_path, tiny_recipe) == ["a", "?"]
    _, _, remarks = text.found(config(tmp_path, tiny_recipe).data).documents()
    assert "3 rows of split train without text left out" in remarks
    assert "half a character in 1 rows replaced by ?" in remarks


def test_a_column_of_plain_text_is_refused(tmp_path: Path, tiny_recipe: Recipe):
    (tmp_path / "a.txt").write_text("text")
    for key in ("column", "split", "val_split"):
        assert f"data.{key} is for rows" in refusal(tmp_path / "a.txt", tiny_recipe, **{key: "x"})


@pytest.mark.parametrize(
    ("package", "name"), [("pyarrow", "a.parquet"), ("zstandard", "a.jsonl.zst")]
)
def test_a_missing_package_is_named_with_the_extra(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch, package: str, name: str
):
    content = SAME["a.parquet"] if "parquet" in name else packed(SAME["a.jsonl"], ".zst")
    (tmp_path / name).write_bytes(content)
    monkeypatch.setitem(sys.modules, package, None)
    message = refusal(tmp_path / name, tiny_recipe)
    assert installing("data") in message
    assert package in message
