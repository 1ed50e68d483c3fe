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
from attnres_cli.errors import DataError

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
    return huggingface.documents(Data.model_validate(given | keys))


def texts(found: list[Document] | None) -> list[str]:
    return [document.content.decode() for document in found or []]


def refusal(path: object, **keys: Any) -> str:
    """The one line that a user sees."""
    with pytest.raises(DataError) as caught:
        documents(path, **keys)

    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["one", "splits", "parquet"])
def test_rows_are_documents_that_end_with_a_newline(written: Path, name: str):
    train, val = documents(written / name)

    assert texts(train) == ["one\n", "two\n\nlines\n", "caf\u00e9\n"]
    assert val is None
    assert len({document.name for document in train}) == 3


@pytest.mark.parametrize("name", ["splits", "parquet"])
def test_a_split_of_its_own_validates(written: Path, name: str):
    train, val = documents(written / name, val_split="test")

    assert len(train) == 3
    assert texts(val) == ["four\n"]


def test_a_stream_gives_the_same_rows_and_no_more_than_asked_for(written: Path):
    whole, _ = documents(written / "parquet", rows=2)
    streamed, _ = documents(written / "parquet", rows=2, streaming=True)

    assert streamed == whole
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
    """10 MB of text by way of less than 2 MB of memory, and as the same tokens as without."""
    library = ModuleType("datasets")
    library.load_dataset = lambda *_, **__: {"train": Rows(80, 2**17 - 1), "test": Rows(2, 9999)}
    monkeypatch.setitem(sys.modules, "datasets", library)
    config = [f"data.{key}" for key in ("source=huggingface", "path=any", f"val_split={val_split}")]
    config = [key for key in config if "None" not in key] + ["train.eval_tokens=256"]
    held = sources.load(load("smoke", config))

    tracemalloc.start()
    streamed = sources.load(load("smoke", [*config, "data.streaming=true"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2e6
    assert streamed.fingerprint == held.fingerprint
    assert len(streamed.train) + len(streamed.val) > 10_000_000 - 200
    assert np.array_equal(streamed.batch(1, 2, 4, 64), held.batch(1, 2, 4, 64))
    for one, other in zip(
        streamed.eval_batches(256, 2, 64), held.eval_batches(256, 2, 64), strict=True
    ):
        assert np.array_equal(one, other)
    assert streamed.description == held.description


def test_no_dataset_is_refused_with_the_option_that_names_one():
    assert "--set data.path=NAME" in refusal(None)


def test_one_split_does_not_train_and_validate(written: Path):
    assert "both train" in refusal(written / "splits", val_split="train")


def test_an_unknown_split_is_refused_with_the_nearest(written: Path):
    assert "did you mean 'test'" in refusal(written / "splits", val_split="tset")


@pytest.mark.parametrize("name", ["splits", "parquet"])
def test_an_unknown_column_is_refused_with_the_nearest(written: Path, name: str):
    assert "did you mean 'text'" in refusal(written / name, column="txt")


def test_a_column_without_text_is_refused_with_what_it_holds(written: Path):
    assert "row 0 of train has int in number" in refusal(written / "splits", column="number")


def test_a_dataset_that_is_not_there_is_refused(written: Path):
    assert "cannot be loaded" in refusal(written / "none")


def test_the_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "datasets", None)

    assert "pip install 'attnres-cli[datasets]'" in refusal("wikitext")
