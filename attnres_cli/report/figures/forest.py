"""Forest plot: the paired difference of every arm from the baseline, with its interval."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from attnres_cli.report.figures.style import canvas, short, styles
from attnres_cli.verdict.chapter import Chapter

CAPTION = (
    "Large dots: mean over seeds of arm minus baseline, paired by seed; bars: its 95 % t interval, "
    "not corrected for the number of arms; small dots: single seeds. Left of zero is better."
)


_LONGEST = 38  # characters of a name that leave room for its verdict


def draw(chapter: Chapter) -> Figure | None:
    """Differences of all arms that have one; None where none has."""
    comparison = chapter.comparison
    arms = [arm for arm in comparison.arms if arm.difference is not None]
    if not arms:
        return None
    look = styles([arm.variant for arm in comparison.arms], comparison.baseline)
    base = next((arm for arm in comparison.arms if arm.variant == comparison.baseline), None)
    figure, (axes,) = canvas(0.85 + 0.52 * len(arms))
    for row, arm in enumerate(arms):
        assert arm.difference is not None
        colour, mean, ci95 = look[arm.variant].colour, arm.difference.mean, arm.difference.ci95
        axes.plot(ci95, (row, row), color=colour, lw=2.2, solid_capstyle="butt")
        shared = sorted(arm.losses.keys() & base.losses.keys()) if base else []
        single = [arm.losses[seed] - base.losses[seed] for seed in shared] if base else []
        axes.plot(
            single, [row] * len(single), "o", ms=3, mfc="white", mec=colour, mew=0.8, zorder=4
        )
        axes.plot(mean, row, look[arm.variant].marker, ms=8, color=colour)
        clear = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
        where: dict[str, Any] = {
            "bbox": clear,
            "transform": axes.get_yaxis_transform(),
            "va": "bottom",
            "fontsize": 9,
        }
        axes.text(0, row - 0.24, short(arm.variant, _LONGEST), ha="left", **where)
        axes.text(1, row - 0.24, arm.verdict, ha="right", weight="bold", **where)
    axes.axvline(0, color=look[comparison.baseline].colour, lw=1, ls="--")
    axes.set_ylim(len(arms) - 0.6, -0.8)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"loss minus that of {short(comparison.baseline)} (nats/token)")
    return figure
