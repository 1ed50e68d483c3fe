"""Token files of three formats: what is read, how they are split, and what is refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.config.recipe import Data
from attnres_cli.data import tokenfiles
from attnres_cli.data.tokens import Chain, Streams
from attnres_cli.errors import DataError

COUNTING = np.arange(1000)


def raw(path: Path, tokens: np.ndarray = COUNTING, dtype: str = "<u2") -> Path:
    """A file as nanoGPT's prepare.py writes it."""
    path.parent.mkdir(exist_ok=True)
    tokens.astype(dtype).tofile(path)
    return path


def shard(
    path: Path,
    tokens: np.ndarray = COUNTING,
    magic: int = 20240520,
    version: int = 1,
    dtype: str = "<u2",
    n_tokens: int | None = None,
) -> Path:
    """A file as llm.c's write_datafile writes it."""
    path.parent.mkdir(exist_ok=True)
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens) if n_tokens is None else n_tokens
    return written(path, header.tobytes() + tokens.astype(dtype).tobytes())


def npy(path: Path, tokens: np.ndarray = COUNTING) -> Path:
    np.save(path, tokens, allow_pickle=tokens.dtype.kind == "O")
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, size: int) -> Path:
    os.truncate(path, size)
    return path


def load(source: str, path: Path | str | None, **keys: object) -> Streams:
    given = None if path is None else str(path)
    return tokenfiles.load(Data.model_validate({"source": source, "path": given} | keys))


def refusal(source: str, path: Path | str | None, **keys: object) -> str:
    """The one line that a user sees."""
    with pytest.raises(DataError) as caught:
        load(source, path, **keys)

    message = str(caught.value)
    assert "\n" not in message
    return message


