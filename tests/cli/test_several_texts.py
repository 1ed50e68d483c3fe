"""`attnres ablate` of several recipes, each on a text of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Attnres

RECIPE = """
model: {n_layers: 2, d_model: 16, n_heads: 2, seq_len: 16}
data: {source: text, path: %s.txt}
optim: {lr: %s}
train: {tokens: 2k, batch_size: 4, eval_tokens: 512, n_evals: 1}
"""
BOTH = ("--recipe", "prose.yaml", "--recipe", "verse.yaml")


@pytest.fixture
def texts(folder: Path) -> Path:
    for name, lr in (("prose", 0.01), ("verse", 0.015)):
        (folder / f"{name}.yaml").write_text(RECIPE % (name, lr))
        (folder / f"{name}.txt").write_text("\n\n".join(f"{name} of page {n}" for n in range(2000)))
    return folder


@pytest.mark.slow
def test_each_text_has_its_table_and_the_last_says_whether_they_agree(texts, attnres: Attnres):
    typed = ["ablate", "standard", "rezero", *BOTH, "--seeds", "5", "--workers", "1"]
    out = attnres.prints(*typed)
    assert (
        out.index("Recipe prose") < out.index("Recipe verse") < out.index("2 texts: prose, verse")
    )
    found = json.loads(attnres.prints(*typed, "--format", "json"))
    *_, over = found["more"]
    assert [arm["variant"] for arm in over["arms"]] == ["rezero"]
    assert over["arms"][0]["texts"]["verse"]["verdict"]
    assert attnres.json("report", *BOTH[:1], "prose", *BOTH[2:3], "verse")["arms"] == over["arms"]

    (texts / "plan.yaml").write_text(
        "\n---\n".join(
            f"recipe: {name}.yaml\nset: [optim.lr={lr}]\narms: [rezero]\nbaseline: standard\n"
            "seeds: [0, 1, 2, 3, 4]\nmetric: val_loss\ntest: paired-t\n"
            for name, lr in (("prose", 0.02), ("verse", 0.03))
        )
    )
    planned = attnres.prints("ablate", "--plan", "plan.yaml", "--workers", "1")
    assert "2 texts: prose, verse" in planned


def test_texts_under_one_recipe_are_told_apart_by_its_names(texts: Path, attnres: Attnres):
    (texts / "verse.yaml").write_text(RECIPE % ("verse", 0.01))  # prose's, but for the path
    out = attnres.prints("ablate", "standard", "rezero", *BOTH, "--seeds", "2", "--workers", "1")
    assert "Recipe verse" in out
    assert "2 texts: prose, verse" in out


def test_a_text_that_is_missing_is_told_before_anything_trains(texts: Path, attnres: Attnres):
    (texts / "verse.txt").unlink()
    told = attnres.refuses("ablate", "standard", "rezero", *BOTH, "--seeds", "1")
    assert "verse.txt" in told
    assert not (texts / "attnres.db").exists()


def test_one_recipe_typed_twice_is_refused(attnres: Attnres):
    told = attnres.refuses("ablate", "standard", "--recipe", "smoke", "--recipe", "smoke")
    assert "two of them are the same recipe: type it once" in told
