"""Recipes with learning rates by design: what is trained and told, and how such are made."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import studies
from commands import attnres

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.lab.held import Held
from attnres_cli.lab.notebook import open_study
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.store.store import Store

TEXT = """
model: {n_layers: 2, d_model: 16, n_heads: 2, seq_len: 16}
optim: {lr: 6e-3}
train: {tokens: 640, batch_size: 4, eval_tokens: 256, n_evals: 2}
variants: [standard, attnres, rezero]
"""
RATES = """
rates:
  standard: 6e-3
  attnres:heads=1: 4e-3
"""
BASE, LESS = (1.50, 1.52, 1.47, 1.51, 1.49), (1.45, 1.48, 1.43, 1.47, 1.44)
MORE = (1.60, 1.63, 1.57, 1.62, 1.61)
DONE = ("--seeds", "5", "--format", "json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.yaml").write_text(TEXT + RATES)
    (tmp_path / "plain.yaml").write_text(TEXT)
    monkeypatch.setattr(studies, "FACTS", sources.load(load("mine.yaml")).description)
    return tmp_path


@pytest.fixture
def plain() -> Recipe:
    return load("plain.yaml")


def fill(recipe: Recipe, **losses: tuple[float, ...]) -> None:
    """Runs under a recipe of one learning rate, by the code of now."""
    studies.fill(Path("attnres.db"), recipe, losses, code_of)


@pytest.fixture
def trained(plain: Recipe, capsys) -> dict[str, Any]:
    """The comparison of a recipe with rates, whose runs are there."""
    fill(plain, standard=BASE, rezero=MORE)
    fill(plain.at_rate(4e-3), attnres=LESS)
    code, out, _ = attnres(capsys, "ablate", "--recipe", "mine.yaml", *DONE)
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


def report(capsys, *arguments: str) -> Any:
    code, out, err = attnres(capsys, "report", "--format", "json", *arguments)
    assert code == 0, err
    return json.loads(out)


def own(document: Any) -> dict[str, tuple[float, bool]]:
    return {a["variant"]: (a["own"]["lr"], a["own"]["is_own"]) for a in document["arms"]}


def test_a_dry_run_says_at_which_rate_each_arm_would_be_trained(capsys):
    code, out, _ = attnres(capsys, "ablate", "--recipe", "mine.yaml", "--dry-run")

    assert code == 0
    assert out.count("plan: recipe mine") == 1
    rows = {
        line.split()[0]: line for line in out.splitlines() if line.startswith(" ") and line.strip()
    }
    assert " lr 0.004 " in rows["attnres"]
    assert " lr 0.006 " in rows["standard"]
    assert " lr 0.006 (the recipe's) " in rows["rezero"]


def test_one_table_has_each_arm_at_its_rate_and_says_whose_it_is(trained, capsys):
    _, text, _ = attnres(capsys, "report")

    assert trained["more"] == []
    assert own(trained) == {
        "standard": (6e-3, True), "attnres": (4e-3, True), "rezero": (6e-3, False),
    }  # fmt: skip
    assert "each arm at the recipe's learning rate for it" in text
    assert "lr 0.006 (the recipe's)" in text
    assert "learning rates: the recipe's by design" in text


def test_a_report_is_the_same_from_the_study_alone(trained, capsys):
    assert report(capsys) == trained
    assert report(capsys, "--recipe", "mine") == trained
    assert report(capsys, "--recipe", trained["recipe_digest"]) == trained
    variants = {line["variant"] for line in open_study("attnres.db").verdicts()}
    assert variants == {"standard", "attnres", "rezero"}


def test_a_study_without_a_run_at_the_recipes_own_rate_is_found(folder: Path, plain, capsys):
    (folder / "mine.yaml").write_text(TEXT + "rates: {standard: 5e-3, attnres: 4e-3}")
    fill(plain.at_rate(5e-3), standard=BASE)
    fill(plain.at_rate(4e-3), attnres=LESS)

    _, out, _ = attnres(capsys, "ablate", "standard", "attnres", "--recipe", "mine.yaml", *DONE)

    assert own(json.loads(out)) == {"standard": (5e-3, True), "attnres": (4e-3, True)}
    assert report(capsys) == json.loads(out)


def test_one_rate_that_is_typed_is_for_every_arm_and_the_command_says_so(plain, trained, capsys):
    fill(plain, attnres=MORE)

    typed = ("ablate", "--recipe", "mine.yaml", "--set", "optim.lr=6e-3", *DONE)
    _, out, err = attnres(capsys, *typed)

    shared = json.loads(out)
    assert "--set optim.lr is one learning rate for every arm" in err
    assert shared["recipe_digest"] == plain.digest
    assert {arm["own"] for arm in shared["arms"]} == {None}
    assert "learning rate: one for every arm" in attnres(capsys, "report")[1]
    assert report(capsys) == shared  # the newest
    assert report(capsys, "--recipe", trained["recipe_digest"]) == trained


def test_other_rates_are_another_comparison(folder: Path, plain, trained, capsys):
    (folder / "mine.yaml").write_text(TEXT + "rates: {standard: 6e-3, attnres: 3e-3}")
    fill(plain.at_rate(3e-3), attnres=BASE[::-1])

    _, out, _ = attnres(capsys, "ablate", "--recipe", "mine.yaml", *DONE)

    assert own(json.loads(out))["attnres"] == (3e-3, True)
    assert report(capsys, "--recipe", trained["recipe_digest"]) == trained
    assert report(capsys) == json.loads(out)


def test_the_command_of_a_row_is_of_its_own_rate(trained):
    held = Held(store := Store.open("attnres.db", create=False), "attnres.db", store.runs())
    (chapter,) = held.chapters(held.choose(None, "standard"), whole=True)

    for arm in chapter.comparison.arms:
        words = shlex.split(chapter.command(arm))
        sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        made = load(words[words.index("--recipe") + 1], sets)
        assert made.digest == arm.recipe_digest
    assert held.choose(None, "standard").recipe_digest == trained["recipe_digest"]


def test_a_shipped_recipe_with_rates_can_be_typed_with_other_ones():
    from attnres_cli.verdict.chapter import overrides_of

    with_rates = load("quick")
    assert {name for name, _ in with_rates.rates} == {"standard", "attnres"}

    for made in (
        with_rates, with_rates.of("standard"), with_rates.of("attnres"),
        load("quick", ["rates.attnres:block_size=4=5e-3", "optim.lr=7e-3"]),
        load("quick", ["rates={attnres: 1e-3}"]),
    ):  # fmt: skip
        found = overrides_of(made)
        assert found is not None
        again = load(*found)
        assert (again.digest, again.rates) == (made.digest, made.rates)


def test_equal_designs_are_refused_and_a_misspelt_one_is_named(folder: Path, capsys):
    for rates, words in (
        ("{attnres: 4e-3, 'attnres:heads=1': 5e-3}", "attnres and attnres:heads=1 are one design"),
        ("{atnres: 4e-3}", "recipe mine: rates: unknown variant 'atnres': did you mean 'attnres'"),
        ("{attnres: fast}", "rates: attnres: expected a learning rate above 0, got 'fast'"),
    ):
        (folder / "mine.yaml").write_text(f"{TEXT}rates: {rates}")
        code, out, err = attnres(capsys, "ablate", "--recipe", "mine.yaml", "--dry-run")
        assert (code, out) == (2, "")
        assert words in err
        assert "\n" not in err.strip()


def test_arms_matched_to_the_baseline_keep_their_rates(folder: Path, capsys):
    """In parameters; the study holds no comparison of unmatched arms."""
    asked = ("standard", "attnres", "--recipe", "mine.yaml", "--match", "params")
    _, out, _ = attnres(capsys, "ablate", *asked, "--dry-run")
    rows = {
        line.split()[0]: line for line in out.splitlines() if line.startswith(" ") and line.strip()
    }
    assert "lr 0.004, d_ff" in rows["attnres"]


def test_what_is_preregistered_holds_the_rates(folder: Path, plain, capsys):
    (folder / "plan.yaml").write_text(
        "{recipe: mine.yaml, arms: [attnres], baseline: standard, seeds: [0, 1, 2, 3, 4], "
        "metric: val_loss, test: paired-t-holm}"
    )
    code, _, _ = attnres(capsys, "report", "--preregister", "plan.yaml")
    (kept,) = Store.open("attnres.db", create=False).registrations()
    fill(plain, standard=BASE)
    fill(plain.at_rate(4e-3), attnres=LESS)

    _, out, _ = attnres(capsys, "ablate", "standard", "attnres", "--recipe", "mine.yaml", *DONE)

    document = json.loads(out)
    assert code == 0
    assert (document["registered"], document["more"]) == (f"preregistered {kept.digest}", [])
    assert own(document)["attnres"] == (4e-3, True)


def test_what_has_runs_at_these_rates_is_not_preregistered(folder: Path, plain, capsys):
    (folder / "plan.yaml").write_text(
        "{recipe: mine.yaml, arms: [attnres], baseline: standard, seeds: [0, 1, 2, 3, 4], "
        "metric: val_loss, test: paired-t-holm}"
    )
    fill(plain.at_rate(4e-3), attnres=LESS)

    code, _, err = attnres(capsys, "report", "--preregister", "plan.yaml")

    assert code == 2
    assert "holds runs of recipe mine" in err


def test_a_search_says_that_it_takes_one_rate(capsys):
    typed = ("attnres", "--recipe", "smoke", "--set", "rates={attnres: 4e-3}", "--trials", "1")

    code, out, err = attnres(capsys, "search", *typed, "--dry-run")

    assert code == 0
    assert "a search takes none of them, but optim.lr 0.02 for every design" in err
    assert "0.02 x 32 / d_model" in out


def test_rates_that_are_found_are_written_into_a_recipe(folder: Path, plain, capsys):
    from attnres_cli.lab.tune import SEEDS, rates

    for variant, best in (("standard", 2), ("attnres", 1)):
        for i, lr in enumerate(rates(6e-3)):
            _fill_seeds(plain.at_rate(lr), variant, SEEDS, 1.5 + 0.01 * (i - best) ** 2)
    fill(plain, standard=BASE, attnres=LESS)
    fill(plain.at_rate(4.24e-3), attnres=MORE)
    asked = ("ablate", "standard", "attnres", "--recipe", "mine.yaml", "--tune-lr", *DONE)

    code, out, err = attnres(capsys, *asked)

    assert code == 0
    assert "--tune-lr: the learning rates by design of recipe mine are left out" in err
    assert "written to mine-tuned.yaml: attnres ablate --recipe mine-tuned.yaml" in err
    text, found = (folder / "mine-tuned.yaml").read_text(), load("mine-tuned.yaml")
    assert dict(found.rates) == {"standard": 6e-3, "attnres": 4.24e-3}
    assert found.at_rate(6e-3).digest == plain.digest
    assert found.variants == ("standard", "attnres")
    assert "seeds 1000000, 1000001" in text
    assert "10,000 tokens per run" in text
    assert "0.00424 1.5000" in text

    _, same, _ = attnres(capsys, "ablate", "--recipe", "mine-tuned.yaml", *DONE)
    tuned, told = json.loads(out)["more"][0], json.loads(same)
    assert [a["losses"] for a in told["arms"]] == [a["losses"] for a in tuned["arms"]]
    assert report(capsys) == told

    attnres(capsys, *asked)
    assert sorted(path.name for path in folder.glob("*tuned*")) == ["mine-tuned.yaml"]
    (folder / "mine-tuned.yaml").write_text("of somebody")
    _, _, err = attnres(capsys, *asked)
    assert "written to mine-tuned-2.yaml" in err
    assert (folder / "mine-tuned.yaml").read_text() == "of somebody"
    assert (folder / "mine-tuned-2.yaml").read_text() == text


def _fill_seeds(recipe: Recipe, variant: str, seeds: tuple[int, ...], loss: float) -> None:
    from dataclasses import replace

    from attnres_cli.records.run import RunSpec, Status

    store = Store.open("attnres.db", create=True)
    of = (studies.FACTS.fingerprint, code_of(variant))
    specs = [RunSpec(recipe, variant, seed, *of) for seed in seeds]
    ids = [record.id for record in store.plan(specs, studies.FACTS)]
    while (record := store.claim(ids)) is not None:
        result = replace(studies.RESULT, val_loss=loss)
        versions = {**record.versions, **studies.VERSIONS}
        done = replace(record, status=Status.COMPLETE, result=result, versions=versions)
        store.finish(done)


@pytest.mark.slow
def test_rates_are_found_written_and_used_and_matched_arms_keep_them(folder: Path, capsys):
    """By real training, from the first command to the report."""
    (folder / "grown.yaml").write_text(
        TEXT + "ladder: [{model.n_layers: 1}, {model.n_layers: 2, optim.lr: 5e-3}]"
    )
    ladder = ("ablate", "standard", "attnres", "--recipe", "grown.yaml", "--seeds", "2")
    code, out, _ = attnres(capsys, *ladder, "--tune-lr", "--format", "json")
    assert code == 0
    tuned = [one for one in [json.loads(out), *json.loads(out)["more"]] if one["terms"]["is_tuned"]]

    used = ("ablate", "--recipe", "grown-tuned.yaml", "--seeds", "2", "--format", "json")
    before = len(Store.open("attnres.db", create=False).runs())
    code, out, _ = attnres(capsys, *used)
    assert code == 0
    told = [json.loads(out), *json.loads(out)["more"]]
    assert [[a["losses"] for a in one["arms"]] for one in told] == [
        [a["losses"] for a in one["arms"]] for one in tuned
    ]
    assert len(Store.open("attnres.db", create=False).runs()) == before
    code, _, _ = attnres(capsys, "report", "--scaling")
    assert code == 0

    matched = ("ablate", "standard", "attnres", "--recipe", "mine.yaml", "--match", "params")
    code, out, _ = attnres(capsys, *matched, "--seeds", "2", "--format", "json")
    assert code == 0
    wide = {arm["variant"]: arm["own"] for arm in json.loads(out)["arms"]}
    assert wide["attnres"]["given"] == {"lr": 4e-3, "is_own": True}
    assert wide["standard"] == {"lr": 6e-3, "is_own": True}
    assert report(capsys) == json.loads(out)
