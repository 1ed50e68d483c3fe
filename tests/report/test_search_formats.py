"""A search in every format: the same numbers, nothing cut off, commands that can be typed."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from dataclasses import replace

import pytest
import searches
from test_page import Page
from test_search import edited

from attnres_cli.config.recipe import load
from attnres_cli.records.search_records import State
from attnres_cli.report import file_formats
from attnres_cli.report.figures.drawing import save_figures
from attnres_cli.report.search import report_of, table_of
from attnres_cli.report.search_page import to_html
from attnres_cli.report.search_words import answer, notes, qualified
from attnres_cli.verdict.optima import find
from attnres_cli.verdict.shape_results import layers_by_width

FORMATS = ("table", "markdown", "csv", "json", "latex", "html")


def shown(form: str, search=None, runs=None, recipe_of=None, study="") -> str:
    made = searches.valleys()
    found = find(search or made[0], made[1] if runs is None else runs)
    if form == "html":
        return to_html(found, recipe_of, study)
    out = io.StringIO()
    file_formats.show(report_of(found, recipe_of, study), form, out)
    return out.getvalue()


@pytest.fixture(scope="module")
def finding():
    return find(*searches.valleys())


@pytest.fixture(scope="module")
def page() -> str:
    return shown("html", study="postgresql+psycopg://me:s3cret@host/lab")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_narrow_terminal_breaks_no_number(columns: int, monkeypatch, finding):
    monkeypatch.setenv("COLUMNS", str(columns))
    search, runs = searches.valleys()
    optioned = edited(search, dimensions={"n_blocks": 4, "lr": 0.0123})

    text = shown("table")
    lines = shown("table", searches.timed(search), runs).splitlines()
    options = shown("table", optioned, runs)

    for each in (*text.splitlines(), *lines, *options.splitlines()):
        assert len(each) <= columns
    for one in finding.optima:
        for shape in one.listed:
            low, high = shape.ci95
            assert f" {shape.mean:.4f} [{low:.4f}, {high:.4f}] " in text
    (head,) = [" ".join(line.split()) for line in lines if "goal: step_time (ms)" in line]
    assert head.startswith("variant shape heads ")
    assert "n_blocks=4, lr=0.0123" in options
    assert "options" not in text  # which were not searched


def test_a_second_goal_is_in_title_and_notes_and_a_column_beside_every_shape_of_the_front(
    page, monkeypatch, subtests
):
    monkeypatch.setenv("COLUMNS", "400")
    search, runs = searches.valleys()
    search = searches.timed(search)
    found = find(search, runs)

    for form in ("table", "markdown", "latex", "html", "json"):
        with subtests.test(form):
            text = html.unescape(shown(form, search, runs)).replace("\\_", "_")
            without = page if form == "html" else shown(form)

            assert "params=9M within 2" in text
            assert ", for val_loss and step_time" in text
            told = "he verdict is of val_loss alone: step_time is that of the first look on Some C"
            assert told in text
            assert "ront: by the first look (seed 0 alone" in text
            assert not any(word in without for word in ("ront: ", "goal: ", "for val_loss"))
    for one in found.optima:
        table = table_of(replace(found, optima=(one,)))
        head, rows = [c.title for c in table.columns], [[c.text for c in r] for r in table.cells]
        goal, on, heads = (head.index(t) for t in ("goal: step_time (ms)", "front", "heads"))
        listed = {(row[0], row[heads]): (row[goal], row[on]) for row in rows}
        best = {(layers_by_width(t), str(t.dimensions["n_heads"])): t for t in one.front}
        assert len(best) >= 2
        assert {name for name, (_, is_on) in listed.items() if is_on == "yes"} == set(best)
        assert all(listed[name][0] == f"{1000 * t.values[1]:.2f}" for name, t in best.items())
        assert {is_on for _, is_on in listed.values()} == {"yes", "no"}
    other = replace(searches.SETTINGS, device_name="Other CPU")
    runs[0] = replace(runs[0], result=replace(runs[0].result, settings=other))
    lines = notes(find(search, runs))
    assert any(line.endswith("Other CPU and Some CPU, which cannot be compared") for line in lines)


@pytest.mark.parametrize("form", FORMATS)
def test_what_qualifies_an_answer_stands_beside_it(form: str, page, monkeypatch, finding):
    monkeypatch.setenv("COLUMNS", "4000")
    text = html.unescape(page if form == "html" else shown(form))
    told = qualified(finding)

    assert any(line.endswith("failed or diverged, and are in no verdict") for line in told)
    assert any("15 of 18 trials complete" in line for line in told)
    if form == "csv":
        assert {row["qualified"] for row in csv.DictReader(io.StringIO(text))} == {"; ".join(told)}
    elif form == "json":
        assert json.loads(text)["qualified"] == told
    else:
        where = text.partition("<section")[0] if form == "html" else text
        mark = "! " if form == "table" else "But: "
        assert all(f"{mark}{line}" in where for line in told)
    if form in ("table", "markdown"):
        for line in (answer(finding), *notes(finding), "RuntimeError: out of memory"):
            assert line in text


def test_json_and_csv_have_every_trial_with_its_fresh_losses(finding):
    search, runs = searches.valleys()
    search = replace(edited(search, 3, is_extra=True), n_trials=17)
    best, other = (one.best for one in finding.optima)

    found = json.loads(shown("json", search, runs), parse_constant=pytest.fail)
    rows = list(csv.DictReader(io.StringIO(shown("csv", search, runs))))

    assert found["answer"] == answer(finding)
    (pair,) = found["pairs"]
    assert (pair["variants"], pair["differ"]) == (["standard", "attnres"], True)
    assert pair["p_holm"] == finding.pairs[0].p
    family = found["families"][0]
    assert family["best"] == best.trial.number
    assert len(family["trials"]) == 17
    trial = family["trials"][best.trial.number]
    assert trial["shape"]["fresh"] == {str(seed): loss for seed, loss in best.fresh.items()}
    assert trial["shape"]["best"] == "lowest"
    assert {t["state"] for t in family["trials"]} == {"complete", "failed", "running"}
    for family in found["families"]:
        assert family["counts"]["extra"] == 1
        assert [t["number"] for t in family["trials"] if t["is_extra"]] == [3]
    assert len(rows) == 34
    by_number = {(row["family"], row["number"]): row for row in rows}
    row = by_number["attnres", str(other.trial.number)]
    assert (float(row["fresh_mean"]), float(row["first_look"])) == (other.mean, other.promised)
    assert row["n_fresh"] == "3"
    assert [row["number"] for row in rows if row["is_extra"] == "True"] == ["3", "3"]
    failed = next(r for r in rows if r["state"] == "failed")  # what is not known is empty
    assert failed["first_look"] == failed["fresh_mean"] == failed["best"] == failed["options"] == ""
    assert failed["error"] == "RuntimeError: out of memory on <device 0>"


def test_latex_has_as_many_cells_in_every_row_as_columns():
    text = shown("latex")

    assert "\\raggedright\\footnotesize" in text  # what it rests on stands below
    assert "failed: standard at 4 x 96" in text
    for table in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, flags=re.DOTALL):
        columns = re.search(r"@\{\}([rl]+)@\{\}", table)[1]
        assert "l" in columns  # text is not aligned as numbers are
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) == 15
        assert all(len(row.split(" & ")) == len(columns) for row in rows)
    assert not re.search(r"(?<!\\)[%_](?! needs)", text.split("\n", 1)[1])


def test_the_page_is_well_formed_and_escapes_what_people_wrote(page):
    found = Page(page)

    used = re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page)
    assert set(used) <= set(found.names())
    assert not found.all("link", "iframe", "img")
    found.check_headings()
    assert "on &lt;device 0&gt;" in page
    assert "s3cret" not in page
    assert re.findall(r"<figure id='s1-([\w-]+)'>", page) == ["shapes", "shapes-paper"]


def test_figures_are_files_with_the_name_of_their_search_where_there_are_several(tmp_path, finding):
    other = replace(finding, search=replace(finding.search, name="0therone"))

    one = save_figures(f"{tmp_path}/one/", findings=[finding])
    two = save_figures(f"{tmp_path}/two/all.png", findings=[finding, other])

    names = ["shapes", "shapes-paper"]
    assert [path.name for path in one] == [f"search-{name}.svg" for name in names]
    both = [f"all-search-{of}-{name}.png" for of in ("5ea4c0ffee12", "0therone") for name in names]
    assert [path.name for path in two] == both
    assert all(path.stat().st_size > 1000 for path in [*one, *two])


def test_a_search_without_a_complete_trial_says_so_in_every_format(subtests):
    trials = [searches.trial(0, "standard", (4, 96, 2), state=State.RUNNING, values=())]
    search = searches.search([searches.family("standard", trials)])

    for form in FORMATS:
        with subtests.test(form):
            text = shown(form, search, [])

            if form == "csv":
                assert text.splitlines()[1].startswith("5ea4c0ffee12,standard,0,running,")
            elif form != "latex":
                assert "No answer: no trial of params=9M is complete." in text
            assert "shapes that are best" not in text  # no heading of an empty table
            assert "nan" not in text


def real():
    """A search of smoke, with one shape: a recipe that can be loaded."""
    sets = ["model.n_layers=2", "model.d_model=48", "model.n_heads=3", "model.d_ff=100"]
    recipe = load("smoke", [*sets, "train.tokens=4k"])
    trial = searches.trial(0, "attnres", (2, 48, 3), values=(2.5,), recipe_digest=recipe.digest)
    trial = replace(trial, dimensions=trial.dimensions | {"d_ff": 100, "tokens": 4000})
    runs = [searches.run(trial, seed, 2.5 + seed / 100) for seed in range(4)]
    family = searches.family("attnres", [trial])
    return searches.search([family], recipe="smoke"), runs, recipe


def test_the_best_shape_is_reproduced_by_a_command_with_the_same_recipe():
    search, runs, recipe = real()

    found = json.loads(shown("json", search, runs, recipe_of={recipe.digest: recipe}.__getitem__))

    words = shlex.split(found["families"][0]["command"])
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert load(words[words.index("--recipe") + 1], sets).digest == recipe.digest
    assert words[:3] == ["attnres", "ablate", "attnres"]
    for option, value in (("--seeds", "4"), ("--baseline", "attnres"), ("--device", "cpu")):
        assert words[words.index(option) + 1] == value


def test_what_is_missing_for_a_comparison_is_a_command_on_this_study():
    search, runs, recipe = real()
    ours = search.families[0].trials[0]
    theirs = replace(ours, variant="standard")
    better = searches.trial(1, "standard", (3, 36, 2), values=(2.0,))
    runs += [searches.run(better, seed, 2.0 + seed / 50) for seed in range(4)]
    both = (searches.family("standard", [theirs, better]), search.families[0])

    search = replace(search, families=both)
    text = shown("markdown", search, runs, lambda _digest: recipe, "my studies/a.db")

    assert "standard has not been trained with all fresh seeds at 2 layers of width 48" in text
    command = re.search(r"- to compare: `(.*)`", text)[1]
    assert shlex.split(command)[-2:] == ["--study", "my studies/a.db"]
    assert "--set model.d_model=48" in command
