"""The verdict table: every arm beside the baseline, with what the numbers rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.records.comparison_terms import SHARED
from attnres_cli.records.run import Status
from attnres_cli.report.answer import answer
from attnres_cli.report.facts import UNIT, facts_of
from attnres_cli.report.table import (
    Cell,
    Column,
    Report,
    Style,
    Table,
    but,
    capital,
    flat,
    joined,
    noted_once,
)
from attnres_cli.stats.looks import ALPHA
from attnres_cli.stats.power import multiplier
from attnres_cli.verdict import labels
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import ArmResult, Comparison, last_line
from attnres_cli.verdict.format import interval
from attnres_cli.verdict.qualified import n_read, qualifiers

METRIC = "val_loss"
_STYLES: dict[str, Style] = {
    "better": "good", "worse": "bad", "equal within the margin": "good",
    "no worse by the margin": "good", "no verdict yet": "warning", "blocked": "warning",
    "baseline": "strong", "identical": "warning",
}  # fmt: skip


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
        text=[document["answer"], *but(document["qualified"])],
        tables=[table_of(comparison)],
        warnings=[
            f"failed: {run.variant} seed {run.seed}: {last_line(run.error)}"
            for run in comparison.runs(Status.FAILED)
        ],
        notes=facts_of(comparison),
        document=document,
        fields=_FIELDS,
        records=[
            flat(document | _row(arm, comparison) | {"qualified": told}, _FIELDS)
            for arm in comparison.arms
        ],
        more=(),
    )


def table_of(comparison: Comparison) -> Table:
    """Losses, differences and verdicts, and what every arm costs."""
    has_own, of_bytes = comparison.terms != SHARED, comparison.data.is_bytes
    columns = [
        Column("variant", "code"),
        *([Column("its own", "text")] if has_own else []),
        Column("val loss"),
        *([Column("bits/byte", is_optional=True)] if of_bytes else []),
        Column("vs baseline [interval]"),
        Column("verdict", "text"),
        Column("n", is_optional=True),
        Column("params", is_optional=True),
        Column("FLOPs/token", is_optional=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            arm.variant,
            *([arm.own.text if arm.own else "-"] if has_own else []),
            loss_text(arm),
            *([_number(bits_per_byte(arm.mean))] if of_bytes else []),
            difference_text(arm),
            Cell(verdict_text(arm, comparison.rules.slope), _STYLES.get(arm.verdict, "")),
            pairs_text(arm, comparison),
            f"{arm.n_params:,}" + (f" ({arm.params_delta:+,})" if arm.params_delta else ""),
            f"{arm.flops_per_token:.3g}",
        ]
        for arm in comparison.arms
    ]
    title = (
        "validation loss in nats per token, mean ± sd over seeds; difference from "
        f"{comparison.baseline}, paired by seed, with intervals that hold together: less is better"
    )
    return Table(title, columns, rows)


def loss_text(arm: ArmResult) -> str:
    """Mean and standard deviation over seeds: `1.5721 ± 0.0041`."""
    if math.isnan(arm.mean):
        return "diverged"
    return f"{arm.mean:.4f}" + (f" ± {arm.sd:.4f}" if arm.sd is not None else "")


def difference_text(arm: ArmResult) -> str:
    """Mean paired difference and its interval: `-0.0210 [-0.0312, -0.0108]`."""
    return "-" if arm.difference is None else interval(arm.difference.mean, arm.interval, "+.4f")


def pairs_text(arm: ArmResult, comparison: Comparison) -> str:
    """How many seeds a row is of: `7`; `7 of 11` where the table has more."""
    n, every = len(arm.pairs) or len(arm.losses), len(comparison.family.seeds)
    return str(n) if n == every else f"{n} of {every}"


def verdict_text(arm: ArmResult, slope: float | None = None) -> str:
    """The verdict, with its reason, or where there is none with what would have been seen; by the
    slope of loss over compute also as a multiple of compute.
    """
    if arm.verdict in ("blocked", "no verdict yet", "baseline") and arm.reason:
        return f"{arm.verdict}: {arm.reason}"
    if arm.verdict != "not separable" or arm.sees is None:
        return arm.verdict
    times = "" if slope is None else f", {multiplier(arm.sees, slope):.2f}x"
    return f"{arm.verdict} (sees {arm.sees:.3f}{times})"


def bits_per_byte(loss: float) -> float:
    """Nats per token in bits per byte; a token is a byte here."""
    return loss / math.log(2)


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _document(comparison: Comparison, n_tables: int) -> dict[str, Any]:
    data = comparison.data
    return {
        "title": labels.title(comparison),
        "answer": answer(comparison),
        "qualified": qualifiers(comparison, n_tables),
        "terms": asdict(comparison.terms),
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
        "arms": [_arm(arm) for arm in comparison.arms],
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
        "sees": arm.sees,
        "far_seeds": arm.far,
        "verdict": arm.verdict,
        "reason": arm.reason,
        "recipe_digest": arm.recipe_digest,
        "own": asdict(arm.own.how) if arm.own is not None else None,
        "gates": {seed: [asdict(gate) for gate in met] for seed, met in arm.gates.items()},
    }


def _difference(arm: ArmResult) -> dict[str, Any] | None:
    """Of the pairs of the last look; the interval holds for all arms and looks together."""
    one = arm.difference
    if one is None:
        return None
    return {"n": one.n, "mean": one.mean, "sd": one.sd, "interval": arm.interval}


_FIELDS = {
    "variant": "variant", "verdict": "verdict", "reason": "reason", "n_seeds": "n_seeds",
    "mean": "mean", "sd": "sd", "bits_per_byte": "bits_per_byte",
    "difference": "difference.mean", "difference_sd": "difference.sd",
    "ci_low": "difference.interval.0", "ci_high": "difference.interval.1", "sees": "sees",
    "look": "look.n", "next_look": "look.next", "alpha": "look.alpha",
    "params": "params", "params_delta": "params_delta", "flops_per_token": "flops_per_token",
    "tokens": "tokens", "engines": "engines", "recipe": "recipe", "recipe_digest": "recipe_digest",
    "fingerprint": "data.fingerprint", "baseline": "baseline", "terms": "terms", "own": "own",
    "unigram_loss": "reference.unigram_loss", "bigram_loss": "reference.bigram_loss",
    "floor": "reference.floor", "zlib_bits_per_byte": "reference.zlib_bits_per_byte",
    "xz_bits_per_byte": "reference.xz_bits_per_byte", "registered": "registered",
    "qualified": "qualified",
}  # fmt: skip


def _row(arm: ArmResult, comparison: Comparison) -> dict[str, Any]:
    """An arm as in JSON, with words for what is no number."""
    return {
        **_arm(arm),
        "n_seeds": len(arm.pairs) or len(arm.losses),
        "bits_per_byte": bits_per_byte(arm.mean) if comparison.data.is_bytes else None,
        "engines": " ".join(arm.engines),
        "terms": labels.name(comparison.terms),
        "own": arm.own.text if arm.own else None,
    }
