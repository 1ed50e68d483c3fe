"""What qualifies the answer of a comparison: one list, which every format prints beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from attnres_cli.config.arms import SCALE
from attnres_cli.records import doubts, gates
from attnres_cli.records.comparison_terms import Given, Matched, Tuned, settings_text
from attnres_cli.records.evaluated import bits_per_byte
from attnres_cli.records.run import Probe, Status
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.codes import left_out
from attnres_cli.verdict.comparison import ArmResult, Comparison, ended_how
from attnres_cli.verdict.numbers import plural, spans
from attnres_cli.verdict.registered import is_exploratory
from attnres_cli.verdict.rows import difference_text

_LARGEST_RATE = 0.5  # beyond it a bound says nothing
_MOST_NAMED = 3
_UNSURE = 0.2  # p of a sign test that says nothing: at seven seeds, five of one sign have 0.45
_FAR_ABOVE = 1.5  # times the bits that zlib needs

OF_MOVING = ("added", "moved", "agreement")
"""Fields of a probe: what says whether parameters of designs were still moving."""

_STILL = 1.5
"""Times the distance of a random walk from which numbers count as still moving: nothing has held
them yet. docs/fair-terms.md has the calibration.
"""

_WALK = 0.9
"""Mean distance that steps of random sign cover, times the root of their number, as a share of the
same steps all in one direction; of the schedules that recipes have, 0.85 to 0.94.
"""


def qualifiers(comparison: Comparison, n_tables: int = 1) -> list[str]:
    """What the answer must be read with, a line each, what weighs most first; empty where nothing
    does. `n_tables` are read together.
    """
    found = [
        *_fixed(comparison, n_tables),
        *_ended(comparison),
        *_doubts(comparison),
        *_learned(comparison),
        *_rates(comparison),
        *_moving(comparison),
        *_seeds(comparison),
        *left_out(comparison.older, comparison.records),
        *_mixed(comparison),
    ]
    return list(dict.fromkeys(found))


def not_kept(comparison: Comparison) -> list[str]:
    """What to say where the study does not keep that this table was asked for, and why; else []."""
    why = comparison.not_kept
    return [f"the study does not keep that this table was asked for: {why}"] if why else []


def n_read(comparison: Comparison, shown: Sequence[Comparison]) -> int:
    """How many tables are read together with one, itself included. No exploratory one changes what
    was registered: beside a registered one they do not count.
    """
    is_fixed = not is_exploratory(comparison)
    return sum(not (is_fixed and is_exploratory(each)) for each in shown)


def _fixed(comparison: Comparison, n_tables: int) -> Iterator[str]:
    """What was not fixed before the first run, and over how many tables one reads."""
    if is_exploratory(comparison):
        yield comparison.registered
    if is_exploratory(comparison) or not comparison.registered:
        n_tables = max(n_tables, comparison.n_asked)
    if n_tables > 1:
        rate = ALPHA * n_tables
        wrong = f"up to {rate:.1f} of them are wrong on average"
        if rate <= _LARGEST_RATE:
            wrong = f"the chance that any of them is wrong is up to {rate:.0%}"
        yield f"one of {n_tables} tables: {wrong}"


def _ended(comparison: Comparison) -> Iterator[str]:
    """What has not ended, or failed; where nothing has ended the answer says it."""
    if not comparison.arms:
        return
    words = {Status.PENDING: "pending", Status.RUNNING: "running, or killed"}
    counts = {word: len(comparison.runs(status)) for status, word in words.items()}
    if waiting := [f"{count} {word}" for word, count in counts.items() if count]:
        yield f"runs {' and '.join(waiting)}: the same ablate command finishes them"
    ended = comparison.runs(Status.COMPLETE)
    lost = [run for run in ended if run.result and run.result.weights_sha256 is None]
    if 0 < len(lost) < len(ended):
        named = _named([f"{run.variant} seed {run.seed}" for run in lost])
        yield f"no final weights were kept of {named}, as of a full disk; losses are whole"
    for status, does in ((Status.FAILED, "failed"), (Status.DIVERGED, "diverged")):
        if lost := comparison.runs(status):
            counts = Counter(run.variant for run in lost)
            named = ", ".join(f"{arm} {n}" for arm, n in counts.most_common(_MOST_NAMED))
            again = ": --retry-failed trains failed runs again" if does == "failed" else ""
            counted = f"{plural(len(lost), 'run')} {does}"
            yield f"{counted}, which counts against its arm ({named}){again}"


def _learned(comparison: Comparison) -> Iterator[str]:
    """What makes the data too poor for a verdict, and a baseline that learned little of them."""
    most = max((arm.tokens for arm in comparison.arms), default=0)
    yield from doubts.of(comparison.data, most, comparison.rules.eval_tokens)
    base, line = comparison.base, doubts.line(comparison.data)
    if line is not None and base is not None and base.mean >= line[1]:
        yield (
            f"the baseline ends above the {line[0]} line: its models learned too little to say much"
        )
    packed = comparison.data.zlib_bits
    if base is not None and packed:
        bits = bits_per_byte(base.mean, comparison)
        if bits is not None and bits > _FAR_ABOVE * packed:
            yield (
                f"the baseline ends at {bits:.1f} bits per byte, zlib needs {packed:.1f}: too "
                "little training to say anything of longer training"
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
    terms, base = comparison.terms, comparison.base
    is_compared = any(arm.variant != comparison.baseline for arm in comparison.arms)
    if is_compared and not (terms.is_tuned or terms.by_design):
        yield "every arm has the recipe's learning rate; tuned, an arm may do better (--tune-lr)"
    if lent := ", ".join(arm.variant for arm in comparison.arms if _is_lent(arm)):
        yield f"the recipe has no settings for {lent}; tuned, an arm may do better (--tune-lr)"
    how = base.own.how if base and base.own else None
    if base and isinstance(how, Tuned) and how.second and how.changes and not terms.rate_only:
        keys = " ".join(f"--set {key}={value:g}" for key, value in how.changes)
        yield (
            f"{base.variant} does better at {settings_text(how.changes)} than at the recipe's "
            f"value, which the other arms have: {keys} gives it to all"
        )
    yield from labels.warnings([arm.own for arm in comparison.arms if arm.own is not None])


def _is_lent(arm: ArmResult) -> bool:
    """Whether an arm takes the recipe's one rate, though others have rates of their own."""
    how = arm.own and arm.own.how
    given = how.given if isinstance(how, Matched) else how
    return isinstance(given, Given) and not given.is_own


