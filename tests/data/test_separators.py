"""Which token ends a document of each source, and what has none."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.config import recipe
from attnres_cli.data import sources
from attnres_cli.data.tokens import Streams
from attnres_cli.errors import DataError

SHORT = ["data.documents=isolated", "model.seq_len=8", "train.eval_tokens=16"]


def loaded(source: str, path: Path, *more: str) -> Streams:
    sets = [f"data.source={source}", f"data.path={path}", *SHORT, *more]
    found = sources.load(recipe.load("smoke", sets))
    assert isinstance(found, Streams)
    return found


def refusal(source: str, path: Path, *more: str) -> str:
    with pytest.raises(DataError) as caught:
        loaded(source, path, *more)
    (line,) = str(caught.value).splitlines()
    return line


def texts(folder: Path, *contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents or [f"text {n} " * 20 for n in range(20)]):
        (folder / f"{number:02d}.txt").write_text(content)
    return folder


def tokens(size: int = 1000, every: int = 50, end: int = 3) -> np.ndarray:
    found = np.arange(size) % 40 + 4
    found[every - 1 :: every] = end
    return found


def megatron(path: Path, ends: tuple[int, ...]) -> Path:
    """Documents of two sequences, 30 and 20 tokens, as Megatron writes them."""
    content = tokens().reshape(-1, 50)
    content[:, 29], content[:, -1] = 2, np.resize(ends, len(content))
    n = 2 * len(content)
    lengths = np.resize(np.array([30, 20], "<i4"), n)
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, n, n // 2 + 1)
    index = [lengths.tobytes(), bytes(8 * n), np.arange(0, n + 1, 2, dtype="<i8").tobytes()]
    path.with_suffix(".idx").write_bytes(head + b"".join(index))
    content.astype("<u2").tofile(path)
    return path


def test_bytes_end_with_the_byte_that_is_put_between_them(tmp_path: Path):
    path = texts(tmp_path / "texts")

    found = loaded("text", path, "data.separator=\x1e")

    assert found.separator == 0x1E
    assert loaded("text", path, "data.separator=\x1e", "data.documents=joined").separator is None
    for more in ([], ["data.separator=none"], ["data.separator=--"]):
        assert r"--set data.separator=$'\x1e'" in refusal("text", path, *more)


def test_a_separator_that_stands_within_documents_is_refused(tmp_path: Path):
    path = texts(tmp_path / "texts")

    assert "stands within documents too, 720 times" in refusal("text", path, "data.separator= ")

    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"row {n} " * 20}) for n in range(20)]
    rows.write_text("\n".join([*lines, json.dumps({"text": "a|b"})]))
    loaded("text", rows, "data.separator=|", "data.documents=joined")  # its tokens are kept
    for _ in range(2):
        assert "stands within documents too, 1 times" in refusal("text", rows, "data.separator=|")


def test_a_tokenizers_end_of_text_ends_documents(tmp_path: Path):
    pytest.importorskip("tokenizers")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    held = dict.fromkeys(("padding", "truncation", "normalizer", "post_processor", "decoder")) | {
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "<|endoftext|>", "special": True, **flags}],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "text": 1}, "unk_token": "<unk>"},
    }
    words = tmp_path / "words.json"
    words.write_text(json.dumps(held))
    path = texts(tmp_path / "texts")

    assert loaded("text", path, f"data.tokenizer={words}").separator == 2

    words.write_text(json.dumps(held | {"added_tokens": []}))
    assert f"{words} with data.separator unset has none" in refusal(
        "text", path, f"data.tokenizer={words}"
    )
    assert loaded("huggingface", _dataset(tmp_path), "data.separator=\x1e").separator == 0x1E


def _dataset(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    rows = {"text": [f"row {n} " * 20 for n in range(20)]}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "saved")
    return folder / "saved"


def test_nanogpt_and_npy_are_told_the_token(tmp_path: Path):
    tokens().astype("<u2").tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", tokens())

    for source, name in (("nanogpt", "a.bin"), ("npy", "a.npy")):
        assert loaded(source, tmp_path / name, "data.separator=3").separator == 3
        assert "--set data.separator=TOKEN names it" in refusal(source, tmp_path / name)
        assert "no token 2 ends a document" in refusal(source, tmp_path / name, "data.separator=2")


@pytest.mark.parametrize(("magic", "version", "dtype", "end"), [
    (20240520, 1, "<u2", 50256), (20240801, 7, "<u4", 128000),
])  # fmt: skip
def test_shards_of_llmc_have_the_token_of_their_tokenizer(
    magic: int, version: int, dtype: str, end: int, tmp_path: Path
):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, 1000
    content = tokens(end=end).astype(dtype).tobytes()
    (tmp_path / "a.bin").write_bytes(header.tobytes() + content)

    assert loaded("llmc", tmp_path / "a.bin").separator == end


def test_megatrons_documents_tell_their_last_token(tmp_path: Path):
    assert loaded("megatron", megatron(tmp_path / "a.bin", (3,))).separator == 3

    mixed = megatron(tmp_path / "b.bin", (3, 5))
    assert "documents end in different tokens" in refusal("megatron", mixed)
    assert loaded("megatron", mixed, "data.separator=5").separator == 5
