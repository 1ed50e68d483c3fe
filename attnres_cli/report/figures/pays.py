"""Gain beside the time of a step, with the line at which a gain pays."""

from __future__ import annotations

from matplotlib.figure import Figure

from attnres_cli.report.figures import style
from attnres_cli.report.figures.style import canvas, legend, looks_of
from attnres_cli.stats.multiples import course
from attnres_cli.verdict.report_section import Chapter

PAYS = (
    "Below the line an arm pays: the baseline, trained for as long, ends above it. The line is the "
    "baseline's loss at other budgets, as far as these were measured; at 1 its steps are its own. "
    "Bars: the interval of the paired difference. Of many arms the eight of least loss are named. "
    "Step times were measured in turn, on one machine. An arrow: off the scale."
)


def draw_pays(chapter: Chapter) -> Figure | None:
    """None where steps were not timed, or the baseline is known at too few budgets."""
    comparison = chapter.comparison
    line, ratios = course(comparison.rules.budgets), comparison.step_ratios
    gaps = [gap for gap in style.gaps(comparison) if gap.arm.variant in ratios]
    if line is None or not gaps:
        return None
    figure, (axes,) = canvas(3.4)
    near = [gap for gap in gaps if not gap.is_far] or gaps
    ends = [0.0, *(end for gap in near for end in (gap.mean, *gap.ends))]
    low, high = min(ends), max(ends)
    at = [ratios[gap.arm.variant].median for gap in gaps]
    style.scatter(axes, gaps, at, comparison, (low, high))
    baseline = looks_of(comparison)[comparison.baseline].colour
    times, drops = line
    axes.axhline(0, color=baseline, lw=1, ls="--", zorder=1)
    axes.plot(times, -drops, color=baseline, lw=1.6, zorder=1, label="pays below")
    quickest, slowest = min(1.0, *at), max(at)
    axes.set_xlim(quickest - 0.05, slowest + 0.15 * (slowest - quickest) + 0.05)
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.set(
        xlabel="time of a step, as a multiple of the baseline's",
        ylabel="loss minus the baseline's\n(nats/token)",
    )
    legend(figure, axes)
    return figure
