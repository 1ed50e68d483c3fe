"""Forest plot of designs on several texts: a row for each design, a dot for each text."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from attnres_cli.report.figures import style
from attnres_cli.verdict.texts import Texts

TEXTS = (
    "Dots: mean over seeds of a design minus the baseline, paired by seed, on each text; bars: the "
    "intervals of that text's own table. Left of zero is better. On the right whether the texts "
    "agree. A dot off the scale is an arrow."
)
_COLOURS = ("#332288", "#CC6677", "#117733", "#DDAA33")
_MARKERS = "os^D"
_LONGEST = 44


def _look(number: int) -> dict[str, Any]:
    """Of the dots of a text; no two of sixteen are alike."""
    n = len(_COLOURS)
    marker = _MARKERS[(number + number // n) % n]
    return {"color": _COLOURS[number % n], "marker": marker, "ls": "", "ms": 5}


def draw_texts(texts: Texts) -> Figure | None:
    """None without a design that has a difference."""
    rows = [row for row in texts.rows if any(arm and arm.difference for arm in row.at)]
    if not rows:
        return None
    figure, (axes,) = style.canvas(1.1 + 0.42 * len(rows))
    means = [arm.difference.mean for row in rows for arm in row.at if arm and arm.difference]
    far, across = style.in_sight(means), axes.get_yaxis_transform()
    apart = 0.34 / len(texts.names)
    for number, name in enumerate(texts.names):
        if any(row.at[number] for row in rows):
            axes.plot([], [], **_look(number), label=name)
    for place, row in enumerate(rows):
        above: dict[str, Any] = {"transform": across, "va": "bottom", "fontsize": 8.5}
        axes.text(0, place - 0.22, style.short(row.variant, _LONGEST), ha="left", **above)
        axes.text(1, place - 0.22, row.agreement, ha="right", **above)
        for number, arm in enumerate(row.at):
            if arm is None or arm.difference is None:
                continue
            mean, y, look = arm.difference.mean, place + number * apart, _look(number)
            if abs(mean) > far:
                at, side = (1.0, "right") if mean > 0 else (0.0, "left")
                told = {"va": "center", "transform": across, "fontsize": 8, "color": look["color"]}
                axes.text(at, y, style.arrow(mean, 2), ha=side, **told)
                continue
            if arm.interval is not None:
                axes.plot(arm.interval, (y, y), color=look["color"], lw=1.6, solid_capstyle="butt")
            axes.plot(mean, y, **look)
    axes.axvline(0, color="#222222", lw=1, ls="--")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    label = "loss minus the baseline's (nats/token)"
    axes.set(xlabel=label, ylim=(len(rows) - 0.4, -0.9), yticks=[])
    style.legend(figure, axes)
    return figure
