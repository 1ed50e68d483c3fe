"""`attnres report`: pages, figures and tables of losses, and of tasks with `--downstream`."""

from __future__ import annotations

import itertools
from pathlib import Path

import optuna
import pytest
from answers import answers
from commands import Attnres
from sampling import pairwise
from sqlalchemy import text
from studies import FACTS, VERSIONS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.items import Kind
from attnres_cli.records.run import RunSpec
from attnres_cli.store import engine
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store

ARMS = ["standard", "attnres"]
STUDY = Path("attnres.db")
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


def test_an_empty_study_says_what_fills_it(attnres: Attnres, folder: Path):
    Store.open("attnres.db", create=True)
    told = attnres.refuses("report", "--format", "html", "--output", "page.html")
    assert "study attnres.db holds no runs yet: `attnres ablate --study attnres.db`" in told
    assert not (folder / "page.html").exists()


def test_chosen_rows_keep_verdicts_and_intervals_of_all_arms(attnres: Attnres, tiny_recipe: Recipe):
    noise = (0.0, 0.2, 0.1, -0.1, 0.05)
    gains = {"standard": 0.0, "attnres": -0.1, "denseformer": 0.01, "hc": 0.1, "mhc": 0.02}
    losses = {arm: [1.5 + gain + (1 + gain) * off for off in noise] for arm, gain in gains.items()}
    fill(STUDY, tiny_recipe, losses)
    whole = attnres.json("report")

    shown = attnres.json("report", "denseformer", "attnres")

    names = [arm["variant"] for arm in shown["arms"]]
    assert names == ["standard", "attnres", "denseformer"]
    assert shown["arms"] == [arm for arm in whole["arms"] if arm["variant"] in names]
    assert whole["arms"][1]["look"]["alpha"] == pytest.approx(0.05 * 0.8 * 0.6 / 4)
    for form in FORMS:
        out = attnres.prints("report", "denseformer", "--format", form, "--notes")
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
    "nothing ended": ({}, "No answer: no run has ended (2 waiting or running)"),
}
OPTIONS = ((), ("--against", "paper"), ("--scaling",))


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_that_cannot_answer_says_why_in_every_format(
    case: str, attnres: Attnres, tiny_recipe: Recipe, subtests: pytest.Subtests
):
    losses, words = STUDIES[case]
    store = fill(STUDY, tiny_recipe, losses)
    specs = [RunSpec(tiny_recipe, arm, 0, FACTS.fingerprint) for arm in ARMS if not losses]
    for record in store.plan(specs, FACTS):
        if case == "only failures":
            assert store.claim([record.id])
            store.fail(record.id, "Traceback\nRuntimeError: the GPU has left", VERSIONS)

    for each, form, options in pairwise([tuple(STUDIES), FORMS, OPTIONS]):
        if each != case:
            continue
        with subtests.test(form=form, options=options):
            typed = ("report", "--format", form, "--notes", *options)
            if options == ("--scaling",):
                told = attnres.refuses(*typed)
                assert "of recipe tiny with runs of standard, scaling takes two or more" in told
            else:
                code, out, err = attnres(*typed)
                assert code == 0
                assert words in " ".join((out + err).split())
            if not losses:
                code, out, err = attnres("report", "--format", form, "--figures", "drawn")
                assert (code, "no figures: no run has ended" in err) == (0, True)
                assert case != "only failures" or form == "csv" or "the GPU has left" in out


def test_an_unknown_baseline_is_one_line_with_the_nearest(attnres: Attnres, tiny_recipe: Recipe):
    fill(STUDY, tiny_recipe, {"standard": [1.5], "attnres": [1.4]})
    for more in ("", "--scaling", "--against paper", "--format html"):
        told = attnres.refuses("report", "--baseline", "atnres", *more.split())
        assert "did you mean 'attnres'?" in told


def test_runs_are_reported_beside_searches_of_another_optuna(attnres: Attnres, tiny_recipe: Recipe):
    fill(STUDY, tiny_recipe, {"standard": [3.0, 3.1], "attnres": [2.9, 3.0]})
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


# --downstream

LOSSES = {"standard": [1.5, 1.6, 1.4, 1.55, 1.45], "attnres": [1.4, 1.52, 1.29, 1.46, 1.36]}
TASKS = ("report", "--downstream")


@pytest.fixture
def evaluated(tiny_recipe: Recipe) -> Store:
    """A study whose runs have answered tasks of every kind."""
    study = fill(STUDY, tiny_recipe, LOSSES)
    kinds = {"cloze": Kind.CHOICE, "text": Kind.TEXT, "sums": Kind.GENERATION}
    for run, (task, kind) in itertools.product(study.runs(), kinds.items()):
        gain = 0.5 if run.variant == "attnres" else 0.0
        study.keep_items(answers(run, task, kind=kind, gain=gain))
    return study


@pytest.mark.usefixtures("evaluated")
def test_words_intervals_and_the_paper_in_every_format(attnres: Attnres):
    table, held, lines = (
        attnres.prints(*TASKS, "--notes"),
        attnres.json(*TASKS),
        attnres.csv(*TASKS),
    )
    attnres.prints(*TASKS, "--format", "html", "--output", "page.html")

    assert "Better than standard: attnres on cloze (bits per byte -" in table
    assert "these weights alone" not in table  # five seeds are there
    assert "the paper: Table 3" in table
    assert Path("page.html").read_text(encoding="utf-8").count("<code>attnres</code>") == 7
    named = {(line["task"], line["measure"]) for line in lines}
    assert named == {
        ("cloze", "bits_per_byte"), ("cloze", "choice_nats"), ("cloze", "acc"),
        ("text", "bits_per_byte"), ("sums", "exact_match"),
    }  # fmt: skip
    tasks = {task["task"]: task for task in held["tasks"]}
    assert (tasks["cloze"]["items"], tasks["cloze"]["chance"]) == (200, 0.25)
    arm = tasks["cloze"]["measures"][0]["arms"][1]
    assert arm["interval"][1] < 0
    assert arm["verdict"] == "better"
    assert attnres.csv("report", "attnres", "--downstream") == lines  # judged with all others


def test_runs_without_answers_are_reported(evaluated: Store, tiny_recipe: Recipe, attnres: Attnres):
    fill(STUDY, tiny_recipe, {"mhc": [1.5]})
    assert "! 10 of 11 ended runs have answered" in attnres.prints(*TASKS)
    fill(Path("other.db"), tiny_recipe, {"mhc": [1.5]})
    told = attnres.refuses(*TASKS, "--study", "other.db")
    assert "no run of recipe tiny has answered a task yet: `attnres evaluate" in told


@pytest.mark.usefixtures("evaluated")
def test_options_about_losses_are_refused_beside_it(attnres: Attnres):
    for more in ("--scaling", "--against paper", "--margin 0.1", "--figures f"):
        told = attnres.refuses(*TASKS, *more.split())
        assert f"{more.split()[0]} is of losses, --downstream of tasks" in told
