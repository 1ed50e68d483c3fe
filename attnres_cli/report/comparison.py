"""The verdict table: every arm beside the baseline, with what the numbers rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.records.comparison_terms import stated
from attnres_cli.records.run import Status
from attnres_cli.report.answer import answer
from attnres_cli.report.footnotes import UNIT, facts_of
from attnres_cli.report.table import Report, Table, capital, joined, tabled
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import ArmResult, Comparison, last_line
from attnres_cli.verdict.fields import keys, picked
from attnres_cli.verdict.rows import FIELDS, fields_of, record

METRIC = "val_loss"
SCHEMA = 2
"""Of the document in JSON; docs/reports.md says what each changed."""
_CAPTION = "nats per token, mean ± sd over seeds; paired differences, simultaneous 95% CIs"
_DATA = "source fingerprint bytes=n_bytes vocab_size train_tokens val_tokens split"
_REFERENCE = "unigram_loss bigram_loss floor zlib_bits_per_byte=zlib_bits xz_bits_per_byte=xz_bits"
_ARM = (
    "variant params=n_params params_delta flops_per_token tokens mean sd losses engines pairs "
    "detectable far_seeds=far verdict reason recipe_digest"
)


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Comparisons of one recipe on several terms, or of the sizes of its ladder."""
    return joined([_one(comparison, n_read(comparison, comparisons)) for comparison in comparisons])


def _one(comparison: Comparison, n_tables: int) -> Report:
    """One comparison: the answer, a row per arm, the runs that failed, what numbers rest on."""
    document = _document(comparison, n_tables)
    qualified = "; ".join(document["qualified"])
    return Report(
        title=capital(document["title"]),
        text=[document["answer"]],
        caveats=document["qualified"],
        tables=[table_of(comparison)],
        warnings=[
            "failed: {variant} seed {seed}: {error}".format(**run) for run in document["failed"]
        ],
        notes=facts_of(comparison),
        document=document,
        fields=[*keys(FIELDS), "qualified"],
        records=[record(arm, comparison, qualified) for arm in comparison.arms],
        more=(),
    )


def table_of(comparison: Comparison) -> Table:
    """Losses, differences and verdicts, and what every arm costs."""
    return tabled(_CAPTION, fields_of(comparison), comparison.arms, comparison)


def _document(comparison: Comparison, n_tables: int) -> dict[str, Any]:
    runs, failed = comparison.records, comparison.runs(Status.FAILED)
    return {
        "schema": SCHEMA,
        "title": labels.title(comparison),
        "answer": answer(comparison),
        "qualified": qualifiers(comparison, n_tables),
        "terms": stated(comparison.terms),
        **picked(comparison, "registered recipe recipe_digest"),
        "data": picked(comparison.data, _DATA),
        "baseline": comparison.baseline,
        "metric": METRIC,
        "unit": UNIT,
        "error_rate": ALPHA,
        **picked(comparison, "planned_seeds=family.planned margin=rules.margin slope=rules.slope"),
        "reference": picked(comparison.data, _REFERENCE),
        **picked(comparison, "versions settings"),
        "removed": [asdict(each) for each in comparison.removed],
        "notes": {run.id: run.note for run in runs if run.note},
        "tags": {run.id: run.tags for run in runs if run.tags},
        "codes": {run.variant: shown(run) for run in runs},
        "runs_of_other_code": [run.id for run in comparison.older if run.result is not None],
        "arms_not_shown": comparison.n_hidden,
        "arms": [_arm(arm) | _beside(arm, comparison) for arm in comparison.arms],
        "failed": [picked(run, "variant seed") | {"error": last_line(run.error)} for run in failed],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    return picked(arm, _ARM) | {
        "seeds": sorted(arm.losses),
        "difference": _difference(arm),
        "look": asdict(arm.look) if arm.look is not None else None,
        "own": stated(arm.own.how) if arm.own is not None else None,
        "gates": {seed: [asdict(gate) for gate in met] for seed, met in arm.gates.items()},
    }


def _beside(arm: ArmResult, comparison: Comparison) -> dict[str, Any]:
    """The arm's difference on lesser terms, where it is tuned."""
    found = {
        "own_rate" if one.terms.rate_only else "shared": _difference(lesser)
        for one in comparison.beside
        if (lesser := one.arm(arm.variant)) is not None
    }
    return {"beside": found} if found else {}


def _difference(arm: ArmResult) -> dict[str, Any] | None:
    """Of the pairs of the last look; the interval holds for all arms and looks together."""
    if arm.difference is None:
        return None
    return picked(arm.difference, "n mean sd") | {"interval": arm.interval}
