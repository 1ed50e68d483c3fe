"""The figures of a comparison: differences, loss curves, cost beside gain and loss by block size.
Matplotlib's objects alone: no pyplot, no state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres_cli.records.run import RunRecord
from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import ArmResult
from attnres_cli.verdict.select import options_of

FOREST = (
    "Large dots: mean over seeds of arm minus baseline, paired by seed; bars: its 95 % t interval, "
    "not corrected for the number of arms; small dots: single seeds. Left of zero is better."
)


_BESIDE_VERDICT = 38  # characters of a name that leave room for its verdict


def forest(chapter: Chapter) -> Figure | None:
    """Differences of all arms that have one; None where none has."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if arm.difference is not None]
    if not arms:
        return None
    look = styles([arm.variant for arm in comparison.arms], comparison.baseline)
    base = next((arm for arm in comparison.arms if arm.variant == comparison.baseline), None)
    figure, (axes,) = canvas(0.85 + 0.52 * len(arms))
    for row, arm in enumerate(arms):
        assert arm.difference is not None
        colour, mean, ci95 = look[arm.variant].colour, arm.difference.mean, arm.difference.ci95
        axes.plot(ci95, (row, row), color=colour, lw=2.2, solid_capstyle="butt")
        shared = sorted(arm.losses.keys() & base.losses.keys()) if base else []
        single = [arm.losses[seed] - base.losses[seed] for seed in shared] if base else []
        axes.plot(
            single, [row] * len(single), "o", ms=3, mfc="white", mec=colour, mew=0.8, zorder=4
        )
        axes.plot(mean, row, look[arm.variant].marker, ms=8, color=colour)
        clear = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
        where: dict[str, Any] = {
            "bbox": clear,
            "transform": axes.get_yaxis_transform(),
            "va": "bottom",
            "fontsize": 9,
        }
        axes.text(0, row - 0.24, short(arm.variant, _BESIDE_VERDICT), ha="left", **where)
        axes.text(1, row - 0.24, arm.verdict, ha="right", weight="bold", **where)
    axes.axvline(0, color=look[comparison.baseline].colour, lw=1, ls="--")
    axes.set_ylim(len(arms) - 0.6, -0.8)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"loss minus that of {short(comparison.baseline)} (nats/token)")
    return figure


CURVES = "Lines: mean over seeds; bands: one standard deviation to each side."
_SHOWN_FROM = 0.25  # of the tokens: the fall from ln(vocab) would leave the rest flat

Curve = list[tuple[float, float, float]]
"""Tokens, mean and standard deviation (0 of one seed) of the loss."""


