"""The verdict table: every arm beside the baseline, with what the numbers rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from attnres_cli.errors import last_line
from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import stated
from attnres_cli.records.doubts import eval_error
from attnres_cli.records.run import DataDescription, Status
from attnres_cli.report.answer import answer
from attnres_cli.report.table import Report, Table, capital, grouped, joined, tabled
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, not_kept, qualifiers
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import RULE, ArmResult, Comparison
from attnres_cli.verdict.fields import keys, picked
from attnres_cli.verdict.numbers import plural
from attnres_cli.verdict.rows import FIELDS, fields_of, multipliers, record

METRIC = "val_loss"
UNIT = "nats/token"
SEEDS = (
    "a seed decides initial weights and the order of batches; data, evaluation windows, learning "
    "rate and machine are the same for all seeds, so intervals do not speak of them"
)
CHOICES = (
    "arms begin a seed with the same weights; which experts a token then uses follows from what "
    "its arm has computed, and is not the same in all"
)
_HIDDEN = "not shown: {} of this table; words and intervals are of all of them"
_SHOWN_LOOKS = 3
SCHEMA = 2
"""Of the document in JSON; docs/reports.md says what each changed."""
_CAPTION = "nats per token, mean ± sd over seeds; paired differences, simultaneous 95% CIs"
_DATA = "source fingerprint bytes=n_bytes vocab_size train_tokens val_tokens split"
_REFERENCE = "unigram_loss bigram_loss floor zlib_bits_per_byte=zlib_bits xz_bits_per_byte=xz_bits"
_ARM = (
    "variant params=n_params params_delta flops_per_token tokens mean sd losses engines pairs "
    "median=signs.median sign_test=signs.p detectable far_seeds=far verdict reason recipe_digest"
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
    )


def table_of(comparison: Comparison) -> Table:
    """Losses, differences and verdicts, and what every arm costs."""
    return tabled(_CAPTION, fields_of(comparison), comparison.arms, comparison)


def _document(comparison: Comparison, n_tables: int) -> dict[str, Any]:
    runs, failed = comparison.records, comparison.runs(Status.FAILED)
    tokens = comparison.rules.eval_tokens
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
        **picked(
            comparison,
            "planned_seeds=family.planned most_seeds=family.most margin=rules.margin "
            "slope=rules.slope",
        ),
        "eval_error": tokens and eval_error(tokens),
        "reference": picked(comparison.data, _REFERENCE),
        **picked(comparison, "versions settings"),
        "removed": [asdict(each) for each in comparison.removed],
        "notes": {run.id: run.note for run in runs if run.note},
        "tags": {run.id: run.tags for run in runs if run.tags},
        "codes": {run.variant: shown(run) for run in runs},
        "runs_of_other_code": [run.id for run in comparison.older if run.result is not None],
        "arms_not_shown": comparison.n_hidden,
        "arms": [_arm(arm, comparison) | _beside(arm, comparison) for arm in comparison.arms],
        "failed": [picked(run, "variant seed") | {"error": last_line(run.error)} for run in failed],
    }


def _arm(arm: ArmResult, of: Comparison) -> dict[str, Any]:
    ratio = of.step_ratios.get(arm.variant)
    return picked(arm, _ARM) | {
        "multiplier": multipliers(arm, of),
        "step_ratio": None if ratio is None else asdict(ratio),
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


def facts_of(comparison: Comparison) -> list[str]:
    """What the numbers are of: recipe, tokens, data, reference lines, rule, versions."""
    data = comparison.data
    tokens = labels.tokens(comparison) if comparison.arms else "no run has ended"
    return [
        f"recipe {comparison.recipe} ({comparison.recipe_digest}), {tokens}; loss: mean ± sd over "
        f"seeds; difference from {comparison.baseline}, paired by seed",
        *(
            f"{arm.variant} is {arm.verdict}: {arm.reason}"
            for arm in comparison.arms
            if arm.verdict in ("blocked", "pending", "baseline") and arm.reason
        ),
        *labels.lines(comparison),
        *labels.said(comparison),
        f"data {data.called}, {data.size}",
        *([f"split: {data.split}"] if data.split else []),
        *_reference_lines(data),
        *_in_bytes(comparison),
        *_passed(comparison),
        RULE,
        *([_HIDDEN.format(plural(comparison.n_hidden, "arm"))] if comparison.n_hidden else []),
        *_looked(comparison),
        *not_kept(comparison),
        *_errors(comparison),
        SEEDS,
        *([CHOICES] if comparison.rules.is_routed else []),
        *_computed(comparison),
        *comparison.versions,
    ]


def _errors(comparison: Comparison) -> Iterator[str]:
    """The error over seeds, and beside it that of the windows that were evaluated."""
    gaps = [arm.difference for arm in comparison.arms if arm.difference is not None]
    tokens = comparison.rules.eval_tokens
    if gaps and tokens:
        errors = [gap.sd / math.sqrt(gap.n) for gap in gaps]
        ends = dict.fromkeys(f"{error:.4f}" for error in (min(errors), max(errors)))
        yield (
            f"standard error of a difference: {' to '.join(ends)} over seeds; about "
            f"{eval_error(tokens):.4f} from the choice of {tokens:,} evaluation tokens, which all "
            "runs share and no interval includes"
        )


def _reference_lines(data: DataDescription) -> Iterator[str]:
    """What a loss is to be seen beside."""
    token = "byte" if data.is_bytes else "token"
    if data.unigram_loss is None:
        yield "reference: none, this study is of an attnres that fitted it to validation tokens"
    else:
        of = f"{token} frequencies (unigram) {data.unigram_loss:.4f}"
        if data.bigram_loss is not None:
            of = f"next {token} given this {token} (bigram) {data.bigram_loss:.4f}, {of}"
        yield f"reference, of tables fitted to training {token}s: {of} {UNIT}"
    if data.floor is not None:
        yield f"floor: a model that knows the task loses {data.floor:.4f} {UNIT}"
    if data.zlib_bits is not None and data.xz_bits is not None:
        packed = [
            f"{name} {bits:.4f} bits/byte"
            + (f" ({bits * math.log(2):.4f} {UNIT})" if data.is_bytes else "")
            for name, bits in (("zlib", data.zlib_bits), ("xz", data.xz_bits))
        ]
        yield f"compressors, on at most a MiB of validation text: {', '.join(packed)}"


def _in_bytes(comparison: Comparison) -> Iterator[str]:
    """How a loss becomes bits per byte, by which tokenizers are compared."""
    if (of := comparison.evaluated) is not None:
        yield (
            f"bits/byte: loss / ln 2 x {of.n_tokens:,} evaluated tokens / {of.n_bytes:,} bytes of "
            "their text, which compares tokenizers on one text"
        )


def _passed(comparison: Comparison) -> Iterator[str]:
    """How many gates were passed; where one was not, its arm's verdict says which."""
    every = [found for arm in comparison.arms for found in arm.gates.values()]
    met = [gate for found in every for gate in found]
    if met:
        passed, names = sum(gate.passed for gate in met), {gate.name for gate in met}
        meanings = ", ".join(text for name, text in gates.MEANING.items() if name in names)
        yield f"gates passed: {passed} of {len(met)} ({meanings})"
    if unproven := sum(not {gate.name for gate in found} & set(gates.PROOFS) for found in every):
        runs = plural(unproven, "run")
        yield f"{runs} of an older attnres did not prove that no token sees a later one"


