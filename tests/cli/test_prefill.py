"""`attnres bench prefill`: on real ranks the numbers are those of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import attnres

TINY = ("bench", "prefill", "--recipe", "smoke", "--set", "model.n_heads=4")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_two_ranks_find_what_one_process_does(capsys: pytest.CaptureFixture[str]):
    arms = ("attnres:block_size=2", "sandwich")
    sizes = ("--set", "model.d_model=128", "--tokens", "1024", "--chunk", "512")
    code, out, err = attnres(capsys, *TINY, *arms, *sizes, "--format", "json")

    assert code == 0, err
    found = json.loads(out)
    block, sandwich = found["arms"]
    assert max(*block["off"], *sandwich["off"]) < 1e-12
    assert min(block["off"]) > 0  # another order of sums
    assert block["held"] == block["counted"]
    assert block["held"][0] == 2 * block["held"][1] == 4 * block["held"][2]
    assert sandwich["counted"] == []


def test_what_the_ranks_cannot_share_is_refused(capsys: pytest.CaptureFixture[str]):
    code, out, err = attnres(capsys, *TINY, "--ranks", "3")

    assert (code, out) == (2, "")
    assert "--ranks 3 does not divide n_heads 4" in err
    code, out, err = attnres(capsys, *TINY, "--ranks", "2", "--chunk", "7")
    assert "--chunk 7 must be divided by --ranks 2" in err


@pytest.mark.slow
def test_four_ranks_and_every_kind_of_design(capsys: pytest.CaptureFixture[str]):
    arms = ("standard", "attnres", "attnres:block_size=4", "mhc", "denseformer", "sandwich")
    sizes = ("--ranks", "4", "--set", "model.mlp=gelu", "--tokens", "512")
    code, out, err = attnres(capsys, *TINY, *arms, *sizes)

    assert code == 0, err
    for size in ("15.03 GB", "1.88 GB", "0.23 GB"):
        assert size in out
