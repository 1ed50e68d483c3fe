"""What --launch does: give a command's runs to a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import typer

from attnres_cli.cli.options import Training
from attnres_cli.config import address
from attnres_cli.console import note, say
from attnres_cli.errors import UsageError

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe
    from attnres_cli.lab.workers.claimer import Claimer, Jobs

_NOT_OF_CLAIMERS = ("--launch", "--job", "--workers", "--study")


def launched(asked: Training, of: Sequence[Recipe] = ()) -> bool:
    """False without `--launch`. With it, run the command that was typed on a cluster, `workers`
    times at once, and print what it prints there; or print the script that does. `of` are the
    recipes that it trains under, where they are known. Raises typer.Exit as the command would, and
    UsageError.
    """
    launch, n = asked.launch, asked.workers
    if asked.prints and launch != "slurm":
        raise UsageError("--print prints the batch script of --launch slurm")
    if asked.job and launch is None:
        raise UsageError("--job is for --launch slurm or --launch ray")
    if launch is None:
        return False
    if n is None:
        raise UsageError(f"--launch {launch}: how many jobs? --workers N")
    resources = _resources(asked.job or [])

    from attnres_cli.lab.launch import follow
    from attnres_cli.lab.workers.claimer import Claimer

    claimer = Claimer(claimers_words(sys.argv[1:], asked.study))
    if launch == "ray":
        submit = partial(_on_ray, claimer, asked.study, n, resources)
    else:
        from attnres_cli.lab.workers import slurm

        resources = slurm.checked(resources)
        _check_study(launch, asked.study)
        if asked.prints:
            typer.echo(slurm.script(claimer, n, resources), nl=False)
            return True
        submit = partial(_on_slurm, claimer, n, resources)
    with redirect_stdout(sys.stderr):  # Ray prints, too
        outcome = follow(submit, asked.study, note, of)
    typer.echo(outcome.out, nl=False)
    if outcome.code:
        raise typer.Exit(outcome.code)
    return True


def claimers_words(typed: Sequence[str], study: str) -> list[str]:
    """What was typed after `attnres`, for one worker and without what is for us. The study has no
    password: every machine finds it as this one does. Runs that failed before now are trained once
    more, not those that fail again before the last claimer begins.
    """
    end = typed.index("--") if "--" in typed else len(typed)
    words, rest, takes_value = [], list(typed[end:]), False
    for each in typed[:end]:
        name, is_joined, _ = each.partition("=")
        if takes_value:
            takes_value = False
        elif name in _NOT_OF_CLAIMERS:
            takes_value = not is_joined
        elif each == "--retry-failed":
            words += ["--retry-failed-before", datetime.now(UTC).isoformat(timespec="seconds")]
        elif each != "--print":
            words.append(each)
    return [*words, "--workers", "1", *address.typed(study), *rest]


def _on_ray(claimer: Claimer, study: str, n: int, resources: Mapping[str, str]) -> Jobs:
    from attnres_cli.lab.workers import on_ray
    from attnres_cli.verdict.numbers import plural

    jobs = on_ray.OnRay(claimer, n, on_ray.checked(resources))
    if jobs.n_machines > 1:
        try:
            _check_study("ray", study)
        except UsageError:
            jobs.cancel()
            raise
    where = plural(jobs.n_machines, "machine")
    if jobs.lacks:
        say(jobs.lacks)
    note(f"{plural(n, 'task')} on a Ray cluster of {where}; Ctrl-C or a closed terminal ends them")
    return jobs


def _on_slurm(claimer: Claimer, n: int, resources: Mapping[str, str]) -> Jobs:
    from attnres_cli.lab.workers import slurm

    jobs = slurm.Slurm(claimer, n, slurm.executor(resources))
    note(
        f"job {jobs.name} is submitted, {n} at once; logs: {jobs.folder}; Ctrl-C cancels it, a "
        "closed terminal does not, and `attnres runs` shows how far it is"
    )
    return jobs


def _check_study(launch: str, study: str) -> None:
    if not address.is_url(study):
        raise UsageError(
            f"--launch {launch}: several machines need a study on a server, as a SQLite file on a "
            "shared folder loses what is written: --study postgresql+psycopg://user@host/database"
        )


def _resources(typed: Sequence[str]) -> dict[str, str]:
    parts = [each.partition("=") for each in typed]
    for each in parts:
        if not all(each):
            raise UsageError(f"--job takes name=value, as time=4:00:00, got '{''.join(each)}'")
    return {name: value for name, _, value in parts}
