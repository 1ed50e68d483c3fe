"""Options that give a command's runs to a cluster, and what they do."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from attnres_cli.cli.options import word
from attnres_cli.config import address
from attnres_cli.console import note
from attnres_cli.errors import DONE, UsageError

if TYPE_CHECKING:
    from attnres_cli.lab.workers.claimer import Claimer, Jobs, Outcome

Launch = Annotated[
    str | None,
    word(
        "--launch",
        "Train on a cluster, slurm or ray: --workers N jobs, each a worker of the study.",
        ("slurm", "ray"),
    ),
]
Job = Annotated[
    list[str] | None,
    typer.Option(
        "--job",
        help="Resources of each job: time=4:00:00 (sbatch) or num_gpus=1 (Ray). Repeatable.",
        show_default=False,
    ),
]
Print = Annotated[
    bool,
    typer.Option("--print", help="With --launch slurm: print the batch script and submit nothing."),
]

_NOT_OF_CLAIMERS = ("--launch", "--job", "--workers", "--study")


def launched(
    launch: str | None,
    study: str,
    workers: int | None,
    job: Sequence[str] | None,
    *,
    prints: bool,
) -> bool:
    """False without `--launch`. With it, run the command that was typed on a cluster, `workers`
    times at once, and print what it prints there; or print the script that does. Raises typer.Exit
    as the command would, and UsageError.
    """
    if prints and launch != "slurm":
        raise UsageError("--print prints the batch script of --launch slurm")
    if job and launch is None:
        raise UsageError("--job is for --launch slurm or --launch ray")
    if launch is None:
        return False
    if workers is None:
        raise UsageError(f"--launch {launch}: how many jobs? --workers N")
    outcome = _outcome(launch, study, workers, _options(job or []), prints=prints)
    typer.echo(outcome.out, nl=False)
    if outcome.code:
        raise typer.Exit(outcome.code)
    return True


def _outcome(
    launch: str, study: str, n: int, options: Mapping[str, str], *, prints: bool
) -> Outcome:
    from attnres_cli.lab.launch import follow
    from attnres_cli.lab.workers import slurm
    from attnres_cli.lab.workers.claimer import Claimer, Outcome

    claimer = Claimer(claimers_words(sys.argv[1:], study))
    if launch == "ray":
        return follow(_on_ray(claimer, study, n, options), study, note)
    options = slurm.checked(options)
    _check_study(launch, study)
    if prints:
        return Outcome(DONE, slurm.script(claimer, n, options), "")
    jobs = slurm.Slurm(claimer, n, slurm.executor(options))
    note(
        f"job {jobs.name} is submitted, {n} at once; logs: {jobs.folder}; Ctrl-C cancels it, a "
        "closed terminal does not, and `attnres runs` shows how far it is"
    )
    return follow(jobs, study, note)


def claimers_words(typed: Sequence[str], study: str) -> list[str]:
    """What was typed after `attnres`, for one worker and without what is for us. The study has no
    password: every machine finds it as this one does.
    """
    end = typed.index("--") if "--" in typed else len(typed)
    words, rest, takes_value = [], list(typed[end:]), False
    for each in typed[:end]:
        name, is_joined, _ = each.partition("=")
        if takes_value:
            takes_value = False
        elif name in _NOT_OF_CLAIMERS:
            takes_value = not is_joined
        elif each != "--print":
            words.append(each)
    return [*words, "--workers", "1", *address.typed(study), *rest]


def _on_ray(claimer: Claimer, study: str, n: int, options: Mapping[str, str]) -> Jobs:
    from attnres_cli.lab.workers import on_ray
    from attnres_cli.verdict.numbers import plural

    jobs = on_ray.OnRay(claimer, n, on_ray.checked(options))
    if jobs.n_machines > 1:
        try:
            _check_study("ray", study)
        except UsageError:
            jobs.cancel()
            raise
    where = plural(jobs.n_machines, "machine")
    note(f"{plural(n, 'task')} on a Ray cluster of {where}; Ctrl-C or a closed terminal ends them")
    return jobs


def _check_study(launch: str, study: str) -> None:
    if not address.is_url(study):
        raise UsageError(
            f"--launch {launch}: several machines need a study on a server, as a SQLite file on a "
            "shared folder loses what is written: --study postgresql+psycopg://user@host/database"
        )


def _options(typed: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in typed:
        name, sign, value = each.partition("=")
        if not (name and sign and value):
            raise UsageError(f"--job takes name=value, as time=4:00:00, got '{each}'")
        found[name] = value
    return found
