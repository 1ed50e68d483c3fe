"""The question and its answer, each a sentence or two: what a page begins with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from attnres_cli.config import address
from attnres_cli.config.as_typed import ablate_typed, overrides_of
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import Status
from attnres_cli.report.table import grouped, listed
from attnres_cli.stats.pairs import Difference
from attnres_cli.stats.scaling import Multiplier
from attnres_cli.stats.sequential import Word
from attnres_cli.verdict import labels, pays
from attnres_cli.verdict.comparison import ArmResult, Comparison, Verdict
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import between, duration, interval, outward, plural
from attnres_cli.verdict.power import deciding
from attnres_cli.verdict.report_section import Chapter
from attnres_cli.verdict.rows import worth_text

_MOST_ARMS = 6  # beside the baseline, of each of which an answer speaks
_MOST_SENTENCES = 3
_MOST_REASONS = 3
_WORDS: tuple[Verdict, ...] = (*get_args(Word), "identical", "pending", "blocked")
_SENTENCES: Mapping[Verdict, str] = {
    "better": "{names} {beat} {base} {much} nats per token ({seeds}).",
    "worse": "{names} {be} worse than {base} {much} nats per token ({seeds}).",
    "equivalent": "{names} {be} equivalent to {base}, within {margin:.4g} nats per token.",
    "non-inferior": "{names} {be} non-inferior to {base}, at most {margin:.4g} nats worse.",
    "inconclusive": "Inconclusive: {names} ({seeds}{detects}).",
    "identical": "{names} {be} identical to {base}: every loss is the same, bit for bit.",
    "pending": "Pending: {reasons}.",
    "blocked": "No verdict: {reasons}.",
}
"""What is said of the arms of one verdict, of few."""
_NO_BASELINE = (
    "No run of the baseline {0} has ended, and every verdict is a difference from it: "
    "`attnres ablate {0}` trains it, or --baseline names another arm."
)
_ONE_ROW = "The row of the baseline {0} alone is shown, which is compared with nothing."
_ONE_ARM = (
    "Only the baseline {0} has been trained: another arm is what it can be compared with, as by "
    "`attnres ablate {0} attnres`."
)


def question(chapters: Sequence[Chapter]) -> str:
    """What was asked, with the models' size and the tokens."""
    models = [chapter.recipe.model for chapter in chapters if chapter.recipe is not None]
    size, tokens = "", [arm.tokens for each in chapters for arm in each.comparison.arms]
    if models:
        layers, widths = ({m.n_layers for m in models}, {m.d_model for m in models})
        size = f" with {plural(between(layers), 'layer')} of width {between(widths)}"
    told = ""
    if tokens:
        alone = chapters[0].comparison if len(chapters) == 1 else None
        told = labels.tokens(alone) if alone else f"{between(set(tokens))} tokens per run"
        told = f", on {told}"
    return f"Which residual connection should a Transformer{size} be trained with{told}?"


def answer(comparison: Comparison) -> str:
    """What the study says to that, in three sentences at most; never more than it may say."""
    if why := unanswerable(comparison):
        return why
    by_word = {word: [arm for arm in comparison.arms if arm.verdict == word] for word in _WORDS}
    arms = {word: found for word, found in by_word.items() if found}
    if sum(map(len, arms.values())) > _MOST_ARMS:
        return _of_many(comparison, arms)
    words = list(arms)
    first = words if len(words) <= _MOST_SENTENCES else words[: _MOST_SENTENCES - 1]
    values = {word: _values(comparison, arms[word]) for word in words}
    sentences = [_SENTENCES[word].format(**values[word]) for word in first]
    if len(arms.get("better", ())) == 1 and len(words) < _MOST_SENTENCES:
        sentences[1:1] = _paying(arms["better"][0], comparison)
    rest = ["{names} {be} ".format(**values[word]) + word for word in words[len(first) :]]
    return " ".join([*sentences, *([f"{'; '.join(rest)}."] if rest else [])])


