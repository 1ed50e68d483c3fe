"""Forest plot of what each choice of a search over designs changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from attnres_cli.report.figures import style
from attnres_cli.report.search_designs import MOST, name_of
from attnres_cli.stats.effects import Effect

EFFECTS = (
    "Dots: what a choice changes of the loss, against the mean of its other values, an add-on "
    f"against its absence; bars: 95% intervals, each for itself. The {MOST} largest effects of the "
    "search. Left of zero is better; n: designs that have the choice. An effect off the "
    "scale stands beside an arrow."
)
_LONGEST = 44
_COLOUR, _UNCLEAR = "#332288", "#888888"


def draw_effects(effects: Sequence[Effect]) -> Figure | None:
    """The largest effects, one row each; gray where the interval has 0; None without any."""
    shown = effects[:MOST]
    if not shown:
        return None
    figure, (axes,) = style.canvas(0.85 + 0.42 * len(shown))
    # The scale is that of the larger half: most choices of a large space change next to nothing.
    far = style.in_sight([each.mean for each in shown[: len(shown) // 2 + 1]])
    across = axes.get_yaxis_transform()
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    above: dict[str, Any] = {"bbox": box, "transform": across, "va": "bottom", "fontsize": 8.5}
    for row, each in enumerate(shown):
        colour = _UNCLEAR if each.low <= 0 <= each.high else _COLOUR
        axes.text(0, row - 0.2, style.short(name_of(each), _LONGEST), ha="left", **above)
        axes.text(1, row - 0.2, f"n = {each.n_designs}", ha="right", **above)
        if abs(each.mean) > far:
            arrow = style.arrow(each.mean, 3)
            side = "right" if each.mean > 0 else "left"
            axes.text(
                each.mean > 0, row, arrow, ha=side, va="center", transform=across, color=colour,
                weight="bold", fontsize=9,
            )  # fmt: skip
            continue
        axes.plot((each.low, each.high), (row, row), color=colour, lw=2, solid_capstyle="butt")
        axes.plot(each.mean, row, "o", color=colour, ms=6)
    axes.axvline(0, color="#222222", lw=1, ls="--")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    label = "effect on the loss (nats/token)"
    axes.set(xlabel=label, ylim=(len(shown) - 0.6, -0.9), yticks=[])
    return figure
