"""Recipes with settings for each design: training, reports, and recipes from tuning."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import studies

from attnres_cli.config.arms import LR, SCALE
from attnres_cli.config.as_typed import overrides_of
from attnres_cli.config.recipe import Recipe, load, rungs
from attnres_cli.data import sources
from attnres_cli.errors import SOME_FAILED
from attnres_cli.lab import grid
from attnres_cli.lab.notebook import open_study
from attnres_cli.lab.protocol import SEEDS, rates, seconds
from attnres_cli.lab.study_view import Held
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.store.store import Store

TEXT = """
model: {n_layers: 2, d_model: 16, n_heads: 2, seq_len: 16}
data: {source: text, path: text.txt}
optim: {lr: 6e-3}
train: {tokens: 640, batch_size: 4, eval_tokens: 256, n_evals: 2}
variants: [standard, attnres, rezero]
"""
RATES = "arms: {standard: {optim.lr: 6e-3}, attnres:heads=1: {optim.lr: 4e-3}}"
PLAN = "{recipe: mine.yaml, arms: [attnres], baseline: standard, seeds: [0, 1, 2, 3, 4],"
PLAN += " metric: val_loss, test: paired-t-holm}"
BASE, LESS = (1.50, 1.52, 1.47, 1.51, 1.49), (1.45, 1.48, 1.43, 1.47, 1.44)
MORE = (1.60, 1.63, 1.57, 1.62, 1.61)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    words = (hashlib.sha256(bytes([i])).hexdigest() for i in range(256))
    (tmp_path / "text.txt").write_text("\n".join(words))
    (tmp_path / "mine.yaml").write_text(TEXT + RATES)
    (tmp_path / "plain.yaml").write_text(TEXT)
    (tmp_path / "plan.yaml").write_text(PLAN)
    monkeypatch.setattr(studies, "FACTS", sources.load(load("mine.yaml")).description)
    return tmp_path


@pytest.fixture
def plain() -> Recipe:
    return load("plain.yaml")


def fill(recipe: Recipe, seeds: Sequence[int] = range(5), **losses: Sequence[float]) -> None:
    """Add finished runs under a recipe of one learning rate, by today's code."""
    studies.fill(Path("attnres.db"), recipe, losses, code_of, seeds)


@pytest.fixture
def trained(plain: Recipe, attnres) -> dict[str, Any]:
    """The comparison under a recipe with rates; the study holds all of its runs."""
    fill(plain, standard=BASE, rezero=MORE)
    fill(plain.at_rate(4e-3), attnres=LESS)
    return ablation(attnres)[0]


def ablation(attnres, *words: str, recipe: str = "mine.yaml") -> tuple[Any, str]:
    """What `ablate` of five seeds prints as JSON, and what it says on stderr."""
    asked = ("--recipe", recipe, "--seeds", "5", "--format", "json")
    code, out, err = attnres("ablate", *words, *asked)
    assert code == 0, err
    return json.loads(out), err


def own(document: Any) -> dict[str, tuple[float, bool]]:
    """Each variant's rate, and whether the recipe gives it by name."""
    return {a["variant"]: (a["own"]["lr"], a["own"]["is_own"]) for a in document["arms"]}


OWN = (("optim.lr", 4.24e-3), ("optim.design_lr_scale", 10.0))


def tune(plain: Recipe, **other: float) -> None:
    """Fill in the tuning runs: standard is best at 6e-3, attnres at OWN, or of the given loss."""
    for i, lr in enumerate(rates(6e-3)):
        near = {"standard": (i - 2) ** 2, "attnres": (i - 1) ** 2}
        losses_ = {name: 1.5 + 0.01 * far for name, far in near.items()} | other
        fill(plain.at_rate(lr), SEEDS, **{name: (loss,) * 4 for name, loss in losses_.items()})
    for changes in seconds(plain.optim, adds=False):
        fill(plain.changed(*changes), SEEDS, standard=(1.6,) * 4)
    for changes in () if other else seconds(plain.optim, adds=True):
        loss = 1.49 if changes == OWN[1:] else 1.52
        fill(plain.changed(OWN[0], *changes), SEEDS, attnres=(loss,) * 4)


def losses(document: Any) -> list[list[float]]:
    return [arm["losses"] for arm in document["arms"]]


def test_a_dry_run_shows_the_rate_of_each_arm_also_where_arms_are_matched(attnres):
    def rows(*words: str) -> dict[str, str]:
        out = attnres.prints("ablate", "--recipe", "mine.yaml", "--dry-run", *words)
        assert out.count("plan: recipe mine") == 1
        lines = [line for line in out.splitlines() if line.startswith(" ") and line.strip()]
        return {line.split()[0]: line for line in lines}

    whole = rows()
    assert " lr 0.004 " in whole["attnres"]
    assert " lr 0.006 " in whole["standard"]
    assert " lr 0.006 (the recipe's) " in whole["rezero"]
    assert "lr 0.004, d_ff" in rows("standard", "attnres", "--match", "params")["attnres"]


