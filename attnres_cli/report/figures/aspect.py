"""Losses over the width per layer: the first look of every shape, and fresh seeds of the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnres_cli.report.figures.heatmap import ASPECT, MOST, aspect, groups
from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum

CAPTION = (
    "Hollow: first look, one seed; the line goes through the lowest at about the same aspect. "
    "Filled: mean over fresh seeds, bars: its 95 % t interval, which holds the seeds' own luck "
    "too, cut off at the figure's edge. Crosses at the bottom: pruned, failed or diverged, which "
    "have no loss."
)
_LEAST_ROOM = 0.01  # nats above and below what was measured


def draw(finding: Finding) -> Figure | None:
    """Losses over d_model / n_layers; None where all shapes have about the same."""
    found = [one for one in finding.optima if one.shapes]
    held = groups([aspect(shape.trial) for one in found for shape in one.shapes])
    if len(held) < 2:
        return None
    figure, (axes,) = canvas(3.2)
    names = [one.family.variant for one in found]
    look = styles(names, "standard" if "standard" in names else names[0])
    for number, one in enumerate(found, 1):
        style, name = look[one.family.variant], one.family.variant
        points = [(aspect(shape.trial), shape.promised) for shape in one.shapes]
        axes.plot(*zip(*points, strict=True), style.marker, ms=4, mfc="none", color=style.colour)
        lowest = _envelope(points)
        axes.plot(*zip(*lowest, strict=True), style.dashes, color=style.colour, lw=1.2)
        _fresh(axes, one, 1.02**number, (style.marker, style.colour))
        _lost(axes, one, 0.01 + 0.03 * number, style.colour)
        axes.plot([], [], style.dashes, marker=style.marker, color=style.colour, label=short(name))
    axes.set_xscale("log")
    middles = [math.sqrt(group[0] * group[-1]) for group in held]
    axes.set_xticks(
        middles, [f"{value:.0f}" if value >= 10 else f"{value:.2g}" for value in middles]
    )
    axes.minorticks_off()
    _around_points(axes, found)
    axes.set_xlabel(ASPECT)
    axes.set_ylabel("validation loss (nats/token)")
    legend(figure, axes)
    return figure


def _around_points(axes: Axes, optima: Sequence[Optimum]) -> None:
    """No bar, which two seeds make very long, may press all that was measured into a line."""
    shapes = [shape for one in optima for shape in one.shapes]
    losses = [shape.promised for shape in shapes]
    losses += [shape.mean for shape in shapes if shape.mean is not None]
    room = max(max(losses) - min(losses), _LEAST_ROOM)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, min(losses) - room), min(high, max(losses) + room))


def _fresh(axes: Axes, one: Optimum, aside: float, look: tuple[str, str]) -> None:
    for shape in one.confirmed:
        bar = None if shape.ci95 is None else shape.ci95[1] - (shape.mean or 0.0)
        axes.errorbar(
            aside * aspect(shape.trial), shape.mean or 0.0, yerr=bar, fmt=look[0], ms=5,
            color=look[1], elinewidth=1, zorder=4,
        )  # fmt: skip


def _lost(axes: Axes, one: Optimum, height: float, colour: str) -> None:
    """A cross for each trial without a loss, at a share of the axes' height."""
    lost = [aspect(trial) for trial, _ in one.unmeasured]
    where = axes.get_xaxis_transform()
    axes.plot(lost, [height] * len(lost), "x", ms=4, color=colour, alpha=0.7, transform=where)


def _envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest point of each group of aspects."""
    held = groups([value for value, _ in points], 2 * MOST)
    return [
        min((p for p in points if group[0] <= p[0] <= group[-1]), key=lambda p: p[1])
        for group in held
    ]
