"""Real commands on a study on PostgreSQL: several at once, killed, and without their server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grids import OFTEN, started
from servers import PASSWORD, QUOTED, Server

from attnres_cli.files import sha256
from attnres_cli.lab.workers.cores import shares
from attnres_cli.records import machine
from attnres_cli.records.run import Status
from attnres_cli.store import owner
from attnres_cli.store.store import Store

pytestmark = pytest.mark.slow

GRID = ["ablate", "standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke"]
GRID += ["--workers", "2", "--set", "train.tokens=40k", "--set", "train.eval_tokens=512"]


def begun(folder: Path, study: str, typed: Sequence[str] = GRID, **environment: str) -> Any:
    folder.mkdir(exist_ok=True)
    return started(folder, *typed, "--study", study, **OFTEN | environment)


def workers(study: str) -> list[int]:
    """Process ids of the workers whose run has a checkpoint."""
    if (store := Store.existing(study)) is None:
        return []
    folders = {record.id: store.folder_of(record) for record in store.runs()}
    return [
        int(name.split("|")[2])
        for run_id, name in store.owners(list(folders)).items()
        if owner.is_alive(name) and any(folders[run_id].glob("0*.json"))
    ]


def numbers(study: str) -> list[object]:
    """All that training decides, bit for bit, with final weights; every run is there once."""
    store = Store.open(study, create=False)
    records = store.runs()
    assert [record.status for record in records] == [Status.COMPLETE] * 4
    found: list[object] = []
    probes = store.probes([record.id for record in records])
    for record in sorted(records, key=lambda record: (record.variant, record.seed)):
        (weights,) = [path for path in store.folder_of(record).iterdir() if path.is_file()]
        result = record.result
        found += [record.variant, record.seed, result.val_loss, result.initial_loss, result.curve]
        found += [probes[record.id], result.steps, result.tokens, weights.name, sha256(weights)]
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("file")
    with begun(folder / "file", str(folder / "study.db")) as command:
        command.succeed()
    return numbers(str(folder / "study.db"))


def test_commands_at_once_or_killed_equal_a_file_and_leak_no_secret(database, tmp_path, reference):
    server, name = database
    study = server.url(name)
    with begun(tmp_path / "one", study) as one, begun(tmp_path / "two", study) as two:
        found: list[int] = []
        two.wait_for(lambda: found.extend(workers(study)) or found)
        arguments = Path(f"/proc/{found[0]}/cmdline").read_bytes()
        assert os.sched_getaffinity(found[0]) in map(set, shares(machine.cores(), 2))
        os.kill(found[0], signal.SIGKILL)
        one.die()
        two.succeed()
    with begun(tmp_path / "again", study) as again:
        again.succeed()
    page = ["report", "--format", "html", "--output", "page.html"]
    for typed in (["report"], page, ["runs"], ["runs", "show", "1"], ["plan"]):
        with begun(tmp_path / "again", study, typed) as command:
            command.succeed()

    assert numbers(study) == reference
    dump = server.dump(name)
    assert "attnres_runs" in dump
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {"arguments": arguments, "dump": dump.encode(), "log": server.log.read_bytes()}
    for where, content in written.items():
        assert not {PASSWORD.encode() in content, QUOTED.encode() in content} - {False}, where


def test_a_server_that_stays_away_ends_the_command_with_one_line_and_an_outage_costs_nothing(
    own_server: Server, tmp_path: Path, monkeypatch, reference: list[object]
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = own_server.url()
    with begun(tmp_path / "hasty", study, ATTNRES_RETRY_S="1") as hasty:
        hasty.wait_for(lambda: workers(study))
        own_server.stop()
        assert hasty.end() == 2, hasty.err
    own_server.start()
    with begun(tmp_path / "patient", study) as patient:
        patient.wait_for(lambda: workers(study))
        own_server.stop()
        time.sleep(4)
        own_server.start()
        patient.succeed()

    assert "Traceback" not in hasty.err
    *_, last = hasty.err.splitlines()
    assert last.startswith("attnres: study postgresql+psycopg://lab@127.0.0.1")
    assert "cannot be reached" in last
    assert numbers(study) == reference
    standings = Store.open(study, create=False).standings().values()
    assert {standing.attempts for standing in standings} == {1}


def test_a_password_that_is_changed_is_said_while_training_goes_on_and_waited_for(
    own_server: Server, tmp_path: Path, monkeypatch, reference: list[object]
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = own_server.url()
    with begun(tmp_path / "locked", study) as command:
        command.wait_for(lambda: workers(study))
        own_server.sql(f"ALTER ROLE lab PASSWORD '{PASSWORD}-new'")
        command.wait_for(lambda: "password authentication failed" in command.err)
        own_server.sql(f"ALTER ROLE lab PASSWORD '{PASSWORD}'", password=f"{PASSWORD}-new")
        command.succeed()

    (line,) = [line for line in command.err.splitlines() if "password authentication" in line][:1]
    assert "check the user, and the password in PGPASSWORD" in line
    assert numbers(study) == reference
