"""Two recipes side by side: differences where runs pair, the reason where not, and no words."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import attnres
from comparisons import BASE
from scipy import stats
from studies import FACTS, SETTINGS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code

NOISE = (0.004, -0.002, 0.001, 0.003, -0.001)
LESS = [loss - 0.1 + noise for loss, noise in zip(BASE, NOISE, strict=True)]
BOTH = ("--recipe", "tiny", "--recipe", "longer")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def longer(tiny_recipe: Recipe) -> Recipe:
    """The tiny recipe with twice the tokens, by another name."""
    train = tiny_recipe.train.model_copy(update={"tokens": 768})
    return tiny_recipe.model_copy(update={"name": "longer", "train": train})


def both(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict[str, dict], dict]:
    """What JSON says of each design, and the rest."""
    code, out, err = attnres(capsys, "report", *more, *BOTH, "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    return {arm["variant"]: arm for arm in document["arms"]}, document


def test_differences_are_paired_by_seed_with_intervals_that_hold_together_and_no_word_is_said(
    capsys, tiny_recipe: Recipe, longer: Recipe, subtests
):
    study = Path("attnres.db")
    fill(study, tiny_recipe, {"standard": [*BASE, 1.9], "attnres": BASE})
    fill(study, longer, {"attnres": LESS, "standard": LESS, "hc": [1.5]})

    arms, document = both(capsys)

    assert document["differ"] == {"train.tokens": [384, 768]}
    assert list(arms) == ["standard", "attnres", "hc"]
    theirs = stats.ttest_rel(LESS, BASE).confidence_interval(1 - 0.05 / 2)
    for name in ("standard", "attnres"):
        assert arms[name]["difference"] == pytest.approx(-0.099)
        assert arms[name]["interval"] == pytest.approx([theirs.low, theirs.high], rel=1e-3)
        assert (arms[name]["a"]["n"], arms[name]["b"]["n"], arms[name]["reason"]) == (5, 5, "")
    assert arms["standard"]["a"]["mean"] == pytest.approx(1.55)
    assert arms["hc"]["difference"] is None
    assert arms["hc"]["reason"] == f"no run under tiny ({tiny_recipe.digest})"
    assert arms["hc"]["b"]["mean"] == 1.5
    few, _ = both(capsys, "attnres")  # chooses rows, and not their intervals
    assert few == {"attnres": arms["attnres"]}
    for form in ("table", "markdown", "csv", "json", "latex", "html"):
        with subtests.test(form):
            code, out, err = attnres(capsys, "report", "standard", *BOTH, "--format", form)
            assert code == 0, err
            assert "-0.099" in out.replace("$", "")
            for word in ("better", "worse", "separable", "equal within"):
                assert word not in out
            if form == "csv":
                (row,) = csv.DictReader(io.StringIO(out))
                assert float(row["ci_low"]) < float(row["difference"]) < float(row["ci_high"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"facts": replace(FACTS, fingerprint="f" * 16)}, "other data: their losses are of other"),
        ({"eval_tokens": 512}, "other evaluation windows: train.eval_tokens is 256 and 512"),
        ({"code": Code("0", "1", "2", "3", "4")}, "trained by other code"),
        ({"settings": replace(SETTINGS, precision="bf16")}, "computed on cpu bf16"),
        ({"losses": [1.5, 9.0, 1.4]}, "longer (DIGEST): seed 1 ends at 9.000, above its start"),
        ({"losses": [1.5, 1.6, 1.4]}, "3 of 5 seeds in common"),
    ],
)
def test_runs_that_cannot_be_paired_stand_side_by_side_with_the_reason(
    change: dict, reason: str, capsys, tiny_recipe: Recipe, longer: Recipe, monkeypatch
):
    fill(Path("attnres.db"), tiny_recipe, {"standard": BASE})
    if "eval_tokens" in change:
        train = longer.train.model_copy(update={"eval_tokens": change["eval_tokens"]})
        longer = longer.model_copy(update={"train": train})
    monkeypatch.setattr("studies.FACTS", change.get("facts", FACTS))
    more = {"settings": change["settings"]} if "settings" in change else {}
    losses = change.get("losses", LESS)
    code = change.get("code", Code())
    fill(Path("attnres.db"), longer, {"standard": losses}, lambda _variant: code, **more)

    found = both(capsys)[0]["standard"]

    assert found["reason"].startswith(reason.replace("DIGEST", longer.digest))
    assert found["interval"] is None
    assert found["b"]["losses"] == {str(s): loss for s, loss in enumerate(losses)}


def test_options_of_one_recipe_are_refused(capsys, tiny_recipe: Recipe):
    fill(Path("attnres.db"), tiny_recipe, {"standard": [1.5]})
    sides = ("--recipe", "tiny", "--recipe", tiny_recipe.digest)

    for typed, words in (
        (sides, "are the same recipe"),
        ((*sides, "--scaling"), "--scaling is of one recipe"),
        ((*sides, "--recipe", "tiny"), "--recipe takes one or two recipes, got 3"),
        (("--recipe", "tiny", "--recipe", "tony"), "did you mean 'tiny'"),
    ):
        code, out, err = attnres(capsys, "report", *typed)
        assert (code, out) == (2, "")
        assert words in err
