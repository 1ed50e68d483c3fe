"""Token files of three formats: what is read, how they are split, and what is refused."""

from __future__ import annotations

import os
import resource
import struct
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


def shard(path: Path, tokens: np.ndarray = COUNTING, dtype: str = "<u2", **head: int) -> Path:
    """A file as llm.c's write_datafile writes it."""
    path.parent.mkdir(exist_ok=True)
    header = np.zeros(256, dtype="<i4")
    header[:3] = list(({"magic": 20240520, "version": 1, "n_tokens": len(tokens)} | head).values())
    return written(path, header.tobytes() + tokens.astype(dtype).tobytes())


def megatron(path: Path, tokens: np.ndarray = COUNTING, dtype: str = "<i4", code: int = 4) -> Path:
    """A file as Megatron's preprocess_data.py writes it, of two documents, and its index."""
    lengths = np.array([300, len(tokens) - 300], "<i4")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, 2, 3)
    places = np.array([0, 300], "<i8") * np.dtype(dtype).itemsize
    index = head + lengths.tobytes() + places.tobytes() + np.arange(3, dtype="<i8").tobytes()
    written(path.with_suffix(".idx"), index)
    return raw(path, tokens, dtype)


def npy(path: Path, tokens: np.ndarray = COUNTING) -> Path:
    np.save(path, tokens, allow_pickle=tokens.dtype.kind == "O")
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, size: int) -> Path:
    os.truncate(path, size)
    return path


def named(source: str, folder: Path) -> Path:
    return folder / ("a.npy" if source == "npy" else "a.bin")


def load(source: str, path: Path | str | None, **keys: object) -> Streams:
    given = None if path is None else str(path)
    return tokenfiles.load(Data.model_validate({"source": source, "path": given} | keys))


def refusal(source: str, path: Path | str | None, **keys: object) -> str:
    with pytest.raises(DataError) as caught:
        load(source, path, **keys)
    (line,) = str(caught.value).splitlines()
    return line


