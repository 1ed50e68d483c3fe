"""Validation that stands in training: shares, copies, near-duplicates, symlinked folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attnres_cli.cli.app import app
from attnres_cli.config import recipe as recipes
from attnres_cli.data import duplicates, overlap, sources
from attnres_cli.data.documents import Document, of_path
from attnres_cli.data.tokens import Array
from attnres_cli.errors import DataError

DRAW = np.random.default_rng(0)


def slow_share(train: Sequence[int], val: Sequence[int], n: int) -> float:
    """The share by comparing every stretch."""
    seen = {tuple(train[i : i + n]) for i in range(len(train) - n + 1)}
    covered = set[int]()
    for i in range(len(val) - n + 1):
        if tuple(val[i : i + n]) in seen:
            covered |= set(range(i, i + n))
    return len(covered) / len(val)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("piece", [2**22, 300])
def test_shares_are_those_of_a_slow_loop(
    dtype: type[np.unsignedinteger], piece: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(overlap, "_PIECE", piece)
    train: Array = DRAW.integers(0, 250, 3000).astype(dtype)
    parts = [train[100:163], train[500:564], train[700:827], train[900:1028], train[2800:]]
    val = np.concatenate([np.append(DRAW.integers(0, 250, 40), part) for part in parts])
    val = np.append(val, np.zeros(200, int)).astype(dtype)
    wanted = [slow_share(train.tolist(), val.tolist(), n) for n in overlap.LENGTHS]
    assert overlap.shares(train, val) == pytest.approx(wanted, abs=1e-12)
    assert 0 < wanted[1] < wanted[0] < 1


def test_short_streams_share_nothing_and_long_ones_are_sampled(monkeypatch: pytest.MonkeyPatch):
    short = np.arange(50, dtype=np.uint8)
    assert overlap.shares(short, short) == [0, 0]
    monkeypatch.setattr(overlap, "_MOST_TRAIN", 1000)
    monkeypatch.setattr(overlap, "_PIECE", 100)
    long = DRAW.integers(0, 256, 5000).astype(np.uint8)
    found = overlap.measure(long, long[:128], "a" * 16)
    assert (found.long, "(sampled)" in found.words("byte", "")) == (1, True)


def folder(path: Path, n: int) -> Path:
    path.mkdir()
    for number in range(n):
        text = " ".join(f"{word:x}" for word in DRAW.integers(0, 2**20, 400).tolist())
        (path / f"{number:03d}.txt").write_text(text)
    return path


def test_a_folder_with_copies_says_so_and_deduplicate_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    data = folder(tmp_path / "data", 60)
    for path in list(data.iterdir()):
        (data / f"copy-{path.name}").write_bytes(path.read_bytes())
    done = CliRunner().invoke(app, ["init", "data"])
    text = " ".join((tmp_path / "data.yaml").read_text().split()) + done.output
    assert "60 of 120 files are exact copies of another" in text
    assert "of 128 or more: too much to judge new text by, --set data.deduplicate=true" in text
    assert "60 of 120 files are exact copies" in done.output
    loaded = recipes.load(
        str(tmp_path / "data.yaml"), ["data.deduplicate=true", "train.eval_tokens=64"]
    )
    split = str(sources.load(loaded).description.split)
    assert "60 exact copies of files left out" in split
    assert "0.0 % of 128 or more" in split


def test_near_duplicates_of_training_leave_validation():
    texts = [DRAW.integers(0, 256, 1000, np.uint8).tobytes() for _ in range(4)]
    train = [Document(f"{n}", text) for n, text in enumerate(texts[:3])]
    val = [Document("a", texts[0][200:] + b"x"), Document("b", texts[3]), Document("c", texts[1])]
    found, stay, split = duplicates.without(train, val, 0.1, "file")
    assert [[each.name for each in part] for part in (found, stay)] == [list("012a"), ["b"]]
    assert "1 exact copies of files left out, 1 near-duplicates moved to train" in split
    with pytest.raises(DataError, match="every validation file is a near-duplicate"):
        duplicates.without(train, val[:1], 0.1, "file")


def test_symlinked_folders_are_followed_and_named_and_loops_refused(tmp_path: Path):
    data, other = folder(tmp_path / "data", 2), folder(tmp_path / "other", 3)
    (data / "more").symlink_to(other)
    found = of_path(data)
    assert len(found.documents) == 5
    assert "symlinked folders followed: more" in found.remarks
    (other / "back").symlink_to(data)
    with pytest.raises(DataError, match="links to a folder above it"):
        of_path(data)
