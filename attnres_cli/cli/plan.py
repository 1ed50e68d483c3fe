"""The command `attnres plan`: how many seeds a gap takes, from the baseline's runs in the study;
or what a pipeline sends for some designs, by counting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import typer

from attnres_cli.cli import options
from attnres_cli.errors import UsageError

_LEAST_GAP, _MOST_GAP = 1e-9, 1e3  # nats per token


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What `plan` is asked."""

    designs: list[str] | None = options.specs("Variants, with --pipeline.")
    baseline: str = options.BASELINE
    gap: float = typer.Option(0.01, help="Difference to detect, in nats per token.")
    arms: int | None = typer.Option(
        None, min=1, max=1000, help="Number of arms besides the baseline. Default: the study's."
    )
    recipe: str | None = typer.Option(
        None, help="Name or digest. Default: the newest in the study."
    )
    study: str = options.STUDY
    workers: int | None = typer.Option(
        None, min=1, max=options.MOST_WORKERS, help="Number of processes. Default: as in the study."
    )
    pipeline: str | None = typer.Option(
        None, help="Instead count what a pipeline sends: stages and chunks per stage, such as 4,2."
    )
    shape: str | None = options.SIZES
    form: options.Format = options.PRINTED
    plugin: list[str] | None = options.PLUGINS


@options.takes(Planning)
def plan(asked: Planning) -> None:
    """Tell the noise floor, how many seeds a gap takes at what cost, and the resolution: the least
    difference that is seen, as a multiple of compute. Nothing is trained.
    """
    if asked.pipeline is not None:
        _show_hops(asked, asked.pipeline)
    elif asked.designs or asked.shape is not None:
        raise UsageError("designs and --shape are for --pipeline, as `--pipeline 4,2 attnres`")
    else:
        _show_seeds(asked)


def _show_hops(asked: Planning, text: str) -> None:
    from attnres_cli.nn.pipeline.cuts import planned
    from attnres_cli.nn.variant import parse
    from attnres_cli.report import pipelines

    sizes, designs = options.read_shape(asked.shape), asked.designs
    if not designs:
        raise UsageError(f"--pipeline {text}: of which designs? As --pipeline {text} attnres")
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})?", text):
        raise UsageError(f"--pipeline takes stages and virtual stages, as 4,2, got '{text}'")
    stages, virtual = int(text.partition(",")[0]), int(text.partition(",")[2] or 1)
    try:
        found = [planned(parse(each), **sizes, stages=stages, virtual=virtual) for each in designs]
    except ValueError as error:
        raise UsageError(f"--pipeline {text}: {error}") from error
    options.show(pipelines.report_of(found), asked.form)


def _show_seeds(asked: Planning) -> None:
    from attnres_cli.config import complete
    from attnres_cli.lab.study_view import Held
    from attnres_cli.records import machine
    from attnres_cli.report import power
    from attnres_cli.verdict.power import analyse, to_measure, too_few_runs

    study, gap, recipe = asked.study, asked.gap, asked.recipe
    if not _LEAST_GAP <= gap <= _MOST_GAP:  # nor nan
        raise UsageError(
            f"--gap takes a difference in loss above 0, as 0.01 ({_LEAST_GAP:g} to {_MOST_GAP:g}), "
            f"got {gap:g}"
        )
    store = options.opened(study)
    records = store.runs(curves=False)
    if recipe in complete.recipes() and recipe not in {record.recipe for record in records}:
        raise too_few_runs(study, str(recipe), asked.baseline, 0)
    held = Held(store, study, records)
    chosen = held.choose(recipe, asked.baseline)
    slope, data = held.slope(chosen), store.data(chosen.fingerprint)
    hands = asked.workers, machine.cores().n
    found = analyse(chosen.records, data, chosen.baseline, gap, asked.arms, *hands, slope)
    if found is None:
        ended = [r for r in chosen.records if r.variant == chosen.baseline and r.result is not None]
        raise too_few_runs(study, chosen.records[-1].recipe, chosen.baseline, len(ended))
    fixed = held.recipe(chosen.recipe_digest)
    missing = [] if slope else to_measure(fixed, chosen.baseline, study)
    options.show(power.report_of(found, missing), asked.form)
