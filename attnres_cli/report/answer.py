"""The question and its answer, each a sentence or two: what a page begins with."""

from __future__ import annotations

from collections.abc import Sequence

from attnres_cli.records.run import Status
from attnres_cli.report.comparison import difference_text
from attnres_cli.report.table import capital, listed
from attnres_cli.stats.pairs import Difference
from attnres_cli.stats.scaling import Multiplier
from attnres_cli.verdict import labels
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.format import between, interval
from attnres_cli.verdict.ladder import Ladder


def question(chapters: Sequence[Chapter]) -> str:
    """What was asked, with the models' size and the tokens."""
    models = [chapter.recipe.model for chapter in chapters if chapter.recipe is not None]
    size, tokens = "", [arm.tokens for each in chapters for arm in each.comparison.arms]
    if models:
        layers, widths = ({m.n_layers for m in models}, {m.d_model for m in models})
        size = f" with {between(layers)} layers of width {between(widths)}"
    told = ""
    if tokens:
        alone = chapters[0].comparison if len(chapters) == 1 else None
        told = labels.tokens(alone) if alone else f"{between(set(tokens))} tokens per run"
        told = f", on {told}"
    return f"Which residual connection should a Transformer{size} be trained with{told}?"


def answer(comparison: Comparison) -> str:
    """What the study says to that, and what it takes to say more; never more than it may say."""
    words = ("better", "worse", "not separable", "blocked")
    arms = {word: [arm for arm in comparison.arms if arm.verdict == word] for word in words}
    return unanswerable(comparison) or " ".join(
        _sentence(word, comparison.baseline, arms[word]) for word in words if arms[word]
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


def _sentence(word: str, baseline: str, arms: Sequence[ArmResult]) -> str:
    """What is said of the arms of one verdict."""
    if word == "blocked":
        return "No verdict: " + "; ".join(f"{arm.variant} ({arm.reason})" for arm in arms) + "."
    found = [(arm.variant, arm.difference) for arm in arms if arm.difference is not None]
    if word != "not separable":
        named = listed([_by_how_much(*each) for each in found])
        return f"{capital(word)} than {baseline}: {named} nats per token."
    names, seeds = listed([name for name, _ in found]), min(one.n for _, one in found)
    text = f"{names}: not separable from {baseline} with {seeds} seeds"
    seen = [(one.detectable, name) for name, one in found if one.detectable is not None]
    if not seen:
        return f"{text}."
    least, name = min(seen)
    of = f" of {name}, and of the others only more" if len(found) > 1 else ""
    return f"{text}, which would have seen {least:.4f} nats or more{of} (80 % power)."


def _by_how_much(variant: str, difference: Difference) -> str:
    """`attnres by 0.0210 [0.0108, 0.0312]`."""
    low, high = sorted(map(abs, difference.ci95))
    return f"{variant} by {interval(abs(difference.mean), (low, high), '.4f')}"


def over_sizes(found: Ladder) -> str:
    """What each arm is worth in the baseline's compute, and how its difference goes with depth."""
    baseline = found.rungs[0].comparison.baseline
    arms = found.arms
    worth = [f"{arm.variant} {multiplier_text(arm.worth)}" for arm in arms if arm.worth]
    if not worth:
        return f"No arm has a multiplier of {baseline}'s compute; the notes below say why."
    points = ", by lines through two points" if len(found.rungs) == 2 else ""
    parts = [
        f"At the largest size {baseline} needs this many times an arm's compute to reach its loss"
        f"{points}: {listed(worth)}."
    ]
    trends = [f"{arm.variant} {difference_text(arm.trend)}" for arm in arms if arm.trend]
    if trends:
        parts.append(f"Per doubling of layers the difference changes by: {listed(trends)}.")
    return " ".join(parts)


def multiplier_text(found: Multiplier | None) -> str:
    """`1.253 [1.101, 1.402]`; without the interval where there is none."""
    return "-" if found is None else interval(found.value, found.ci95, ".3f")
