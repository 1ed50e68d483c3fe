"""What the loss depends on: each searched dimension's share of its variance."""

from __future__ import annotations

from matplotlib.figure import Figure

from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.verdict.optima import Finding

CAPTION = (
    "Share of the variance of complete trials' first-look losses that Optuna's estimate gives to "
    "each dimension, within each variant: a hint at what to search further, no test; noise counts "
    "too."
)


def draw(finding: Finding) -> Figure | None:
    """Bars by dimension, one per variant; None where no variant has enough complete trials."""
    found = [one.family for one in finding.optima if one.family.importance]
    if not found:
        return None
    names = sorted(
        {name for family in found for name in family.importance},
        key=lambda name: -max(family.importance.get(name, 0.0) for family in found),
    )
    variants = [family.variant for family in found]
    look = styles(variants, "standard" if "standard" in variants else variants[0])
    height = 0.8 / len(found)
    figure, (axes,) = canvas(0.75 + 0.28 * len(names) * max(2, len(found)) / 2)
    for number, family in enumerate(found):
        places = [row + (number - (len(found) - 1) / 2) * height for row in range(len(names))]
        values = [family.importance.get(name, 0.0) for name in names]
        style = look[family.variant]
        axes.barh(places, values, 0.9 * height, color=style.colour, label=short(family.variant))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the losses' variance")
    legend(figure, axes)
    return figure
