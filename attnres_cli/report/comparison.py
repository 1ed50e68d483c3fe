"""The verdict table: every arm beside the baseline, with what the numbers rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.records.comparison_terms import stated
from attnres_cli.records.run import Status
from attnres_cli.report.answer import answer
from attnres_cli.report.footnotes import UNIT, facts_of
from attnres_cli.report.table import (
    Report,
    Table,
    capital,
    joined,
    noted_once,
    tabled,
)
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import ArmResult, Comparison, last_line
from attnres_cli.verdict.fields import keys
from attnres_cli.verdict.rows import FIELDS, fields_of, record

METRIC = "val_loss"
SCHEMA = 2
"""Of the document in JSON; docs/reports.md says what each changed."""
_CAPTION = "nats per token, mean ± sd over seeds; paired differences, simultaneous 95% CIs"


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Comparisons of one recipe on several terms, or of the sizes of its ladder."""
    each = [_one(comparison, n_read(comparison, comparisons)) for comparison in comparisons]
    return joined(noted_once(each))


def _one(comparison: Comparison, n_tables: int) -> Report:
    """One comparison: the answer, a row per arm, the runs that failed, what numbers rest on."""
    document = _document(comparison, n_tables)
    told = "; ".join(document["qualified"])
    return Report(
        title=capital(labels.title(comparison)),
        text=[document["answer"]],
        caveats=document["qualified"],
        tables=[table_of(comparison)],
        warnings=[
            f"failed: {run.variant} seed {run.seed}: {last_line(run.error)}"
            for run in comparison.runs(Status.FAILED)
        ],
        notes=facts_of(comparison),
        document=document,
        fields=[*keys(FIELDS), "qualified"],
        records=[record(arm, comparison, told) for arm in comparison.arms],
        more=(),
    )


def table_of(comparison: Comparison) -> Table:
    """Losses, differences and verdicts, and what every arm costs."""
    return tabled(_CAPTION, fields_of(comparison), comparison.arms, comparison)


def _document(comparison: Comparison, n_tables: int) -> dict[str, Any]:
    data = comparison.data
    return {
        "schema": SCHEMA,
        "title": labels.title(comparison),
        "answer": answer(comparison),
        "qualified": qualifiers(comparison, n_tables),
        "terms": stated(comparison.terms),
        "registered": comparison.registered,
        "recipe": comparison.recipe,
        "recipe_digest": comparison.recipe_digest,
        "data": {
            "source": data.source,
            "fingerprint": data.fingerprint,
            "bytes": data.n_bytes,
            "vocab_size": data.vocab_size,
            "train_tokens": data.train_tokens,
            "val_tokens": data.val_tokens,
            "split": data.split,
        },
        "baseline": comparison.baseline,
        "metric": METRIC,
        "unit": UNIT,
        "error_rate": ALPHA,
        "planned_seeds": comparison.family.planned,
        "margin": comparison.rules.margin,
        "slope": comparison.rules.slope,
        "reference": {
            "unigram_loss": data.unigram_loss,
            "bigram_loss": data.bigram_loss,
            "floor": data.floor,
            "zlib_bits_per_byte": data.zlib_bits,
            "xz_bits_per_byte": data.xz_bits,
        },
        "versions": comparison.versions,
        "settings": comparison.settings,
        "removed": [asdict(each) for each in comparison.removed],
        "notes": {run.id: run.note for run in comparison.records if run.note},
        "tags": {run.id: run.tags for run in comparison.records if run.tags},
        "codes": {run.variant: shown(run) for run in comparison.records},
        "runs_of_other_code": [run.id for run in comparison.older if run.result is not None],
        "arms_not_shown": comparison.n_hidden,
        "arms": [_arm(arm) | _beside(arm, comparison) for arm in comparison.arms],
        "failed": [
            {"variant": run.variant, "seed": run.seed, "error": last_line(run.error)}
            for run in comparison.runs(Status.FAILED)
        ],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    return {
        "variant": arm.variant,
        "seeds": sorted(arm.losses),
        "params": arm.n_params,
        "params_delta": arm.params_delta,
        "flops_per_token": arm.flops_per_token,
        "tokens": arm.tokens,
        "mean": arm.mean,
        "sd": arm.sd,
        "losses": arm.losses,
        "engines": arm.engines,
        "pairs": arm.pairs,
        "difference": _difference(arm),
        "look": asdict(arm.look) if arm.look is not None else None,
        "detectable": arm.detectable,
        "far_seeds": arm.far,
        "verdict": arm.verdict,
        "reason": arm.reason,
        "recipe_digest": arm.recipe_digest,
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
    one = arm.difference
    if one is None:
        return None
    return {"n": one.n, "mean": one.mean, "sd": one.sd, "interval": arm.interval}
