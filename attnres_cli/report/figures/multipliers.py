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
    curves = {
        arm.variant: (arm.own.how, points)
        for arm in chapter.comparison.arms
        if arm.own is not None
        and isinstance(arm.own.how, Tuned)
        and (points := _points(arm.own.how))
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
    axes.set_ylim(min(losses) - 0.01, max(0.02, in_sight(losses)))
    axes.set(
        xlabel="multiplier of the learning rate of what a design adds",
        ylabel="loss less that at 1\n(nats/token)",
    )
    legend(figure, axes)
    return figure


def _points(how: Tuned) -> list[tuple[float, float, float]]:
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
