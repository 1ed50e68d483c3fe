"""Studies as training would leave them, written through the store without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code
from attnres_cli.records.gates import PROOFS
from attnres_cli.records.run import DataDescription, Point, RunResult, RunSpec, Settings, Status
from attnres_cli.store.store import Store

FACTS = DataDescription("0123456789abcdef", "stdlib", 5000, 256, 4750, 250, 3.3, 2.4)
SETTINGS = Settings("cpu", "Some CPU", "fp32", compiled=False, threads=1, engine="eager")
VERSIONS = {"attnres": "0.1.0", "torch": "2.9.0", "python": "3.11.7"}
LOSSES = {"val_loss": 1.5, "initial_loss": math.log(256)}
LOSSES |= {"curve": (Point(0, None, math.log(256)), Point(10, 1.6, 1.5))}
LOSSES |= {"proofs": tuple((name, "") for name in PROOFS)}
SIZES = {"steps": 10, "tokens": 10_000, "n_params": 1_000_000, "flops_per_token": 6_000_000}
COST = {"step_s": 0.01, "tokens_per_second": 25_600.0, "train_s": 60.0, "peak_bytes": 10**9}
RESULT = RunResult(status=Status.COMPLETE, settings=SETTINGS, **LOSSES, **SIZES, **COST)


def fill(
    path: Path,
    recipe: Recipe,
    losses: Mapping[str, Sequence[float]],
    code_of: Callable[[str], Code] = lambda _variant: Code(),
    seeds: Sequence[int] = range(10**6),
    **changes: object,
) -> Store:
    """The study at that path with one complete run per loss and seed; a nan diverged. `code_of`
    gives the code of a variant's runs.
    """
    store = Store.open(str(path), create=True)
    found = {(v, seeds[i]): loss for v, all_ in losses.items() for i, loss in enumerate(all_)}
    specs = [RunSpec(recipe, v, seed, FACTS.fingerprint, code_of(v)) for v, seed in found]
    ids = [record.id for record in store.plan(specs, FACTS)]
    while (record := store.claim(ids)) is not None:
        loss, versions = found[record.variant, record.seed], {**record.versions, **VERSIONS}
        status = Status.DIVERGED if math.isnan(loss) else Status.COMPLETE
        result = replace(RESULT, val_loss=loss, status=status, **changes)
        store.finish(replace(record, status=status, result=result, versions=versions))
    return store