def _values(comparison: Comparison, arms: Sequence[ArmResult]) -> dict[str, Any]:
    """What a sentence may say of the arms of one verdict."""
    is_one, sees = len(arms) == 1, [f"{a.detectable:.4f}" for a in arms if a.detectable is not None]
    return {
        "names": listed([arm.variant for arm in arms]),
        "base": comparison.baseline,
        "be": "is" if is_one else "are",
        "beat": "beats" if is_one else "beat",
        "much": listed([_by_how_much(arm) for arm in arms]),
        "seeds": plural(min(len(arm.pairs) for arm in arms), "seed"),
        "margin": comparison.rules.margin,
        "detects": f"; with 80% power it detects {listed(sees)} nats" if sees else "",
        "reasons": "; ".join(f"{arm.variant} ({arm.reason})" for arm in arms),
    }


def _paying(arm: ArmResult, comparison: Comparison) -> list[str]:
    """What an arm that is better is worth; empty where that is not known."""
    tokens, time = pays.tokens(arm, comparison), pays.time(arm, comparison)
    if tokens is None:
        return []
    worth, at_time = (worth_text(each).partition(" ")[0] for each in (tokens, time))
    if time is None:
        return [f"That is worth {worth} tokens."]
    ratio = comparison.step_ratios[arm.variant].median
    return [f"That is worth {worth} tokens; a step takes {ratio:.2f}x as long: {at_time} in time."]


def _by_how_much(arm: ArmResult) -> str:
    """`by 0.0210 (0.0108 to 0.0312)`; empty before the first look."""
    if arm.difference is None or arm.interval is None:
        return ""
    low, high = sorted(map(abs, arm.interval))
    return f"by {abs(arm.difference.mean):.4f} ({low:.4f} to {high:.4f})"


def _of_many(comparison: Comparison, arms: Mapping[Verdict, Sequence[ArmResult]]) -> str:
    """The best arm, and how many have each verdict: the table has the rest."""
    n, base = len(comparison.arms) - 1, comparison.baseline
    head = f"None of {n} arms beats {base}."
    if better := arms.get("better"):
        best = min(better, key=lambda arm: arm.difference.mean if arm.difference else 0.0)
        head = f"{best.variant} beats {base} {_by_how_much(best)} nats per token, the most."
    counts = {word: f"{len(found)} {word}" for word, found in arms.items()}
    if better:
        counts["better"] += _at_equal_time(better, comparison)
    sentences = [head, f"Of {n} arms: {', '.join(counts.values())}."]
    if blocked := arms.get("blocked"):
        by_reason = [*grouped((arm.reason, arm.variant) for arm in blocked).items()]
        reasons = [f"{_few(names)} ({why})" for why, names in by_reason[:_MOST_REASONS]]
        if more := sum(len(names) for _, names in by_reason[_MOST_REASONS:]):
            reasons.append(f"and {more} more")
        sentences.append(f"No verdict: {'; '.join(reasons)}.")
    return " ".join(sentences)


def _at_equal_time(arms: Sequence[ArmResult], comparison: Comparison) -> str:
    """How many are worth more time than they take, where that is known of all."""
    worth = [pays.time(arm, comparison) for arm in arms]
    known = [each for each in worth if each is not None]
    if len(known) < len(worth):
        return ""
    paying = sum(each.low > 1 for each in known)
    return f" ({paying} of them in equal time too)" if paying else " (none of them in equal time)"


def _few(names: Sequence[str]) -> str:
    """All of them, or the first and how many more."""
    if len(names) <= _MOST_REASONS + 1:
        return listed(names)
    return f"{', '.join(names[:_MOST_REASONS])} and {len(names) - _MOST_REASONS} more"


def unanswerable(comparison: Comparison) -> str:
    """Why no two arms stand beside each other, and what to type; empty where they do."""
    base, variants = comparison.baseline, {arm.variant for arm in comparison.arms}
    if not variants:
        failed = len(comparison.runs(Status.FAILED))
        waits = len(comparison.runs(Status.PENDING, Status.RUNNING))
        counts = [f"{failed} failed"] * bool(failed) + [f"{waits} waiting or running"] * bool(waits)
        again = ", with `--retry-failed` it trains failed runs again" if failed else ""
        return (
            f"No answer: no run has ended ({', '.join(counts)}). The same ablate command goes on"
            f"{again}."
        )
    if base not in variants:
        return _NO_BASELINE.format(base)
    if variants == {base}:
        return (_ONE_ROW if comparison.n_hidden else _ONE_ARM).format(base)
    return ""