def _looked(comparison: Comparison) -> Iterator[str]:
    """When verdicts are given."""
    held = comparison.family
    if held.rates:
        arms = plural(len(held.rates), "arm")
        at = [size for size, _ in islice(held.spending(next(iter(held.rates))), _SHOWN_LOOKS)]
        later = "" if held.is_registered else ", ...; between them no word changes"
        of = "registered" if held.is_registered else "planned"
        were = "was" if held.planned == 1 else "were"
        if held.most is not None:
            yield f"verdicts at every seed from {at[0]} to {held.most}, until decided ({arms})"
        else:
            yield (
                f"verdicts at {', '.join(map(str, at))} seeds{later} ({held.planned} {were} {of} "
                f"for {arms})"
            )
    detects = any(arm.verdict == "inconclusive" and arm.detectable for arm in comparison.arms)
    if detects and (slope := comparison.rules.slope) is not None:
        yield (
            f"1.05x: what the baseline gains by 1.05 times its tokens, at {slope:.3g} nats per "
            "e-fold"
        )
    if (margin := comparison.rules.margin) is not None:
        yield f"margin: {margin:.4f} {UNIT}; a difference within it does not matter"


def _computed(comparison: Comparison) -> Iterator[str]:
    """How runs were computed: where not all alike, which."""
    yield from (f"computed with {text}" for text in comparison.settings)
    if ratios := {n for arm, r in comparison.step_ratios.items() if (n := r.n)}:
        yield f"time: tokens over the ratio of step times, of {min(ratios)} steps in turn, medians"
    names = [arm.variant for arm in comparison.arms if arm.variant != comparison.baseline]
    lacking = [name for name in names if name not in comparison.step_ratios]
    if lacking and comparison.terms.match == "tokens":
        of = "" if lacking == names else f" of {', '.join(lacking)}"
        typed = comparison.bench or "attnres bench"
        yield f"no step times{of}: runs are of different hours and loads; `{typed}` times in turn"
    by_engines = grouped((arm.engines, arm.variant) for arm in comparison.arms)
    if len({engine for engines in by_engines for engine in engines}) > 1:
        named = [f"{', '.join(arms)} by {' and '.join(e)}" for e, arms in by_engines.items()]
        yield f"arms computed by different engines, which agree to rounding: {'; '.join(named)}"
