"""Claimers on clusters that this machine plays: killed, out of time, cancelled, to the report."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import grids
import pytest
from batch_system import install, jobs, tell
from commands import Attnres
from grids import OFTEN, PLACE, done, forked_by, numbers, query, running, started, wait_until
from studies import FACTS

from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError, WorkersError, installing
from attnres_cli.lab.launch import follow
from attnres_cli.lab.workers import on_ray, slurm
from attnres_cli.lab.workers.claimer import Claimer, Outcome
from attnres_cli.lab.workers.signals import handled
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store

GRID = ["ablate", "standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke"]
GRID += ["--set", "train.tokens=30k", "--set", "train.eval_tokens=512"]  # 58 steps
ONE = [*GRID, "--workers", "1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done(folder, *ONE)
    return numbers(folder)


def at_work(folder: Path) -> list[int]:
    """Other processes that have this working folder."""
    found: list[int] = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            found += [int(link.parent.name)] if link.readlink() == folder else []
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where claimers work. Whatever they have started there is ended afterwards."""
    monkeypatch.chdir(tmp_path)
    for name, value in (PLACE | OFTEN).items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    deadline = time.monotonic() + 60
    while left := at_work(tmp_path):
        for pid in left if time.monotonic() > deadline else []:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = install(folder)
    monkeypatch.setenv("PATH", f"{found}:{os.environ['PATH']}")
    return found


