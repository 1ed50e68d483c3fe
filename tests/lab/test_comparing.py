"""A comparison: the same verdict whichever command gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import studies
from commands import attnres

from attnres_cli.config.recipe import load
from attnres_cli.data import sources

BASE = (1.50, 1.70, 1.60, 1.55, 1.65)
NEAR = (1.475, 1.665, 1.59, 1.535, 1.61)  # better alone, not separable among five arms


def verdicts(text: str) -> dict[str, tuple[str, float | None]]:
    """By variant the word and Holm's p."""
    arms = json.loads(text)["arms"]
    return {a["variant"]: (a["verdict"], (a["difference"] or {}).get("p_holm")) for a in arms}


def test_ablate_and_report_judge_all_arms_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    recipe = load("smoke")
    monkeypatch.setattr(studies, "FACTS", sources.load(recipe).description)
    others = ("denseformer", "rezero", "laurel", "unet")
    noise = {name: [x + (-1) ** (i + k) * 0.01 * k for i, x in enumerate(BASE)]
             for k, name in enumerate(others, 1)}  # fmt: skip
    studies.fill(tmp_path / "attnres.db", recipe, {"standard": BASE, "attnres": NEAR, **noise})
    asked = ("ablate", "standard", "attnres", "--recipe", "smoke", "--seeds", "5")

    code, typed, _ = attnres(capsys, *asked, "--format", "json")
    _, told, _ = attnres(capsys, "report", "--format", "json")

    assert code == 0
    assert verdicts(typed) == verdicts(told)
    assert len(verdicts(told)) == 6
    word, p = verdicts(told)["attnres"]
    assert word == "not separable"
    assert p is not None
    assert p / 5 < 0.05 < p  # in a family of its own it would be better
