"""`attnres report`: pages, figures and tables, also of a study that cannot answer yet."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from commands import Attnres
from sampling import pairwise
from sqlalchemy import text
from studies import FACTS, VERSIONS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunSpec
from attnres_cli.store import engine
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store

ARMS = ["standard", "attnres"]
FORMS = ("table", "markdown", "csv", "json", "latex", "html")


def test_a_trained_study_becomes_a_page_figures_and_a_table(attnres: Attnres, folder: Path):
    brief = ("--recipe", "smoke", "--seeds", "2", "--set", "train.tokens=1k", "--in-process")
    attnres.prints("ablate", *ARMS, *brief)

    page = attnres.prints("report", "--format", "html", "--output", "out/page.html")
    _, latex, drawing = attnres("report", "--format", "latex", "--figures", "out/figures/")
    attnres.prints("report", "--output", "out/table.txt")

    html = (folder / "out" / "page.html").read_text(encoding="utf-8")
    assert page == f"out/page.html  {len(html.encode()):,} bytes\n"
    for arm in ARMS:
        assert f"<code>{arm}</code>" in html
        assert rf"\texttt{{{arm}}}" in latex
    assert "--set train.tokens=1000 --seeds 2" in html
    assert "attnres verify 1" in html
    names = {path.name for path in (folder / "out" / "figures").iterdir()}
    assert names == {f"{n}.svg" for n in ("forest", "curves", "cost", "depth", "mixing")}
    assert "figures in out/figures: forest.svg, curves.svg" in drawing
    written = (folder / "out" / "table.txt").read_text(encoding="utf-8")
    assert "Recipe smoke, the same for every arm" in written


def test_a_study_in_which_nothing_has_ended_is_reported_in_every_format(
    attnres: Attnres, tiny_recipe: Recipe
):
    spec = RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)
    Store.open("attnres.db", create=True).plan([spec], FACTS)

    for form in FORMS:
        code, out, err = attnres("report", "--format", form, "--figures", "figures")
        assert code == 0
        assert form != "html" or "No answer: no run has ended (1 waiting or running)" in out
        assert "no figures: no run has ended" in err


def test_an_empty_study_says_what_fills_it(attnres: Attnres, folder: Path):
    Store.open("attnres.db", create=True)

    told = attnres.refuses("report", "--format", "html", "--output", "page.html")

    assert "study attnres.db holds no runs yet: `attnres ablate --study attnres.db`" in told
    assert not (folder / "page.html").exists()


def test_chosen_rows_keep_the_words_and_intervals_of_the_whole_table(
    attnres: Attnres, tiny_recipe: Recipe
):
    noise = (0.0, 0.2, 0.1, -0.1, 0.05)
    gains = {"standard": 0.0, "attnres": -0.1, "denseformer": 0.01, "hc": 0.1, "mhc": 0.02}
    losses = {
        name: [1.5 + gain + (1 + gain) * off for off in noise] for name, gain in gains.items()
    }
    fill(Path("attnres.db"), tiny_recipe, losses)
    whole = attnres.json("report")

    shown = attnres.json("report", "denseformer", "attnres")

    names = [arm["variant"] for arm in shown["arms"]]
    assert names == ["standard", "attnres", "denseformer"]
    assert shown["arms"] == [arm for arm in whole["arms"] if arm["variant"] in names]
    assert whole["arms"][1]["look"]["alpha"] == pytest.approx(0.05 * 0.8 * 0.6 / 4)
    for form in FORMS:
        out = attnres.prints("report", "denseformer", "--format", form)
        assert "denseformer" in out
        if form not in ("csv", "json"):
            assert "3 arms of this table; words and intervals are of all of them" in out
        assert not any(line.strip(" |`").startswith("mhc") for line in out.splitlines())
    assert "did you mean 'denseformer'" in attnres.refuses("report", "denseforme")
    assert "unknown arm of this recipe 'rezero'" in attnres.refuses("report", "rezero")


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


OPTIONS = ((), ("--against", "paper"), ("--scaling",))


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_that_cannot_answer_says_why_in_every_format(
    case: str, attnres: Attnres, tiny_recipe: Recipe, subtests: pytest.Subtests
):
    losses, words = STUDIES[case]
    made(tiny_recipe, losses)

    for each, form, options in pairwise([tuple(STUDIES), FORMS, OPTIONS]):
        if each != case:
            continue
        with subtests.test(form=form, options=options):
            typed = ("report", "--format", form, *options)
            if options == ("--scaling",):
                told = attnres.refuses(*typed)
                assert "of recipe tiny with runs of standard, scaling takes two or more" in told
            else:
                code, out, err = attnres(*typed)
                assert code == 0
                assert words in " ".join((out + err).split())
            if case == "only failures" and form != "csv":
                assert "the GPU has left" in attnres.prints("report", "--format", form)


def test_an_unknown_arm_is_one_line_with_the_nearest(attnres: Attnres, tiny_recipe: Recipe):
    made(tiny_recipe, {"standard": [1.5], "attnres": [1.4]})

    for more in ((), ("--scaling",), ("--against", "paper"), ("--format", "html")):
        told = attnres.refuses("report", "--baseline", "atnres", *more)
        assert "did you mean 'attnres'?" in told


def test_runs_are_reported_beside_searches_of_another_optuna(attnres: Attnres, tiny_recipe: Recipe):
    made(tiny_recipe, {"standard": [3.0, 3.1], "attnres": [2.9, 3.0]})
    before = attnres.prints("report")
    with optuna_storage("attnres.db") as storage:
        optuna.create_study(storage=storage, study_name="attnres-0123abcd-standard")
    with engine.connect("attnres.db", create=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9.0.0.a'"))

    code, out, err = attnres("report")

    assert (code, out) == (0, before)
    assert err.count("\n") == 1
    assert "its searches were written by another version of Optuna" in err
    assert err.endswith("; reported without\n")
