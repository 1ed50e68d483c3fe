"""Claimers as jobs of SLURM: by submitit, or by a batch script for who submits it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from attnres_cli.errors import UsageError, required, unknown
from attnres_cli.lab.workers.claimer import Claimer, Outcome

GRACE_S = 90  # before its time is over a job is told: it saves, and is queued again
_OFTEN = 10_000  # times that submitit lets a job be queued again
_OPTIONS = (
    "partition", "time", "cpus_per_task", "cpus_per_gpu", "gpus", "gpus_per_node",
    "gpus_per_task", "gres", "mem", "mem_per_gpu", "mem_per_cpu", "account", "qos", "constraint",
    "nodelist", "exclude", "exclusive", "reservation", "dependency", "begin", "licenses", "nice",
    "clusters", "tmp", "comment", "mail_type", "mail_user", "wckey",
)  # fmt: skip
_TIME = re.compile(r"(?:(?P<d>\d+)-)?(?P<h>\d+)(?::(?P<m>\d+))?(?::(?P<s>\d+))?")


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """What is typed for each job, by the names of sbatch's long options with `_` for `-`. Raises
    UsageError where sbatch has none, or a time is none.
    """
    found = {name.replace("-", "_"): value for name, value in options.items()}
    for name in found:
        if name not in _OPTIONS:
            raise UsageError("--job: " + unknown("option of sbatch", name, _OPTIONS))
    if "time" in found:
        minutes(found["time"])
    return found


def minutes(text: str) -> int:
    """The minutes that sbatch takes from `90`, `90:00`, `1:30:00`, `1-12` or `1-12:30:00`, at least
    one. Raises UsageError.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"--job: time is 90 (minutes), 4:00:00 or 2-12:00:00, got '{text}'")
    days, first, second, third = (int(match[part] or 0) for part in "dhms")
    if match["d"] is None and match["s"] is None:  # minutes and seconds
        return max(1, first + (second > 0))
    return max(1, 60 * (24 * days + first) + second + (third > 0))


def script(claimer: Claimer, n: int, options: Mapping[str, str]) -> str:
    """A batch script of an array of n claimers, each queued again when its time is over."""
    given = {
        "job-name": "attnres", "array": f"0-{n - 1}", "output": "attnres-%A_%a.log",
        "open-mode": "append", "requeue": "", "signal": f"B:USR2@{GRACE_S}",
    } | {name.replace("_", "-"): value for name, value in options.items()}  # fmt: skip
    flags = [f"#SBATCH --{name}" + (f"={value}" if value else "") for name, value in given.items()]
    return "\n".join([
        "#!/bin/bash",
        *flags,
        "",
        *(f"export {n}={shlex.quote(text)}" for n, text in claimer.environment.items()),
        f"cd {shlex.quote(str(claimer.folder))} || exit",
        f"{shlex.join(claimer.command)} &",
        "claimer=$!",
        "again() {  # the time is almost over: the run is saved, and another job goes on",
        '    kill -TERM "$claimer" && wait "$claimer"',
        '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        "    exit",
        "}",
        "last() {  # the job is canceled or preempted: the run is saved",
        "    trap '' TERM",
        '    kill -TERM "$claimer" && wait "$claimer"',
        "    exit",
        "}",
        "trap again USR2",
        "trap last TERM",
        'wait "$claimer"',
        "",
    ])  # fmt: skip


class Slurm:
    """Claimers submitted at once, as one array. Their logs are in `folder`. Raises UsageError with
    what sbatch says where it takes none.
    """

    def __init__(self, claimer: Claimer, n: int, executor: Any) -> None:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            with redirect_stderr(StringIO()), executor.batch():  # submitit prints it, too
                self._jobs = [executor.submit(claimer) for _ in range(n)]
        except (FailedJobError, FailedSubmissionError) as error:
            said = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines()]
            raise UsageError(f"--launch slurm: {'; '.join(filter(None, said))}") from error
        self.n = n
        self.name = str(self._jobs[0].job_id).partition("_")[0]
        self.folder = Path(executor.folder)
        self._ended: dict[str, Outcome] = {}

    def ended(self) -> Sequence[Outcome]:
        """Return how those that have ended did."""
        for job in self._jobs:
            if job.job_id not in self._ended and job.done():
                self._ended[job.job_id] = _outcome(job)
        return list(self._ended.values())

    def cancel(self) -> None:
        """End the others; each saves its run, which waits again."""
        for job in self._jobs:
            if job.job_id not in self._ended:
                job.cancel(check=False)


def executor(options: Mapping[str, str]) -> Any:
    """What submits jobs with these `checked` options. Raises UsageError where nothing can."""
    submitit = required("submitit", "slurm", "--launch slurm", UsageError)
    if "time" not in options:
        raise UsageError("--launch slurm: jobs need a time limit, as --job time=4:00:00")
    if not (shutil.which("sbatch") and shutil.which("srun")):
        raise UsageError(
            "--launch slurm: this machine has no sbatch and srun; type it where jobs are submitted"
        )
    found = submitit.SlurmExecutor(folder="attnres-jobs", max_num_timeout=_OFTEN)
    others = {name: value for name, value in options.items() if name != "time"}
    n_cpus = options.get("cpus_per_task")  # srun has not taken it from sbatch since SLURM 22.05
    found.update_parameters(
        job_name="attnres", time=minutes(options["time"]), signal_delay_s=GRACE_S,
        additional_parameters=others | {"requeue": True},
        srun_args=[f"--cpus-per-task={n_cpus}"] if n_cpus else None,
    )  # fmt: skip
    return found


def _outcome(job: Any) -> Outcome:
    """Of a job that never came back, as one that was cancelled, the last line of its log."""
    try:
        found = job.result()
    except Exception as error:  # submitit's own, or any that a job ended with
        lines = (job.stderr() or str(error)).strip().splitlines() or [""]
        return Outcome(1, "", f"{lines[-1]} ({job.paths.stderr})")
    return found if isinstance(found, Outcome) else Outcome(1, "", f"see {job.paths.stderr}")
