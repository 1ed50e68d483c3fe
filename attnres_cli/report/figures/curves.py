"""Loss curves: validation loss over tokens, a line per arm, a band over its seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres_cli.records.run import RunRecord
from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.verdict.chapter import Chapter

CAPTION = "Lines: mean over seeds; bands: one standard deviation to each side."
_SHOWN_FROM = 0.25  # of the tokens: the fall from ln(vocab) would leave the rest flat

Curve = list[tuple[float, float, float]]
"""Tokens, mean and standard deviation (0 of one seed) of the loss."""


def draw(chapter: Chapter) -> Figure | None:
    """Validation loss over tokens; None where no run has two finite points."""
    arms = [arm.variant for arm in chapter.comparison.arms]
    curves = {name: curve_of(chapter.runs_of(name)) for name in arms}
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    figure, (axes,) = canvas(3.2)
    look = styles(arms, chapter.comparison.baseline)
    for name, curve in curves.items():
        x, y, sd = zip(*curve, strict=True)
        low = [mean - spread for mean, spread in zip(y, sd, strict=True)]
        high = [mean + spread for mean, spread in zip(y, sd, strict=True)]
        style, zorder = look[name], 3 if name == chapter.comparison.baseline else 2
        axes.plot(x, y, style.dashes, color=style.colour, label=short(name), lw=1.6, zorder=zorder)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, lw=0)
    axes.set_ylim(*_frame(list(curves.values())))
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