class Ended:
    """Jobs that have all ended."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.n, self.outcomes, self.is_cancelled = len(outcomes), outcomes, False

    def ended(self) -> tuple[Outcome, ...]:
        return self.outcomes

    def cancel(self) -> None:
        self.is_cancelled = True


def test_the_first_report_is_shown_and_without_one_the_last_words_of_the_first_job():
    dead, last = Outcome(-9, "", ""), Outcome(3, "a report with a failed run", "")
    found = Ended(dead, last)
    assert follow(lambda: found, "none.db", print) == last
    assert found.is_cancelled
    with pytest.raises(UsageError, match=r"^no data$"):
        follow(lambda: Ended(Outcome(2, "", "attnres: no data")), "none.db", print)
    with pytest.raises(WorkersError, match=r"code 3: none lasts; .* the same command goes on"):
        follow(lambda: Ended(Outcome(3, "", "none lasts"), dead), "none.db", print)


def test_only_runs_of_its_recipes_are_counted_and_a_job_that_ends_badly_is_told_at_once(folder):
    ours, theirs = load("smoke"), load("smoke", ["train.tokens=8k"])
    store = Store.open("attnres.db", create=True)
    for recipe, n in ((ours, 2), (theirs, 3)):
        specs = [RunSpec(recipe, "standard", seed, FACTS.fingerprint) for seed in range(n)]
        store.plan(specs, FACTS)
    found, told = Ended(Outcome(1, "", "attnres: no GPU")), list[str]()
    found.n = 2

    def tell(line: str) -> None:
        told.append(line)
        if line.endswith("ended"):
            found.outcomes += (Outcome(0, "a report", ""),)

    follow(lambda: found, "attnres.db", tell, [ours])

    assert told == ["a job ended with code 1: no GPU", "0 of 2 runs ended"]


def test_nothing_is_submitted_where_the_study_cannot_be_read(
    attnres: Attnres, programs: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("submitit")
    monkeypatch.setenv("ATTNRES_RETRY_S", "0")
    launch = ["--launch", "slurm", "--workers", "2", "--job", "time=90"]

    said = attnres.refuses(*GRID, *launch, "--study", "postgresql+psycopg://me@127.0.0.1:1/lab")

    assert "cannot be reached" in said
    assert not (programs / "jobs").exists()


def test_a_claimer_returns_what_its_command_prints(folder: Path, monkeypatch, capfd):
    code = "import os, sys; print(os.getcwd(), os.environ['ATTNRES_CHECKPOINT_S']); sys.exit('no')"
    monkeypatch.setattr(Claimer, "command", property(lambda _: [sys.executable, "-c", code]))
    claimer = Claimer([])
    monkeypatch.delenv("ATTNRES_CHECKPOINT_S")
    monkeypatch.chdir("/")
    assert claimer() == Outcome(1, f"{folder} 0\n", "no")
    assert capfd.readouterr().err == "no\n"


def test_a_claimer_that_is_cancelled_ends_once_its_command_has_saved(folder: Path, monkeypatch):
    code = "import signal, sys, time; from pathlib import Path; at = Path('saved')\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(1) or at.touch()))\n"
    code += "Path('here').touch(); time.sleep(10)"
    monkeypatch.setattr(Claimer, "command", property(lambda _: [sys.executable, "-c", code]))

    def cancel() -> None:
        wait_until((folder / "here").exists, 60)
        for _ in range(2):  # a second one must not cut saving short
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    with ThreadPoolExecutor() as pool, handled({signal.SIGTERM: lambda *_: None}):  # as submitit
        pool.submit(cancel)
        with pytest.raises(SystemExit):
            Claimer([])()

    assert (folder / "saved").exists()


def test_options_of_jobs_are_checked_by_name_and_type():
    times = {"90": 90, "90:30": 91, "4:00:00": 240, "0:00:10": 1, "1-12": 2160, "2-0:30": 2910}
    assert {text: slurm.minutes(text) for text in times} == times  # as sbatch rounds them
    assert slurm.checked({"cpus-per-task": "4"}) == {"cpus_per_task": "4"}
    assert on_ray.checked({"num_gpus": "0.5"}) == {"num_gpus": 0.5}
    for checked, name, value, words in (
        (slurm.checked, "partitoin", "gpu", "did you mean 'partition'"),
        (slurm.checked, "time", "soon", "got 'soon'"),
        (on_ray.checked, "num_gpu", "1", "did you mean 'num_gpus'"),
        (on_ray.checked, "num_cpus", "two", "takes a number from 0 up, got 'two'"),
        (on_ray.checked, "num_cpus", "-1", "takes a number from 0 up, got '-1'"),
        (on_ray.checked, "num_gpus", "nan", "takes a number from 0 up, got 'nan'"),
    ):
        with pytest.raises(UsageError, match=words):
            checked({name: value})


def test_submitit_takes_the_options_of_a_job(programs: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
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


def test_what_sbatch_refuses_is_one_line(programs: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("submitit")
    wrong = "invalid partition specified: gpus\nsbatch: error: Batch job submission failed"
    (programs / "sbatch").write_text(f"#!/bin/bash\necho 'sbatch: error: {wrong}' >&2; exit 1\n")

    with pytest.raises(UsageError) as refused:
        slurm.Slurm(Claimer([]), 2, slurm.executor({"time": "90", "partition": "gpus"}))

    line = "invalid partition specified: gpus; Batch job submission failed"
    assert str(refused.value) == f"--launch slurm: {line}"
    assert capsys.readouterr().err == ""


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for package in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=re.escape(installing("slurm"))):
        slurm.executor({"time": "90"})
    with pytest.raises(UsageError, match=re.escape(installing("ray"))):
        on_ray.OnRay(Claimer([]), 1, {})


def test_resources_that_no_machine_of_ray_has_are_named_with_what_there_is():
    machines = [{"CPU": 2.0, "memory": 1.6e10}, {"CPU": 8.0, "GPU": 1.0, "accelerator_type:T4": 1}]
    for typed in ({}, {"num_gpus": 1.0, "num_cpus": 8.0}, {"accelerator_type": "T4"}):
        assert on_ray.lacking(machines, typed) == ""
    assert on_ray.lacking(machines, {"num_gpus": 2.0, "accelerator_type": "H100"}) == (
        "no machine of the Ray cluster has num_gpus=2, accelerator_type=H100, only 2 CPUs, 0 GPUs, "
        "16.0 GB; 8 CPUs, 1 GPU, 0.0 GB: tasks wait until one joins"
    )


class FakeRay:
    """Ray on a machine without a GPU, where every task has ended."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.is_initialized, self.cancel, self.shutdown = bool, print, bool
        self.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def init(self, **_: object) -> None:
        sys.stdout.write("a line of Ray\n")

    def remote(self, _task: object) -> FakeRay:
        return self

    def options(self, *, num_gpus: float = 0.0) -> SimpleNamespace:
        if num_gpus % 1:
            raise ValueError("whole GPUs only")
        return SimpleNamespace(remote=lambda claimer: claimer)

    def wait(self, tasks: list[object], **_: object) -> tuple[list[object], list[object]]:
        return tasks, []

    def get(self, _task: object) -> Outcome:
        return Outcome(0, "a report\n", "")


