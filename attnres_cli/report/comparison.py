"""The verdict table: every arm beside the baseline, with what the numbers rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import SHARED
from attnres_cli.records.run import DataDescription, RunResult, Status
from attnres_cli.report.table import Cell, Column, Report, Style, Table, capital, flat, joined
from attnres_cli.stats.pairs import Difference
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import RULE, ArmResult, Comparison, last_line
from attnres_cli.verdict.format import interval

METRIC, UNIT = "val_loss", "nats/token"
_EXACT_FROM = 6  # pairs: there are 2^n ways to flip signs, and 2 / 2^6 = 0.031
_STYLES: dict[str, Style] = {
    "better": "good", "worse": "bad", "blocked": "warning", "baseline": "strong",
}  # fmt: skip


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Comparisons of one recipe on several terms, or of the sizes of its ladder."""
    return joined([one_report(comparison) for comparison in comparisons])


def one_report(comparison: Comparison) -> Report:
    """One comparison: a row per arm, the runs that failed, and what the numbers rest on."""
    document = _document(comparison)
    return Report(
        title=capital(labels.title(comparison)),
        tables=[table_of(comparison)],
        warnings=[
            f"failed: {run.variant} seed {run.seed}: {last_line(run.error)}"
            for run in comparison.runs(Status.FAILED)
        ],
        notes=facts_of(comparison),
        document=document,
        fields=_FIELDS,
        records=[flat(document | _row(arm, comparison), _FIELDS) for arm in comparison.arms],
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
        Column("vs baseline [95 %]"),
        Column("verdict", "text"),
        Column("n", is_optional=True),
        Column("params", is_optional=True),
        Column("FLOPs/token", is_optional=True),
        Column("ms/step", is_optional=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            arm.variant,
            *([arm.own.text if arm.own else "-"] if has_own else []),
            loss_text(arm),
            *([_number(bits_per_byte(arm.mean))] if of_bytes else []),
            difference_text(arm.difference),
            Cell(verdict_text(arm), _STYLES.get(arm.verdict, "")),
            pairs_text(arm, comparison),
            f"{arm.n_params:,}" + (f" ({arm.params_delta:+,})" if arm.params_delta else ""),
            f"{arm.flops_per_token:.3g}",
            f"{1000 * arm.step_s:.1f}",
        ]
        for arm in comparison.arms
    ]
    title = (
        "validation loss in nats per token, mean ± sd over seeds; difference from "
        f"{comparison.baseline}, paired by seed: less is better"
    )
    return Table(title, columns, rows)


def loss_text(arm: ArmResult) -> str:
    """Mean and standard deviation over seeds: `1.5721 ± 0.0041`."""
    if math.isnan(arm.mean):
        return "diverged"
    return f"{arm.mean:.4f}" + (f" ± {arm.sd:.4f}" if arm.sd is not None else "")


def difference_text(found: Difference | None) -> str:
    """Mean paired difference and its interval: `-0.0210 [-0.0312, -0.0108]`."""
    return "-" if found is None else interval(found.mean, found.ci95, "+.4f")


def pairs_text(arm: ArmResult, comparison: Comparison) -> str:
    """How many seeds an arm has; `3 of 7` where it or the baseline lacks some of the other's."""
    base = comparison.base.losses.keys() if comparison.base else set()
    paired, every = arm.losses.keys() & base, arm.losses.keys() | base
    if arm.difference is None or len(paired) == len(every):
        return str(len(arm.losses))
    return f"{len(paired)} of {len(every)}"


def verdict_text(arm: ArmResult) -> str:
    """The verdict, with its reason, or where there is none with what would have been seen."""
    if arm.verdict in ("blocked", "baseline") and arm.reason:
        return f"{arm.verdict}: {arm.reason}"
    least = arm.difference.detectable if arm.difference is not None else None
    is_open = arm.verdict == "not separable" and least is not None
    return f"{arm.verdict} (sees {least:.3f})" if is_open else arm.verdict


def speed_text(result: ArmResult | RunResult) -> str:
    """`51,200 tokens/s, MFU 41.0 %`, the share where the device's peak is known."""
    share = "" if result.mfu is None else f", MFU {100 * result.mfu:.1f} %"
    return f"{result.tokens_per_second:,.0f} tokens/s{share}"


def bits_per_byte(loss: float) -> float:
    """Nats per token in bits per byte; a token is a byte here."""
    return loss / math.log(2)


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _document(comparison: Comparison) -> dict[str, Any]:
    data = comparison.data
    return {
        "title": labels.title(comparison),
        "terms": asdict(comparison.terms),
        "registered": comparison.registered,
        "recipe": comparison.recipe,
        "recipe_digest": comparison.recipe_digest,
        "data": {"source": data.source, "fingerprint": data.fingerprint, "bytes": data.n_bytes},
        "baseline": comparison.baseline,
        "metric": METRIC,
        "unit": UNIT,
        "reference": {
            "unigram_entropy": data.unigram_entropy,
            "bigram_entropy": data.bigram_entropy,
            "floor": data.floor,
            "zlib_bits_per_byte": data.zlib_bits,
            "xz_bits_per_byte": data.xz_bits,
        },
        "versions": comparison.versions,
        "settings": comparison.settings,
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
        "tokens_per_second": arm.tokens_per_second,
        "mfu": arm.mfu,
        "step_ms": 1000 * arm.step_s,
        "engines": arm.engines,
        "difference": asdict(arm.difference) if arm.difference is not None else None,
        "verdict": arm.verdict,
        "reason": arm.reason,
        "recipe_digest": arm.recipe_digest,
        "own": asdict(arm.own.how) if arm.own is not None else None,
        "gates": {seed: [asdict(gate) for gate in met] for seed, met in arm.gates.items()},
    }


