"""A search as JSON and CSV: for scripts and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from attnres_cli.records.search_records import State, Trial
from attnres_cli.report.search_commands import RecipeOf, again
from attnres_cli.report.search_words import answer, best_text, notes, options_text, title
from attnres_cli.verdict.optima import Finding, Pair
from attnres_cli.verdict.shape_results import Optimum, Shape, front, options

_CSV = (
    "search", "family", "number", "state", "is_extra", "pruner", "variant",
    "n_layers", "d_model", "n_heads", "d_ff",
    "aspect", "heads_per_layer", "tokens", "options", "n_params", "flops", "first_look",
    "second_objective", "on_front", "fresh_mean", "fresh_low", "fresh_high", "n_fresh", "change",
    "best", "step_ms", "error", "recipe", "recipe_digest", "fingerprint", "budget",
)  # fmt: skip


def to_csv(finding: Finding) -> str:
    """One line per trial of every family; empty where there is no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, lineterminator="\n")
    writer.writeheader()
    for one in finding.optima:
        for trial, row in zip(one.family.trials, _trials(one), strict=True):
            writer.writerow(_flat(finding, one, trial, row))
    return text.getvalue()


def _flat(finding: Finding, one: Optimum, trial: Trial, row: dict[str, Any]) -> dict[str, Any]:
    search = finding.search
    held, shape, values = row.pop("dimensions"), row.pop("shape"), row.pop("values")
    row |= {name: held[name] for name in held if name in _CSV}
    row |= {
        "search": search.name,
        "family": one.family.variant,
        "pruner": one.family.pruner if trial.state is State.PRUNED else None,
        "options": options_text(trial) if row["options"] else None,
    }
    row |= {"first_look": next(iter(values), None), "second_objective": (*values, None, None)[1]}
    row |= {"recipe": search.recipe, "budget": search.budget, "fingerprint": search.fingerprint}
    if shape is not None:
        low, high = shape["ci95"] or (None, None)
        row |= {"fresh_mean": shape["mean"], "fresh_low": low, "fresh_high": high}
        row |= {"n_fresh": len(shape["fresh"]), "change": shape["change"]}
        row |= {"best": shape["best"], "step_ms": shape["step_ms"]}
    return {name: row.get(name) for name in _CSV}


def to_json(finding: Finding, known: RecipeOf | None) -> str:
    """All of a search for scripts."""
    return json.dumps(document(finding, known), indent=2, allow_nan=False)


def document(finding: Finding, known: RecipeOf | None) -> dict[str, Any]:
    """What `to_json` writes: a loss that is not finite is null."""
    head = asdict(finding.search)
    del head["families"]
    families = []
    for one in finding.optima:
        best = one.best
        families.append(
            {
                "variant": one.family.variant,
                "sampler": one.family.sampler,
                "pruner": one.family.pruner,
                "importance": dict(one.family.importance),
                "counts": dict(one.counts),
                "best": best.trial.number if best else None,
                "command": again(finding.search, best, known) if best else "",
                "reason": one.reason,
                "trials": _trials(one),
            }
        )
    return {
        "title": title(finding.search),
        "answer": answer(finding),
        "search": head,
        "families": families,
        "pairs": [_pair(finding, pair) for pair in finding.pairs],
        "settings": list(finding.settings),
        "versions": list(finding.versions),
        "notes": notes(finding),
    }


def _trials(one: Optimum) -> list[dict[str, Any]]:
    """Every trial, and the shape that it is of, if that is complete."""
    shapes = {shape.trial.number: shape for shape in one.shapes}
    errors = {trial.number: error for trial, error in one.failed}
    best = {trial.number for trial in front(one)}
    return [
        _trial(trial, shapes.get(trial.number))
        | {"error": errors.get(trial.number), "on_front": trial.number in best}
        for trial in one.family.trials
    ]


def _trial(trial: Trial, shape: Shape | None) -> dict[str, Any]:
    found = asdict(trial) | {"dimensions": dict(trial.dimensions), "options": options(trial)}
    found |= {"values": [v if abs(v) < float("inf") else None for v in trial.values]}
    found["shape"] = None
    if shape is not None:
        found["shape"] = {
            "first_look": shape.promised,
            "fresh": {str(seed): loss for seed, loss in shape.fresh.items()},
            "missing": list(shape.missing),
            "mean": shape.mean,
            "ci95": shape.ci95,
            "change": shape.surprise,
            "best": None if shape.may_be_best is None else best_text(shape),
            "step_ms": None if shape.step_s is None else 1000 * shape.step_s,
        }
    return found


def _pair(finding: Finding, pair: Pair) -> dict[str, Any]:
    return {
        "variants": [finding.optima[i].family.variant for i in (pair.ours, pair.theirs)],
        "differ": pair.differ if pair.test is not None else None,
        "p_holm": pair.p,
        "test": asdict(pair.test) if pair.test is not None else None,
        "shapes": [list(cell) for cell in pair.cells],
        "chosen": [shape.trial.number for shape in pair.choices],
        "reason": pair.reason,
        "seeds_needed": pair.needed,
        "lacking": [{"variant": t.variant, "number": t.number} for t in pair.lacking],
    }