def test_one_table_has_each_arm_at_its_rate_and_every_command_shows_the_same(trained, attnres):
    text = attnres.prints("report", "--notes")

    assert trained["more"] == []
    rates = {"standard": (6e-3, True), "attnres": (4e-3, True), "rezero": (6e-3, False)}
    assert own(trained) == rates
    assert "each arm at the recipe's settings for it" in text
    assert "lr 0.006 (the recipe's)" in text
    assert "settings: the recipe's by design" in text
    for words in ((), ("--recipe", "mine"), ("--recipe", trained["recipe_digest"])):
        assert attnres.json("report", *words) == trained
    assert {line["variant"] for line in open_study("attnres.db").verdicts()} == rates.keys()

    held = Held(store := Store.open("attnres.db", create=False), "attnres.db", store.runs())
    family = held.choose(None, "standard")
    (chapter,) = held.chapters(family, whole=True)
    assert family.recipe_digest == trained["recipe_digest"]
    for arm in chapter.comparison.arms:  # the command that trains one row
        words = shlex.split(chapter.command(arm))
        sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        assert load(words[words.index("--recipe") + 1], sets).digest == arm.recipe_digest


def test_a_study_without_a_run_at_the_recipes_own_rate_is_found(folder: Path, plain, attnres):
    (folder / "mine.yaml").write_text(TEXT + RATES.replace("6e-3", "5e-3"))
    fill(plain.at_rate(5e-3), standard=BASE)
    fill(plain.at_rate(4e-3), attnres=LESS)
    found, _ = ablation(attnres, "standard", "attnres")
    assert own(found) == {"standard": (5e-3, True), "attnres": (4e-3, True)}
    assert attnres.json("report") == found


def as_one_of_two(attnres, table: Any) -> bool:
    """Whether a report prints that table as before, and that it is one of two."""
    found = attnres.json("report", "--recipe", table["recipe_digest"])
    first, *others = found.pop("qualified")
    before = {key: value for key, value in table.items() if key != "qualified"}
    return first.startswith("one of 2 tables") and (found, others) == (before, table["qualified"])


def test_one_rate_typed_for_all_arms_is_another_comparison_which_is_said(plain, trained, attnres):
    fill(plain, attnres=MORE)
    shared, err = ablation(attnres, "--set", "optim.lr=6e-3")
    assert "--set optim.lr is one value for every arm" in err
    assert shared["recipe_digest"] == plain.digest
    assert {arm["own"] for arm in shared["arms"]} == {None}
    assert "learning rate: one for every arm" in attnres("report", "--notes")[1]
    assert attnres.json("report") == shared  # the newest
    assert as_one_of_two(attnres, trained)


def test_other_rates_in_the_recipe_are_another_comparison(folder: Path, plain, trained, attnres):
    (folder / "mine.yaml").write_text(TEXT + RATES.replace("4e-3", "3e-3"))
    fill(plain.at_rate(3e-3), attnres=BASE[::-1])
    found, _ = ablation(attnres)
    assert own(found)["attnres"] == (3e-3, True)
    assert as_one_of_two(attnres, trained)
    assert attnres.json("report") == found


def test_a_multiplier_for_all_is_none_for_an_arm_that_adds_nothing(plain, attnres):
    fill(plain, standard=BASE, postnorm=MORE)
    fill(plain.changed(("optim.design_lr_scale", 3.0)), attnres=LESS)
    asked = ("standard", "postnorm", "attnres", "--set", "optim.design_lr_scale=3")
    found, _ = ablation(attnres, *asked, recipe="plain.yaml")
    assert [arm["losses"]["0"] for arm in found["arms"]] == [BASE[0], LESS[0], MORE[0]]
    assert attnres.json("report") == found


def test_other_rates_can_be_typed_for_a_shipped_recipe():
    quick = load("quick")
    assert {"standard", "attnres", "denseformer"} <= {name for name, _ in quick.arms}
    one = ["arms.attnres:block_size=4.optim.lr=5e-3", "optim.lr=7e-3"]
    changed = (load("quick", sets) for sets in (one, ["arms={attnres: {optim.lr: 1e-3}}"]))
    for made in (quick, quick.of("standard"), quick.of("attnres"), *changed):
        again = load(*overrides_of(made))
        assert (again.digest, again.arms) == (made.digest, made.arms)


def test_settings_of_designs_that_are_one_at_a_depth_are_those_of_the_one_with_its_name():
    quick = load("quick", ["model.n_layers=2"])
    arms = dict(quick.arms)

    found = dict(grid.named(quick).arms)

    assert found["mudd"] == arms["mudd"] != arms["mudd:layers=2,window=2"]
    assert not [name for name in found if name.startswith("mudd:")]


