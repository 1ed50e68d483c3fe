"""The command `attnres plan`: how many seeds a gap takes, from the baseline's runs in the study."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnres_cli.cli.options import MOST_WORKERS, Baseline, Format, PrintedFormat, Study
from attnres_cli.config import address
from attnres_cli.errors import UsageError

_LEAST_GAP, _MOST_GAP = 1e-9, 1e3  # nats per token


def plan(
    baseline: Baseline = "standard",
    gap: Annotated[
        float, typer.Option(help="Difference in loss to separate, nats per token.")
    ] = 0.01,
    arms: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Arms beside the baseline. Default: those in the study."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name or digest. Default: the newest in the study.")
    ] = None,
    study: Study = address.DEFAULT,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_WORKERS, help="Processes. Default: as the study's runs were made."
        ),
    ] = None,
    form: PrintedFormat = Format.TABLE,
) -> None:
    """Tell the noise floor, how many seeds a gap takes at what cost, and the resolution: the least
    difference that is seen, as a multiple of compute. Nothing is trained.
    """
    from attnres_cli.config.recipe import names
    from attnres_cli.lab.held import Held
    from attnres_cli.records import machine
    from attnres_cli.report import formats, power
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
    formats.show(power.report_of(found, command), form, sys.stdout)
