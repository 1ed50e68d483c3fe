"""Claimers on clusters of this machine alone: killed, out of time, cancelled, to the report."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_system import install, jobs, tell
from grids import OFTEN, PATIENCE_S, done, forked_by, query, running, some_have_begun, started
from grids import numbers as numbers_of

from attnres_cli.errors import UsageError, WorkersError
from attnres_cli.lab.launch import follow
from attnres_cli.lab.workers import on_ray, slurm
from attnres_cli.lab.workers.claimer import Claimer, Outcome

GRID = ["ablate", "standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke"]
GRID += ["--set", "train.tokens=30k"]  # 58 steps
ONE = [*GRID, "--workers", "1"]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done(folder, *ONE)
    return curves(folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where claimers work; of all that they have begun nothing is left afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path
    deadline = time.monotonic() + 60
    while left := at_work(tmp_path):
        for pid in left if time.monotonic() > deadline else []:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def at_work(folder: Path) -> list[int]:
    """Processes that have this working folder, but us and those who read their standard input."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            is_there = link.readlink() == folder
        except OSError:
            continue
        if is_there and int(link.parent.name) != os.getpid():
            found.append(int(link.parent.name))
    return found


def curves(folder: Path) -> dict[tuple[str, int], list[Any]]:
    """Every loss of the complete runs, whatever their numbers."""
    numbers_of(folder)
    found: dict[tuple[str, int], list[Any]] = {}
    for run, variant, seed, loss in query(
        folder, "SELECT id, variant, seed, val_loss FROM attnres_runs WHERE status = 'complete'"
    ):
        points = f"SELECT step, train_loss, val_loss FROM attnres_curve WHERE run_id = {run}"
        assert (variant, seed) not in found  # trained twice
        found[variant, seed] = [loss, *query(folder, f"{points} ORDER BY step")]
    return found


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def quiet(_line: str) -> None:
    pass