def test_rates_of_equal_or_misspelled_designs_are_refused(attnres):
    for written, words in (
        ("attnres: {}, 'attnres:heads=1': {}", "attnres and attnres:heads=1 are one design"),
        ("atnres: {}", "recipe mine: arms: unknown variant 'atnres': did you mean 'attnres'"),
        ("attnres: {optim.lr: fast}", "arms.attnres.optim.lr: input should be a valid number"),
    ):
        Path("mine.yaml").write_text(f"{TEXT}arms: {{{written}}}")
        assert words in attnres.refuses("ablate", "--recipe", "mine.yaml", "--dry-run")


def test_a_preregistered_plan_holds_the_rates(plain, attnres):
    attnres.prints("report", "--preregister", "plan.yaml")
    (kept,) = Store.open("attnres.db", create=False).registrations()
    fill(plain, standard=BASE)
    fill(plain.at_rate(4e-3), attnres=LESS)
    found, _ = ablation(attnres, "standard", "attnres")
    assert (found["registered"], found["more"]) == (f"preregistered {kept.digest}", [])
    assert own(found)["attnres"] == (4e-3, True)


def test_runs_at_these_rates_prevent_preregistration(plain, attnres):
    fill(plain.at_rate(4e-3), attnres=LESS)
    assert "holds runs of recipe mine" in attnres.refuses("report", "--preregister", "plan.yaml")


def test_a_search_says_that_it_uses_one_rate(attnres):
    sets = ("data.source=permutations", "data.degree=4", "arms={attnres: {optim.lr: 4e-3}}")
    asked = ("--recipe", "smoke", "--trials", "1", *(w for s in sets for w in ("--set", s)))
    code, out, err = attnres("search", "attnres", *asked, "--dry-run")
    assert code == 0
    assert "a search takes none of them, but optim.lr 0.02 for every design" in err
    assert "0.02 at width 32, carried over to other widths by mup" in out


def test_tuned_rates_are_written_as_a_recipe(folder: Path, plain, attnres):
    tune(plain)
    fill(plain, standard=BASE, attnres=LESS)
    fill(plain.at_rate(4.24e-3), attnres=BASE)
    fill(plain.changed(*OWN), attnres=MORE)
    asked = ("standard", "attnres", "--tune-lr", "--set", "optim.lr=6e-3")

    found, err = ablation(attnres, *asked)

    assert "written to mine-tuned.yaml: attnres ablate --recipe mine-tuned.yaml" in err
    text, written = (folder / "mine-tuned.yaml").read_text(), load("mine-tuned.yaml")
    own_ = {"standard": (("optim.lr", 6e-3),), "attnres": OWN[::-1]}
    assert dict(written.arms) == own_
    assert dict(written.regret) == pytest.approx({"standard": 0.0, "attnres": 0.0}, abs=1e-4)
    assert written.at_rate(6e-3).digest == plain.digest
    assert written.variants == ("standard", "attnres")
    assert "seeds 1000000, 1000001" in text
    assert "10,000 tokens per run" in text
    assert "0.00424 1.5000" in text
    assert "added x10 1.4900" in text
    assert found["more"] == []
    beside = {arm["variant"]: arm.get("beside") for arm in found["arms"]}
    means = {terms: each["mean"] for terms, each in beside["attnres"].items()}
    assert means == {"shared": pytest.approx(-0.044), "own_rate": pytest.approx(0.0)}
    attnres.prints("report", "--figures", "figures")
    assert (folder / "figures" / "multipliers.svg").is_file()
    same, _ = ablation(attnres, recipe="mine-tuned.yaml")
    assert losses(same) == losses(found)
    assert attnres.json("report") == same

    ablation(attnres, *asked)
    assert [path.name for path in folder.glob("*tuned*")] == ["mine-tuned.yaml"]
    (folder / "mine-tuned.yaml").write_text("of somebody")
    assert "written to mine-tuned-2.yaml" in ablation(attnres, *asked)[1]
    assert (folder / "mine-tuned.yaml").read_text() == "of somebody"
    assert (folder / "mine-tuned-2.yaml").read_text() == text

    plainly, err = ablation(attnres, "standard", "attnres", recipe="plain.yaml")
    assert losses(plainly) == losses(found)  # the table that has the words
    assert "written to" not in err
    _, err = ablation(attnres, *asked, "--set", "train.compile=off")  # which changes no loss
    assert "written to mine-tuned-3.yaml" in err
    assert dict(load("mine-tuned-3.yaml").arms) == own_


