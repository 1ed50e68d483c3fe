"""Names and texts of a study that somebody else has made: they are shown, and do nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import Attnres
from studies import fill

from attnres_cli.report.file_formats import show, to_csv
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.table import Column, Report, Table

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202egnp.exe\u2028"
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]")


@pytest.fixture
def study(tmp_path: Path, tiny_recipe) -> Path:
    fill(tmp_path / "study.db", tiny_recipe, {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})
    return tmp_path / "study.db"


def _change(study: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(study)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json", "latex", "html"])
def test_no_control_character_and_no_markup_of_a_study_reaches_what_is_printed(form: str):
    text = f"{ESCAPES}<blink>_"
    table = Table(text, [Column("name", "code"), Column("n")], [[text, "1"]])
    if form == "html":
        part = Part(text, (), [text], [table], [text])
        found = page(text, text, [Section(text, "a", [part], text)], text)
    else:
        report = Report(
            text, [table], [text], [text], [text], [text],
            {"name": text}, ["name"], [{"name": text}],
        )  # fmt: skip
        show(report, form, out := io.StringIO())
        found = out.getvalue()

    assert not _CONTROL.search(found)
    assert "owned" in found
    assert form != "html" or "<blink>" not in found
    assert form != "latex" or not re.search(r"(?<!\\)_", found)


def test_an_error_that_a_run_left_does_nothing_to_a_terminal(study: Path, capsys):
    _change(study, "UPDATE attnres_runs SET status = 'failed', error = ? WHERE id = 1", ESCAPES)

    for arguments in (["runs"], ["runs", "show", "1"]):
        code, out, err = Attnres(capsys)(*arguments, "--study", str(study))
        assert code == 0
        assert "owned" in out
        assert not _CONTROL.search(out + err)


def test_a_cell_that_a_spreadsheet_would_compute_is_quoted_and_numbers_stay_numbers():
    values = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "-0.5", -0.5, "+1e3", "a=b", None]
    report = Report("", fields=["x"], records=[{"x": value} for value in values])

    found = [row["x"] for row in csv.DictReader(io.StringIO(to_csv(report)))]

    assert found == [
        "'=1+1", "'+cmd|' /C calc'!A0", "'-2+3", "'@SUM(A1)", "-0.5", "-0.5", "+1e3", "a=b", "",
    ]  # fmt: skip


def test_a_recipe_whose_name_is_a_path_is_refused(tmp_path: Path, study: Path, capsys):
    (held,) = sqlite3.connect(study).execute("SELECT resolved FROM attnres_recipes").fetchone()
    resolved = json.dumps(json.loads(held) | {"name": "../../x"})
    _change(study, "UPDATE attnres_recipes SET name = '../../x', resolved = ?", resolved)
    figures = ("--figures", str(tmp_path / "a" / "b" / "figures"))
    (tmp_path / "mine.yaml").write_text("name: ../../x\nmodel: {n_layers: 2}\n", encoding="utf-8")

    refuses = Attnres(capsys).refuses
    report = refuses("report", "--study", str(study), *figures, "--format", "html")

    assert "recipe: a name is no path, as quick or quick/wide, got '../../x'" in report
    assert not list(tmp_path.rglob("*.svg"))
    assert "name: a name is no path" in refuses("recipes", str(tmp_path / "mine.yaml"))