_FIELDS = {
    "variant": "variant", "verdict": "verdict", "reason": "reason", "n_seeds": "n_seeds",
    "mean": "mean", "sd": "sd", "bits_per_byte": "bits_per_byte",
    "difference": "difference.mean", "difference_sd": "difference.sd",
    "ci95_low": "difference.ci95.0", "ci95_high": "difference.ci95.1",
    "p": "difference.p", "p_holm": "difference.p_holm",
    "params": "params", "params_delta": "params_delta", "flops_per_token": "flops_per_token",
    "tokens": "tokens", "step_ms": "step_ms", "tokens_per_second": "tokens_per_second",
    "mfu": "mfu", "engines": "engines", "recipe": "recipe", "recipe_digest": "recipe_digest",
    "fingerprint": "data.fingerprint", "baseline": "baseline", "terms": "terms", "own": "own",
    "unigram_entropy": "reference.unigram_entropy", "bigram_entropy": "reference.bigram_entropy",
    "floor": "reference.floor", "zlib_bits_per_byte": "reference.zlib_bits_per_byte",
    "xz_bits_per_byte": "reference.xz_bits_per_byte", "registered": "registered",
}  # fmt: skip


def _row(arm: ArmResult, comparison: Comparison) -> dict[str, Any]:
    """An arm as in JSON, with words for what is no number."""
    return {
        **_arm(arm),
        "n_seeds": len(arm.losses),
        "bits_per_byte": bits_per_byte(arm.mean) if comparison.data.is_bytes else None,
        "engines": " ".join(arm.engines),
        "terms": labels.name(comparison.terms),
        "own": arm.own.text if arm.own else None,
    }


def facts_of(comparison: Comparison) -> list[str]:
    """What the numbers are of: recipe, tokens, data, reference lines, rule, versions."""
    data = comparison.data
    tokens = labels.tokens(comparison) if comparison.arms else "no run has ended"
    return [
        f"recipe {comparison.recipe} ({comparison.recipe_digest}), {tokens}; loss: mean ± sd over "
        f"seeds; difference from {comparison.baseline}, paired by seed",
        *labels.lines(comparison),
        f"data {data.source} ({data.fingerprint}), {data.size}",
        *_reference_lines(data),
        *_reached(comparison),
        RULE,
        *_computed(comparison),
        *comparison.versions,
    ]


def _reference_lines(data: DataDescription) -> Iterator[str]:
    """What a loss is to be seen beside."""
    token = "byte" if data.is_bytes else "token"
    yield (
        f"reference: best table of next {token} given this {token} (bigram) "
        f"{data.bigram_entropy:.4f}, {token} frequencies (unigram) {data.unigram_entropy:.4f} "
        f"{UNIT}"
    )
    if data.floor is not None:
        yield f"floor: a model that knows the task loses {data.floor:.4f} {UNIT}"
    if data.zlib_bits is not None and data.xz_bits is not None:
        packed = [
            f"{name} {bits:.4f} bits/byte"
            + (f" ({bits * math.log(2):.4f} {UNIT})" if data.is_bytes else "")
            for name, bits in (("zlib", data.zlib_bits), ("xz", data.xz_bits))
        ]
        yield f"compressors, on at most a MiB of validation text: {', '.join(packed)}"


def _reached(comparison: Comparison) -> Iterator[str]:
    """What has not ended, a baseline that learned little, and how many gates were passed; where
    one was not, its arm's verdict says which.
    """
    words = {Status.PENDING: "pending", Status.RUNNING: "running, or killed"}
    counts = {word: len(comparison.runs(status)) for status, word in words.items()}
    if waiting := [f"{count} {word}" for word, count in counts.items() if count]:
        yield f"runs {' and '.join(waiting)}: the same ablate command goes on"
    base = comparison.base
    if base is not None and base.mean >= comparison.data.bigram_entropy:
        yield (
            "the baseline ends above the bigram line: models that have learned so little say little"
        )
    met = [gate for arm in comparison.arms for found in arm.gates.values() for gate in found]
    if met:
        passed, names = sum(gate.passed for gate in met), {gate.name for gate in met}
        meanings = ", ".join(text for name, text in gates.MEANING.items() if name in names)
        yield f"gates passed: {passed} of {len(met)} ({meanings})"


def _computed(comparison: Comparison) -> Iterator[str]:
    """What the t test rests on, and how runs were computed: where not all alike, which."""
    n = [arm.difference.n for arm in comparison.arms if arm.difference is not None]
    if n and min(n) < _EXACT_FROM:
        yield (
            f"with fewer than {_EXACT_FROM} shared seeds no exact test reaches p < 0.05: the t "
            "test takes the differences as normal"
        )
    yield from (f"computed with {text}" for text in comparison.settings)
    if comparison.base is not None:
        yield f"{comparison.baseline}: {speed_text(comparison.base)}"
    by_engines: dict[tuple[str, ...], list[str]] = {}
    for arm in comparison.arms:
        by_engines.setdefault(arm.engines, []).append(arm.variant)
    if len({engine for engines in by_engines for engine in engines}) > 1:
        named = [f"{', '.join(arms)} by {' and '.join(e)}" for e, arms in by_engines.items()]
        yield f"arms computed by different engines, which agree to rounding: {'; '.join(named)}"
    mixed = [(arm.variant, ", ".join(map(str, arm.mixed))) for arm in comparison.arms if arm.mixed]
    if mixed:
        yield (
            "trained by other versions than the baseline, so that a part of the difference may be "
            f"the software's: {'; '.join(f'{name} on seed {seeds}' for name, seeds in mixed)}; a "
            "new --study trains all by one"
        )
