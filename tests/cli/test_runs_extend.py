"""`attnres runs extend`: a finished run trained further, or the reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Attnres
from studies import fill

from attnres_cli.config.recipe import load

LEVEL = ["--set", "optim.schedule=wsd", "--set", "train.compile=off"]


@pytest.mark.slow
def test_an_extended_run_is_verified_bit_for_bit_by_training_it_from_the_start(attnres: Attnres):
    attnres.prints("ablate", "standard", "--recipe", "smoke", "--seeds", "1", *LEVEL)

    assert "trained on" in attnres.prints("runs", "extend", "1", "--tokens", "30k")
    first, further = attnres.json("runs")
    assert (first["steps"], further["steps"], further["step"]) == (31, 58, 58)
    assert further["note"] == "trained on from run 1, step 25"

    told = attnres.prints("verify", "2")
    assert "equal, bit for bit" in told
    assert "weights" in told


def test_a_run_that_cannot_go_on_is_refused_and_left_as_it_was(attnres: Attnres):
    fill(Path("attnres.db"), load("smoke"), {"standard": [1.5]})

    for tokens, reason in (
        ("2M", "a cosine falls from the warm-up on"),
        ("many", "--tokens takes a number as 2M or 2000000, got 'many'"),
        ("1k", "more are needed, got 1,000"),
    ):
        assert reason in attnres.refuses("runs", "extend", "1", "--tokens", tokens)
    assert len(attnres.json("runs")) == 1
