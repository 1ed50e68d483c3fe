"""The question and its answer, each a sentence or two: what a page begins with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import get_args

from attnres_cli.config import address
from attnres_cli.config.as_typed import ablate_typed, overrides_of
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import Status
from attnres_cli.report.table import listed
from attnres_cli.stats.scaling import Multiplier
from attnres_cli.stats.sequential import Word
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import ArmResult, Comparison, Verdict
from attnres_cli.verdict.deciding import deciding
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import between, duration, interval, outward, plural
from attnres_cli.verdict.report_section import Chapter

_MOST_ARMS = 6  # beside the baseline, of each of which an answer speaks
_MOST_SENTENCES = 3
_MOST_REASONS = 3
_WORDS: tuple[Verdict, ...] = (*get_args(Word), "identical", "pending", "blocked")


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
    sentences = [_sentence(word, comparison, arms[word]) for word in first]
    rest = [f"{_names(arms[word])} {_be(arms[word])} {word}" for word in words[len(first) :]]
    return " ".join([*sentences, *([f"{'; '.join(rest)}."] if rest else [])])


def _of_many(comparison: Comparison, arms: Mapping[Verdict, Sequence[ArmResult]]) -> str:
    """The best arm, and how many have each verdict: the table has the rest."""
    n, base = len(comparison.arms) - 1, comparison.baseline
    head = f"None of {n} arms beats {base}."
    if better := arms.get("better"):
        best = min(better, key=lambda arm: arm.mean)
        head = f"{best.variant} beats {base} {_by_how_much(best)} nats per token, the most."
    counts = [f"{len(found)} {word}" for word, found in arms.items()]
    sentences = [head, f"Of {n} arms: {', '.join(counts)}."]
    if blocked := arms.get("blocked"):
        told = [f"{arm.variant} ({arm.reason})" for arm in blocked[:_MOST_REASONS]]
        if (more := len(blocked) - _MOST_REASONS) > 0:
            told.append(f"and {more} more")
        sentences.append(f"No verdict: {'; '.join(told)}.")
    return " ".join(sentences)


def unanswerable(comparison: Comparison) -> str:
    """Why no two arms stand beside each other, and what to type; empty where they do."""
    base, variants = comparison.baseline, {arm.variant for arm in comparison.arms}
    if not variants:
        return _nothing(comparison)
    if base not in variants:
        return (
            f"No run of the baseline {base} has ended, and every verdict is a difference from it: "
            f"`attnres ablate {base}` trains it, or --baseline names another arm."
        )
    if variants == {base} and comparison.n_hidden:
        return f"The row of the baseline {base} alone is shown, which is compared with nothing."
    if variants == {base}:
        return (
            f"Only the baseline {base} has been trained: another arm is what it can be compared "
            f"with, as by `attnres ablate {base} attnres`."
        )
    return ""


def _nothing(comparison: Comparison) -> str:
    failed = len(comparison.runs(Status.FAILED))
    waits = len(comparison.runs(Status.PENDING, Status.RUNNING))
    told = [f"{failed} failed" if failed else "", f"{waits} waiting or running" if waits else ""]
    counts = ", ".join(part for part in told if part)
    return f"No answer: no run has ended ({counts}). The same ablate command goes on" + (
        ", with `--retry-failed` it trains failed runs again." if failed else "."
    )


def _sentence(word: Verdict, comparison: Comparison, arms: Sequence[ArmResult]) -> str:
    """What is said of the arms of one verdict, of few."""
    names, margin = _names(arms), comparison.rules.margin
    of = comparison.baseline
    if word in ("better", "worse"):
        verb = f"{_be(arms)} worse than"
        if word == "better":
            verb = "beats" if len(arms) == 1 else "beat"
        much = listed([_by_how_much(arm) for arm in arms])
        return f"{names} {verb} {of} {much} nats per token ({_seeds(arms)})."
    if word in ("pending", "blocked"):
        told = "; ".join(f"{arm.variant} ({arm.reason})" for arm in arms)
        return f"{'Pending' if word == 'pending' else 'No verdict'}: {told}."
    if word == "identical":
        return f"{names} {_be(arms)} identical to {of}: every loss is the same, bit for bit."
    if word == "equivalent":
        return f"{names} {_be(arms)} equivalent to {of}, within {margin:.4g} nats per token."
    if word == "non-inferior":
        return f"{names} {_be(arms)} non-inferior to {of}, at most {margin:.4g} nats worse."
    seen = [arm.detectable for arm in arms if arm.detectable is not None]
    nats = f"; with 80% power it detects {listed([f'{s:.4f}' for s in seen])} nats" if seen else ""
    return f"Inconclusive: {names} ({_seeds(arms)}{nats})."


def _names(arms: Sequence[ArmResult]) -> str:
    return listed([arm.variant for arm in arms])


def _be(arms: Sequence[ArmResult]) -> str:
    return "is" if len(arms) == 1 else "are"


def _seeds(arms: Sequence[ArmResult]) -> str:
    return plural(min(len(arm.pairs) for arm in arms), "seed")


def _by_how_much(arm: ArmResult) -> str:
    """`by 0.0210 (0.0108 to 0.0312)`."""
    assert arm.difference is not None
    assert arm.interval is not None
    low, high = sorted(map(abs, arm.interval))
    return f"by {abs(arm.difference.mean):.4f} ({low:.4f} to {high:.4f})"


def to_decide(comparison: Comparison, recipe: Recipe | None, study: str) -> list[str]:
    """What would decide an inconclusive arm, with the command; empty where nothing would."""
    found, typed = deciding(comparison), None if recipe is None else overrides_of(recipe)
    if found is None or typed is None:
        return []
    arm, base = found.arm, comparison.baseline
    long = "" if found.seconds is None else f", {duration(found.seconds)} on one worker"
    words = ablate_typed([base, arm.variant], *typed, range(found.seeds))
    return [
        f"To decide: {found.seeds} seeds find the difference that {arm.variant} seems to have with "
        f"80% power ({found.n_more} more{long}): "
        f"{shlex.join([*words, *address.typed(study)])}"
    ]


def over_sizes(found: Ladder) -> str:
    """What each arm is worth in the baseline's compute, and how its difference goes with depth."""
    baseline = found.rungs[0].comparison.baseline
    arms = found.arms
    worth = [f"{arm.variant} {multiplier_text(arm.worth)}" for arm in arms if arm.worth]
    n = len(found.rungs)
    points = ", by lines through two points" if n == 2 else " [95 % over sizes]"
    parts = []
    if worth:
        parts.append(
            f"At the largest size {baseline} needs this many times an arm's compute to reach its "
            f"loss{points}: {listed(worth)}."
        )
    elif found.has_laws:
        parts.append(f"No arm has a multiplier of {baseline}'s compute: `--notes` says why.")
    trends = [
        f"{arm.variant} {interval(arm.trend.mean, arm.trend.ci95, '+.4f')}"
        for arm in arms
        if arm.trend
    ]
    if trends:
        parts.append(f"Per doubling of layers the difference changes by: {listed(trends)}.")
    names = found.size_names
    turns = [
        f"from {names[k]} to {names[k + 1]} {arm.variant} changes by "
        f"{interval(arm.steps[k].mean, arm.steps[k].ci95, '+.4f')}"
        for arm in arms
        for k in arm.turns
    ]
    if turns:
        parts.append(f"Not in a line, though: {listed(turns)}.")
    return " ".join(parts) or "Each size is an answer of its own; the table below has them."


def multiplier_text(found: Multiplier | None) -> str:
    """`1.253 [1.101, 1.403]`; without the interval where there is none."""
    return "-" if found is None else outward(found.value, found.ci95, 3)
