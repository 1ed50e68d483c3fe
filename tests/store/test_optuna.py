"""Optuna's tables beside ours in one database, used by several processes and its dashboard."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from urllib.error import URLError

import optuna
import pytest
from optuna.trial import TrialState
from processes import in_processes
from sqlalchemy import text
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.lab.search.studies import read
from attnres_cli.store import engine, sqlite
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store

N, EACH, QUEUED = 3, 5, 12


def make_tables(study: str) -> None:
    """Open Optuna's storage there, and close it."""
    with optuna_storage(study):
        pass


def test_optunas_tables_do_not_clash_and_hold_no_searches_while_they_are_made(any_study: str):
    make_tables(any_study)
    assert Store.open(any_study, create=True).runs() == []
    with optuna_storage(any_study) as storage:
        assert storage.get_current_version() == storage.get_head_version()
    assert Store.open(any_study, create=False).runs() == []
    opened = engine.connect(any_study, create=True)
    with opened.begin() as connection:  # Optuna writes these last, each in its own transaction
        connection.execute(text("DELETE FROM version_info"))
        connection.execute(text("DELETE FROM alembic_version"))

    assert read(any_study) == []
    with opened.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM version_info")).scalar() == 0
    make_tables(any_study)
    assert read(any_study) == []


KILLED = """
import os, sys
from sqlalchemy import Engine, event
from attnres_cli.store.optuna import optuna_storage

@event.listens_for(Engine, "before_cursor_execute")
def kill(_connection, _cursor, statement, *_rest):
    if "ix_studies_study_name" in statement and "CREATE" in statement:
        os.kill(os.getpid(), 9)

with optuna_storage(sys.argv[1]):
    pass
"""


def test_a_kill_while_optunas_tables_are_made_leaves_all_of_them_or_none(any_study: str):
    killed = subprocess.run([sys.executable, "-c", KILLED, any_study], check=False)
    with optuna_storage(any_study) as storage:
        for _ in range(2):
            optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
        assert len(optuna.get_all_study_names(storage)) == 1
    assert killed.returncode == -signal.SIGKILL


def take_part(study: str, ready: Any) -> list[tuple[int, int]]:
    """Take the enqueued trials, then ask for more; in a process of its own."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    taken = []
    with optuna_storage(study) as storage:
        ready.wait(600)
        search = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
        while search.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            trial = search.ask()
            if trial.suggest_int("cell", 0, 10**6) < QUEUED:
                taken.append((trial.number, trial.params["cell"]))
            search.tell(trial, 0.0)
        for _ in range(EACH):
            trial = search.ask()
            trial.report(trial.suggest_float("x", 0, 1), step=1)
            search.tell(trial, trial.params["x"] ** 2)
    return taken


@pytest.mark.parametrize(
    ("any_study", "queued"),
    [
        pytest.param("sqlite", 0, marks=pytest.mark.slow),
        pytest.param("sqlite", QUEUED, marks=pytest.mark.slow),
        pytest.param("postgresql", QUEUED, marks=pytest.mark.slow),
    ],
    indirect=["any_study"],
)
def test_processes_that_ask_at_once_lose_no_trial_and_get_none_twice(any_study: str, queued: int):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if queued:
        with optuna_storage(any_study) as storage:
            search = optuna.create_study(storage=storage, study_name="s")
            for cell in range(queued):
                search.enqueue_trial({"cell": cell})

    taken = [one for mine in in_processes(N, take_part, any_study) for one in mine]

    assert sorted(taken) == [(cell, cell) for cell in range(queued)]
    with optuna_storage(any_study) as storage:
        trials = optuna.load_study(storage=storage, study_name="s").trials
    assert sorted(trial.number for trial in trials) == list(range(len(trials)))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    asked = [trial for trial in trials if "x" in trial.params]
    assert len(asked) == N * EACH
    assert all(trial.value == trial.params["x"] ** 2 for trial in asked)


@pytest.mark.parametrize(
    ("schema", "advice"),
    [("v9.0.0.a", "pip install -U optuna"), ("v3.0.0.d", "optuna storage upgrade")],
)
def test_another_optunas_tables_are_refused_with_advice(any_study: str, schema: str, advice: str):
    with optuna_storage(any_study) as storage:
        optuna.create_study(storage=storage, study_name="attnres-0123abcd-standard")
    with engine.connect(any_study, create=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": schema})

    for use in (make_tables, read):
        with pytest.raises(StudyError, match="written by another version of Optuna: ") as refused:
            use(any_study)

        assert advice in str(refused.value)
        assert str(refused.value).count("\n") == 0
    assert Store.open(any_study, create=False).runs() == []


def test_a_connection_for_reading_writes_nothing_and_foreign_files_are_refused(tmp_path: Path):
    path, notes = tmp_path / "study.db", tmp_path / "notes.txt"
    make_tables(str(path))
    before = path.read_bytes()
    connection = sqlite.connection_to_read(path)

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("CREATE TABLE t (x)")
    connection.close()

    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"study.db"}
    notes.write_text("remember the milk\n" * 100, encoding="utf-8")
    with pytest.raises(StudyError, match="is not a SQLite file"):
        make_tables(str(notes))


START = "from optuna_dashboard._cli import main; main()"


def get(address: str, patience_s: float = 0) -> str:
    """What is served there, once it answers."""
    until = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return answer.read().decode()
        except URLError:
            assert time.monotonic() < until
            time.sleep(0.2)


@pytest.mark.nightly
def test_the_dashboard_shows_a_studys_trials_and_leaves_runs(tmp_path: Path, tiny_recipe: Recipe):
    pytest.importorskip("optuna_dashboard")
    path = tmp_path / "attnres.db"
    runs = fill(path, tiny_recipe, {"standard": [1.5, 1.6], "attnres": [1.4, 1.3]}).runs()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with optuna_storage(str(path)) as storage:
        search = optuna.create_study(storage=storage, study_name="shape of standard")
        search.optimize(lambda trial: trial.suggest_int("n_layers", 2, 8) / 4, n_trials=3)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command, at = [sys.executable, "-c", START, f"sqlite:///{path}"], f"http://127.0.0.1:{port}"
    with subprocess.Popen([*command, "--port", port], stdout=DEVNULL, stderr=DEVNULL) as served:
        try:
            studies = json.loads(get(f"{at}/api/studies", patience_s=120))["study_summaries"]
            page = get(f"{at}/dashboard/studies/1")
            study: dict[str, Any] = json.loads(get(f"{at}/api/studies/1"))
        finally:
            served.terminate()

    (listed,) = studies
    assert (listed["study_id"], listed["study_name"]) == (1, "shape of standard")
    assert "<title>Optuna Dashboard</title>" in page
    assert [trial["state"] for trial in study["trials"]] == ["Complete"] * 3
    depths = [int(trial["params"][0]["param_external_value"]) / 4 for trial in study["trials"]]
    assert [trial["values"] for trial in study["trials"]] == [[depth] for depth in depths]
    assert Store.open(str(path), create=True).runs() == runs
