"""What qualifies the answer of a comparison: one list, which every format prints beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnres_cli.records import doubts, gates
from attnres_cli.records.comparison_terms import ArmRecipe, Given, Matched
from attnres_cli.records.run import Status
from attnres_cli.stats.looks import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.codes import left_out
from attnres_cli.verdict.comparison import Comparison, ended_how
from attnres_cli.verdict.format import plural
from attnres_cli.verdict.registered import EXPLORATORY

_LARGEST_RATE = 0.5  # beyond it a bound says nothing


def qualifiers(comparison: Comparison, n_tables: int = 1) -> list[str]:
    """What the answer must be read with, a line each, what weighs most first; empty where nothing
    does. `n_tables` are read together.
    """
    found = [
        *_fixed(comparison, n_tables),
        *_ended(comparison),
        *_learned(comparison),
        *_rates(comparison),
        *_doubts(comparison),
        *_seeds(comparison),
        *left_out(comparison.older, comparison.records),
        *_mixed(comparison),
    ]
    return list(dict.fromkeys(found))


def n_read(comparison: Comparison, shown: Sequence[Comparison]) -> int:
    """How many tables are read together with one, itself included. No exploratory one changes what
    was registered: beside a registered one they do not count.
    """
    is_fixed = not comparison.registered.startswith(EXPLORATORY)
    return sum(not (is_fixed and each.registered.startswith(EXPLORATORY)) for each in shown)


def _fixed(comparison: Comparison, n_tables: int) -> Iterator[str]:
    """What was not fixed before the first run, and over how many tables one reads."""
    if comparison.registered.startswith(EXPLORATORY):
        yield comparison.registered
    if n_tables > 1:
        errs = f"each of which errs in {ALPHA:.0%} of studies".replace("%", " %")
        yield f"one of {n_tables} tables, {errs}: {_together(ALPHA * n_tables)}"


def _together(rate: float) -> str:
    """What a sum of rates means: a bound on the rate of any error, or a mean number of errors."""
    if rate > _LARGEST_RATE:
        return f"{rate:.1f} of them on average, at most"
    return f"all of them in up to {100 * rate:.0f} %"


def _ended(comparison: Comparison) -> Iterator[str]:
    """What has not ended, or failed; where nothing has ended the answer says it."""
    if not comparison.arms:
        return
    words = {Status.PENDING: "pending", Status.RUNNING: "running, or killed"}
    counts = {word: len(comparison.runs(status)) for status, word in words.items()}
    if waiting := [f"{count} {word}" for word, count in counts.items() if count]:
        yield f"runs {' and '.join(waiting)}: the same ablate command goes on"
    if failed := len(comparison.runs(Status.FAILED)):
        yield f"{plural(failed, 'run')} failed: the same command with --retry-failed goes on"


def _learned(comparison: Comparison) -> Iterator[str]:
    """What makes the data too poor for a verdict, and a baseline that learned little of them."""
    most = max((arm.tokens for arm in comparison.arms), default=0)
    yield from doubts.of(comparison.data, most, comparison.rules.eval_tokens)
    base, line = comparison.base, doubts.line(comparison.data)
    if line is not None and base is not None and base.mean >= line[1]:
        yield (
            f"the baseline ends above the {line[0]} line: models that have learned so little say "
            "little"
        )


def _doubts(comparison: Comparison) -> Iterator[str]:
    """What a design does not do that it should, and why one is believed all the same."""
    for arm in comparison.arms:
        if arm.believed:
            yield f"{arm.variant} looks too good to be true; its note says why: {arm.believed}"
        missed = {gate.name for met in arm.gates.values() for gate in met if not gate.passed}
        for name in sorted(missed & set(gates.DOUBTS)):
            yield f"{arm.variant}: {gates.NOT_SO[name]} (attnres check {arm.variant})"


def _rates(comparison: Comparison) -> Iterator[str]:
    """Whose learning rates are not the arms' own."""
    others = [arm for arm in comparison.arms if arm.variant != comparison.baseline]
    terms, own = comparison.terms, [arm.own for arm in comparison.arms if arm.own is not None]
    if others and not (terms.is_tuned or terms.by_design):
        yield (
            "one learning rate for every arm, the recipe's: at its own an arm may do better "
            "(--tune-lr)"
        )
    if lent := [each.variant for each in own if _is_lent(each)]:
        yield (
            f"no learning rate of its own in this recipe: {', '.join(lent)}; at one an arm may do "
            "better (--tune-lr)"
        )
    yield from labels.warnings(own)


def _is_lent(own: ArmRecipe) -> bool:
    """Whether an arm takes the recipe's one rate, though others have rates of their own."""
    given = own.how.given if isinstance(own.how, Matched) else own.how
    return isinstance(given, Given) and not given.is_own


def _seeds(comparison: Comparison) -> Iterator[str]:
    """Rows that are of fewer seeds than there are; seeds far from the others, and removed ones."""
    every, base = len(comparison.family.seeds), comparison.base
    short: dict[tuple[int, int | None], list[str]] = {}
    for arm in comparison.arms:
        if arm.look is not None and 0 < arm.look.n < every:
            short.setdefault((arm.look.n, arm.look.next), []).append(arm.variant)
    for (n, at), names in short.items():
        later = "" if at is None else f", the next look is at {at}"
        yield f"judged by {n} of {every} seeds{later}: {', '.join(names)}"
    for arm in comparison.arms:
        if arm.far and base is not None:
            values = ", ".join(f"{s} ({arm.losses[s] - base.losses[s]:+.4f})" for s in arm.far)
            yield (
                f"{arm.variant}: far from its other seeds: {values}; a mean speaks of all seeds, "
                "not of most"
            )
    for gone in comparison.removed:
        why = "" if gone.reason is None else f"; left out: {gone.reason}"
        yield f"removed: {gone.variant} seed {gone.seed}, {ended_how(gone)}{why}"


def _mixed(comparison: Comparison) -> Iterator[str]:
    mixed = [(arm.variant, ", ".join(map(str, arm.mixed))) for arm in comparison.arms if arm.mixed]
    if mixed:
        yield (
            "trained by other versions than the baseline, so that a part of the difference may be "
            f"the software's: {'; '.join(f'{name} on seed {seeds}' for name, seeds in mixed)}; a "
            "new --study trains all by one"
        )
