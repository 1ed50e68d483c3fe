"""`attnres runs extend`: a finished run trained further, or the reason why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import attnres, ended
from studies import fill

from attnres_cli.config.recipe import load

LEVEL = ["--set", "optim.schedule=wsd", "--set", "train.compile=off"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_an_extended_run_is_verified_bit_for_bit_by_training_it_from_the_start(capsys):
    assert ended("ablate", "standard", "--recipe", "smoke", "--seeds", "1", *LEVEL) == 0

    code, out, _ = attnres(capsys, "runs", "extend", "1", "--tokens", "30k")
    assert code == 0
    assert "trained on" in out
    _, listed, _ = attnres(capsys, "runs", "--format", "json")
    first, further = json.loads(listed)
    assert (first["steps"], further["steps"], further["step"]) == (31, 58, 58)
    assert further["note"] == "trained on from run 1, step 25"

    code, told, _ = attnres(capsys, "verify", "2")
    assert code == 0, told
    assert "equal, bit for bit" in told
    assert "weights" in told


def test_what_cannot_go_on_is_said_in_a_line_and_leaves_the_study_as_it_was(capsys):
    fill(Path("attnres.db"), load("smoke"), {"standard": [1.5]})

    for words, reason in (
        (["--tokens", "2M"], "a cosine falls from the warm-up on"),
        (["--tokens", "many"], "--tokens takes a number as 2M or 2000000, got 'many'"),
        (["--tokens", "1k"], "more are needed, got 1,000"),
    ):
        code, _, said = attnres(capsys, "runs", "extend", "1", *words)
        assert (code, said.count("\n")) == (2, 1)
        assert reason in said
    _, listed, _ = attnres(capsys, "runs", "--format", "json")
    assert len(json.loads(listed)) == 1
