"""The command `attnres plan`: how many seeds a gap takes, from the baseline's runs in the study;
or what a pipeline sends for some designs, by counting.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from attnres_cli.cli.options import (
    MOST_WORKERS,
    Baseline,
    Format,
    Plugins,
    PrintedFormat,
    Sizes,
    Study,
    read_shape,
)
from attnres_cli.config import address, complete
from attnres_cli.errors import UsageError

_LEAST_GAP, _MOST_GAP = 1e-9, 1e3  # nats per token


def plan(
    designs: Annotated[
        list[str] | None,
        typer.Argument(help="Variants, with --pipeline.", autocompletion=complete.specs),
    ] = None,
    baseline: Baseline = "standard",
    gap: Annotated[float, typer.Option(help="Difference to detect, in nats per token.")] = 0.01,
    arms: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Number of arms besides the baseline. Default: the study's."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name or digest. Default: the newest in the study.")
    ] = None,
    study: Study = address.DEFAULT,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_WORKERS, help="Number of processes. Default: as in the study."
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="Instead count what a pipeline sends: stages and chunks per stage, such as 4,2."
        ),
    ] = None,
    shape: Sizes = None,
    form: PrintedFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Tell the noise floor, how many seeds a gap takes at what cost, and the resolution: the least
    difference that is seen, as a multiple of compute. Nothing is trained.
    """
    if pipeline is not None:
        _show_hops(pipeline, designs or [], read_shape(shape), form)
        return
    if designs or shape is not None:
        raise UsageError("designs and --shape are for --pipeline, as `--pipeline 4,2 attnres`")
    _show_seeds(baseline, gap, arms, recipe, study, workers, form)


def _show_hops(text: str, designs: Sequence[str], sizes: dict[str, int], form: Format) -> None:
    from attnres_cli.nn.pipeline.cuts import planned
    from attnres_cli.nn.variant import parse
    from attnres_cli.report import file_formats, pipelines

    if not designs:
        raise UsageError(f"--pipeline {text}: of which designs? As --pipeline {text} attnres")
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})?", text):
        raise UsageError(f"--pipeline takes stages and virtual stages, as 4,2, got '{text}'")
    stages, virtual = int(text.partition(",")[0]), int(text.partition(",")[2] or 1)
    try:
        found = [planned(parse(each), **sizes, stages=stages, virtual=virtual) for each in designs]
    except ValueError as error:
        raise UsageError(f"--pipeline {text}: {error}") from error
    file_formats.show(pipelines.report_of(found), form, sys.stdout)


def _show_seeds(
    baseline: str,
    gap: float,
    arms: int | None,
    recipe: str | None,
    study: str,
    workers: int | None,
    form: Format,
) -> None:
    from attnres_cli.config.recipe import names
    from attnres_cli.lab.study_view import Held
    from attnres_cli.records import machine
    from attnres_cli.report import file_formats, power
    from attnres_cli.store.store import Store
    from attnres_cli.verdict.power import analyse, to_measure, too_few_runs

    if not _LEAST_GAP <= gap <= _MOST_GAP:  # nor nan
        raise UsageError(
            f"--gap takes a difference in loss above 0, as 0.01 ({_LEAST_GAP:g} to {_MOST_GAP:g}), "
            f"got {gap:g}"
        )
    store = Store.open(study, create=False)
    records = store.runs(curves=False)
    if recipe in names() and recipe not in {record.recipe for record in records}:
        raise too_few_runs(study, str(recipe), baseline, 0)
    held = Held(store, study, records)
    chosen = held.choose(recipe, baseline)
    slope = held.slope(chosen)
    data, n_cores = store.data(chosen.fingerprint), machine.cores().n
    found = analyse(chosen.records, data, chosen.baseline, gap, arms, workers, n_cores, slope)
    if found is None:
        ended = [r for r in chosen.records if r.variant == chosen.baseline and r.result is not None]
        raise too_few_runs(study, chosen.records[-1].recipe, chosen.baseline, len(ended))
    command = "" if slope else to_measure(held.recipe(chosen.recipe_digest), chosen.baseline, study)
    file_formats.show(power.report_of(found, command), form, sys.stdout)
