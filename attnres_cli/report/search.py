"""What a search has found, for every format: its answer, the best shapes, every trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.records.search_records import Search, Trial
from attnres_cli.report import second_objective
from attnres_cli.report.search_commands import RecipeOf, again, commands
from attnres_cli.report.search_words import (
    LOWEST,
    answer,
    best_text,
    blocks,
    failures,
    fresh_text,
    notes,
    options_text,
    qualified,
    surprise_text,
    title,
)
from attnres_cli.report.table import Cell, Column, Kind, Report, Table
from attnres_cli.verdict.optima import Finding, Pair
from attnres_cli.verdict.shape_results import Optimum, Shape, front, layers_by_width, options

_KINDS: dict[str, Kind] = {"variant": "name", "best": "word", "front": "word", "options": "word"}
_OPTIONAL = ("first look", "change", "aspect", "d_ff", "h/layer", "params", "tokens", "FLOPs")
_FIELDS = (
    "search", "family", "number", "state", "is_extra", "variant",
    "n_layers", "d_model", "n_heads", "d_ff",
    "aspect", "heads_per_layer", "tokens", "options", "n_params", "flops", "first_look",
    "second_objective", "on_front", "fresh_mean", "fresh_low", "fresh_high", "n_fresh", "change",
    "best", "error", "recipe", "recipe_digest", "fingerprint", "budget",
    "qualified",
)  # fmt: skip


def report_of(finding: Finding, known: RecipeOf | None = None, study: str = "") -> Report:
    """All that a search says. `known` gives the study's recipe of a digest, by which shapes are
    reproduced; without it only those of shipped recipes with other sizes are. `study` is as typed.
    """
    lost = failures(finding)
    typed = commands(finding, known, study)
    return Report(
        title=title(finding.search),
        text=[answer(finding), *blocks(finding)],
        caveats=qualified(finding),
        tables=[table] if (table := table_of(finding.optima, finding.search)).rows else [],
        warnings=[f"failed: {variant} at {shape}: {error}" for variant, shape, error in lost],
        notes=[*notes(finding), *(f"{name}: `{command}`" for name, command in typed)],
        document=_document(finding, known),
        fields=_FIELDS,
        records=list(_records(finding)),
    )


def table_of(optima: Sequence[Optimum], search: Search) -> Table:
    """The listed shapes of each design, without the columns that nothing is in."""
    rows = [
        ({"variant": one.family.variant} if len(optima) > 1 else {}) | _row(shape, goal)
        for one in optima
        for shape, goal in zip(one.listed, second_objective.cells(one, search), strict=True)
    ]
    names = [name for name in rows[0] if any(row[name] != "-" for row in rows)] if rows else []
    columns = [
        Column(name, _KINDS.get(name, "number"), is_optional=name in _OPTIONAL) for name in names
    ]
    cells = [[_cell(row[name]) for name in names] for row in rows]
    goals = second_objective.both(search) if second_objective.second(search) else ""
    heading = (
        f"shapes{f' that are best, or on the front of {goals}' if goals else ''}: nats per token, "
        "95% intervals over fresh seeds"
    )
    return Table(heading, columns, cells, n_keys=3 if len(optima) > 1 else 2)


def _cell(text: str) -> Cell:
    return Cell(text, "strong" if text == LOWEST else "")


def _row(shape: Shape, goal: dict[str, str]) -> dict[str, str]:
    """By column; what there is nothing of is `-`."""
    trial, held = shape.trial, shape.trial.dimensions
    return {
        "shape": layers_by_width(trial),
        "heads": str(held["n_heads"]),
        "options": options_text(trial),
        "fresh seeds [95%]": fresh_text(shape),
        "best": best_text(shape),
        **goal,
        "first look": f"{shape.promised:.4f}",
        "change": surprise_text(shape),
        "aspect": f"{float(held['aspect']):.3g}",
        "d_ff": str(held["d_ff"]),
        "h/layer": f"{float(held['heads_per_layer']):.3g}",
        "params": f"{trial.n_params:,}",
        "tokens": f"{int(held['tokens']):,}",
        "FLOPs": f"{trial.flops:.2e}".replace("e+0", "e").replace("e+", "e"),
    }


def _document(finding: Finding, known: RecipeOf | None) -> dict[str, Any]:
    head = asdict(finding.search)
    del head["families"]
    return {
        "title": title(finding.search),
        "answer": answer(finding),
        "blocks": blocks(finding),
        "qualified": qualified(finding),
        "search": head,
        "families": [_family(one, finding.search, known) for one in finding.optima],
        "pairs": [_pair(finding, pair) for pair in finding.pairs],
        "settings": finding.settings,
        "versions": finding.versions,
        "notes": notes(finding),
    }


def _family(one: Optimum, search: Search, known: RecipeOf | None) -> dict[str, Any]:
    best = one.best
    return {
        "variant": one.family.variant,
        "sampler": one.family.sampler,
        "counts": one.counts,
        "best": best.trial.number if best else None,
        "command": again(search, best, known) if best else "",
        "reason": one.reason,
        "trials": _trials(one),
    }


def _trials(one: Optimum) -> list[dict[str, Any]]:
    """Every trial, and the shape that it is of, if that is complete."""
    shapes = {shape.trial.number: shape for shape in one.shapes}
    errors = {trial.number: error for trial, error in one.failed}
    best = {trial.number for trial in front(one)}
    return [
        asdict(trial)
        | {
            "options": options(trial),
            "shape": _shape(shapes[trial.number]) if trial.number in shapes else None,
            "error": errors.get(trial.number),
            "on_front": trial.number in best,
        }
        for trial in one.family.trials
    ]


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "first_look": shape.promised,
        "fresh": shape.fresh,
        "missing": shape.missing,
        "mean": shape.mean,
        "ci95": shape.ci95,
        "change": shape.surprise,
        "best": None if shape.may_be_best is None else best_text(shape),
    }


def _pair(finding: Finding, pair: Pair) -> dict[str, Any]:
    return {
        "variants": [finding.optima[i].family.variant for i in (pair.ours, pair.theirs)],
        "differ": pair.differ if pair.test is not None else None,
        "p_holm": pair.p,
        "test": asdict(pair.test) if pair.test is not None else None,
        "shapes": pair.cells,
        "chosen": [shape.trial.number for shape in pair.choices],
        "reason": pair.reason,
        "seeds_needed": pair.needed,
        "lacking": [{"variant": t.variant, "number": t.number} for t in pair.lacking],
    }


def _records(finding: Finding) -> Iterator[dict[str, Any]]:
    """Every trial of every variant as a line of numbers."""
    search, told = finding.search, "; ".join(qualified(finding))
    for one in finding.optima:
        for trial, record in zip(one.family.trials, _trials(one), strict=True):
            shape = record["shape"] or {}
            low, high = shape.get("ci95") or (None, None)
            first, second = (*map(_finite, trial.values), None, None)[:2]
            yield {
                **record,
                **trial.dimensions,
                **shape,
                "search": search.name,
                "family": one.family.variant,
                "options": _options(trial),
                "first_look": first,
                "second_objective": second,
                "fresh_mean": shape.get("mean"),
                "fresh_low": low,
                "fresh_high": high,
                "n_fresh": len(shape["fresh"]) if shape else None,
                "recipe": search.recipe,
                "budget": search.budget,
                "fingerprint": search.fingerprint,
                "qualified": told,
            }


def _options(trial: Trial) -> str | None:
    return options_text(trial) if options(trial) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
