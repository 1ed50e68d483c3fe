"""Cost beside gain: what an arm changes of the loss, and what a step and a token of it cost."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.verdict.chapter import Chapter

CAPTION = (
    "Down is better, left is cheaper; bars: 95 % t interval of the paired difference. Step times "
    "are medians of the runs themselves, which may have shared their machine: `attnres bench` "
    "times arms in turn."
)


def draw(chapter: Chapter) -> Figure | None:
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
        costs = (1000 * arm.step_s, arm.flops_per_token * arm.tokens)
        for axes, cost in zip((by_time, by_flops), costs, strict=True):
            axes.errorbar(
                cost, gain, yerr=bar or None, fmt=style.marker, ms=7, color=style.colour,
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
