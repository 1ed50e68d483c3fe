"""Scaling fits over a ladder, as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.config.as_typed import differing
from attnres_cli.records.comparison_terms import stated
from attnres_cli.report.answer import courses, multiplier_text, over_sizes
from attnres_cli.report.comparison import UNIT
from attnres_cli.report.table import Report, Table, columns, grouped, joined, listed, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import not_kept, qualifiers
from attnres_cli.verdict.comparison import ArmResult
from attnres_cli.verdict.fields import Field, picked
from attnres_cli.verdict.ladder import Ladder, Rung, Scaled, compute
from attnres_cli.verdict.numbers import plural
from attnres_cli.verdict.rows import difference_text

_SIZES: Sequence[Field[Rung, None]] = (
    Field("recipe", "recipe.digest", "recipe", kind="code"),
    Field("layers", "recipe.model.n_layers", "layers"),
    Field("width", "recipe.model.d_model", "width"),
    Field("tokens", "baseline.tokens", "tokens", "{:,}"),
    Field("flops", lambda r, _: r.baseline.flops_per_token * r.baseline.tokens, "FLOPs", "{:.3g}"),
    Field("loss", lambda rung, _: rung.mean(rung.baseline), "loss", "{:.4f}"),
)
_ARMS: Sequence[Field[Scaled, None]] = (
    Field("variant", title="variant", kind="code"),
    Field(title="multiplier [95 %]", show=lambda row, _: multiplier_text(row.worth)),
    Field("left_out", "worth.left_out", "one size left out", "{0[0]:.3f} to {0[1]:.3f}"),
    Field("a", "law.a", "A", "{:.4g}"),
    Field("alpha", "law.alpha", "alpha", "{:.4f}"),
)
_FIELDS = (
    "variant a=law.a alpha=law.alpha rmse=law.rmse compute=worth.compute multiplier=worth.value "
    "ci95_low=worth.ci95.0 ci95_high=worth.ci95.1 left_out_low=worth.left_out.0 "
    "left_out_high=worth.left_out.1 floor=law.floor plain_a=plain.a plain_alpha=plain.alpha "
    "plain_multiplier=plain_worth.value plain_ci95_low=plain_worth.ci95.0 "
    "plain_ci95_high=plain_worth.ci95.1 trend=trend.mean trend_low=trend.ci95.0 "
    "trend_high=trend.ci95.1 course"
)
_AT_RUNG = "tokens difference=difference.mean interval verdict"


def report_of(ladders: Sequence[Ladder]) -> Report:
    """Of each ladder the sizes, the differences at each, and what each arm is worth."""
    return joined([_one(found) for found in ladders])


def _one(found: Ladder) -> Report:
    baseline, document = found.rungs[0].comparison.baseline, _document(found)
    shared = {"n_sizes": len(found.rungs)} | picked(document, "baseline recipe fingerprint")
    shared |= {"registered": found.registered, "qualified": "; ".join(document["qualified"])}
    fitted = [arm for arm in found.arms if arm.law]
    return Report(
        title=document["title"],
        text=[document["answer"]],
        caveats=document["qualified"],
        tables=[
            tabled(f"the sizes, and the loss of {baseline}", _SIZES, found.rungs, None),
            _differences(found),
            tabled(f"what each arm is worth in the compute of {baseline}", _ARMS, fitted, None),
        ],
        notes=document["notes"],
        document=document,
        records=[picked(arm, _FIELDS) | shared for arm in found.arms],
        question=f"What is a residual connection worth in the compute of {baseline}?",
    )


def _differences(found: Ladder) -> Table:
    """Every arm at every size, with the interval of that size's verdict table."""
    baseline, has_trend = found.rungs[0].comparison.baseline, any(arm.trend for arm in found.arms)
    rows = []
    for arm in found.arms:
        if arm.variant != baseline:
            text = difference_text(arm, "trend.mean", "trend.ci95")
            at = [difference_text(rung.arm(arm.variant)) for rung in found.rungs]
            rows.append([arm.variant, *at, *[text, arm.course or "-"] * has_trend])
    course = [f"per doubling of {found.doubled}", "the gap:word"] * has_trend
    heads = columns("variant:code", *found.size_names, *course)
    return Table(f"difference from {baseline} at each size, {UNIT}", heads, rows)


def notes(found: Ladder) -> list[str]:
    """What the numbers are, what they rest on, and what was left out."""
    lines = [
        *(_of_laws(found) if found.has_laws else []),
        "difference: with the interval of that size's verdict table, for its arms together",
    ]
    names = differing([rung.recipe for rung in found.rungs])
    lines.append(f"what differs between the sizes: {', '.join(names)}")
    lines += dict.fromkeys(labels.rates_of(rung.comparison) for rung in found.rungs)
    lines += [_computed(found), *not_kept(found.rungs[0].comparison)]
    if any(arm.trend for arm in found.arms):
        lines.append(
            f"per doubling of {found.doubled}: change of the difference, mean over seeds [95 %], "
            "each arm for itself; whatever else differs between the sizes is in it. The gap holds "
            "where that interval contains 0: more seeds may show that it does not"
        )
    for arm in found.arms:
        if arm.plain is not None:
            worth = f", multiplier {multiplier_text(arm.plain_worth)}" if arm.plain_worth else ""
            text = f"A {arm.plain.a:.4g}, alpha {arm.plain.alpha:.4f}"
            lines.append(f"without E, {arm.variant}: {text}{worth}")
    without = grouped((arm.reason, arm.variant) for arm in found.arms if arm.reason)
    return lines + [f"no multiplier of {', '.join(n)}: {why}" for why, n in without.items()]


