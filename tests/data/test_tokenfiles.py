"""Token files of three formats: what is read, how they are split, and what is refused."""

from __future__ import annotations

import os
import resource
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
    path.write_bytes(header.tobytes() + tokens.astype(dtype).tobytes())
    return path


def npy(path: Path, tokens: np.ndarray = COUNTING) -> Path:
    np.save(path, tokens, allow_pickle=tokens.dtype.kind == "O")
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


def test_the_largest_token_of_uint32_files_is_read(tmp_path: Path):
    path = raw(tmp_path / "a.bin", np.array([100_276, 3] * 50), "<u4")

    assert load("nanogpt", path, vocab_size=100_277).batch(0, 0, 1, 8).max() == 100_276


# Which files


def test_the_files_of_a_folder_are_one_stream_in_the_order_of_their_names(tmp_path: Path):
    for name, start in (("x_000001", 500), ("x_000000", 0)):
        shard(tmp_path / f"{name}.bin", np.arange(start, start + 500))
    (tmp_path / "readme.txt").write_text("no tokens")

    tokens = load("llmc", tmp_path, val_fraction=0.2)

    assert held(tokens) == [list(range(800)), list(range(800, 1000))]
    assert tokens.description.split == "the last 20 % of 2 files in a row validates"


def test_the_files_that_a_pattern_matches_are_read_and_no_others(tmp_path: Path):
    for number in range(12):
        shard(tmp_path / f"x_{number:06d}.bin", np.arange(100) + 100 * number)

    tokens = load("llmc", tmp_path / "x_00001*.bin", val_fraction=0.1)

    assert held(tokens)[0] == list(range(1000, 1180))


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("train.bin", "val.bin"),
        ("fineweb_train_000001.bin", "fineweb_val_000000.bin"),
        ("tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"),
        ("a.bin", "a-validation.bin"),
    ],
)
def test_the_files_of_a_folder_that_are_called_so_validate(tmp_path: Path, train: str, val: str):
    raw(tmp_path / train, np.arange(100))
    raw(tmp_path / val, np.arange(100, 150))

    tokens = load("nanogpt", tmp_path, val_fraction=0.5)

    assert held(tokens) == [list(range(100)), list(range(100, 150))]
    assert tokens.description.split == "files that train: 1, others that validate: 1"


def test_a_word_that_only_begins_like_validation_does_not_make_a_file_validate(tmp_path: Path):
    raw(tmp_path / "value.bin", np.arange(100))
    raw(tmp_path / "interval.bin", np.arange(100, 200))

    assert held(load("nanogpt", tmp_path, val_fraction=0.1))[0] == [*range(100, 200), *range(80)]


def test_a_given_validation_path_validates_and_all_of_the_path_trains(tmp_path: Path):
    raw(tmp_path / "here.bin", np.arange(100))
    raw(tmp_path / "there.bin", np.arange(100, 150))

    tokens = load("nanogpt", tmp_path / "here.bin", val_path=str(tmp_path / "there.bin"))

    assert held(tokens) == [list(range(100)), list(range(100, 150))]


def test_a_file_that_would_train_and_validate_is_refused_also_as_a_copy(tmp_path: Path):
    path, copy = raw(tmp_path / "a.bin"), raw(tmp_path / "copy.bin")

    for val_path in (path, copy):
        assert "same tokens" in refusal("nanogpt", path, val_path=str(val_path))


def test_a_window_over_the_end_of_a_shard_goes_on_in_the_next(tmp_path: Path):
    for start in range(0, 40, 5):
        shard(tmp_path / f"{start:02d}.bin", np.arange(start, start + 5))

    tokens = load("llmc", tmp_path, val_fraction=0.4)

    assert (np.diff(tokens.batch(0, 0, 64, 16)) == 1).all()
    assert (np.diff(np.concatenate(list(tokens.eval_batches(12, 4, 4)))) == 1).all()


@pytest.mark.parametrize("at", [0, 1, 3, 4, 5, 9, 10])
def test_a_chain_that_is_cut_loses_and_shares_nothing(at: int):
    chain = Chain([np.arange(4), np.arange(4, 9), np.arange(9, 10)])

    before, after = chain.cut(at)

    assert (len(before), len(after)) == (at, 10 - at)
    assert [*before[:at].tolist(), *after[: 10 - at].tolist()] == list(range(10))


