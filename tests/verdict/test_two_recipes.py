"""Two recipes side by side: differences where runs pair, the reason where not, and no words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import Attnres
from comparisons import BASE
from scipy import stats
from studies import FACTS, SETTINGS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code

NOISE = (0.004, -0.002, 0.001, 0.003, -0.001)
LESS = [loss - 0.1 + noise for loss, noise in zip(BASE, NOISE, strict=True)]
BOTH = ("--recipe", "tiny", "--recipe", "longer")


@pytest.fixture
def attnres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Attnres:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Attnres(capsys)


@pytest.fixture
def longer(tiny_recipe: Recipe) -> Recipe:
    """The tiny recipe with twice the tokens, by another name."""
    train = tiny_recipe.train.model_copy(update={"tokens": 768})
    return tiny_recipe.model_copy(update={"name": "longer", "train": train})


def test_differences_are_paired_by_seed_without_a_word(attnres, tiny_recipe, longer, subtests):
    study = Path("attnres.db")
    fill(study, tiny_recipe, {"standard": [*BASE, 1.9], "attnres": BASE})
    fill(study, longer, {"attnres": LESS, "standard": LESS, "hc": [1.5]})

    document = attnres.json("report", *BOTH)
    arms = {arm["variant"]: arm for arm in document["arms"]}

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
    few = attnres.json("report", "attnres", *BOTH)  # chooses rows, and not their intervals
    assert few["arms"] == [arms["attnres"]]
    for form in ("table", "markdown", "csv", "json", "latex", "html"):
        with subtests.test(form):
            out = attnres.prints("report", "standard", *BOTH, "--format", form)
            assert "-0.099" in out.replace("$", "")
            for word in ("better", "worse", "inconclusive", "equivalent"):
                assert word not in out
    (row,) = attnres.csv("report", "standard", *BOTH)
    assert float(row["ci_low"]) < float(row["difference"]) < float(row["ci_high"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"facts": replace(FACTS, fingerprint="f" * 16)}, "other data: their losses are of other"),
        ({"eval_tokens": 512}, "other evaluation windows: train.eval_tokens is 256 and 512"),
        ({"code": Code("0", "1", "2", "3", "4")}, "trained by other code"),
        ({"settings": replace(SETTINGS, precision="bf16")}, "computed on cpu bf16"),
        ({"losses": [1.5, 9.0, 1.4]}, "longer (DIGEST): seed 1 ends at 9.000, not below its start"),
        ({"losses": [1.5, 1.6, 1.4]}, "3 of 5 seeds in common"),
    ],
)
def test_unpaired_runs_have_a_reason(change, reason, attnres, tiny_recipe, longer, monkeypatch):
    fill(Path("attnres.db"), tiny_recipe, {"standard": BASE})
    if "eval_tokens" in change:
        train = longer.train.model_copy(update={"eval_tokens": change["eval_tokens"]})
        longer = longer.model_copy(update={"train": train})
    monkeypatch.setattr("studies.FACTS", change.get("facts", FACTS))
    more = {"settings": change["settings"]} if "settings" in change else {}
    losses = change.get("losses", LESS)
    code = change.get("code", Code())
    fill(Path("attnres.db"), longer, {"standard": losses}, lambda _variant: code, **more)

    (found,) = attnres.json("report", *BOTH)["arms"]

    assert found["reason"].startswith(reason.replace("DIGEST", longer.digest))
    assert found["interval"] is None
    assert found["b"]["losses"] == {str(s): loss for s, loss in enumerate(losses)}


def test_settings_by_design_are_named_not_listed(attnres: Attnres, tiny_recipe: Recipe):
    for name in ("standard", "attnres"):
        fill(Path("attnres.db"), tiny_recipe, {name: BASE})
    text = tiny_recipe.model_dump(mode="json")
    arms = {name: {"optim.lr": 0.01, "optim.design_lr_scale": 3} for name in ("attnres", "hc")}
    own = Recipe.model_validate(text | {"name": "own", "arms": arms})
    fill(Path("attnres.db"), own, {"standard": LESS})

    printed = attnres.prints("report", "--recipe", tiny_recipe.name, "--recipe", "own")

    assert "what differs: settings by design of attnres, hc\n" in printed


def test_options_of_one_recipe_are_refused(attnres: Attnres, tiny_recipe: Recipe):
    fill(Path("attnres.db"), tiny_recipe, {"standard": [1.5]})
    sides = ("--recipe", "tiny", "--recipe", tiny_recipe.digest)

    for typed, words in (
        (sides, "are the same recipe"),
        ((*sides, "--scaling"), "--scaling is of one recipe"),
        ((*sides, "--recipe", "tiny"), "--recipe takes one or two recipes, got 3"),
        (("--recipe", "tiny", "--recipe", "tony"), "did you mean 'tiny'"),
    ):
        assert words in attnres.refuses("report", *typed)
