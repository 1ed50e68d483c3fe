"""Every schema there was is upgraded with its data, after a copy that is whole or not there."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from alembic import command
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from test_engine import differences, of_first_schema, opened_at_once, sql

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.store import engine
from attnres_cli.store.migrations import SCHEMAS
from attnres_cli.store.store import Store
from attnres_cli.store.tables import PREFIX

OLDER = SCHEMAS[:-1]


def lines_of(path: Path) -> list[str]:
    """All that a file holds, as SQL."""
    connection = sqlite3.connect(path)
    lines = list(connection.iterdump())
    connection.close()
    return lines


def foreign(path: Path) -> list[str]:
    """All of it that is not ours."""
    return [line for line in lines_of(path) if PREFIX not in line]


def older(path: Path, schema: str, recipe: Recipe) -> None:
    """Make a study as that schema had it: runs of the first one, and what came with later ones."""
    of_first_schema(path, recipe)
    fresh = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with fresh.connect() as connection:
        config = engine._config()
        config.attributes["connection"] = connection
        command.upgrade(config, schema)
        connection.commit()
    if schema >= "0002":
        sql(path, "UPDATE attnres_runs SET engine = 'eager' WHERE device IS NOT NULL")
    if schema >= "0003":
        sql(path, "UPDATE attnres_runs SET step = 6, heartbeat_at = finished_at WHERE id = 1")
    if schema >= "0004":
        values = [(1, 6, n, "[2]", bytes(8)) for n in ("output_rms", "gradient_rms", "input_rms")]
        connection = sqlite3.connect(path)
        with connection:
            connection.executemany("INSERT INTO attnres_probes VALUES (?, ?, ?, ?, ?)", values)
        connection.close()
    if schema >= "0005":
        sql(path, "UPDATE attnres_data SET zlib_bits = 2.5, xz_bits = 2.25")
    if schema >= "0006":
        sql(path, "INSERT INTO attnres_gates VALUES (1, 'finite', 1, 1.5, NULL, NULL)")


@pytest.fixture
def trials() -> Iterator[list[optuna.storages.RDBStorage]]:
    """Storages of Optuna's whose connections are closed afterwards."""
    opened: list[optuna.storages.RDBStorage] = []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield opened
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()
    gc.collect()


def search(path: Path, opened: list[optuna.storages.RDBStorage], n_trials: int) -> list[float]:
    """Optuna's study in that file after so many trials more; their values."""
    opened.append(optuna.storages.RDBStorage(f"sqlite:///{path}"))
    study = optuna.create_study(storage=opened[-1], study_name="s", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=n_trials)
    return [float(trial.value or 0) for trial in study.trials]


@pytest.mark.parametrize("schema", OLDER)
def test_every_older_schema_is_upgraded_with_its_data_and_optunas_beside_it(
    tmp_path: Path, tiny_recipe: Recipe, schema: str, trials, capfd
):
    path, copy = tmp_path / "study.db", tmp_path / f"study.schema-{schema}.db"
    older(path, schema, tiny_recipe)
    values = search(path, trials, n_trials=3)
    before, optunas = lines_of(path), foreign(path)
    held = {name: sql(path, f"SELECT * FROM attnres_{name}") for name in ("recipes", "curve")}

    store = Store.open(str(path), create=True)

    runs = store.runs()
    assert [run.status for run in runs] == ["complete", "diverged", "pending"]
    assert runs[0].result is not None
    assert runs[0].result.settings.engine == ("eager" if schema >= "0002" else "compile")
    assert {name: sql(path, f"SELECT * FROM attnres_{name}") for name in held} == held
    assert len(store.probes([1])[1]) == (schema >= "0004")
    assert store.data(runs[0].fingerprint).zlib_bits == (2.5 if schema >= "0005" else None)
    assert len(runs[0].gates) == (schema >= "0006")
    assert differences(path) == []
    assert foreign(path) == optunas
    assert search(path, trials, n_trials=1)[:3] == values
    assert lines_of(copy) == before
    assert sql(copy, "PRAGMA integrity_check") == [("ok",)]
    said = f"study study.db is upgraded from schema {schema}; as it was, it is kept as {copy.name}"
    assert capfd.readouterr().err == f"attnres: {said}\n"


