"""The question and its answer, each a sentence or two: what a page begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from attnres_cli.records.run import Status
from attnres_cli.report.table import capital, listed
from attnres_cli.stats.looks import Word
from attnres_cli.stats.power import multiplier
from attnres_cli.stats.scaling import Multiplier
from attnres_cli.verdict import labels
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import ArmResult, Comparison, Verdict
from attnres_cli.verdict.format import between, interval, outward, plural
from attnres_cli.verdict.ladder import Ladder

_MOST = 6  # arms of one verdict that an answer names: a table of thirty is read, a sentence is not
_WORDS: tuple[Verdict, ...] = (*get_args(Word), "identical", "no verdict yet", "blocked")


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
    """What the study says to that, and what it takes to say more; never more than it may say."""
    arms = {word: [arm for arm in comparison.arms if arm.verdict == word] for word in _WORDS}
    return unanswerable(comparison) or " ".join(
        _sentence(word, comparison, arms[word]) for word in _WORDS if arms[word]
    )


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


def _sentence(word: str, comparison: Comparison, arms: Sequence[ArmResult]) -> str:
    """What is said of the arms of one verdict."""
    baseline, names = comparison.baseline, listed([arm.variant for arm in arms])
    if len(arms) > _MOST:
        names = _of_all(arms, comparison)
    if word in ("blocked", "no verdict yet"):
        if len(arms) > _MOST:
            return f"{'No verdict' if word == 'blocked' else capital(word)} of {names}."
        told = "; ".join(f"{arm.variant} ({arm.reason})" for arm in arms)
        return f"{'No verdict' if word == 'blocked' else capital(word)}: {told}."
    if word in ("better", "worse"):
        named = _all_or_most(arms, comparison)
        return f"{capital(word)} than {baseline}: {named} nats per token."
    if word == "identical":
        return f"{names}: identical to {baseline}, every loss is the same, bit for bit."
    if word != "not separable":
        said = word.replace("equal", f"equal to {baseline}").replace(
            "worse", f"worse than {baseline}"
        )
        text = f"{names}: {said} of {comparison.rules.margin:.4g} nats per token"
        return f"{text}{_apart(baseline, arms)}."
    seeds = min(len(arm.pairs) for arm in arms)
    text = f"{names}: not separable from {baseline} with {seeds} seeds"
    seen = [(arm.sees, arm.variant) for arm in arms if arm.sees is not None]
    if not seen:
        return f"{text}."
    least, name = min(seen)
    slope = comparison.rules.slope
    worth = "" if slope is None else f", worth {multiplier(least, slope):.2f}x of compute,"
    of = f" of {name}, and of the others only more" if len(arms) > 1 else ""
    return f"{text}, which would have seen {least:.4f} nats{worth} or more{of} (80 % power)."


def _apart(baseline: str, arms: Sequence[ArmResult]) -> str:
    """Which of them differ from the baseline all the same, by less than the margin."""
    told = []
    for arm in arms:
        assert arm.interval is not None
        if not arm.interval[0] <= 0 <= arm.interval[1]:
            side = "below" if arm.interval[1] < 0 else "above"
            told.append(f"{_by_how_much(arm)} {side} {baseline}")
    return f", of them {listed(told)}" if told else ""


def _of_all(arms: Sequence[ArmResult], comparison: Comparison) -> str:
    """`9 of 27 arms`, where the table below has their names."""
    return f"{len(arms)} of {plural(len(comparison.arms) - 1, 'arm')}"


def _all_or_most(arms: Sequence[ArmResult], comparison: Comparison) -> str:
    """By how much each arm, or of many the one that differs most."""
    if len(arms) <= _MOST:
        return listed([_by_how_much(arm) for arm in arms])
    gaps = {abs(arm.difference.mean): arm for arm in arms if arm.difference is not None}
    least, most = min(gaps), max(gaps)
    span = f"by {least:.4f} to {most:.4f}"
    return f"{_of_all(arms, comparison)}, {span}, most {_by_how_much(gaps[most])}"


def _by_how_much(arm: ArmResult) -> str:
    """`attnres by 0.0210 [0.0108, 0.0312]`."""
    assert arm.difference is not None
    assert arm.interval is not None
    low, high = sorted(map(abs, arm.interval))
    return f"{arm.variant} by {interval(abs(arm.difference.mean), (low, high), '.4f')}"


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
        parts.append(f"No arm has a multiplier of {baseline}'s compute; the notes below say why.")
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
