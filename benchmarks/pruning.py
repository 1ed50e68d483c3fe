"""What pruning would have saved in a search that trained every trial to its end, and what it would
have lost.

    python benchmarks/pruning.py attnres.db [more.db ...]

Every trial of the first look is shown to the pruner again, in its order, with the training losses
that its run has written down, as `attnres search --pruner KIND:until=0.5` judges them, and is ended
where the pruner says so. Proposals stay those of the search without pruning. Nothing is trained.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import optuna

from attnres_cli.config.recipe import Recipe
from attnres_cli.lab.search import pruning, read
from attnres_cli.lab.search.pruning import LOOKS, Pruning
from attnres_cli.records.run import RunResult
from attnres_cli.records.search_records import Family, Search
from attnres_cli.store.store import Store

N_BEST = 5
KINDS = ("median", "hyperband")
Results = Mapping[tuple[str, str], RunResult]
"""By recipe digest and variant."""


def replay(search: Search, family: Family, results: Results, pruner: Pruning) -> str:
    """A row: the share of the steps that are taken, the trials that are ended, what is kept."""
    name = f"attnres-{search.name}-{family.variant}"  # decides hyperband's brackets
    study = optuna.create_study(study_name=name, pruner=pruner.make())
    spent, losses, kept = 0.0, [], []
    for trial in family.trials:
        result = results.get((trial.recipe_digest, trial.variant))
        if trial.is_extra or result is None:
            continue
        loss = result.val_loss if math.isfinite(result.val_loss) else math.inf
        losses.append(loss)
        ended = _ended(study, result, loss, pruner)
        spent += (ended or LOOKS) / LOOKS
        if ended is None:
            kept.append(loss)
    if not kept:
        return f"| {pruner.kind} | {family.variant} | {len(losses)} | - | - | - | - |"
    best = sorted(losses)[:N_BEST]
    n_best = sum(loss in kept for loss in best)
    return (
        f"| {pruner.kind} | {family.variant} | {len(losses)} | {spent / len(losses):.0%} "
        f"| {len(losses) - len(kept)} | {n_best} of {len(best)} | {min(kept) - best[0]:+.4f} |"
    )


def _ended(study: optuna.Study, result: RunResult, final: float, pruner: Pruning) -> int | None:
    """The look at which a run is ended, None where it comes to its loss; Optuna is told."""
    curve = [(p.step, p.train_loss) for p in result.curve if p.train_loss is not None]
    trial = study.ask()
    for look, loss in pruning.looks(curve, result.steps).items():
        if pruner.first <= look <= pruner.last:
            trial.report(loss, look)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                return look
    study.tell(trial, final)
    return None


def table(path: str) -> list[str]:
    """The rows of all searches of a study, under what they are of."""
    store = Store.open(path, create=False)
    records = store.runs()
    lines: list[str] = []
    for search in read(path):
        tried = [trial for family in search.families for trial in family.trials]
        if not tried:
            continue
        recipe: Recipe = store.recipe(tried[0].recipe_digest)
        results = {
            (record.recipe_digest, record.variant): record.result
            for record in records
            if record.result is not None
            and (record.seed, record.fingerprint) == (search.first_seed, search.fingerprint)
        }
        lines += [
            f"search {search.name} in {path}: recipe {search.recipe}, {search.budget}, "
            f"{search.space}; judged from the warm-up to half of a run",
            "",
            "| pruner | design | trials | steps taken | ended | best kept | lowest kept - lowest |",
            "|---|---|---|---|---|---|---|",
        ]
        for kind in KINDS:
            pruner = pruning.asked(f"{kind}:until=0.5", recipe, search.objectives)
            assert pruner is not None
            lines += [replay(search, family, results, pruner) for family in search.families]
        lines.append("")
    return lines


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for typed in sys.argv[1:]:
        print("\n".join(table(typed)))
