"""The command `evaluate`: what runs answer to downstream tasks, item by item."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import typer

from attnres_cli.cli import options
from attnres_cli.console import note, warn
from attnres_cli.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Evaluating:
    """What `evaluate` is asked."""

    runs: list[str] = typer.Argument(
        help="Run numbers, or folders of `runs export`.", metavar="RUN...", show_default=False
    )
    tasks: str = typer.Option(
        "local",
        help="cloze, continuation, recall, or local for all three; .yaml or .jsonl files; "
        "names of lm-evaluation-harness. Several with commas.",
    )
    limit: int | None = typer.Option(
        None, min=1, help="Use only the first items of each task.", show_default=False
    )
    trust: bool = typer.Option(
        False, "--trust", help="Run the code that a task file names (!function)."
    )
    batch_size: int = typer.Option(32, min=1, help="Batch size.")
    device: str = options.DEVICE
    study: str = options.STUDY
    form: options.Format = options.PRINTED
    plugin: list[str] | None = options.PLUGINS


@options.takes(Evaluating)
def evaluate(asked: Evaluating) -> None:
    r"""Let runs answer the items of downstream tasks, and keep every answer in the study.

    Needs pip install -e '.\[lm-eval]', typed in the clone. What the study has of the same weights
    and items is not asked again. Offline, unless HF_HUB_OFFLINE=0 and HF_DATASETS_OFFLINE=0.
    """
    names, study = [name.strip() for name in asked.tasks.split(",") if name.strip()], asked.study
    if not names:
        raise UsageError("--tasks takes names or files, as --tasks cloze,recall")
    ids = list(dict.fromkeys(_number(text) for text in asked.runs if text.isdecimal()))
    folders = [Path(text) for text in dict.fromkeys(asked.runs) if not text.isdecimal()]
    from attnres_cli.lab.downstream import evaluating
    from attnres_cli.lab.run_listing import chosen
    from attnres_cli.report.items import progress, report_of
    from attnres_cli.store.store import Store
    from attnres_cli.train.device import devices

    (place, *_) = devices(asked.device)
    store = options.opened(study) if ids else None
    subjects = [evaluating.of_run(store, run) for run in chosen(store, study, ids)] if store else []
    subjects += [evaluating.of_folder(folder) for folder in folders]
    if others := [subject for subject in subjects if subject.other_code]:
        labels = ", ".join(subject.label for subject in others)
        warn(f"{labels}: trained by other code ({others[0].other_code}) than answers now")
    found = evaluating.asked(subjects, names, asked.limit, trust=asked.trust)
    store = Store.open(study, create=True) if store else None
    answered, ending = [], nullcontext() if ids else options.keeping_nothing()
    with ending, progress(sum(len(each) for each in found.tasks.values())) as (watch, tell):
        for each in evaluating.answers(store, found, asked.batch_size, place, watch):
            tell(each)
            answered.append(each)
    if old := sum(not each.is_new for each in answered):
        note(f"{old} of {len(answered)} as the study had them")
    options.show(report_of(answered, study if ids else ", ".join(map(str, folders))), asked.form)


def _number(text: str) -> int:
    number = int(text[:11])
    if not 1 <= number <= options.MOST_ID:
        raise UsageError(f"RUN takes numbers of runs from 1 up, got '{text[:20]}'")
    return number