def to_decide(comparison: Comparison, recipe: Recipe | None, study: str, *more: str) -> list[str]:
    """What would decide an inconclusive arm, with the command, whose last words are `more`; empty
    where nothing would.
    """
    found, typed = deciding(comparison), None if recipe is None else overrides_of(recipe)
    if found is None or typed is None:
        return []
    arm, base = found.arm, comparison.baseline
    long = "" if found.seconds is None else f", {duration(found.seconds)} on one worker"
    words = ablate_typed([base, arm.variant], *typed, range(found.seeds))
    return [
        f"To decide: {found.seeds} seeds find the difference that {arm.variant} seems to have with "
        f"80% power ({found.n_more} more{long}): "
        f"{shlex.join([*words, *address.typed(study), *more])}"
    ]


def over_sizes(found: Ladder) -> str:
    """What each arm is worth in the baseline's compute, and how its difference goes with depth."""
    baseline, arms, names = found.rungs[0].comparison.baseline, found.arms, found.size_names
    points = ", by lines through two points" if len(found.rungs) == 2 else " [95 % over sizes]"
    worth = [f"{arm.variant} {multiplier_text(arm.worth)}" for arm in arms if arm.worth]
    trends = [f"{arm.variant} {_change(arm.trend)} ({arm.course})" for arm in arms if arm.trend]
    turns = [
        f"from {names[k]} to {names[k + 1]} {arm.variant} changes by {_change(arm.steps[k])}"
        for arm in arms
        for k in arm.turns
    ]
    parts = []
    if worth:
        parts.append(
            f"At the largest size {baseline} needs this many times an arm's compute to reach its "
            f"loss{points}: {listed(worth)}."
        )
    elif found.has_laws:
        parts.append(f"No arm has a multiplier of {baseline}'s compute: `--notes` says why.")
    if trends:
        per = f"Per doubling of {found.doubled} the difference"
        parts.append(f"{per} changes by: {listed(trends)}.")
    if turns:
        parts.append(f"Not in a line, though: {listed(turns)}.")
    return " ".join(parts) or "Each size is an answer of its own; the table below has them."


def courses(found: Ladder) -> list[str]:
    """A line for each arm: its difference from the smallest size to the largest, what becomes of
    it, and at which sizes it pays, as far as budgets tell.
    """
    names, lines = found.size_names, []
    for arm in found.arms[1:]:
        gaps, times, paying, unknown = [], [], list[str](), list[str]()
        for name, rung in zip(names, found.rungs, strict=True):
            if (one := rung.arm(arm.variant)) is None:
                continue
            gaps.append(f"{rung.mean(one) - rung.mean(rung.baseline):+.4f}")
            time = pays.time(one, rung.comparison)
            times += [time] if time else []
            if time and one.verdict == "better":
                paying += [name] if time.at_least > 1 else []
                unknown += [name] if time.value > time.most <= 1 else []
        line = f"{arm.variant}: {', '.join(gaps)} nats at {names[0]} to {names[-1]}."
        if arm.trend is not None:
            line += f" It {arm.course}: {_change(arm.trend)} per doubling of {found.doubled}."
        if times:
            known = "is known to pay" if unknown else "pays"
            line += f" It {known} at {listed(paying) if paying else 'no size'}."
            line += f" At {listed(unknown)} budgets do not tell." if unknown else ""
        lines.append(line)
    return lines


def _change(found: Difference) -> str:
    return interval(found.mean, found.ci95, "+.4f")


def multiplier_text(found: Multiplier | None) -> str:
    """`1.253 [1.101, 1.403]`; without the interval where there is none."""
    return "-" if found is None else outward(found.value, found.ci95, 3)