def test_no_settings_are_written_of_an_arm_that_diverges_at_every_rate(folder, plain, attnres):
    tune(plain, attnres=math.nan)
    fill(plain, standard=BASE, attnres=LESS)

    asked = ("--recipe", "plain.yaml", "--seeds", "5", "--tune-lr")
    code, _, err = attnres("ablate", "standard", "attnres", *asked)

    assert code == SOME_FAILED
    assert "attnres: no settings of its own, it diverged at every learning rate" in err
    assert [name for name, _ in load("plain-tuned.yaml").arms] == ["standard"]


def test_of_settings_that_a_recipe_has_only_the_rates_are_tuned(folder: Path, plain, attnres):
    own_ = "{standard: {optim.lr: 6e-3}, attnres: {optim.lr: 4e-3, optim.design_lr_scale: 3}}"
    regret = "regret: {standard: 0.001, attnres: 0.002}"
    (folder / "own.yaml").write_text(f"{TEXT}arms: {own_}\n{regret}\n")
    scaled = plain.changed((SCALE, 3.0))
    for name, recipe, grid_, best in (
        ("standard", plain, rates(6e-3, is_own=True), 6e-3),
        ("attnres", scaled, (*rates(4e-3, is_own=True), 8e-3, 0.0113), 5.66e-3),
    ):
        for lr in grid_:
            loss = 1.5 + 0.1 * math.log(lr / best) ** 2
            fill(recipe.at_rate(lr), SEEDS, **{name: [loss + 0.001 * n for n in range(4)]})
    fill(plain.at_rate(6e-3), standard=BASE)
    fill(scaled.at_rate(4e-3), attnres=BASE)
    fill(scaled.at_rate(5.66e-3), attnres=MORE)

    found, err = ablation(attnres, "standard", "attnres", "--tune-lr", recipe="own.yaml")

    assert "three learning rates around that of each design that recipe own has settings for" in err
    (mine,) = [arm for arm in found["arms"] if arm["variant"] == "attnres"]
    assert mine["own"]["lr"] == pytest.approx(5.66e-3)
    assert mine["own"]["rates"] == [2.83e-3, 4e-3, 5.66e-3, 8e-3, 0.0113]
    assert mine["own"]["changes"] == [[SCALE, 3.0]]
    assert mine["own"]["regret"] == pytest.approx(0.002, abs=1e-3)
    assert mine["beside"].keys() == {"shared"}  # at the recipe's settings; its rate alone is itself
    written = load("own-tuned.yaml")
    assert dict(dict(written.arms)["attnres"]) == {LR: 5.66e-3, SCALE: 3.0}
    out = attnres.prints("report", "--recipe", "own.yaml", "--notes")
    assert "at the recipe's settings" in out
    assert "of each arm three learning rates around the recipe's for it" in out


@pytest.mark.slow
def test_rates_are_tuned_written_and_used_and_matched_arms_keep_them(folder: Path, attnres):
    ladder = "ladder: [{model.n_layers: 1}, {model.n_layers: 2, optim.lr: 5e-3}]"
    (folder / "grown.yaml").write_text(TEXT + ladder)

    def trained(*words: str) -> list[Any]:
        asked = ("--seeds", "2", "--in-process", "--format", "json", "--recipe")
        code, out, err = attnres("ablate", *asked, *words)
        assert code == 0, err
        assert err.count("256 evaluation tokens") <= 2  # of each size once, however many plans
        document = json.loads(out)
        return [document, *document["more"]]

    shared = ("--set", "optim.design_lr_scale=3")
    found = trained("grown.yaml", "standard", "attnres", "--tune-lr", *shared)
    tuned = [one for one in found if one["terms"]["is_tuned"]]
    store = Store.open("attnres.db", create=False)
    of_own = {each.digest for each in store.arm_recipes() if each.terms.is_tuned}
    mine = [run for run in store.runs() if run.recipe_digest in of_own and run.seed < 2]
    assert len({run.created_at for run in mine}) == 2  # one plan for each size: none joins later
    before = len(store.runs())
    for size in rungs(load("grown-tuned.yaml")):  # what tuning may have missed comes along
        assert dict(size.regret).keys() == {"standard", "attnres"}
    used = trained("grown-tuned.yaml")
    assert [losses(one) for one in used] == [losses(one) for one in tuned]
    assert len(Store.open("attnres.db", create=False).runs()) == before
    attnres.prints("report", "--scaling")

    (matched,) = trained("mine.yaml", "standard", "attnres", "--match", "params")
    wide = {arm["variant"]: arm["own"] for arm in matched["arms"]}
    given = wide["attnres"]["given"]
    assert (given["lr"], given["is_own"]) == (4e-3, True)
    assert wide["standard"] == {"lr": 6e-3, "is_own": True}
    assert attnres.json("report") == matched
    (equal,) = trained("plain.yaml", "standard", "attnres", "--match", "params")
    assert [losses(one) for one in trained("plain.yaml", "standard")] == [losses(equal)]
