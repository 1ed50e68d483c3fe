"""Paths, URLs and studies that cannot be meant: one line, exit code 2."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from another_user import as_nobody
from commands import Attnres
from studies import fill

from attnres_cli.config.recipe import load

LONG = "x" * 300
URL = "postgresql+psycopg://127.0.0.1:1/lab"


@pytest.fixture
def study(folder: Path) -> Path:
    path = folder / "attnres.db"
    fill(path, load("smoke"), {"standard": [1.5, 1.6], "attnres": [1.4, 1.5]})
    return path


def test_a_place_that_cannot_be_meant_is_refused(
    study: Path, attnres: Attnres, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
):
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    Path("circle").symlink_to("circle")
    data = "ablate --recipe smoke --dry-run --set data.source=text --set data.path="
    for command, message in (
        ("runs --study ~nobody_here/x", "there is no such home"),
        ("recipes ~nobody_here/x.yaml", "there is no such home"),
        ("variants --plugin ~nobody_here/x.py", "there is no such home"),
        (f"{data}~nobody_here/x", "there is no such home"),
        (f"runs --study {LONG}", "File name too long"),
        (f"recipes {LONG}.yaml", "File name too long"),
        (f"report --output {LONG}", "File name too long"),
        ("runs --study circle", "Too many levels of symbolic links"),
        ("recipes circle/x.yaml", "Too many levels of symbolic links"),
        (f"{data}circle", "Too many levels of symbolic links"),
        (f"runs --study {URL}?connect_timeout=1&connect_timeout=2", "is given twice"),
        (f"runs --study {URL}?port=z", "non-integer port"),
        ("runs --study postgresql://127..1:1/lab", "study postgresql://127..1:1/lab: "),
    ):
        with subtests.test(command[:80]):
            assert message in attnres.refuses(*command.split())


def test_a_folder_that_this_user_may_not_read_is_refused(folder: Path, attnres: Attnres):
    (folder / "closed").mkdir(mode=0o700)
    (folder / "closed" / "study.db").write_bytes(b"")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)

    with as_nobody():
        for arguments in (["runs", "--study", "closed/study.db"], ["recipes", "closed/x.yaml"]):
            assert "Permission denied" in attnres.refuses(*arguments)


def test_a_study_with_values_that_nobody_wrote_is_damaged(
    study: Path, attnres: Attnres, subtests: pytest.Subtests
):
    probe = "INSERT INTO attnres_probes VALUES (1, 1, "
    for statement, commands in (
        ("UPDATE attnres_recipes SET resolved = '{'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET resolved = '{}'", ["runs", "report"]),
        ("UPDATE attnres_recipes SET name = char(27)", ["runs", "report"]),
        ("UPDATE attnres_runs SET steps = 'many'", ["runs", "report", "plan"]),
        ("UPDATE attnres_runs SET status = 'odd'", ["runs", "report"]),
        ("UPDATE attnres_runs SET created_at = 'then'", ["runs"]),
        ("UPDATE attnres_curve SET train_loss = 'low'", ["runs show 1"]),
        (f"{probe} 'entropy', '[7]', x'00')", ["runs show 1"]),
        (f"{probe} 'no_mixing', '[]', x'ff')", ["runs show 1"]),
        (f"{probe} 'odd', '[1]', x'00000000')", ["runs show 1"]),
        ("UPDATE attnres_schema SET version_num = x'ff'", ["runs", "report"]),
    ):
        with subtests.test(statement):
            shutil.copyfile(study, "damaged.db")
            with closing(sqlite3.connect("damaged.db")) as connection:
                connection.execute(statement)
                connection.commit()
            for command in commands:
                told = attnres.refuses(*command.split(), "--study", "damaged.db")
                assert "study damaged.db is damaged (" in told
            for left in Path().glob("damaged.db*"):
                left.unlink()


def test_a_file_where_runs_keep_theirs_is_refused(study: Path, attnres: Attnres):
    study.with_suffix(".runs").write_bytes(b"")

    for command in ("runs", "ablate --recipe smoke --seeds 1"):
        told = attnres.refuses(*command.split())
        assert "attnres.runs is no folder, where its runs keep files" in told


def test_a_note_of_brackets_is_a_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    from attnres_cli.train.checkpoint import Checkpoints

    body = "[" * 100_000
    (folder / "000000001.json").write_text(json.dumps({"sha256": "", "body": body}))
    (folder / "000000002.json").write_text(body)

    assert Checkpoints(folder, {}).load() is None
    assert capsys.readouterr().err.count("is damaged") == 2
