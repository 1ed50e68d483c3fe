"""The command `evaluate`: what runs answer to downstream tasks, item by item."""

from __future__ import annotations

from pathlib import Path

import typer

from attnres_cli.cli.options import DEVICE, MOST_ID, PLUGINS, PRINTED, STUDY, Format, opened, show
from attnres_cli.console import note, warn
from attnres_cli.errors import UsageError


def evaluate(
    runs: list[str] = typer.Argument(
        help="Run numbers, or folders of `runs export`.", metavar="RUN...", show_default=False
    ),
    tasks: str = typer.Option(
        "local",
        help="cloze, continuation, recall, or local for all three; .yaml or .jsonl files; "
        "names of lm-evaluation-harness. Several with commas.",
    ),
    limit: int | None = typer.Option(
        None, min=1, help="Use only the first items of each task.", show_default=False
    ),
    trust: bool = typer.Option(
        False, "--trust", help="Run the code that a task file names (!function)."
    ),
    batch_size: int = typer.Option(32, min=1, help="Batch size."),
    device: str = DEVICE,
    study: str = STUDY,
    form: Format = PRINTED,
    _plugin: list[str] | None = PLUGINS,
) -> None:
    r"""Let runs answer the items of downstream tasks, and keep every answer in the study.

    Needs pip install -e '.\[lm-eval]', typed in the clone. What the study has of the same weights
    and items is not asked again. Offline, unless HF_HUB_OFFLINE=0 and HF_DATASETS_OFFLINE=0.
    """
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise UsageError("--tasks takes names or files, as --tasks cloze,recall")
    ids = [_number(text) for text in runs if text.isdecimal()]
    folders = [Path(text) for text in dict.fromkeys(runs) if not text.isdecimal()]
    from attnres_cli.lab.downstream import evaluating
    from attnres_cli.lab.run_listing import chosen
    from attnres_cli.report.items import progress, report_of
    from attnres_cli.store.store import Store
    from attnres_cli.train.device import devices

    (place, *_) = devices(device)
    store = opened(study) if ids else None
    records = chosen(store, study, list(dict.fromkeys(ids))) if store is not None else []
    subjects = [evaluating.of_run(store, each) for each in records if store is not None]
    subjects += [evaluating.of_folder(folder) for folder in folders]
    if others := [subject for subject in subjects if subject.other_code]:
        labels = ", ".join(subject.label for subject in others)
        warn(f"{labels}: trained by other code ({others[0].other_code}) than answers now")
    found = evaluating.asked(subjects, names, limit, trust=trust)
    if store is not None:
        store = Store.open(study, create=True)
    with progress(sum(len(each) for each in found.tasks.values())) as (watch, tell):
        answered = []
        for each in evaluating.answers(store, found, batch_size, place, watch):
            tell(each)
            answered.append(each)
    if old := sum(not each.is_new for each in answered):
        note(f"{old} of {len(answered)} as the study had them")
    show(report_of(answered, study if ids else ", ".join(map(str, folders))), form)


def _number(text: str) -> int:
    number = int(text[:11])
    if not 1 <= number <= MOST_ID:
        raise UsageError(f"RUN takes numbers of runs from 1 up, got '{text[:20]}'")
    return number