def held(tokens: Streams) -> list[list[int]]:
    return [stream[: len(stream)].tolist() for stream in (tokens.train, tokens.val)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of more than 1000 tokens are too large to read whole."""
    for name, value in (("_WHOLE", 1000), ("_BLOCK", 64), ("_BLOCKS", 3)):
        monkeypatch.setattr(tokenfiles, name, value)


# Formats


@pytest.mark.parametrize(
    ("source", "write", "keys"),
    [
        ("nanogpt", raw, {}),
        ("nanogpt", lambda path: raw(path, dtype="<u4"), {"dtype": "uint32"}),
        ("nanogpt", lambda path: raw(path, dtype="<u4"), {"vocab_size": 100_000}),
        ("llmc", shard, {}),
        ("llmc", lambda path: shard(path, magic=20240801, version=7, dtype="<u4"), {}),
        ("npy", npy, {}),
        ("npy", lambda path: npy(path, COUNTING.astype(">i2")), {}),
        ("npy", lambda path: npy(path, COUNTING.astype(np.uint32)), {}),
    ],
)
def test_every_format_gives_the_tokens_it_was_written_from(tmp_path: Path, source, write, keys):
    path = write(tmp_path / ("a.npy" if source == "npy" else "a.bin"))

    tokens = load(source, path, val_fraction=0.1, **keys)

    assert held(tokens) == [list(range(900)), list(range(900, 1000))]
    assert tokens.vocab_size == keys.get("vocab_size", 1000)
    assert tokens.batch(0, 0, 4, 16).dtype == np.int64
    assert (np.diff(tokens.batch(0, 0, 4, 16)) == 1).all()


def test_the_largest_uint32_token_is_read_and_tokens_of_one_byte_are_not_called_text(
    tmp_path: Path,
):
    path = raw(tmp_path / "a.bin", np.array([100_276, 3] * 50), "<u4")
    found = load("npy", npy(tmp_path / "a.npy", np.arange(256, dtype=np.uint8))).description

    assert load("nanogpt", path, vocab_size=100_277).batch(0, 0, 1, 8).max() == 100_276
    assert not found.is_bytes
    assert found.size.startswith("256 tokens, ")


# Which files


def test_the_files_of_a_folder_or_pattern_are_one_stream_in_the_order_of_their_names(
    tmp_path: Path,
):
    for number in (11, 10, 9):
        shard(tmp_path / f"x_{number:06d}.bin", np.arange(100) + 100 * (number - 9))
    (tmp_path / "readme.txt").write_text("no tokens")

    folder = load("llmc", tmp_path, val_fraction=0.2)
    pattern = load("llmc", tmp_path / "x_00001*.bin", val_fraction=0.1)

    assert held(folder) == [list(range(240)), list(range(240, 300))]
    assert folder.description.split == "the last 20 % of 3 files in a row validates"
    assert held(pattern) == [list(range(100, 280)), list(range(280, 300))]


@pytest.mark.parametrize(
    ("train", "val", "keys"),
    [
        ("train.bin", "val.bin", {"val_fraction": 0.5}),
        ("fineweb_train_000001.bin", "fineweb_val_000000.bin", {"val_fraction": 0.5}),
        ("tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin", {"val_fraction": 0.5}),
        ("a.bin", "a-validation.bin", {"val_fraction": 0.5}),
        ("here.bin", "there/any.bin", {"path": "here.bin", "val_path": "there/any.bin"}),
    ],
)
def test_files_named_for_validation_or_given_as_such_validate(
    tmp_path: Path, train: str, val: str, keys: dict, monkeypatch: pytest.MonkeyPatch
):
    raw(tmp_path / train, np.arange(100))
    raw(tmp_path / val, np.arange(100, 150))
    monkeypatch.chdir(tmp_path)

    tokens = load("nanogpt", **({"path": "."} | keys))

    assert held(tokens) == [list(range(100)), list(range(100, 150))]
    assert tokens.description.split == "files that train: 1, others that validate: 1"


def test_a_word_that_only_begins_like_validation_names_no_validation_file(tmp_path: Path):
    raw(tmp_path / "value.bin", np.arange(100))
    raw(tmp_path / "interval.bin", np.arange(100, 200))

    assert held(load("nanogpt", tmp_path, val_fraction=0.1))[0] == [*range(100, 200), *range(80)]


def test_a_file_or_its_copy_cannot_both_train_and_validate(tmp_path: Path):
    path, copy = raw(tmp_path / "a.bin"), raw(tmp_path / "copy.bin")

    for val_path in (path, copy):
        assert "same tokens" in refusal("nanogpt", path, val_path=str(val_path))


def test_a_window_continues_from_one_shard_into_the_next(tmp_path: Path):
    for start in range(0, 40, 5):
        shard(tmp_path / f"{start:02d}.bin", np.arange(start, start + 5))

    tokens = load("llmc", tmp_path, val_fraction=0.4)

    assert (np.diff(tokens.batch(0, 0, 64, 16)) == 1).all()
    assert (np.diff(np.concatenate(list(tokens.eval_batches(12, 4, 4)))) == 1).all()


def test_a_chain_that_is_cut_loses_and_shares_nothing():
    for at in (0, 1, 3, 4, 5, 9, 10):
        before, after = Chain([np.arange(4), np.arange(4, 9), np.arange(9, 10)]).cut(at)
        assert (len(before), len(after)) == (at, 10 - at)
        assert [*before[:at].tolist(), *after[: 10 - at].tolist()] == list(range(10))


def test_files_are_mapped_and_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sparse file of 8 GB takes less than 0.5 GB of this process's memory."""
    monkeypatch.setattr(tokenfiles, "_BLOCKS", 16)  # holes are slow to map
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(8 * 2**30)
        file.write(np.arange(1, 5000, dtype="<u2").tobytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    tokens = load("nanogpt", path, vocab_size=50_257)
    tokens.batch(0, 0, 8, 1024)

    assert len(tokens.train) + len(tokens.val) == 2**32
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


# Fingerprints


def test_a_moved_folder_keeps_its_fingerprint_and_a_changed_token_does_not(tmp_path: Path):
    for number in range(3):
        shard(tmp_path / f"here/{number}.bin", np.arange(100) + number)
    before = load("llmc", tmp_path / "here").fingerprint

    (tmp_path / "here").rename(tmp_path / "there")
    assert load("llmc", tmp_path / "there").fingerprint == before

    changed = np.arange(100) + 1
    changed[57] = 0
    shard(tmp_path / "there/1.bin", changed)
    assert load("llmc", tmp_path / "there").fingerprint != before


def test_the_fingerprint_sees_vocabulary_split_and_order(tmp_path: Path):
    raw(tmp_path / "a.bin", np.arange(100))
    raw(tmp_path / "b.bin", np.arange(100, 200))
    first = load("nanogpt", tmp_path)

    (tmp_path / "a.bin").rename(tmp_path / "c.bin")
    others = [load("nanogpt", tmp_path, **k) for k in ({}, {"val_fraction": 0.3})]
    others += [load("nanogpt", tmp_path, vocab_size=300)]

    assert len({tokens.fingerprint for tokens in (first, *others)}) == 4


@pytest.mark.usefixtures("large")
def test_the_fingerprint_of_large_files_sees_sizes_ends_and_blocks(tmp_path: Path):
    content = np.arange(100_000) % 1000
    contents = [content, content[1:]]
    for position in (0, 50_000, 99_999):
        contents.append(content.copy())
        contents[-1][position] = 1000
    paths = [raw(tmp_path / f"{number}.bin", each) for number, each in enumerate(contents)]

    assert len({load("nanogpt", path, vocab_size=1001).fingerprint for path in paths}) == 5


# Vocabulary


@pytest.mark.parametrize("source", ["nanogpt", "llmc", "npy"])
def test_a_token_beyond_the_vocabulary_is_refused_before_training(tmp_path: Path, source: str):
    write = {"nanogpt": raw, "llmc": shard, "npy": npy}[source]
    path = write(tmp_path / ("a.npy" if source == "npy" else "a.bin"))

    message = refusal(source, path, vocab_size=999)

    assert "token 999 is beyond the vocabulary of 999" in message
    assert "a." in message
    assert "--set data.vocab_size=1000" in message


@pytest.mark.usefixtures("large")
def test_large_files_need_a_vocabulary_and_tokens_beyond_it_are_refused_when_read(tmp_path: Path):
    content = np.zeros(100_000, dtype=np.int64) + 7
    content[60_000:90_000] = 11
    path = raw(tmp_path / "a.bin", content)

    assert "--set data.vocab_size=50257" in refusal("nanogpt", path)
    with pytest.raises(DataError, match="token 11 is beyond the vocabulary of 10"):
        load("nanogpt", path, vocab_size=10).batch(0, 0, 64, 16)


# Bad files

Make = Callable[[Path], Path | str | None]
NONE = COUNTING[:0]
OBJECTS = np.array([{"a": 1}, 2], dtype=object)
ZIP, PICKLE = b"PK\3\4" + b"\0" * 100, b"\x80\4\x95" + b"\0" * 100

BAD_NANOGPT: list[tuple[Make, str]] = [
    (lambda path: written(path, b""), "is empty"),
    (lambda path: written(path, b"\1" * 2001), "2001 bytes ... uint16"),
    (lambda path: raw(path, dtype="<u4"), "--set data.dtype=uint32"),
    (shard, "20240520 ... --set data.source=llmc"),
]
BAD_LLMC: list[tuple[Make, str]] = [
    (lambda _: None, "--set data.path="),
    (lambda path: path, "a.bin ... does not exist"),
    (lambda path: f"{path}*", "a.bin ... does not exist"),
    (lambda path: f"{path}/", "a.bin ... does not exist"),
    (lambda _: "/dev/zero", "holds no .bin file"),
    (lambda path: written(path, b""), "is empty"),
    (lambda path: shard(path, NONE), "holds no tokens"),
    (raw, "expected magic 20240520 or 20240801 ... --set data.source=nanogpt"),
    (lambda path: shard(path, magic=20240522), "multiple-choice"),
    (lambda path: shard(path, version=3), "version 3, expected 1"),
    (lambda path: shard(path, n_tokens=1001), "3024 bytes ... 1001 tokens ... truncated"),
    (lambda path: shard(path, n_tokens=10**9), "3024 bytes ... 1000000000 tokens ... truncated"),
    (lambda path: shard(path, n_tokens=999), "3024 bytes ... 999 tokens ... header is wrong"),
    (lambda path: cut(shard(path), 500), "ends within its header"),
]
BAD_NPY: list[tuple[Make, str]] = [
    (lambda path: raw(path.with_suffix(".bin")).parent, "holds no .npy file"),
    (lambda path: written(path, b""), "is empty"),
    (lambda path: npy(path, NONE), "holds no tokens"),
    (lambda path: cut(npy(path), 7), "cannot be read as .npy"),
    (lambda path: cut(npy(path), 60), "cannot be read as .npy"),
    (lambda path: cut(npy(path), 129), "cannot be read as .npy"),
    (lambda path: cut(npy(path), 1000), "cannot be read as .npy"),
    (lambda path: npy(path, OBJECTS), "Python objects"),
    (lambda path: written(path, ZIP), "is no .npy file"),
    (lambda path: written(path, PICKLE), "is no .npy file"),
    (lambda path: npy(path, np.ones(5)), "(5,) ... one dimension"),
    (lambda path: npy(path, COUNTING.reshape(2, 500)), "(2, 500) ... one dimension"),
    (lambda path: npy(path, np.array(5)), "() ... one dimension"),
    (lambda path: npy(path, np.array([1, -2, 3])), "negative"),
]
"""Files that are no token files of a source, and parts of the lines that refuse them."""


@pytest.mark.parametrize(
    ("source", "make", "words"),
    [
        *(("nanogpt", *case) for case in BAD_NANOGPT),
        *(("llmc", *case) for case in BAD_LLMC),
        *(("npy", *case) for case in BAD_NPY),
    ],
)
def test_a_bad_file_is_refused_in_one_line_with_the_reason_or_the_remedy(
    tmp_path: Path, source: str, make: Make, words: str
):
    message = refusal(source, make(tmp_path / ("a.npy" if source == "npy" else "a.bin")))

    assert [part for part in words.split(" ... ") if part not in message] == [], message


def test_a_dtype_or_validation_path_that_does_not_fit_is_named_by_its_key(tmp_path: Path):
    path = raw(tmp_path / "a.bin")
    odd = written(tmp_path / "odd.bin", b"\1" * 2002)

    assert "data.dtype" in refusal("nanogpt", path, dtype="uint32")  # a vocabulary of millions
    assert "data.val_path" in refusal("nanogpt", path, val_path=str(tmp_path / "none.bin"))
    message = refusal("nanogpt", odd, dtype="uint32")
    assert "2002 bytes" in message
    assert "uint32" in message