def curves(chapter: Chapter) -> Figure | None:
    """Validation loss over tokens; None where no run has two finite points."""
    arms = [arm.variant for arm in chapter.comparison.arms]
    found = {name: curve_of(chapter.runs_of(name)) for name in arms}
    found = {name: curve for name, curve in found.items() if len(curve) > 1}
    if not found:
        return None
    figure, (axes,) = canvas(3.2)
    look = styles(arms, chapter.comparison.baseline)
    for name, curve in found.items():
        x, y, sd = zip(*curve, strict=True)
        low = [mean - spread for mean, spread in zip(y, sd, strict=True)]
        high = [mean + spread for mean, spread in zip(y, sd, strict=True)]
        style, zorder = look[name], 3 if name == chapter.comparison.baseline else 2
        axes.plot(x, y, style.dashes, color=style.colour, label=short(name), lw=1.6, zorder=zorder)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, lw=0)
    axes.set_ylim(*_frame(list(found.values())))
    axes.set_xlabel("training tokens")
    axes.set_ylabel("validation loss (nats/token)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend(figure, axes)
    return figure


def curve_of(runs: Sequence[RunRecord]) -> Curve:
    """The mean curve of an arm's runs, over the points at which a loss is finite."""
    losses: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        assert run.result is not None
        per_step = run.result.tokens / run.result.steps if run.result.steps else 0.0
        for point in run.result.curve:
            if point.val_loss is not None and math.isfinite(point.val_loss):
                losses[point.step * per_step].append(point.val_loss)
    found = []
    for tokens in sorted(losses):
        mean, sd = mean_sd(losses[tokens])
        found.append((tokens, mean, sd or 0.0))
    return found


def _frame(curves: Sequence[Curve]) -> tuple[float, float]:
    """Least and greatest loss to be shown: all of the curves but their first fall."""
    end = max(curve[-1][0] for curve in curves)
    late = [point for curve in curves for point in curve if point[0] >= _SHOWN_FROM * end]
    low = min(mean - sd for _, mean, sd in late)
    high = max(mean + sd for _, mean, sd in late)
    margin = 0.05 * (high - low) or 0.05
    return low - margin, high + margin


COST = (
    "Down is better, left is cheaper; bars: 95 % t interval of the paired difference. Step times "
    "are medians of the runs themselves, which may have shared their machine: `attnres bench` "
    "times arms in turn."
)


def cost(chapter: Chapter) -> Figure | None:
    """Differences over step time and over training FLOPs; None where no arm has a difference."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if arm.difference or arm.verdict == "baseline"]
    if not any(arm.difference for arm in arms):
        return None
    look = styles([arm.variant for arm in comparison.arms], comparison.baseline)
    figure, (by_time, by_flops) = canvas(2.9, columns=2, sharey=True)
    for arm in arms:
        style, gain, bar = look[arm.variant], 0.0, 0.0
        if arm.difference is not None:
            gain = arm.difference.mean
            bar = arm.difference.ci95[1] - gain
        prices = (1000 * arm.step_s, arm.flops_per_token * arm.tokens)
        for axes, price in zip((by_time, by_flops), prices, strict=True):
            axes.errorbar(
                price, gain, yerr=bar or None, fmt=style.marker, ms=7, color=style.colour,
                elinewidth=1.4, label=short(arm.variant),
            )  # fmt: skip
    for axes in (by_time, by_flops):
        axes.axhline(0, color=look[comparison.baseline].colour, lw=1, ls="--", zorder=1)
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=4)
    by_time.set_xlabel("training step (ms)")
    by_flops.set_xlabel("training FLOPs of a run")
    by_flops.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_time.set_ylabel("loss minus the baseline's\n(nats/token)")
    legend(figure, by_time)
    return figure


BLOCKS = "Points and lines: mean over seeds; bars: one standard deviation to each side."

Family = dict[int, ArmResult]
"""Arms by block size."""


def blocks(chapter: Chapter) -> Figure | None:
    """Loss over block size; None where no design comes in two sizes of block."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if arm.mean == arm.mean]  # nan: diverged
    families = {name: sizes for name, sizes in families_of(arms).items() if len(sizes) > 1}
    if not families:
        return None
    figure, (axes,) = canvas(3.2)
    look = styles([arm.variant for arm in comparison.arms], comparison.baseline)
    for arm in arms:
        if arm.variant in families or arm.variant == comparison.baseline:
            style = look[arm.variant]
            label = f"{short(arm.variant)} ({'baseline' if arm.verdict == 'baseline' else 'Full'})"
            axes.axhline(arm.mean, color=style.colour, ls="--", lw=1.4, label=label)
    for name, sizes in families.items():
        style, label = look[sizes[min(sizes)].variant], f"{short(name)}, by block size"
        x = sorted(sizes)
        y, bars = [sizes[size].mean for size in x], [sizes[size].sd or 0.0 for size in x]
        axes.errorbar(x, y, yerr=bars, fmt="o-", color=style.colour, label=label, lw=1.4, capsize=3)
    every = sorted({size for sizes in families.values() for size in sizes})
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(size) for size in every])
    axes.minorticks_off()
    axes.set_xlabel("block size (sublayers)")
    axes.set_ylabel("validation loss (nats/token)")
    legend(figure, axes)
    return figure


def families_of(arms: Sequence[ArmResult]) -> dict[str, Family]:
    """Arms with a block size, by the name they have without it."""
    found: dict[str, Family] = {}
    for arm in arms:
        name, options = options_of(arm.variant)
        size = options.pop("block_size", None)
        if size is not None:
            kept = ",".join(f"{key}={value}" for key, value in options.items())
            found.setdefault(f"{name}:{kept}" if kept else name, {})[int(size)] = arm
    return found
