"""Loss against the multiplier of the learning rate of what a design adds."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from attnres_cli.config.arms import SCALE
from attnres_cli.records.comparison_terms import Tuned
from attnres_cli.report.figures.style import canvas, in_sight, legend, looks_of, short
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.verdict.report_section import Chapter

CAPTION = (
    "Mean loss of each design's tuning runs, less that at a multiplier of 1, at its own learning "
    "rate; bars: one standard error over seeds. Down is better. Larger dots: what was chosen."
)


def draw(chapter: Chapter) -> Figure | None:
    """A line for each design that tuned such a multiplier."""
    comparison = chapter.comparison
    lines = {arm.variant: arm.own.how for arm in comparison.arms if arm.own is not None}
    curves = {
        variant: points
        for variant, how in lines.items()
        if isinstance(how, Tuned) and (points := _points(how))
    }
    if not curves:
        return None
    figure, (axes,) = canvas(3.2)
    looks = looks_of(comparison)
    for variant, points in curves.items():
        x, y, bars = zip(*points, strict=True)
        colour, how = looks[variant].colour, lines[variant]
        axes.errorbar(x, y, yerr=bars, color=colour, lw=1.4, capsize=2, label=short(variant))
        assert isinstance(how, Tuned)
        chosen = dict(how.changes).get(SCALE, 1.0)
        sizes = [40 if each == chosen else 10 for each in x]
        axes.scatter(x, y, s=sizes, color=colour, zorder=3)
    axes.axhline(0, color="0.6", lw=0.8)
    every = sorted({x for points in curves.values() for x, _, _ in points})
    axes.set_xscale("log")
    axes.set_xticks(every, [f"{x:g}" for x in every])
    axes.minorticks_off()
    most = in_sight([y for points in curves.values() for _, y, _ in points])
    least = min(y for points in curves.values() for _, y, _ in points)
    axes.set_ylim(least - 0.01, max(0.02, most))
    axes.set(
        xlabel="multiplier of the learning rate of what a design adds",
        ylabel="loss less that at 1\n(nats/token)",
    )
    legend(figure, axes)
    return figure


def _points(how: Tuned) -> list[tuple[float, float, float]]:
    """(multiplier, loss less that at 1, its standard error); none where no multiplier was tried."""
    known = [loss for loss in how.losses if loss is not None]
    tried = [(dict(trial.changes).get(SCALE), trial) for trial in how.second]
    found = [(1.0, 0.0, 0.0)]
    for scale, trial in tried:
        if scale is not None and trial.mean is not None and known:
            _, sd = mean_sd([loss for loss in trial.losses if loss is not None])
            error = (sd or 0.0) / math.sqrt(len(trial.losses))
            found.append((float(scale), trial.mean - min(known), error))
    return found if len(found) > 1 else []