def _computed(found: Ladder) -> str:
    """By what: each table is of one machine, a ladder may be of several."""
    settings = (" and ".join(rung.comparison.settings) for rung in found.rungs)
    by = grouped(zip(settings, found.size_names, strict=True))
    if len(by) == 1:
        return f"computed with {next(iter(by))}"
    named = "; ".join(f"{', '.join(sizes)} with {settings}" for settings, sizes in by.items())
    return f"sizes were computed in different ways, and differ in rounding too: {named}"


def _of_laws(found: Ladder) -> list[str]:
    """What was fitted, and what rests on it."""
    first, n = found.rungs[0], len(found.rungs)
    law, has_floor = found.arms[0].law, found.arms[0].plain is not None
    assert law is not None
    form = "L = E + A C^-alpha" if has_floor else "L = A C^-alpha"
    return [
        f"{form} by least squares in logs of each arm's mean losses over {n} sizes, C in "
        "PFLOP/s-days of training, by count"
        + (f"; one E for all arms, {law.floor:.4f}" if has_floor else "")
        + (": through two points, so that nothing checks it" if n == 2 else ""),
        f"multiplier: how much more compute {first.comparison.baseline} takes to the arm's loss at "
        "the largest size",
        *_of_intervals(found),
    ]


def qualified(found: Ladder) -> list[str]:
    """What the answer over sizes must be read with: what is left out, and what any size says."""
    told = [found.registered] if found.registered else []
    told += [*one_rate(found), *(f"left out: {text}" for text in found.left_out)]
    sized = zip(found.size_names, found.rungs, strict=True)
    at = grouped((line, size) for size, rung in sized for line in qualifiers(rung.comparison))
    told += [
        line if len(sizes) == len(found.rungs) else f"at {listed(sizes)}: {line}"
        for line, sizes in at.items()
    ]
    return list(dict.fromkeys(told))


def one_rate(found: Ladder) -> list[str]:
    """What a course over budgets may come of instead, where each arm has one learning rate for all
    of them; empty otherwise.
    """
    differ = differing([rung.recipe for rung in found.rungs])
    has_rates = found.terms.is_tuned or any(key.endswith("optim.lr") for key in differ)
    if found.doubled != "tokens" or has_rates or not any(arm.trend for arm in found.arms):
        return []
    return [
        "each arm has one learning rate for all budgets: the best one may fall as budgets grow, "
        "for some arms more than for others, which moves the gaps; --tune-lr finds one for each "
        "budget"
    ]


def _of_intervals(found: Ladder) -> list[str]:
    """What the intervals are of, and why some are missing."""
    n, worths = len(found.rungs), {arm.variant: arm.worth for arm in found.arms if arm.worth}
    if n == 2 or not worths:
        return ["two sizes leave no scatter to take an interval from"] if worths else []
    lines = [
        f"interval: over sizes, from the scatter of the losses about the laws (t, "
        f"{plural(n - 2, 'degree')} of freedom), each arm for itself; more seeds only make the "
        "means better; one size left out: least and greatest, E held"
    ]
    exact = [variant for variant, worth in worths.items() if worth.ci95 is None]
    if exact:
        lines.append(f"no interval of {listed(exact)}: the losses lie on the laws to rounding")
    return lines


def title(found: Ladder) -> str:
    """`scaling of recipe grown, 4 sizes, never pooled`, with its terms and its label."""
    comparison = found.rungs[0].comparison
    label = f" [{found.registered}]" if found.registered else ""
    own = "".join(f", {part}" for part in labels.parts(comparison.terms))
    return (
        f"scaling of recipe {comparison.recipe}, {len(found.rungs)} sizes{own}, never pooled{label}"
    )


def _document(found: Ladder) -> dict[str, Any]:
    comparison = found.rungs[0].comparison
    return {
        "title": title(found),
        "answer": over_sizes(found),
        "courses": courses(found),
        "qualified": qualified(found),
        **picked(comparison, "recipe baseline fingerprint=data.fingerprint"),
        "terms": stated(found.terms),
        "compute_unit": "PFLOP/s-days",
        "rungs": [
            picked(
                rung.recipe, "recipe_digest=digest n_layers=model.n_layers d_model=model.d_model"
            )
            | {"arms": {a.variant: _at(rung, a) for a in rung.comparison.arms if a.is_sound}}
            for rung in found.rungs
        ],
        "doubled": found.doubled,
        "arms": [asdict(arm) | {"course": arm.course} for arm in found.arms],
        "notes": notes(found),
    }


def _at(rung: Rung, arm: ArmResult) -> dict[str, Any]:
    return picked(arm, _AT_RUNG) | {"compute": compute(arm), "mean": rung.mean(arm)}
