"""What a search has found, for every format: its answer, the best shapes, every trial."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from attnres_cli.config import address
from attnres_cli.config.as_typed import PLUGIN, ablate_typed, overrides_of
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.search_records import Search, Trial
from attnres_cli.report import search_words as words
from attnres_cli.report.table import Report, Table, tabled
from attnres_cli.verdict import fields
from attnres_cli.verdict.fields import Field
from attnres_cli.verdict.numbers import interval
from attnres_cli.verdict.optima import Finding, Pair
from attnres_cli.verdict.shape_results import Shape, layers_by_width

RecipeOf = Callable[[str], Recipe]
"""The recipe of a digest, as a study holds it."""

_GOALS: dict[str, tuple[str, Callable[[float], str]]] = {
    "step_time": (" (ms)", lambda seconds: f"{1e3 * seconds:.2f}"),
    "memory": (" (MB)", lambda n_bytes: f"{n_bytes / 1e6:,.1f}"),
    "flops": ("", lambda flops: f"{flops:.4e}"),
    "params": ("", lambda n: f"{n:,.0f}"),
}
"""Unit and text of a second objective."""


def _value(shape: Shape, objective: int) -> float | None:
    """What the first look gave, if it is a number."""
    found = shape.trial.values[objective : objective + 1]
    return next(filter(math.isfinite, found), None)


def _best(shape: Shape, _: Finding) -> str | None:
    """Whether it may be the best of the confirmed ones; None where that is not tested."""
    if shape.may_be_best is None:
        return None
    return words.LOWEST if shape.is_lowest else "may be" if shape.may_be_best else "no"


def _fresh(shape: Shape, _: Finding) -> str:
    """`1.6021 [1.5911, 1.6131]`; where seeds are missing how many there are."""
    if shape.mean is None:
        return "one seed"
    n, text = len(shape.fresh), interval(shape.mean, shape.ci95, ".4f")
    return f"{text} ({n} of {n + len(shape.missing)} seeds)" if shape.missing else text


def _has_two(of: Finding) -> bool:
    return len(of.search.objectives) > 1


def _size(name: str, title: str = "", form: str = "{}") -> Field[Shape, Finding]:
    return Field(name, f"trial.dimensions.{name}", title, form, is_optional=True)


_GOAL: Field[Shape, Finding] = Field(
    "second_objective", lambda shape, _: _value(shape, 1), "goal", applies=_has_two
)
FIELDS: list[Field[Shape, Finding]] = [
    Field("search", lambda _, of: of.search.name),
    Field("family", "", "variant", kind="name", applies=lambda of: len(of.optima) > 1),
    Field("number", "trial.number"),
    Field("state", "trial.state"),
    Field("is_extra", "trial.is_extra"),
    Field("variant", "trial.variant"),
    Field(title="shape", show=lambda shape, _: layers_by_width(shape.trial)),
    _size("n_layers"),
    _size("d_model"),
    replace(_size("n_heads", "heads"), is_optional=False),
    Field("options", lambda shape, _: words.options_text(shape.trial), "options", kind="word"),
    Field("fresh_mean", "mean", "fresh seeds [95%]", _fresh),
    Field("fresh_low", "ci95.0"),
    Field("fresh_high", "ci95.1"),
    Field("n_fresh", lambda shape, _: len(shape.fresh) if shape.is_complete else None),
    Field("best", _best, "best", kind="word", style={words.LOWEST: "strong"}),
    _GOAL,
    Field(
        "on_front", "", "front", kind="word", applies=_has_two,
        show=lambda shape, _: "yes" if shape.on_front else "no",
    ),
    Field(
        "first_look", lambda shape, _: _value(shape, 0), "first look", "{:.4f}", is_optional=True
    ),
    Field("change", "surprise", "change", "{:+.4f}", is_optional=True),
    _size("aspect", "aspect", "{:.3g}"),
    _size("d_ff", "d_ff"),
    _size("heads_per_layer", "h/layer", "{:.3g}"),
    Field("n_params", "trial.n_params", "params", "{:,}", is_optional=True),
    _size("tokens", "tokens", "{:,}"),
    Field(
        "flops", "trial.flops", "FLOPs", is_optional=True,
        show=lambda shape, _: f"{shape.trial.flops:.2e}".replace("e+0", "e").replace("e+", "e"),
    ),
    Field("error"),
    Field("recipe", lambda _, of: of.search.recipe),
    Field("recipe_digest", "trial.recipe_digest"),
    Field("fingerprint", lambda _, of: of.search.fingerprint),
    Field("budget", lambda _, of: of.search.budget),
    Field("qualified", lambda _, of: "; ".join(words.qualified(of))),
]  # fmt: skip
"""Of a trial, once for tables and files."""


def report_of(finding: Finding, known: RecipeOf | None = None, study: str = "") -> Report:
    """All that a search says. `known` gives the study's recipe of a digest, by which shapes are
    reproduced. `study` is as typed.
    """
    lost, typed = words.failures(finding), commands(finding, known, study)
    trials = [shape for one in finding.optima for shape in one.results]
    return Report(
        title=words.title(finding.search),
        text=[words.answer(finding), *words.blocks(finding)],
        caveats=words.qualified(finding),
        tables=[table] if (table := table_of(finding)).rows else [],
        warnings=[f"failed: {variant} at {shape}: {error}" for variant, shape, error in lost],
        notes=[*words.notes(finding), *(f"{name}: `{command}`" for name, command in typed)],
        document=_document(finding, known),
        fields=fields.keys(FIELDS),
        records=[fields.record(FIELDS, shape, finding) for shape in trials],
    )


def table_of(finding: Finding) -> Table:
    """The listed shapes of each design, without the columns that nothing is in."""
    rows, goals = [shape for one in finding.optima for shape in one.listed], ""
    shown = [f for f in FIELDS if f.title and any(f.text(row, finding) != "-" for row in rows)]
    if _has_two(finding):
        goals = f" that are best, or on the front of {words.goals(finding.search)}"
        name = finding.search.objectives[1]
        unit, text = _GOALS[name]
        show = lambda shape, _: text(shape.trial.values[1])  # noqa: E731
        goal = replace(_GOAL, title=f"goal: {name}{unit}", show=show)
        shown = [goal if field is _GOAL else field for field in shown]
    heading = f"shapes{goals}: nats per token, 95% intervals over fresh seeds"
    return tabled(heading, shown, rows, finding, n_keys=3 if len(finding.optima) > 1 else 2)


def _document(finding: Finding, known: RecipeOf | None) -> dict[str, Any]:
    head = asdict(finding.search)
    del head["families"]
    return {
        "title": words.title(finding.search),
        "answer": words.answer(finding),
        "blocks": words.blocks(finding),
        "qualified": words.qualified(finding),
        "search": head,
        "families": [
            {
                "variant": one.family.variant,
                "sampler": one.family.sampler,
                "counts": one.counts,
                "best": one.best and one.best.trial.number,
                "command": again(finding.search, one.best, known) if one.best and known else "",
                "reason": one.reason,
                "trials": [_trial(shape, finding) for shape in one.results],
            }
            for one in finding.optima
        ],
        "pairs": [_pair(pair) for pair in finding.pairs],
        "settings": finding.settings,
        "versions": finding.versions,
        "notes": words.notes(finding),
    }


def _trial(shape: Shape, finding: Finding) -> dict[str, Any]:
    """A trial, and what its shape has given if it is complete."""
    found = {
        "first_look": shape.promised,
        "fresh": shape.fresh,
        "missing": shape.missing,
        "mean": shape.mean,
        "ci95": shape.ci95,
        "change": shape.surprise,
        "best": _best(shape, finding),
    } if shape.is_complete else None  # fmt: skip
    own = {"options": shape.trial.options, "shape": found, "error": shape.error}
    return asdict(shape.trial) | own | {"on_front": shape.on_front}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "variants": pair.names,
        "differ": pair.differ if pair.test is not None else None,
        "p_holm": pair.p,
        "test": pair.test and asdict(pair.test),
        "shapes": pair.cells,
        "chosen": [shape.trial.number for shape in pair.choices],
        "reason": pair.reason,
        "seeds_needed": pair.needed,
        "lacking": [{"variant": t.variant, "number": t.number} for t in pair.lacking],
    }


def commands(finding: Finding, known: RecipeOf | None, study: str) -> list[tuple[str, str]]:
    """What to type, and what for: a variant's best shape again, or, in the same study, the runs
    without which two optima cannot be compared. Nothing where no recipe is known.
    """
    if known is None:
        return []
    search, where = finding.search, address.typed(study)
    best = [one.best for one in finding.optima if one.best]
    typed = [(f"{shape.family} again", again(search, shape, known)) for shape in best]
    for trial in (trial for pair in finding.pairs for trial in pair.lacking):
        typed.append(("to compare", _ablate(search, trial, known, where)))
    told = f" ({PLUGIN}: the plugin that has it)"
    return [
        (f"{name}{told if f'--plugin {PLUGIN}' in command else ''}", command)
        for name, command in dict.fromkeys(typed)
        if command
    ]


def again(search: Search, shape: Shape, known: RecipeOf) -> str:
    """The command that trains a shape again in a new study; empty if nothing typed does."""
    on = shape.settings
    where = [] if on is None else ["--device", on.device, "--engine", on.engine]
    return _ablate(search, shape.trial, known, [*where, "--study", "again.db"])


def _ablate(search: Search, trial: Trial, known: RecipeOf, more: Sequence[str]) -> str:
    """The command that trains all seeds of a trial's shape."""
    seeds = {search.first_seed, *search.confirm_seeds}
    if (found := overrides_of(known(trial.recipe_digest))) is None:
        return ""
    return shlex.join([*ablate_typed([trial.variant], *found, seeds), *more])