def test_the_copy_has_what_is_still_in_the_log(tmp_path: Path, tiny_recipe: Recipe):
    path = tmp_path / "study.db"
    older(path, "0005", tiny_recipe)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("UPDATE attnres_recipes SET name = 'in the log'")
    assert b"in the log" not in path.read_bytes()

    Store.open(str(path), create=True)

    writer.close()
    copy = tmp_path / "study.schema-0005.db"
    assert sql(copy, "SELECT name FROM attnres_recipes") == [("in the log",)]
    assert sql(copy, "SELECT version_num FROM attnres_schema") == [("0005",)]


def test_what_holds_no_data_or_is_up_to_date_is_not_copied(
    tmp_path: Path, tiny_recipe: Recipe, capfd
):
    new, empty, current = (tmp_path / f"{name}.db" for name in ("new", "empty", "current"))
    older(empty, "0004", tiny_recipe)
    for table in ("probes", "curve", "runs", "recipes", "data"):
        sql(empty, f"DELETE FROM attnres_{table}")
    older(current, SCHEMAS[-1], tiny_recipe)

    for path in (new, empty, current):
        Store.open(str(path), create=True)

    assert {path.name for path in tmp_path.iterdir()} == {"new.db", "empty.db", "current.db"}
    assert capfd.readouterr().err == ""


def test_processes_that_upgrade_a_study_at_once_keep_one_copy(tmp_path: Path, tiny_recipe: Recipe):
    path = tmp_path / "study.db"
    older(path, "0005", tiny_recipe)
    before = lines_of(path)

    answers = opened_at_once(path)

    assert answers == ["opened"] * 3
    assert {each.name for each in tmp_path.glob("*.db")} == {"study.db", "study.schema-0005.db"}
    assert lines_of(tmp_path / "study.schema-0005.db") == before


def test_a_copy_of_another_study_is_not_written_over(tmp_path: Path, tiny_recipe: Recipe):
    path, first = tmp_path / "study.db", tmp_path / "study.schema-0005.db"
    first.write_text("precious")
    older(path, "0005", tiny_recipe)
    before = lines_of(path)

    Store.open(str(path), create=True)

    assert first.read_text() == "precious"
    assert lines_of(tmp_path / "study.schema-0005-2.db") == before


def test_what_a_killed_copy_left_is_taken_away(tmp_path: Path, tiny_recipe: Recipe):
    path = tmp_path / "study.db"
    older(path, "0005", tiny_recipe)
    (tmp_path / ".study.db.schema-0005.partial").write_bytes(path.read_bytes()[:5000])

    Store.open(str(path), create=True)

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"study.db", "study.schema-0005.db"}


def test_the_copy_is_as_private_as_the_study(tmp_path: Path, tiny_recipe: Recipe):
    path = tmp_path / "study"
    older(path, "0005", tiny_recipe)
    path.chmod(0o600)

    Store.open(str(path), create=True)

    assert (tmp_path / "study.schema-0005").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_where_the_copy_does_not_fit_nothing_is_changed_and_nothing_is_left(
    small_disk: Path, tiny_recipe: Recipe
):
    path = small_disk / "study.db"
    older(path, "0005", tiny_recipe)
    room = (small_disk / "fill").open("wb")
    room.write(bytes(512 * 1024 - 2 * path.stat().st_size // 4096 * 4096))
    room.close()
    before = lines_of(path)

    with pytest.raises(StudyError) as caught:
        Store.open(str(path), create=True)

    assert "cannot be made (database or disk is full)" in str(caught.value)
    assert "the study is unchanged" in str(caught.value)
    assert lines_of(path) == before
    assert {each.name for each in small_disk.iterdir()} == {"study.db", "fill"}
    (small_disk / "fill").unlink()
    assert len(Store.open(str(path), create=True).runs()) == 3