def held(tokens: Streams) -> list[list[int]]:
    return [stream[: len(stream)].tolist() for stream in (tokens.train, tokens.val)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of more than 1000 tokens are too large to read whole."""
    for name, value in (("_WHOLE", 1000), ("_BLOCK", 64), ("_BLOCKS", 3)):
        monkeypatch.setattr(tokenfiles, name, value)


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
    tokens = load(source, write(named(source, tmp_path)), val_fraction=0.1, **keys)
    assert held(tokens) == [list(range(900)), list(range(900, 1000))]
    assert tokens.vocab_size == keys.get("vocab_size", 1000)
    assert tokens.batch(0, 0, 4, 16).dtype == np.int64
    assert (np.diff(tokens.batch(0, 0, 4, 16)) == 1).all()


def test_a_large_uint32_token_is_read_and_tokens_of_one_byte_are_not_called_text(tmp_path: Path):
    path = raw(tmp_path / "a.bin", np.array([100_276, 3] * 50), "<u4")
    found = load("npy", npy(tmp_path / "a.npy", np.arange(256, dtype=np.uint8))).description
    assert load("nanogpt", path, vocab_size=100_277).batch(0, 0, 1, 8).max() == 100_276
    assert not found.is_bytes
    assert found.size.startswith("256 tokens, ")


def test_files_of_a_folder_or_pattern_are_one_stream_in_the_order_of_their_names(tmp_path: Path):
    for number in (11, 10, 9):
        shard(tmp_path / f"x_{number:06d}.bin", np.arange(100) + 100 * (number - 9))
    (tmp_path / "readme.txt").write_text("no tokens")

    folder = load("llmc", tmp_path, val_fraction=0.2)
    pattern = load("llmc", tmp_path / "x_00001*.bin", val_fraction=0.1)

    assert held(folder) == [list(range(240)), list(range(240, 300))]
    assert folder.description.split == "the last 20 % of 3 files in a row validates"
    assert held(pattern) == [list(range(100, 280)), list(range(280, 300))]


def test_files_validate_by_their_name_or_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pairs = [("train.bin", "val.bin"), ("a.bin", "a-validation.bin"), ("here.bin", "there/any.bin")]
    pairs += [("fineweb_train_000001.bin", "fineweb_val_000000.bin")]
    pairs += [("tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin")]
    for train, val in pairs:
        (tmp_path / train).mkdir()
        monkeypatch.chdir(tmp_path / train)
        raw(Path(train), np.arange(100))
        raw(Path(val), np.arange(100, 150))

        given = {"val_path": val} if "there" in val else {"val_fraction": 0.5}
        tokens = load("nanogpt", train if "there" in val else ".", **given)

        assert held(tokens) == [list(range(100)), list(range(100, 150))]
        assert tokens.description.split == "files that train: 1, others that validate: 1"
    raw(tmp_path / "value.bin", np.arange(100))  # words that only begin like validation
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
    found = {load("nanogpt", tmp_path).fingerprint}
    (tmp_path / "a.bin").rename(tmp_path / "c.bin")
    for keys in {}, {"val_fraction": 0.3}, {"vocab_size": 300}:
        found.add(load("nanogpt", tmp_path, **keys).fingerprint)

    assert len(found) == 4


@pytest.mark.usefixtures("large")
def test_the_fingerprint_of_large_files_sees_sizes_ends_and_blocks(tmp_path: Path):
    content = np.arange(100_000) % 1000
    contents = [content, content[1:]]
    for position in (0, 50_000, 99_999):
        contents.append(content.copy())
        contents[-1][position] = 1000
    paths = [raw(tmp_path / f"{number}.bin", each) for number, each in enumerate(contents)]

    assert len({load("nanogpt", path, vocab_size=1001).fingerprint for path in paths}) == 5


def test_a_token_beyond_the_vocabulary_is_refused_before_training(tmp_path: Path):
    for source, write in (("nanogpt", raw), ("llmc", shard), ("npy", npy)):
        message = refusal(source, write(named(source, tmp_path)), vocab_size=999)
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


Make = Callable[[Path], Path | str | None]
NONE = COUNTING[:0]
OBJECTS = np.array([{"a": 1}, 2], dtype=object)
ZIP, PICKLE = b"PK\3\4" + b"\0" * 100, b"\x80\4\x95" + b"\0" * 100
CUT = "3024 bytes ... {} tokens ... truncated"

BAD: list[tuple[str, Make, str]] = [
    ("nanogpt", lambda path: written(path, b""), "is empty"),
    ("nanogpt", lambda path: written(path, b"\1" * 2001), "2001 bytes ... uint16"),
    ("nanogpt", lambda path: raw(path, dtype="<u4"), "--set data.dtype=uint32"),
    ("nanogpt", lambda path: raw(path, COUNTING + 2**16, "<u4"), "--set data.dtype=uint32"),
    ("nanogpt", lambda path: written(path, ZIP), "unpack it"),
    ("nanogpt", shard, "20240520 ... --set data.source=llmc"),
    ("llmc", lambda _: None, "--set data.path="),
    ("llmc", lambda path: path, "a.bin ... does not exist"),
    ("llmc", lambda path: f"{path}*", "a.bin ... does not exist"),
    ("llmc", lambda path: f"{path}/", "a.bin ... does not exist"),
    ("llmc", lambda _: "/dev/zero", "holds no .bin file"),
    ("llmc", lambda path: written(path, b""), "is empty"),
    ("llmc", lambda path: shard(path, NONE), "holds no tokens"),
    ("llmc", raw, "expected magic 20240520 or 20240801 ... --set data.source=nanogpt"),
    ("llmc", lambda path: shard(path, magic=20240522), "multiple-choice"),
    ("llmc", lambda path: shard(path, version=3), "version 3, expected 1"),
    ("llmc", lambda path: shard(path, n_tokens=1001), CUT.format(1001)),
    ("llmc", lambda path: shard(path, n_tokens=10**9), CUT.format(10**9)),
    ("llmc", lambda path: shard(path, n_tokens=999), "3024 bytes ... 999 tokens ... header"),
    ("llmc", lambda path: cut(shard(path), 500), "ends within its header"),
    ("npy", lambda path: raw(path.with_suffix(".bin")).parent, "holds no .npy file"),
    ("npy", lambda path: written(path, b""), "is empty"),
    ("npy", lambda path: npy(path, NONE), "holds no tokens"),
    ("npy", lambda path: cut(npy(path), 7), "cannot be read as .npy"),
    ("npy", lambda path: cut(npy(path), 129), "cannot be read as .npy"),
    ("npy", lambda path: cut(npy(path), 1000), "cannot be read as .npy"),
    ("npy", lambda path: npy(path, OBJECTS), "Python objects"),
    ("npy", lambda path: written(path, ZIP), "is no .npy file"),
    ("npy", lambda path: written(path, PICKLE), "is no .npy file"),
    ("npy", lambda path: npy(path, np.ones(5)), "(5,) ... one dimension"),
    ("npy", lambda path: npy(path, COUNTING.reshape(2, 500)), "(2, 500) ... one dimension"),
    ("npy", lambda path: npy(path, np.array(5)), "() ... one dimension"),
    ("npy", lambda path: npy(path, np.array([1, -2, 3])), "negative"),
]
"""Files that are no token files of a source, and parts of the lines that refuse them."""


@pytest.mark.parametrize(("source", "make", "words"), BAD)
def test_a_bad_file_is_refused_in_one_line_with_the_reason_or_the_remedy(
    tmp_path: Path, source: str, make: Make, words: str
):
    message = refusal(source, make(named(source, tmp_path)))
    assert [part for part in words.split(" ... ") if part not in message] == [], message


def test_a_dtype_or_validation_path_that_does_not_fit_is_named_by_its_key(tmp_path: Path):
    path = raw(tmp_path / "a.bin")
    odd = written(tmp_path / "odd.bin", b"\1" * 2002)

    assert "data.dtype" in refusal("nanogpt", path, dtype="uint32")  # a vocabulary of millions
    assert "data.val_path" in refusal("nanogpt", path, val_path=str(tmp_path / "none.bin"))
    message = refusal("nanogpt", odd, dtype="uint32")
    assert "2002 bytes" in message
    assert "uint32" in message


@pytest.mark.parametrize(("dtype", "code"), [("u1", 1), ("<i4", 4), ("<i8", 5), ("<u2", 8)])
def test_tokens_of_megatron_have_the_type_that_their_index_says(
    tmp_path: Path, dtype: str, code: int
):
    counting = COUNTING % 200
    tokens = load("megatron", megatron(tmp_path / "a.bin", counting, dtype, code))
    assert [*tokens.train[0 : len(tokens.train)], *tokens.val[0:50]] == counting.tolist()
    assert tokens.train[0:1].dtype == np.dtype(dtype)


def test_megatrons_files_are_refused_without_their_index_or_as_another_format(tmp_path: Path):
    path = megatron(tmp_path / "a.bin")
    assert "--set data.source=megatron" in refusal("nanogpt", path)
    cut(path, 3996)
    assert "has 3996 bytes, a.idx says 1000 tokens of int32" in refusal("megatron", path)
    megatron(path, dtype="<f8", code=6)
    assert "type 6" in refusal("megatron", path)
    for size, words in ((40, "truncated: a.idx"), (3, "beside it, a.idx")):
        megatron(path)
        cut(path.with_suffix(".idx"), size)
        assert words in refusal("megatron", path)
    path.with_suffix(".idx").unlink()
    assert "needs an index of Megatron's version 1 beside it, a.idx" in refusal("megatron", path)