def _moving(comparison: Comparison) -> Iterator[str]:
    """Arms whose own parameters were still on their way when training ended, those with the one
    that came furthest first.
    """
    far = [(max((n, name) for name, n in of.items()), arm) for arm, of in comparison.moving.items()]
    if far:
        far.sort(key=lambda each: -each[0][0])
        ((share, name), first), *_ = far
        more = _named([arm for _, arm in far]).removeprefix(first)
        arm = comparison.arm(first)
        changes = getattr(arm.own.how, "changes", ()) if arm and arm.own else ()
        scale = 10 * float(dict(changes).get(SCALE, 1))
        advice = f"; try --set arms.{first}.{SCALE}={scale:g}, or --tune-lr"
        yield (
            f"still moving when training ended: {first} (its {name}, {share:.0%} of the way that "
            f"the learning rate allows){more}{'' if comparison.terms.is_tuned else advice}"
        )


def still_moving(probes: Sequence[Probe]) -> dict[str, float]:
    """By parameter, how far it moved on average over these last probes of runs, as a share of what
    its learning rate allows in one direction, where that is far.
    """
    names = probes[0].added.split(", ") if probes and probes[0].added else []
    alike = [probe for probe in probes if probe.moved and len(probe.moved) == len(names)]
    if not alike:
        return {}
    far = _STILL * _WALK / math.sqrt(max(1, max(probe.step for probe in alike)))
    means = zip(*(probe.moved for probe in alike if probe.moved), strict=True)
    found = {name: fmean(shares) for name, shares in zip(names, means, strict=True)}
    return {name: share for name, share in found.items() if share >= far}


def _named(names: Sequence[str]) -> str:
    """The first of several, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _seeds(comparison: Comparison) -> Iterator[str]:
    """Seeds that were chosen; rows that are of fewer seeds than there are; seeds far from the
    others, and removed ones.
    """
    seeds, base = sorted(comparison.family.seeds), comparison.base
    every = len(seeds)
    if not comparison.rules.is_registered and seeds != [*range(every)]:
        yield f"seeds were chosen, they are not 0 to {every - 1}: {spans(seeds)}"
    short: dict[tuple[int, int | None], list[str]] = {}
    for arm in comparison.arms:
        if arm.look is not None and 0 < arm.look.n < every:
            short.setdefault((arm.look.n, arm.look.next), []).append(arm.variant)
    for (n, at), names in short.items():
        later = "" if at is None else f"; the next look is at {at} seeds"
        yield f"judged by {n} of {every} seeds: {', '.join(names)}{later}"
    outliers = [
        f"{arm.variant} seed {seed} ({arm.losses[seed] - base.losses[seed]:+.4f})"
        for arm in comparison.arms
        for seed in arm.far
        if base is not None
    ]
    if outliers:
        yield f"outliers, far from the other seeds: {', '.join(outliers)}"
    for arm in comparison.arms:
        if arm.signs and arm.difference and _is_torn(arm):
            yield (
                f"{arm.variant}: few seeds decide its mean, {arm.difference.mean:+.4f}; the median "
                f"is {arm.signs.median:+.4f}, the sign test has p = {arm.signs.p:.2g}"
            )
    for gone in comparison.removed:
        why = "" if gone.reason is None else f"; left out: {gone.reason}"
        yield f"removed: {gone.variant} seed {gone.seed}, {ended_how(gone)}{why}"
    words = [
        f"{arm.variant} {arm.whole.verdict} {difference_text(arm.whole)}"
        for arm in comparison.arms
        if arm.whole is not None
    ]
    if words:
        yield f"with the runs that were left out: {'; '.join(words)}"


def _is_torn(arm: ArmResult) -> bool:
    """Whether the sign test and the interval disagree: the interval excludes 0 and the signs say
    nothing, or most seeds say the opposite of the mean.
    """
    assert arm.signs is not None
    assert arm.difference is not None
    if arm.interval is None:
        return False
    is_clear = arm.interval[0] > 0 or arm.interval[1] < 0
    is_opposite = arm.signs.median * arm.difference.mean < 0
    return arm.signs.p >= _UNSURE if is_clear else is_opposite and arm.signs.p < _UNSURE


def _mixed(comparison: Comparison) -> Iterator[str]:
    mixed = [arm for arm in comparison.arms if arm.mixed]
    named = [f"{arm.variant} on seed {', '.join(map(str, arm.mixed))}" for arm in mixed]
    if named:
        yield (
            "trained by other versions of the software than the baseline: "
            f"{'; '.join(named)}. Part of the "
            "difference may come from that; a new --study trains all by one version"
        )