class Ended:
    """Jobs that have all ended."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.n, self.outcomes, self.is_cancelled = len(outcomes), outcomes, False

    def ended(self) -> tuple[Outcome, ...]:
        return self.outcomes

    def cancel(self) -> None:
        self.is_cancelled = True


def test_the_first_report_is_the_commands_and_the_other_jobs_are_cancelled(tmp_path: Path):
    dead, last = Outcome(-9, "", ""), Outcome(3, "a report with a failed run", "")
    found = Ended(dead, last)

    assert follow(found, str(tmp_path / "attnres.db"), quiet) == last
    assert found.is_cancelled


def test_where_no_job_came_to_a_report_the_first_ones_last_words_are_told(tmp_path: Path):
    study = str(tmp_path / "attnres.db")

    with pytest.raises(UsageError, match=r"^no data$"):
        follow(Ended(Outcome(2, "", "attnres: no data")), study, quiet)
    with pytest.raises(WorkersError, match=r"code 3: none lasts; .* the same command goes on"):
        follow(Ended(Outcome(3, "", "none lasts"), Outcome(-9, "", "")), study, quiet)


def test_a_claimer_gives_what_its_command_prints_and_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    code = "import os, sys; print(os.getcwd(), os.environ['ATTNRES_CHECKPOINT_S']); sys.exit('no')"
    monkeypatch.setattr(Claimer, "command", property(lambda _: [sys.executable, "-c", code]))
    claimer = Claimer([])
    monkeypatch.delenv("ATTNRES_CHECKPOINT_S")
    monkeypatch.chdir("/")

    assert claimer() == Outcome(1, f"{folder} 0\n", "no")
    assert capfd.readouterr().err == "no\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [("90", 90), ("90:30", 91), ("4:00:00", 240), ("0:00:10", 1), ("1-12", 2160), ("2-0:30", 2910)],
)
def test_times_are_those_of_sbatch(text: str, found: int):
    assert slurm.minutes(text) == found


def test_what_a_job_gets_is_known_by_its_name():
    assert slurm.checked({"cpus-per-task": "4", "time": "90"}) == {
        "cpus_per_task": "4",
        "time": "90",
    }
    with pytest.raises(UsageError, match="did you mean 'partition'"):
        slurm.checked({"partitoin": "gpu"})
    with pytest.raises(UsageError, match="got 'soon'"):
        slurm.checked({"time": "soon"})
    assert on_ray.checked({"num_gpus": "0.5"}) == {"num_gpus": 0.5}
    with pytest.raises(UsageError, match="did you mean 'num_gpus'"):
        on_ray.checked({"num_gpu": "1"})
    with pytest.raises(UsageError, match="takes a number, got 'two'"):
        on_ray.checked({"num_cpus": "two"})


def test_submitit_takes_what_we_give_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", f"{install(folder)}:{os.environ['PATH']}")
    typed = {"time": "4:00:00", "gpus-per-node": "1", "mem": "32G", "cpus_per_task": "4"}
    given = slurm.executor(slurm.checked(typed))

    text = given._make_submission_file_text("command", "")

    for line in ("time=240", "gpus-per-node=1", "mem=32G", "cpus-per-task=4",
                 "signal=USR2@90", "requeue", "job-name=attnres"):  # fmt: skip
        assert f"#SBATCH --{line}\n" in text
    assert " --cpus-per-task=4 command" in text
    with pytest.raises(UsageError, match="time limit"):
        slurm.executor({})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no sbatch"):
        slurm.executor({"time": "90"})


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    for package in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(UsageError, match=r"pip install 'attnres-cli\[slurm\]'"):
        slurm.executor({"time": "90"})
    with pytest.raises(UsageError, match=r"pip install 'attnres-cli\[ray\]'"):
        on_ray.OnRay(Claimer([]), 1, {})


def test_the_batch_script_runs_the_array_and_is_queued_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    programs = install(folder)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    sleeps = folder / "sleeps.py"  # in place of our command
    sleeps.write_text("import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(600)\n")
    claimer = Claimer(["search", "--retry-failed"])
    monkeypatch.setattr(
        Claimer, "command", property(lambda self: [sys.executable, str(sleeps), *self.words])
    )
    (folder / "batch.sh").write_text(slurm.script(claimer, 2, {"gres": "gpu:1"}))
    assert "#SBATCH --gres=gpu:1\n" in (folder / "batch.sh").read_text()

    said = subprocess.run(["sbatch", "batch.sh"], check=True, capture_output=True, text=True).stdout
    number = said.split()[-1]
    logs = [folder / f"attnres-{number}_{task}.log" for task in (0, 1)]
    until(lambda: all(log.exists() and "search" in log.read_text() for log in logs))
    tell(programs, f"{number}_0", signal.SIGUSR2, batch=True)
    until(lambda: logs[0].read_text().count("search") == 2)
    for job in jobs(programs):
        tell(programs, job, signal.SIGTERM)
    until(lambda: not jobs(programs))

    assert logs[0].read_text().splitlines()[0] == "['search', '--retry-failed']"
    assert "['search']" in logs[0].read_text().splitlines()
    assert logs[1].read_text().count("search") == 1


@slow
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on(folder: Path, undisturbed):
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(folder="attnres-jobs", max_num_timeout=1000)
    executor.update_parameters(timeout_min=9)
    found = slurm.Slurm(Claimer(ONE), 2, executor)
    try:
        until(lambda: some_have_begun(folder))
        owner = running(folder)[0][0]
        (mine,) = [job for job in found._jobs if owner in forked_by(job._process.pid)]
        (task,) = forked_by(mine._process.pid, deep=False)
        os.kill(task, signal.SIGUSR2)  # as SLURM does shortly before

        outcome = follow(found, "attnres.db", quiet)
    finally:
        found.cancel()
        for job in found._jobs:
            job._process.wait(60)

    assert outcome.code == 0
    assert "validation loss" in outcome.out
    assert (
        "Requeued job" in Path(mine.paths.stdout).read_text() + Path(mine.paths.stderr).read_text()
    )
    assert curves(folder) == undisturbed


@slow
def test_the_batch_scripts_claimers_share_the_runs_and_go_on_after_their_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, undisturbed
):
    programs = install(folder)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (folder / "batch.sh").write_text(slurm.script(Claimer(ONE), 2, {}))

    subprocess.run(["sbatch", "batch.sh"], check=True, capture_output=True)
    until(lambda: some_have_begun(folder))
    tell(programs, jobs(programs)[0], signal.SIGUSR2, batch=True)
    until(lambda: not jobs(programs))

    assert curves(folder) == undisturbed
    for log in folder.glob("attnres-*.log"):
        assert "validation loss" in log.read_text()


@slow
def test_slurm_by_its_own_programs_from_the_command_to_the_report(
    database, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("submitit")
    server, name = database
    programs = install(folder)
    environment = OFTEN | {"PATH": f"{programs}:{os.environ['PATH']}"}
    launch = [*GRID, "--study", server.url(name), "--launch", "slurm", "--workers", "2"]
    launch += ["--job", "time=4:00:00"]

    def n(status: str) -> int:
        try:
            return len(server.sql(f"SELECT 1 FROM attnres_runs WHERE status = '{status}'", name))
        except Exception:  # there is no table yet
            return 0

    with started(folder, *launch, **environment) as command:
        command.wait_for(lambda: n("running") == 2)
        command.signal(signal.SIGINT)
        assert command.end() == 130, command.err
        assert "the same command goes on" in command.err
    until(lambda: not jobs(programs))
    assert n("running") == 0
    assert n("complete") + n("pending") == 4

    with started(folder, *launch, **environment) as command:
        assert command.end() == 0, command.err
    assert n("complete") == 4
    assert "4 of 4 runs ended" in command.err
    assert "attnres:block_size=2" in command.out
    secret = "s3cret"
    written = [p.read_bytes() for p in (folder / "attnres-jobs").rglob("*") if p.is_file()]
    assert written
    assert not any(secret.encode() in each for each in written)


@slow
def test_of_two_tasks_on_ray_one_is_killed_and_its_run_taken_over(folder: Path, undisturbed):
    pytest.importorskip("ray")
    home = Path(tempfile.mkdtemp(prefix="attnres-ray-", dir="/tmp"))  # paths of sockets are short
    environment = OFTEN | {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_ADDRESS": ""}
    try:
        with started(folder, *GRID, "--launch", "ray", "--workers", "2", **environment) as command:
            command.wait_for(lambda: some_have_begun(folder))
            (victim, _, run), *_ = running(folder)
            os.killpg(os.getpgid(victim), signal.SIGKILL)  # a claimer and its worker
            assert command.end() == 0, command.err

        assert "2 tasks on a Ray cluster of 1 machine" in command.err
        assert "validation loss" in command.out
        assert curves(folder) == undisturbed
        assert not query(folder, f"SELECT 1 FROM attnres_runs WHERE attempts > 1 AND id != {run}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
