"""The cache of tokens: mapped again as they were, and never used once anything changed."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.data import cache, tokenizers
from attnres_cli.data.documents import Document
from attnres_cli.data.tokenizers import Tokenizer, streams

KEY = "0123456789abcdef" * 2
HALVES = np.arange(5000, dtype=np.uint16), np.arange(7, dtype=np.uint16)


def the_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def equal(found: cache.Halves | None) -> bool:
    return found is not None and all(map(np.array_equal, found, HALVES))


def test_cached_tokens_are_found_and_mapped_by_text_and_vocabulary():
    assert cache.find(KEY, 5000) is None

    cache.keep(KEY, 5000, [[half] for half in HALVES])

    found = cache.find(KEY, 5000)
    assert equal(found)
    assert found is not None
    assert found[0].dtype == np.uint16
    assert isinstance(found[0].base.base, np.memmap)
    assert not found[0].flags.writeable
    assert cache.find(KEY[::-1], 5000) is cache.find(KEY, 6000) is None


def test_a_changed_or_truncated_file_or_a_pickle_is_not_used_and_made_again(kept_tokens: Path):
    cache.keep(KEY, 5000, [[half] for half in HALVES])
    path = the_file(kept_tokens)
    whole = path.read_bytes()
    for at in (0, 1, 7, 70, 128, 2000, -1):
        content = bytearray(whole)
        content[at] ^= 1
        path.write_bytes(content)
        found = cache.find(KEY, 5000)
        assert found is None or (at == 70 and equal(found))  # spaces of the header hold nothing
    cuts = [whole[:size] for size in (0, 5, 60, 128, 129, 5000)]
    for content in (*cuts, pickle.dumps(HALVES)):
        path.write_bytes(content)
        assert cache.find(KEY, 5000) is None
    cache.keep(KEY, 5000, [[half] for half in HALVES])
    assert equal(cache.find(KEY, 5000))


def test_nothing_is_cached_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.keep(KEY, 5000, [[half] for half in HALVES])
    assert cache.find(KEY, 5000) is None


def _keep_and_find(_number: int) -> bool:
    """Run in a process of its own."""
    for _ in range(20):
        cache.keep(KEY, 5000, [[half] for half in HALVES])
        if not equal(cache.find(KEY, 5000)):
            return False
    return True


@pytest.mark.slow
def test_processes_that_cache_the_same_text_at_once_all_find_it_whole(kept_tokens: Path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert all(pool.map(_keep_and_find, range(9), chunksize=1))
    assert equal(cache.find(KEY, 5000))
    assert the_file(kept_tokens)  # no other one is left


class Counting:
    """A tokenizer that gives the length of each word, and counts how often it is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.identity = 0, "words 1"
        monkeypatch.setattr(
            tokenizers, "_open", lambda _: Tokenizer(self.identity, 100, self.encode, str)
        )

    def encode(self, texts: list[str]) -> list[list[int]]:
        self.used += 1
        return [[len(word) for word in text.split()] for text in texts]


def texts(*contents: str) -> list[Document]:
    return [Document(str(number), text.encode()) for number, text in enumerate(contents)]


def test_a_text_is_tokenized_once_and_again_where_anything_changed(
    kept_tokens: Path, monkeypatch: pytest.MonkeyPatch
):
    counting = Counting(monkeypatch)
    train, val = texts("a bb", "ccc"), texts("dddd e")
    first = streams("text", train, val, "t.json")
    assert counting.used == 2

    again = streams("text", train, val, "t.json")

    assert counting.used == 2
    assert again.fingerprint == first.fingerprint
    assert [np.asarray(half).tolist() for half in (again.train, again.val)] == [[1, 2, 3], [4, 1]]
    the_file(kept_tokens).write_bytes(b"nonsense")
    assert streams("text", train, val, "t.json").fingerprint == first.fingerprint
    assert counting.used == 4
    streams("text", texts("a bb", "cc c"), val, "t.json")
    assert counting.used == 6
    streams("text", texts("a bb"), texts("ccc", "dddd e"), "t.json")
    assert counting.used == 8
    counting.identity = "words 2"
    streams("text", train, val, "t.json")
    assert counting.used == 10


def test_tokenized_text_is_described_with_its_compressed_size(monkeypatch: pytest.MonkeyPatch):
    Counting(monkeypatch)
    facts = streams("text", texts("a b"), texts("la " * 5000, "lo " * 5000), "t.json").description
    assert facts.zlib_bits is not None
    assert facts.zlib_bits < 0.1
    assert not facts.is_bytes
