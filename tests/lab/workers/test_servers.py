"""Real commands on a study on PostgreSQL: several at once, killed, and without their server."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from grids import OFTEN, Command, started
from servers import PASSWORD, QUOTED, Server

from attnres_cli.lab.search.studies import read
from attnres_cli.lab.workers.cores import shares
from attnres_cli.records import machine
from attnres_cli.records.run import Status
from attnres_cli.records.search_records import State
from attnres_cli.store import owner
from attnres_cli.store.store import Store

pytestmark = pytest.mark.slow

ARMS = ["standard", "attnres:block_size=2"]
GRID = ["ablate", *ARMS, "--seeds", "2", "--recipe", "smoke", "--workers", "2"]
GRID += ["--set", "train.tokens=60k"]  # 117 steps
N_RUNS = 4

SEARCH = ["search", "standard", "attnres", "--recipe", "smoke", "--budget", "params=60k"]
SEARCH += ["--space", "n_layers=1..6,n_heads=1|2|4,n_blocks=1..6", "--sampler", "tpe"]
SEARCH += ["--trials", "5", "--confirm", "1", "--seeds", "1", "--set", "train.tokens=8k"]
SEARCH += ["--format", "json"]


def begun(
    folder: Path, study: str, typed: Sequence[str] = GRID, **environment: str
) -> AbstractContextManager[Command]:
    """A command on a study, in that folder."""
    folder.mkdir(exist_ok=True)
    return started(folder, *typed, "--study", study, **OFTEN | environment)


def workers(study: str) -> list[int]:
    """Process ids of those that have come to a checkpoint in a run."""
    store = Store.existing(study)
    if store is None:
        return []
    records = {record.id: store.folder_of(record) for record in store.runs()}
    owners = store.owners(list(records))
    return [
        int(name.split("|")[2])
        for run_id, name in owners.items()
        if owner.is_alive(name) and any(records[run_id].glob("0*.json"))
    ]


def numbers(study: str) -> list[object]:
    """All that training decides, bit for bit, with final weights; every run is there once."""
    store = Store.open(study, create=False)
    records = store.runs()
    assert len(records) == N_RUNS
    assert {record.status for record in records} == {Status.COMPLETE}
    found = []
    probes = store.probes([record.id for record in records])
    for record in sorted(records, key=lambda record: (record.variant, record.seed)):
        (weights,) = [path for path in store.folder_of(record).iterdir() if path.is_file()]
        assert record.result is not None
        result = record.result
        found.append((record.variant, record.seed, result.val_loss, result.initial_loss))
        found.append((result.curve, probes[record.id], result.steps, result.tokens))
        found.append((weights.name, hashlib.sha256(weights.read_bytes()).hexdigest()))
    return found


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The numbers of the same grid in a file, undisturbed."""
    folder = tmp_path_factory.mktemp("file")
    with begun(folder / "file", str(folder / "study.db")) as command:
        command.succeed()
    return numbers(str(folder / "study.db"))


def test_commands_at_once_some_killed_equal_a_file_and_tell_nobody_the_password(
    database: tuple[Server, str], tmp_path: Path, reference: list[object]
):
    server, name = database
    study = server.url(name)
    with begun(tmp_path / "one", study) as one, begun(tmp_path / "two", study) as two:
        found: list[int] = []
        two.wait_for(lambda: found.extend(workers(study)) or found)
        told = Path(f"/proc/{found[0]}/cmdline").read_bytes()
        assert PASSWORD.encode() not in told
        assert QUOTED.encode() not in told
        assert os.sched_getaffinity(found[0]) in map(set, shares(machine.cores(), 2))
        os.kill(found[0], signal.SIGKILL)
        one.die()
        two.succeed()
    with begun(tmp_path / "again", study) as again:
        again.succeed()
    for arguments in (["report"], ["report", "--format", "html", "--output", "page.html"],
                      ["runs"], ["runs", "show", "1"], ["plan"]):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "attnres_cli", *arguments, "--study", study],
            cwd=tmp_path, check=False, capture_output=True, text=True,
        )  # fmt: skip
        (tmp_path / f"{arguments[-1]}.said").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr

    assert numbers(study) == reference
    (tmp_path / "dump").write_text(server.dump(name))
    (tmp_path / "log").write_bytes(server.log.read_bytes())
    assert b"attnres_runs" in (tmp_path / "dump").read_bytes()
    for path, content in everything(tmp_path):
        assert PASSWORD.encode() not in content, path
        assert QUOTED.encode() not in content, path


def test_a_server_that_goes_and_comes_back_costs_nothing(
    own_server: Server, tmp_path: Path, monkeypatch, reference: list[object]
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = own_server.url()
    with begun(tmp_path / "patient", study) as command:
        for _ in range(2):
            command.wait_for(lambda: workers(study))
            own_server.stop()
            time.sleep(4)
            own_server.start()
        command.succeed()

    assert numbers(study) == reference
    standings = Store.open(study, create=False).standings().values()
    assert {standing.attempts for standing in standings} == {1}


def test_a_server_that_stays_away_ends_the_command_with_a_line_and_it_goes_on_later(
    own_server: Server, tmp_path: Path, monkeypatch, reference: list[object]
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = own_server.url()
    with begun(tmp_path / "hasty", study, ATTNRES_RETRY_S="1") as command:
        command.wait_for(lambda: workers(study))
        own_server.stop()
        code = command.end()
    own_server.start()
    with begun(tmp_path / "later", study) as later:
        later.succeed()

    said = command.err
    assert code == 2, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("attnres: study postgresql+psycopg://lab@127.0.0.1")
    assert "cannot be reached" in said.splitlines()[-1]
    assert numbers(study) == reference


def test_two_searches_share_trials_while_some_are_killed_and_the_server_goes_and_comes_back(
    own_server: Server, tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = own_server.url()

    def n_ended() -> int:
        store = Store.existing(study)
        found = store.runs(curves=False) if store else []
        return sum(run.status is Status.COMPLETE for run in found)

    with begun(tmp_path / "one", study, SEARCH) as one, begun(tmp_path / "two", study, SEARCH) as _:
        one.wait_for(lambda: n_ended() >= 2)
        one.die()
    with begun(tmp_path / "three", study, SEARCH) as three:
        victims: list[int] = []
        three.wait_for(lambda: victims.extend(workers(study)) or victims)
        os.kill(victims[0], signal.SIGKILL)
        three.wait_for(lambda: n_ended() >= 5)
        own_server.stop()
        time.sleep(4)
        own_server.start()
        three.succeed()
    with begun(tmp_path / "four", study, SEARCH) as four:
        four.succeed()

    assert four.out == three.out
    assert four.err == ""
    (search,) = read(study)
    for family in search.families:
        assert {trial.state for trial in family.trials} == {State.COMPLETE}
        assert len(family.trials) in (5, 6)  # and a shape that was best for the other variant
        assert len({(t.recipe_digest, t.variant) for t in family.trials}) == len(family.trials)
    runs = Store.open(study, create=False).runs(curves=False)
    assert {run.status for run in runs} == {Status.COMPLETE}
    seeds = Counter(run.seed for run in runs)
    assert seeds[0] == sum(len(family.trials) for family in search.families)
    assert set(seeds) == {0, 1}
