"""`attnres report` on a study that was really trained: pages, figures and tables as files."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
from commands import attnres
from sqlalchemy import text
from studies import FACTS, VERSIONS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunSpec
from attnres_cli.store import engine
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


ARMS = ["standard", "attnres", "hc"]


def test_a_trained_study_becomes_a_page_figures_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    brief = ("--recipe", "smoke", "--seeds", "2", "--set", "train.tokens=2k", "--workers", "1")
    trained = attnres(capsys, "ablate", *ARMS, *brief)

    page = attnres(capsys, "report", "--format", "html", "--output", "out/page.html")
    drawn = attnres(capsys, "report", "--figures", "out/figures/", "--format", "json")
    table = attnres(capsys, "report", "--format", "latex")
    told = attnres(capsys, "report", "--output", "out/table.txt")

    assert [code for code, *_ in (trained, page, drawn, table, told)] == [0] * 5
    html = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert page[1] == f"out/page.html  {len(html.encode()):,} bytes\n"
    for arm in ARMS:
        assert f"<code>{arm}</code>" in html
        assert rf"\texttt{{{arm}}}" in table[1]
    assert "--set train.tokens=2000 --seeds 2" in html
    assert "attnres verify 1" in html
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {f"{n}.svg" for n in ("forest", "curves", "cost", "depth", "mixing")}
    assert json.loads(drawn[1])["arms"][0]["variant"] == "standard"
    assert "figures in out/figures: forest.svg, curves.svg" in drawn[2]
    written = (tmp_path / "out" / "table.txt").read_text(encoding="utf-8")
    assert "Recipe smoke, the same for every arm" in written


def test_a_study_in_which_nothing_has_ended_is_a_page_too(
    capsys: pytest.CaptureFixture[str],
    tiny_recipe: Recipe,
):
    spec = RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)
    Store.open("attnres.db", create=True).plan([spec], FACTS)

    found = [
        attnres(capsys, "report", "--format", form, "--figures", "figures")
        for form in ("html", "latex", "json", "markdown", "csv", "table")
    ]

    assert [code for code, *_ in found] == [0] * 6
    assert "No answer: no run has ended (1 waiting or running)" in found[0][1]
    assert all("no figures: no run has ended" in err for *_, err in found)


def test_an_empty_study_says_what_fills_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Store.open("attnres.db", create=True)

    code, out, err = attnres(capsys, "report", "--format", "html", "--output", "page.html")

    assert (code, out) == (2, "")
    assert "study attnres.db holds no runs yet: `attnres ablate --study attnres.db`" in err
    assert not (tmp_path / "page.html").exists()


def test_arms_choose_rows_whose_words_and_intervals_stay_those_of_the_whole_table(
    capsys: pytest.CaptureFixture[str], tiny_recipe: Recipe
):
    noise = (0.0, 0.2, 0.1, -0.1, 0.05)
    losses = {
        name: [1.5 + gain + (1 + gain) * off for off in noise]
        for name, gain in (
            ("standard", 0.0), ("attnres", -0.1), ("denseformer", 0.01), ("hc", 0.1), ("mhc", 0.02)
        )
    }  # fmt: skip
    fill(Path("attnres.db"), tiny_recipe, losses)
    whole = json.loads(attnres(capsys, "report", "--format", "json")[1])

    code, out, _ = attnres(capsys, "report", "denseformer", "attnres", "--format", "json")
    shown = json.loads(out)

    assert code == 0
    names = ["standard", "attnres", "denseformer"]
    assert [arm["variant"] for arm in shown["arms"]] == sorted(names, key=lambda n: n != "standard")
    assert shown["arms"] == [arm for arm in whole["arms"] if arm["variant"] in names]
    assert whole["arms"][1]["look"]["alpha"] == pytest.approx(0.05 * 0.8 * 0.6 / 4)
    for form in FORMS:
        _, out, _ = attnres(capsys, "report", "denseformer", "--format", form)
        assert "denseformer" in out
        if form not in ("csv", "json"):
            assert "3 arms of this table; words and intervals are of all of them" in out
        assert not any(line.strip(" |`").startswith("mhc") for line in out.splitlines())
    code, out, err = attnres(capsys, "report", "denseforme")
    assert (code, out) == (2, "")
    assert "did you mean 'denseformer'" in err
    code, out, err = attnres(capsys, "report", "rezero")
    assert (code, out) == (2, "")
    assert "unknown arm of this recipe 'rezero'" in err


FORMS = ("table", "markdown", "csv", "json", "latex", "html")
STUDIES: dict[str, tuple[dict[str, list[float]], str]] = {
    "one arm": ({"standard": [1.5, 1.6]}, "Only the baseline standard has been trained"),
    "one seed": ({"standard": [1.5], "attnres": [1.4]}, "1 of 5 seeds"),
    "no baseline": ({"attnres": [1.5, 1.6]}, "No run of the baseline standard has ended"),
    "only failures": ({}, "No answer: no run has ended (2 failed)"),
}


def made(recipe: Recipe, losses: dict[str, list[float]]) -> None:
    """A study of these losses, or of two runs that failed where there are none."""
    if losses:
        fill(Path("attnres.db"), recipe, losses)
        return
    store = Store.open("attnres.db", create=True)
    specs = [RunSpec(recipe, arm, 0, FACTS.fingerprint) for arm in ("standard", "attnres")]
    for record in store.plan(specs, FACTS):
        claimed = store.claim([record.id])
        assert claimed is not None
        store.fail(claimed.id, "Traceback\nRuntimeError: the GPU has left", VERSIONS)


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_that_cannot_answer_says_why_in_every_format(
    case: str,
    capsys: pytest.CaptureFixture[str],
    tiny_recipe: Recipe,
    subtests: pytest.Subtests,
):
    losses, words = STUDIES[case]
    made(tiny_recipe, losses)

    for form in FORMS:
        with subtests.test(form):
            code, out, err = attnres(capsys, "report", "--format", form)
            assert code == 0
            assert words in " ".join((out + err).split())
            if case == "only failures" and form != "csv":
                assert "the GPU has left" in out
            code, out, err = attnres(capsys, "report", "--format", form, "--against", "paper")
            assert code == 0
            assert words in " ".join((out + err).split())
            code, out, err = attnres(capsys, "report", "--format", form, "--scaling")
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "of recipe tiny with runs of standard, scaling takes two or more" in err


def test_an_unknown_arm_is_one_line_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
    tiny_recipe: Recipe,
    subtests: pytest.Subtests,
):
    made(tiny_recipe, {"standard": [1.5], "attnres": [1.4]})

    for more in ((), ("--scaling",), ("--against", "paper"), ("--format", "html")):
        with subtests.test(more=more):
            code, out, err = attnres(capsys, "report", "--baseline", "atnres", *more)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "did you mean 'attnres'?" in err


def test_runs_are_reported_where_the_searches_are_those_of_another_optuna(
    capsys: pytest.CaptureFixture[str],
    tiny_recipe: Recipe,
):
    made(tiny_recipe, {"standard": [3.0, 3.1], "attnres": [2.9, 3.0]})
    _, before, _ = attnres(capsys, "report")
    with optuna_storage("attnres.db") as storage:
        optuna.create_study(storage=storage, study_name="attnres-0123abcd-standard")
    with engine.connect("attnres.db", create=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9.0.0.a'"))

    code, out, err = attnres(capsys, "report")

    assert (code, out) == (0, before)
    assert err.count("\n") == 1
    assert "its searches were written by another version of Optuna" in err
    assert err.endswith("; reported without\n")
