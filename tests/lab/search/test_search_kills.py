"""A search that is killed goes on: nothing is lost, nothing is tried twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from grids import PATIENCE_S

from attnres_cli.lab.search.studies import read
from attnres_cli.records.run import Status
from attnres_cli.records.search_records import State
from attnres_cli.store.store import Store

pytestmark = pytest.mark.slow

SEARCH = ["search", "standard", "attnres", "--recipe", "smoke", "--budget", "params=60k"]
SEARCH += ["--space", "n_layers=1..6,n_heads=1|2|4,n_blocks=1..6", "--sampler", "tpe"]
SEARCH += ["--trials", "6", "--confirm", "1", "--seeds", "1", "--set", "train.tokens=4k"]
SEARCH += ["--format", "json"]


def started(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "attnres_cli", *SEARCH]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "out").open("wb") as out, (folder / "err").open("ab") as errors:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdout=out,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )


def n_ended(folder: Path) -> int:
    if not (folder / "attnres.db").exists():
        return 0
    with closing(sqlite3.connect(folder / "attnres.db", timeout=60)) as held:
        try:
            sql = "SELECT count(*) FROM attnres_runs WHERE status = 'complete'"
            return int(held.execute(sql).fetchone()[0])
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


def test_a_killed_search_goes_on_to_as_many_trials_as_asked_for(tmp_path: Path):
    process = started(tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while n_ended(tmp_path) < 7 and time.monotonic() < deadline:  # TPE has begun to learn
        assert process.poll() is None, (tmp_path / "err").read_text()
        time.sleep(0.05)
    kill(process)
    assert n_ended(tmp_path) >= 7

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
    runs = Store.open(str(tmp_path / "attnres.db"), create=False).runs()
    seeds = Counter(run.seed for run in runs)
    assert seeds[0] == sum(len(family.trials) for family in search.families)
    assert seeds[1] in (2, 4, 6, 8)  # up to two bests and two of both together, for each of two
    assert {run.status for run in runs} == {Status.COMPLETE}
    assert json.loads((tmp_path / "out").read_text())
