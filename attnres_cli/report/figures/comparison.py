"""Figures of one comparison's losses; each `draw_...` gives None where there is nothing to draw."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres_cli.config.arms import SCALE
from attnres_cli.records.comparison_terms import Tuned
from attnres_cli.records.run import RunRecord
from attnres_cli.report.figures import style
from attnres_cli.report.figures.style import canvas, legend, looks_of, named, short
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.verdict.comparison import ArmResult
from attnres_cli.verdict.report_section import Chapter
from attnres_cli.verdict.select import options_of

FOREST = (
    "Large dots: mean over seeds of arm minus baseline, paired by seed; bars: intervals that hold "
    "together for all arms and looks with 95 % probability; small dots: single seeds. Left of zero "
    "is better; an arm off the scale has its mean beside an arrow."
)
_ALIKE = "Of many arms the baseline and the eight of least loss are named, the others grey."
CURVES = (
    "Lines: training loss, mean over seeds and over five steps that were logged; dots: validation "
    f"loss, mean over seeds, bars one standard deviation to each side. {_ALIKE}"
)
COST = (
    f"Down is better, left is cheaper; bars: the interval of the paired difference. {_ALIKE} An "
    "arrow: off the scale."
)
BLOCK_SIZES = "Points and lines: mean over seeds; bars: one standard deviation to each side."

MULTIPLIERS = (
    "Mean loss of each design's tuning runs, less that at a multiplier of 1, at its own learning "
    "rate; bars: one standard error over seeds. Down is better. Larger dots: what was chosen."
)

_LONGEST = 38  # characters of a name that leave room for its verdict
_MANY, _LONGEST_BESIDE = 12, 24  # of more arms each is a line, which is half as tall
_SMOOTHED = 5  # points, of some 100 that a run keeps
_SHOWN_FROM = 0.25  # of the tokens: the fall from ln(vocab) would leave the rest flat

Curve = list[tuple[float, float, float]]
"""Tokens, mean and standard deviation (0 of one seed) of the loss."""


def draw_forest(chapter: Chapter) -> Figure | None:
    """Forest plot: the paired difference of every arm from the baseline, with its interval."""
    comparison, gaps = chapter.comparison, style.gaps(chapter.comparison)
    if not gaps:
        return None
    looks, are_many = looks_of(comparison), len(gaps) > _MANY
    figure, (axes,) = canvas(0.85 + (0.24 if are_many else 0.52) * len(gaps))
    across = axes.get_yaxis_transform()
    off: dict[str, Any] = {"weight": "bold", "transform": across, "va": "center", "fontsize": 9}
    for row, gap in enumerate(gaps):
        look = looks[gap.arm.variant]
        _name(axes, row, gap.arm, is_beside=are_many)
        if gap.is_far:
            side = "right" if gap.mean > 0 else "left"
            text = style.arrow(gap.mean, 3)
            axes.text(gap.mean > 0, row, text, color=look.colour, ha=side, **off)
            continue
        axes.plot(gap.ends, [row] * len(gap.ends), color=look.colour, lw=2.2, solid_capstyle="butt")
        at = [row] * len(gap.seeds)
        axes.plot(gap.seeds, at, "o", zorder=4, ms=3, mfc="white", mec=look.colour, mew=0.8)
        axes.plot(gap.mean, row, look.marker, ms=8, color=look.colour)
    axes.axvline(0, color=looks[comparison.baseline].colour, lw=1, ls="--")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    label = f"loss minus that of {short(comparison.baseline)} (nats/token)"
    axes.set(xlabel=label, ylim=(len(gaps) - 0.6, -0.8), yticks=[])
    return figure


def _name(axes: Axes, row: int, arm: ArmResult, *, is_beside: bool) -> None:
    """An arm's name and verdict above its interval, or of many arms beside it."""
    at: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": 9}
    if is_beside:
        at |= {"va": "center", "fontsize": 8}
        axes.text(-0.02, row, short(arm.variant, _LONGEST_BESIDE), ha="right", **at)
        axes.text(1.02, row, arm.verdict, ha="left", **at)
        return
    at["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    axes.text(0, row - 0.24, short(arm.variant, _LONGEST), ha="left", va="bottom", **at)
    axes.text(1, row - 0.24, arm.verdict, ha="right", va="bottom", weight="bold", **at)


def draw_curves(chapter: Chapter) -> Figure | None:
    """Training and validation loss over tokens, a colour per arm."""
    comparison = chapter.comparison
    runs = {arm.variant: chapter.runs_of(arm.variant) for arm in comparison.arms}
    judged = {name: curve_of(of, "val_loss") for name, of in runs.items()}
    judged = {name: curve for name, curve in judged.items() if len(curve) > 1}
    if not judged:
        return None
    trained = {name: _smooth(curve_of(runs[name], "train_loss")) for name in judged}
    figure, (axes,) = canvas(3.2)
    looks, names = looks_of(comparison), named(comparison)
    front = [name for name in judged if name in names]
    for name in front:
        look, zorder = looks[name], 3 if name == comparison.baseline else 2
        x, y, _ = np.transpose(trained[name] or judged[name])
        axes.plot(x, y, look.dashes, color=look.colour, label=short(name), lw=1.2, zorder=zorder)
        x, y, sd = np.transpose(judged[name])
        axes.errorbar(
            x, y, yerr=sd, fmt=look.marker, color=look.colour, ms=4, elinewidth=1.2, zorder=zorder,
        )  # fmt: skip
    for name, label in style.background(names, list(judged)).items():
        x, y, _ = np.transpose(trained[name] or judged[name])
        axes.plot(x, y, color=style.OTHERS, label=label, lw=0.8, zorder=1)
    shown = [each for name in front or judged for each in (judged[name], trained[name]) if each]
    axes.set(xlabel="training tokens", ylabel="loss (nats/token)", ylim=_loss_range(shown))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend(figure, axes)
    return figure


def curve_of(runs: Sequence[RunRecord], loss: Literal["train_loss", "val_loss"]) -> Curve:
    """The mean curve of an arm's runs, over the points at which a loss is finite."""
    losses: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        assert run.result is not None
        per_step = run.result.tokens / run.result.steps if run.result.steps else 0.0
        for point in run.result.curve:
            value = getattr(point, loss)
            if value is not None and math.isfinite(value):
                losses[point.step * per_step].append(value)
    means = [(tokens, *mean_sd(losses[tokens])) for tokens in sorted(losses)]
    return [(tokens, mean, sd or 0.0) for tokens, mean, sd in means]


def _smooth(curve: Curve) -> Curve:
    """The running mean over a few points; of a curve with fewer nothing."""
    if len(curve) < 2 * _SMOOTHED:
        return []
    x, y, sd = np.transpose(curve)
    weights, half = np.ones(_SMOOTHED) / _SMOOTHED, _SMOOTHED // 2
    means = np.convolve(y, weights, "valid")
    return list(zip(x[half:-half], means, sd[half:-half], strict=True))


def _loss_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Least and greatest loss to be shown: all of the curves but their first fall."""
    most = max(x for curve in curves for x, _, _ in curve)
    late = [(y, sd) for curve in curves for x, y, sd in curve if x >= _SHOWN_FROM * most]
    low, high = min(y - sd for y, sd in late), max(y + sd for y, sd in late)
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


def draw_cost(chapter: Chapter) -> Figure | None:
    """What an arm changes of the loss, over its training FLOPs."""
    comparison, gaps = chapter.comparison, style.gaps(chapter.comparison)
    if not gaps or comparison.base is None:
        return None
    gaps = [style.Gap(comparison.base, 0.0, (), is_far=False), *gaps]
    looks = looks_of(comparison)
    far = max(abs(gap.mean) for gap in gaps if not gap.is_far)
    figure, (axes,) = canvas(2.9)
    at = [gap.arm.flops_per_token * gap.arm.tokens for gap in gaps]
    style.scatter(axes, gaps, at, comparison, (-far, far))
    axes.axhline(0, color=looks[comparison.baseline].colour, lw=1, ls="--", zorder=1)
    axes.margins(x=0.15)
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlabel="training FLOPs of a run", ylabel="loss minus the baseline's\n(nats/token)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend(figure, axes)
    return figure


def draw_block_sizes(chapter: Chapter) -> Figure | None:
    """Loss over block size (paper, Fig. 6), with lines for no blocks and for the baseline."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if not math.isnan(arm.mean)]
    families = {name: sizes for name, sizes in _by_block_size(arms).items() if len(sizes) > 1}
    if not families:
        return None
    figure, (axes,) = canvas(3.2)
    looks = looks_of(comparison)
    for arm in arms:
        if arm.variant in families or arm.variant == comparison.baseline:
            label = f"{short(arm.variant)} ({'baseline' if arm.verdict == 'baseline' else 'Full'})"
            colour = looks[arm.variant].colour
            axes.axhline(arm.mean, color=colour, ls="--", lw=1.4, label=label)
    for name, sizes in families.items():
        x = sorted(sizes)
        colour, label = looks[sizes[x[0]].variant].colour, f"{short(name)}, by block size"
        y, bars = [sizes[size].mean for size in x], [sizes[size].sd or 0.0 for size in x]
        axes.errorbar(x, y, yerr=bars, fmt="o-", color=colour, label=label, lw=1.4, capsize=3)
    every = sorted({size for sizes in families.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(size) for size in every])
    axes.minorticks_off()
    axes.set(xlabel="block size (sublayers)", ylabel=style.LOSS)
    legend(figure, axes)
    return figure


def _by_block_size(arms: Sequence[ArmResult]) -> dict[str, dict[int, ArmResult]]:
    """Arms with a block size by the name they have without it, then by that size."""
    found: dict[str, dict[int, ArmResult]] = defaultdict(dict)
    for arm in arms:
        name, options = options_of(arm.variant)
        size = options.pop("block_size", None)
        if size is not None:
            others = ",".join(f"{option}={value}" for option, value in options.items())
            found[f"{name}:{others}".removesuffix(":")][int(size)] = arm
    return found


def draw_multipliers(chapter: Chapter) -> Figure | None:
    """A line for each design that tuned such a multiplier."""
    curves = {
        arm.variant: (arm.own.how, points)
        for arm in chapter.comparison.arms
        if arm.own is not None
        and isinstance(arm.own.how, Tuned)
        and (points := _tried(arm.own.how))
    }
    if not curves:
        return None
    figure, (axes,) = canvas(3.2)
    looks = looks_of(chapter.comparison)
    for variant, (how, points) in curves.items():
        x, y, bars = zip(*points, strict=True)
        colour, chosen = looks[variant].colour, dict(how.changes).get(SCALE, 1.0)
        axes.errorbar(x, y, yerr=bars, color=colour, lw=1.4, capsize=2, label=short(variant))
        axes.scatter(x, y, s=[40 if each == chosen else 10 for each in x], color=colour, zorder=3)
    every = [point for _, points in curves.values() for point in points]
    axes.axhline(0, color="0.6", lw=0.8)
    scales, losses = sorted({x for x, _, _ in every}), [y for _, y, _ in every]
    axes.set_xscale("log")
    axes.set_xticks(scales, [f"{x:g}" for x in scales])
    axes.minorticks_off()
    axes.set_ylim(min(losses) - 0.01, max(0.02, style.in_sight(losses)))
    axes.set(
        xlabel="multiplier of the learning rate of what a design adds",
        ylabel="loss less that at 1\n(nats/token)",
    )
    legend(figure, axes)
    return figure


def _tried(how: Tuned) -> list[tuple[float, float, float]]:
    """(multiplier, loss less that at 1, its standard error); none where no multiplier was tried."""
    known = [loss for loss in how.losses if loss is not None]
    found = [(1.0, 0.0, 0.0)]
    for trial in how.second:
        scale = dict(trial.changes).get(SCALE)
        if scale is not None and trial.mean is not None and known:
            _, sd = mean_sd([loss for loss in trial.losses if loss is not None])
            error = (sd or 0.0) / math.sqrt(len(trial.losses))
            found.append((float(scale), trial.mean - min(known), error))
    return found if len(found) > 1 else []
