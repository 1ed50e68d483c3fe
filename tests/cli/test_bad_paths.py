"""Paths, URLs and studies that cannot be meant: one line, exit code 2."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from another_user import as_nobody
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import load

LONG = "x" * 300
URL = "postgresql+psycopg://127.0.0.1:1/lab"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    (tmp_path / "circle").symlink_to("circle")
    fill(tmp_path / "attnres.db", load("smoke"), {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line with which a command is refused."""
    code, out, err = attnres(capsys, *arguments)
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--study", "~nobody_here/x"], "there is no such home"),
        (["recipes", "~nobody_here/x.yaml"], "there is no such home"),
        (["variants", "--plugin", "~nobody_here/x.py"], "there is no such home"),
        (["runs", "--study", LONG], "File name too long"),
        (["recipes", f"{LONG}.yaml"], "File name too long"),
        (["report", "--output", LONG], "File name too long"),
        (["runs", "--study", "circle"], "Too many levels of symbolic links"),
        (["recipes", "circle/x.yaml"], "Too many levels of symbolic links"),
        (["runs", "--study", f"{URL}?connect_timeout=1&connect_timeout=2"], "is given twice"),
        (["runs", "--study", f"{URL}?port=z"], "non-integer port"),
        (["runs", "--study", "postgresql://127..1:1/lab"], "study postgresql://127..1:1/lab: "),
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert message in refused(capsys, *arguments)


def test_data_at_a_place_that_cannot_be_meant_are_refused(capsys: pytest.CaptureFixture[str]):
    for path, message in (("~nobody_here/x", "no such home"), ("circle", "Too many levels")):
        typed = ["--set", "data.source=text", "--set", f"data.path={path}", "--dry-run"]

        assert message in refused(capsys, "ablate", "--recipe", "smoke", *typed)


def test_a_folder_that_this_user_may_not_read_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed" / "study.db").write_bytes(b"")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)

    with as_nobody():
        for arguments in (["runs", "--study", "closed/study.db"], ["recipes", "closed/x.yaml"]):
            assert "Permission denied" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("statement", "commands"),
    [
        ("UPDATE attnres_recipes SET resolved = '{'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET resolved = '{}'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET name = char(27)", ["runs", "report"]),
        ("UPDATE attnres_runs SET steps = 'many'", ["runs", "report", "plan"]),
        ("UPDATE attnres_runs SET status = 'odd'", ["runs", "report"]),
        ("UPDATE attnres_runs SET created_at = 'then'", ["runs"]),
        ("UPDATE attnres_curve SET train_loss = 'low'", ["runs show 1"]),
        ("INSERT INTO attnres_probes VALUES (1, 1, 'entropy', '[7]', x'00')", ["runs show 1"]),
        ("INSERT INTO attnres_probes VALUES (1, 1, 'no_mixing', '[]', x'ff')", ["runs show 1"]),
        ("INSERT INTO attnres_probes VALUES (1, 1, 'odd', '[1]', x'00000000')", ["runs show 1"]),
        ("UPDATE attnres_schema SET version_num = x'ff'", ["runs", "report"]),
    ],
)
def test_a_study_with_values_that_nobody_wrote_is_damaged(
    folder: Path, statement: str, commands: list[str], capsys: pytest.CaptureFixture[str]
):
    with closing(sqlite3.connect(folder / "attnres.db")) as connection:
        connection.execute(statement)
        connection.commit()

    for command in commands:
        assert "study attnres.db is damaged (" in refused(capsys, *command.split())


def test_a_file_where_runs_keep_theirs_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "attnres.runs").write_bytes(b"")

    for command in (["runs"], ["ablate", "--recipe", "smoke", "--seeds", "1"]):
        assert "attnres.runs is no folder, where its runs keep files" in refused(capsys, *command)


def test_a_note_of_brackets_is_a_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    from attnres_cli.train.checkpoint import Checkpoints

    body = "[" * 100_000
    (folder / "000000001.json").write_text(json.dumps({"sha256": "", "body": body}))
    (folder / "000000002.json").write_text(body)

    assert Checkpoints(folder, {}).load() is None
    assert capsys.readouterr().err.count("is damaged") == 2
