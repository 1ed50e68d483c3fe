"""Datasets that the `datasets` library writes and reads back here; skipped without it."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from attnres_cli.config.recipe import Data, load
from attnres_cli.data import huggingface, sources
from attnres_cli.data.documents import Document
from attnres_cli.errors import DataError, installing

ROWS = {"train": ["one", "two\n\nlines", "caf\u00e9"], "test": ["four"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """parquet: files by split; splits: those as save_to_disk writes them; one: a single split."""
    datasets = pytest.importorskip("datasets")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("hub")
    (folder / "parquet").mkdir()
    for split, rows in ROWS.items():
        table = pa.table({"text": rows, "number": list(range(len(rows)))})
        pq.write_table(table, folder / f"parquet/{split}.parquet")
    found = datasets.load_dataset(str(folder / "parquet"), cache_dir=str(folder / "cache"))
    found.save_to_disk(str(folder / "splits"))
    found["train"].save_to_disk(str(folder / "one"))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps what it converts below this test's folder."""
    if "datasets" in sys.modules:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def documents(path: object, **keys: Any) -> tuple[list[Document], list[Document] | None]:
    given = {"source": "huggingface", "path": None if path is None else str(path)}
    return huggingface.documents(Data.model_validate(given | keys))[:2]


def texts(found: list[Document] | None) -> list[str]:
    return [document.content.decode() for document in found or []]


def refusal(path: object, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        documents(path, **keys)
    (line,) = str(caught.value).splitlines()
    return line


def test_rows_are_documents_that_end_with_a_newline_and_a_named_split_validates(written: Path):
    for name in ("one", "splits", "parquet"):
        train, val = documents(written / name)
        assert texts(train) == ["one\n", "two\n\nlines\n", "caf\u00e9\n"]
        assert (val is None) == (name == "one")  # else its own split `test` validates
        assert len({document.name for document in train}) == 3
    for name in ("splits", "parquet"):
        train, val = documents(written / name, val_split="test")
        assert (len(train), texts(val)) == (3, ["four\n"])


def test_a_stream_gives_the_same_rows_and_no_more_than_asked_for(written: Path):
    whole, _ = documents(written / "parquet", rows=2)
    assert documents(written / "parquet", rows=2, streaming=True)[0] == whole
    assert len(whole) == 2


class Rows:
    """A split of a streamed dataset: its rows are made when they are asked for."""

    column_names = ("text",)

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __iter__(self) -> Iterator[dict[str, str]]:
        draw = np.random.default_rng(0)
        for _ in range(self.count):
            yield {"text": draw.integers(97, 123, self.size, dtype=np.uint8).tobytes().decode()}


@pytest.mark.parametrize("val_split", ["test", None])
def test_the_rows_of_a_stream_are_not_held_in_memory(
    monkeypatch: pytest.MonkeyPatch, val_split: str | None
):
    """10 MB of text take less than 2 MB of memory, and give the same tokens as when held."""
    library = ModuleType("datasets")
    library.load_dataset = lambda *_, **__: {"train": Rows(80, 2**17 - 1), "test": Rows(2, 9999)}
    monkeypatch.setitem(sys.modules, "datasets", library)
    config = [f"data.{key}" for key in ("source=huggingface", "path=any", f"val_split={val_split}")]
    config = [key for key in config if "None" not in key] + ["train.eval_tokens=256"]
    held = sources.load(load("smoke", config))

    tracemalloc.start()
    another = ["data.path=another", "data.streaming=true"]  # else the tokens that are kept
    streamed = sources.load(load("smoke", [*config, *another]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2e6
    assert streamed.fingerprint == held.fingerprint
    assert len(streamed.train) + len(streamed.val) > 10_000_000 - 200
    assert np.array_equal(streamed.batch(1, 2, 4, 64), held.batch(1, 2, 4, 64))
    evaluated = (list(tokens.eval_batches(256, 2, 64)) for tokens in (streamed, held))
    assert np.array_equal(*evaluated)
    assert streamed.description == held.description


def test_a_dataset_that_cannot_be_used_is_refused_in_a_line(written: Path):
    for name, keys, words in (
        ("splits", {"val_split": "train"}, "both train"),
        ("splits", {"val_split": "tset"}, "did you mean 'test'"),
        ("splits", {"column": "txt"}, "did you mean 'text'"),
        ("parquet", {"column": "txt"}, "did you mean 'text'"),
        ("splits", {"column": "number"}, "row 0 of train has int in number"),
        ("none", {}, "cannot be loaded"),
    ):
        assert words in refusal(written / name, **keys)


def test_no_dataset_and_no_package_are_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch):
    assert "--set data.path=NAME" in refusal(None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert installing("datasets") in refusal("wikitext")


def test_a_dataset_of_the_hub_is_downloaded_once(monkeypatch: pytest.MonkeyPatch):
    library, asked = ModuleType("datasets"), list[str]()

    def load_dataset(name: str, *_: object, **__: object) -> dict[str, Rows]:
        asked.append(name)
        return {"train": Rows(8, 9999)}

    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    config = ["data.source=huggingface", "data.path=any", "train.eval_tokens=256"]
    first = sources.load(load("smoke", [*config, "data.streaming=true"]))
    again = sources.load(load("smoke", config))

    assert asked == ["any"]
    assert (again.fingerprint, again.description) == (first.fingerprint, first.description)
    assert np.array_equal(again.batch(1, 2, 4, 64), first.batch(1, 2, 4, 64))
    sources.load(load("smoke", [*config, "data.rows=4"]))
    assert len(asked) == 2