def test_stdout_has_only_the_report_of_a_ray_task(folder, attnres: Attnres, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    launch = [*GRID, "--launch", "ray", "--workers", "1", "--job"]

    code, out, err = attnres(*launch, "num_gpus=1")

    assert (code, out) == (0, "a report\n")
    assert "a line of Ray" in err
    assert "has num_gpus=1, only 2 CPUs, 0 GPUs" in err
    assert "--job: whole GPUs only" in attnres(*launch, "num_gpus=1.5")[2]


def test_the_batch_script_runs_the_array_and_is_queued_again(folder: Path, programs, monkeypatch):
    sleeps = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(600)"
    command = property(lambda self: [sys.executable, "-c", sleeps, *self.words])
    monkeypatch.setattr(Claimer, "command", command)  # instead of ours
    claimer = Claimer(["search"])
    (folder / "batch.sh").write_text(slurm.script(claimer, 2, {"gres": "gpu:1"}))
    assert "#SBATCH --gres=gpu:1\n" in (folder / "batch.sh").read_text()

    said = subprocess.run(["sbatch", "batch.sh"], check=True, capture_output=True, text=True).stdout
    number = said.split()[-1]
    logs = [folder / f"attnres-{number}_{task}.log" for task in (0, 1)]
    wait_until(lambda: all(log.exists() and "search" in log.read_text() for log in logs))
    tell(programs, f"{number}_0", signal.SIGUSR2)
    wait_until(lambda: logs[0].read_text().count("search") == 2)
    for job in jobs(programs):
        tell(programs, job, signal.SIGTERM)
    wait_until(lambda: not jobs(programs))
    wait_until(lambda: not at_work(folder), 20)

    assert logs[1].read_text().count("search") == 1


@pytest.mark.slow
def test_a_job_whose_time_is_over_is_queued_again_and_continues(folder: Path, undisturbed):
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(folder="attnres-jobs", max_num_timeout=1000)
    executor.update_parameters(timeout_min=9)
    found = slurm.Slurm(Claimer(ONE), 2, executor)
    try:
        wait_until(lambda: grids.some_have_begun(folder))
        owner = running(folder)[0][0]
        (mine,) = [job for job in found._jobs if owner in forked_by(job._process.pid)]
        (task,) = forked_by(mine._process.pid, deep=False)
        os.kill(task, signal.SIGUSR2)  # as SLURM does shortly before

        outcome = follow(lambda: found, "attnres.db", print)
    finally:
        found.cancel()
        for job in found._jobs:
            job._process.wait(60)

    assert outcome.code == 0
    assert "nats per token, mean" in outcome.out
    logs = (Path(path).read_text() for path in (mine.paths.stdout, mine.paths.stderr))
    assert "Requeued job" in "".join(logs)
    assert numbers(folder) == undisturbed


@pytest.mark.slow
def test_claimers_of_batch_scripts_share_runs_and_outlast_their_time(folder, programs, undisturbed):
    (folder / "batch.sh").write_text(slurm.script(Claimer(ONE), 2, {}))
    subprocess.run(["sbatch", "batch.sh"], check=True, capture_output=True)
    wait_until(lambda: grids.some_have_begun(folder))
    tell(programs, jobs(programs)[0], signal.SIGUSR2)
    wait_until(lambda: not jobs(programs))
    assert numbers(folder) == undisturbed
    for log in folder.glob("attnres-*.log"):
        assert "nats per token, mean" in log.read_text()


@pytest.mark.slow
def test_slurm_by_its_own_programs_from_the_command_to_the_report(database, folder: Path, programs):
    pytest.importorskip("submitit")
    server, name = database
    launch = [*GRID, "--study", server.url(name), "--launch", "slurm", "--workers", "2"]
    launch += ["--job", "time=4:00:00"]

    def n(status: str) -> int:
        with suppress(Exception):  # there is no table yet
            return len(server.sql(f"SELECT 1 FROM attnres_runs WHERE status = '{status}'", name))
        return 0

    with started(folder, *launch) as command:
        command.wait_for(lambda: n("running") == 2)
        command.signal(signal.SIGINT)
        assert command.end() == 130, command.err
        assert "the same command goes on" in command.err
    wait_until(lambda: not jobs(programs))
    assert n("running") == 0
    assert n("complete") + n("pending") == 4
    assert n("pending") > 0

    with started(folder, *launch) as command:
        command.succeed()
    assert n("complete") == 4
    assert re.search(r"([1-4]) of \1 runs ended", command.err)  # some may have ended before
    assert "attnres:block_size=2" in command.out
    written = [p.read_bytes() for p in (folder / "attnres-jobs").rglob("*") if p.is_file()]
    assert {b"s3cret" in each for each in written} == {False}


@pytest.mark.slow
def test_a_run_whose_ray_task_is_killed_is_taken_over_by_the_other(folder: Path, undisturbed):
    pytest.importorskip("ray")
    home = Path(tempfile.mkdtemp(prefix="attnres-ray-", dir="/tmp"))  # paths of sockets are short
    environment = {"HOME": str(home), "RAY_TMPDIR": str(home), "RAY_ADDRESS": ""}
    try:
        with started(folder, *GRID, "--launch", "ray", "--workers", "2", **environment) as command:
            command.wait_for(lambda: grids.some_have_begun(folder))
            (victim, _, run), *_ = running(folder)
            os.killpg(os.getpgid(victim), signal.SIGKILL)  # a claimer and its worker
            command.succeed()

        assert "2 tasks on a Ray cluster of 1 machine" in command.err
        assert "nats per token, mean" in command.out
        assert numbers(folder) == undisturbed
        assert not query(folder, f"SELECT 1 FROM attnres_runs WHERE attempts > 1 AND id != {run}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
