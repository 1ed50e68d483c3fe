"""The difference of every arm from the baseline at every size, with its interval."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from attnres_cli.report.figures.sizes import of_what
from attnres_cli.report.figures.style import canvas, legend, looks, short
from attnres_cli.verdict.ladder import Ladder

_APART = 0.5  # of the room between two sizes that their arms take


def draw(found: Ladder) -> Figure | None:
    """Paired differences over the sizes, side by side; None where no size has any."""
    baseline, *others = [arm.variant for arm in found.arms]
    look = looks([baseline, *others], baseline)
    figure, (axes,) = canvas(3.0)
    n_drawn = 0
    for place, variant in enumerate(others):
        arms = [rung.arm(variant) for rung in found.rungs]
        shift = _APART * ((place + 0.5) / len(others) - 0.5)
        points = [
            (at + shift, arm.difference.mean, arm.interval)
            for at, arm in enumerate(arms)
            if arm is not None and arm.difference is not None
        ]
        n_drawn += len(points)
        if not points:
            continue
        colour, marker = look[variant].colour, look[variant].marker
        x, means, bars = zip(*points, strict=True)
        axes.plot(x, means, look[variant].dashes, color=colour, lw=0.8, alpha=0.6)
        axes.plot(x, means, marker, color=colour, ms=6, label=short(variant))
        for at, bar in zip(x, bars, strict=True):
            if bar is not None:
                axes.plot((at, at), bar, color=colour, lw=1.8, solid_capstyle="butt")
    if not n_drawn:
        return None
    axes.axhline(0, color=look[baseline].colour, lw=1, ls="--", zorder=1)
    axes.set_xticks(range(len(found.rungs)), found.size_names)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="x")
    axes.set(ylabel=f"loss minus that of {short(baseline)}\n(nats/token)")
    legend(figure, axes)
    return figure


def caption(found: Ladder) -> str:
    """What is drawn, and of what."""
    return (
        "Mean over seeds of arm minus baseline, paired by seed; bars: the intervals of each size's "
        f"verdict table, for its arms together. Below zero is better. {of_what(found)}"
    )
