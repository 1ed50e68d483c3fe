"""A search killed again and again is a whole one in the end: nothing lost, nothing tried twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from grids import PATIENCE_S

from attnres_cli.lab.search.studies import read
from attnres_cli.records.search_records import State

pytestmark = pytest.mark.slow

SEARCH = ["search", "standard", "attnres", "--recipe", "smoke", "--budget", "params=60k"]
SEARCH += ["--space", "n_layers=1..6,n_heads=1|2|4,n_blocks=1..6", "--sampler", "tpe"]
SEARCH += ["--trials", "6", "--confirm", "1", "--seeds", "1", "--set", "train.tokens=4k"]
SEARCH += ["--format", "json"]


def started(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "out").open("wb") as out, (folder / "err").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "attnres_cli", *SEARCH],
            cwd=folder,
            stdout=out,
            stderr=errors,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def n_ended(folder: Path) -> int:
    path = folder / "attnres.db"
    if not path.exists():
        return 0
    connection = sqlite3.connect(path, timeout=60)
    try:
        sql = "SELECT count(*) FROM attnres_runs WHERE status = 'complete'"
        return int(connection.execute(sql).fetchone()[0])
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0
    finally:
        connection.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


def test_a_search_killed_in_the_middle_goes_on_to_as_many_trials_as_were_asked_for(tmp_path: Path):
    for n_runs in (2, 7):  # in the first trials, and where TPE has begun to learn
        process = started(tmp_path)
        deadline = time.monotonic() + PATIENCE_S
        while n_ended(tmp_path) < n_runs and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.05)
        kill(process)
        assert n_ended(tmp_path) >= n_runs

    process = started(tmp_path)
    try:
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "err").read_text()
    finally:
        kill(process)

    (search,) = read(str(tmp_path / "attnres.db"))
    assert [family.variant for family in search.families] == ["standard", "attnres"]
    assert search.confirm_seeds == (1,)
    for family in search.families:
        designs = [(trial.recipe_digest, trial.variant) for trial in family.trials]
        assert len(set(designs)) == len(designs)
        assert {trial.state for trial in family.trials} == {State.COMPLETE}
        assert len(family.trials) in (6, 7)  # and a shape that was best for the other variant
        assert all(abs(trial.n_params / 60_000 - 1) <= 0.005 for trial in family.trials)
    connection = sqlite3.connect(tmp_path / "attnres.db")
    seeds = Counter(row[0] for row in connection.execute("SELECT seed FROM attnres_runs"))
    states = {row[0] for row in connection.execute("SELECT status FROM attnres_runs")}
    connection.close()
    assert seeds[0] == sum(len(family.trials) for family in search.families)
    assert seeds[1] in (2, 4, 6, 8)  # up to two bests and two of both together, for each of two
    assert states == {"complete"}
    assert json.loads((tmp_path / "out").read_text())