def test_files_are_mapped_and_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sparse file of 8 GB, of which this process takes less than a tenth."""
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


def test_the_fingerprint_sees_vocabulary_and_split_and_order(tmp_path: Path):
    raw(tmp_path / "a.bin", np.arange(100))
    raw(tmp_path / "b.bin", np.arange(100, 200))
    first = load("nanogpt", tmp_path)

    (tmp_path / "a.bin").rename(tmp_path / "c.bin")
    others = [
        load("nanogpt", tmp_path),
        load("nanogpt", tmp_path, val_fraction=0.3),
        load("nanogpt", tmp_path, vocab_size=300),
    ]

    assert len({tokens.fingerprint for tokens in (first, *others)}) == 4


@pytest.mark.parametrize("position", [0, 50_000, 99_999])
def test_the_fingerprint_of_files_too_large_to_read_sees_sizes_ends_and_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
):
    monkeypatch.setattr(tokenfiles, "_WHOLE", 1000)
    monkeypatch.setattr(tokenfiles, "_BLOCK", 64)
    monkeypatch.setattr(tokenfiles, "_BLOCKS", 3)
    content = np.arange(100_000) % 1000
    changed = content.copy()
    changed[position] = 1000
    paths = [raw(tmp_path / f"{i}.bin", c) for i, c in enumerate((content, changed, content[1:]))]

    prints = {load("nanogpt", path, vocab_size=1001).fingerprint for path in paths}

    assert len(prints) == 3


# Vocabulary


@pytest.mark.parametrize("source", ["nanogpt", "llmc", "npy"])
def test_a_token_beyond_the_vocabulary_is_refused_before_anything_is_trained(
    tmp_path: Path, source: str
):
    write = {"nanogpt": raw, "llmc": shard, "npy": npy}[source]
    path = write(tmp_path / ("a.npy" if source == "npy" else "a.bin"))

    message = refusal(source, path, vocab_size=999)

    assert "token 999 is beyond the vocabulary of 999" in message
    assert "a." in message
    assert "--set data.vocab_size=1000" in message


def test_a_token_beyond_the_vocabulary_that_was_not_looked_at_is_refused_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenfiles, "_WHOLE", 1000)
    monkeypatch.setattr(tokenfiles, "_BLOCK", 64)
    monkeypatch.setattr(tokenfiles, "_BLOCKS", 3)
    content = np.zeros(100_000, dtype=np.int64) + 7
    content[60_000:90_000] = 11
    tokens = load("nanogpt", raw(tmp_path / "a.bin", content), vocab_size=10)

    with pytest.raises(DataError, match="token 11 is beyond the vocabulary of 10"):
        tokens.batch(0, 0, 64, 16)


def test_a_negative_token_is_refused(tmp_path: Path):
    assert "negative" in refusal("npy", npy(tmp_path / "a.npy", np.array([1, -2, 3])))


def test_a_vocabulary_is_not_looked_for_in_files_too_large_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenfiles, "_WHOLE", 1000)

    assert "--set data.vocab_size=50257" in refusal("nanogpt", raw(tmp_path / "a.bin"))


def test_a_vocabulary_of_millions_is_taken_for_a_mistake(tmp_path: Path):
    path = raw(tmp_path / "a.bin")

    assert "data.dtype" in refusal("nanogpt", path, dtype="uint32")


# Bad files


def test_no_path_is_refused_with_the_option_that_gives_one():
    assert "--set data.path=" in refusal("llmc", None)


@pytest.mark.parametrize("name", ["none.bin", "none*.bin", "none/"])
def test_a_path_with_nothing_there_is_refused(tmp_path: Path, name: str):
    message = refusal("llmc", f"{tmp_path}/{name}")

    assert "none" in message
    assert "does not exist" in message


def test_a_validation_path_with_nothing_there_is_called_by_its_key(tmp_path: Path):
    path = raw(tmp_path / "a.bin")

    assert "data.val_path" in refusal("nanogpt", path, val_path=str(tmp_path / "none.bin"))


def test_a_folder_without_files_of_the_format_is_refused(tmp_path: Path):
    raw(tmp_path / "a.bin")

    assert "holds no .npy file" in refusal("npy", tmp_path)


@pytest.mark.parametrize("source", ["nanogpt", "llmc", "npy"])
def test_an_empty_file_is_refused(tmp_path: Path, source: str):
    path = tmp_path / "a.bin"
    path.touch()

    assert "is empty" in refusal(source, path)


@pytest.mark.parametrize("source", ["llmc", "npy"])
def test_a_file_with_a_header_and_no_tokens_is_refused(tmp_path: Path, source: str):
    none = np.zeros(0, dtype=np.int64)
    path = shard(tmp_path / "a.bin", none) if source == "llmc" else npy(tmp_path / "a.npy", none)

    assert "holds no tokens" in refusal(source, path)


@pytest.mark.parametrize(("dtype", "size"), [("uint16", 2001), ("uint32", 2002)])
def test_bytes_that_make_no_whole_tokens_are_refused_with_both_sizes(
    tmp_path: Path, dtype: str, size: int
):
    path = tmp_path / "a.bin"
    path.write_bytes(b"\1" * size)

    message = refusal("nanogpt", path, dtype=dtype)

    assert f"{size} bytes" in message
    assert dtype in message


def test_a_file_of_uint32_is_not_read_as_uint16(tmp_path: Path):
    path = raw(tmp_path / "a.bin", dtype="<u4")

    assert "--set data.dtype=uint32" in refusal("nanogpt", path)


def test_a_shard_is_not_read_as_a_file_without_header(tmp_path: Path):
    path = shard(tmp_path / "a.bin")

    message = refusal("nanogpt", path)

    assert "20240520" in message
    assert "--set data.source=llmc" in message


def test_a_file_without_magic_is_no_shard(tmp_path: Path):
    path = raw(tmp_path / "a.bin")

    message = refusal("llmc", path)

    assert "expected magic 20240520 or 20240801" in message
    assert "--set data.source=nanogpt" in message


def test_questions_of_llm_c_are_no_text(tmp_path: Path):
    assert "multiple-choice" in refusal("llmc", shard(tmp_path / "a.bin", magic=20240522))


def test_another_version_is_refused_with_both(tmp_path: Path):
    assert "version 3, expected 1" in refusal("llmc", shard(tmp_path / "a.bin", version=3))


@pytest.mark.parametrize(
    ("n_tokens", "why"), [(1001, "truncated"), (10**9, "truncated"), (999, "header is wrong")]
)
def test_a_shard_whose_size_is_not_what_its_header_says_is_refused_with_both(
    tmp_path: Path, n_tokens: int, why: str
):
    message = refusal("llmc", shard(tmp_path / "a.bin", n_tokens=n_tokens))

    assert "3024 bytes" in message
    assert f"{n_tokens} tokens" in message
    assert why in message


def test_a_shard_that_ends_in_its_header_is_refused(tmp_path: Path):
    path = shard(tmp_path / "a.bin")
    os.truncate(path, 500)

    assert "ends within its header" in refusal("llmc", path)


@pytest.mark.parametrize("size", [7, 60, 129, 1000])
def test_an_array_that_is_cut_off_is_refused(tmp_path: Path, size: int):
    path = npy(tmp_path / "a.npy")
    os.truncate(path, size)

    assert "cannot be read as .npy" in refusal("npy", path)


def test_an_array_of_objects_is_never_unpickled(tmp_path: Path):
    path = npy(tmp_path / "a.npy", np.array([{"a": 1}, 2], dtype=object))

    assert "Python objects" in refusal("npy", path)


@pytest.mark.parametrize("content", [b"PK\3\4" + b"\0" * 100, b"\x80\4\x95" + b"\0" * 100])
def test_what_is_no_array_is_refused_and_never_unpickled(tmp_path: Path, content: bytes):
    (tmp_path / "a.npy").write_bytes(content)

    assert "is no .npy file" in refusal("npy", tmp_path / "a.npy")


@pytest.mark.parametrize("array", [np.ones(5), np.zeros((2, 5), dtype=int), np.array(5)])
def test_arrays_that_are_no_row_of_whole_numbers_are_refused(tmp_path: Path, array: np.ndarray):
    message = refusal("npy", npy(tmp_path / "a.npy", array))

    assert str(array.shape) in message
    assert "one dimension" in message


def test_a_device_is_no_token_file():
    assert "holds no .bin file" in refusal("llmc", "/dev/zero")


def test_tokens_of_one_byte_are_not_called_bytes_of_text(tmp_path: Path):
    found = load("npy", npy(tmp_path / "a.npy", np.arange(256, dtype=np.uint8))).description

    assert not found.is_bytes
    assert found.size.startswith("256 tokens, ")
