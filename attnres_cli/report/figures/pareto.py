"""Pareto plot: the loss against the second objective of a search, the front marked."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres_cli.report.figures.style import Style, canvas, legend, short, styles
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum, front, is_sound

CAPTION = (
    "Filled, joined by steps: the front, trials that no other one of the same variant is better "
    "than in both; hollow: all others. Every point is one run of the first look, so that a front "
    "holds the lucky ones; pruned, failed and diverged ones have no values and are not drawn."
)
_LABELS = {
    "step_time": ("training step (ms)", 1000.0),
    "params": ("parameters", 1.0),
    "flops": ("training FLOPs of a run", 1.0),
    "memory": ("peak memory (bytes)", 1.0),
}
"""Name and factor of an objective, whose values are seconds, numbers and bytes."""


def draw(finding: Finding) -> Figure | None:
    """Loss over the second objective; None where the search has one, or no complete trial."""
    objectives = finding.search.objectives
    found = [one for one in finding.optima if front(one)]
    if len(objectives) < 2 or not found:
        return None
    label, factor = _LABELS.get(objectives[1], (objectives[1], 1.0))
    names = [one.family.variant for one in found]
    look = styles(names, "standard" if "standard" in names else names[0])
    figure, (axes,) = canvas(3.2)
    for one in found:
        _points(axes, one, look[one.family.variant], factor)
    axes.set_xlabel(label)
    axes.set_ylabel("validation loss (nats/token)")
    if objectives[1] != "step_time":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=6)
    legend(figure, axes)
    return figure


def _points(axes: Axes, one: Optimum, style: Style, factor: float) -> None:
    best = front(one)
    others = [t for t in one.family.trials if is_sound(t) and t not in best]
    axes.plot(
        [factor * t.values[1] for t in others], [t.values[0] for t in others], style.marker,
        ms=4, mfc="none", color=style.colour, alpha=0.7,
    )  # fmt: skip
    ordered = sorted(best, key=lambda t: t.values[1])
    axes.plot(
        [factor * t.values[1] for t in ordered], [t.values[0] for t in ordered],
        drawstyle="steps-post", ls=style.dashes, marker=style.marker, ms=6, color=style.colour,
        lw=1.2, label=short(one.family.variant),
    )  # fmt: skip
