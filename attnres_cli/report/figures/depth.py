"""Over depth: magnitudes of outputs and of the gradients that come back to them (paper, Fig. 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnres_cli.report.figures.style import Style, canvas, legend, short, styles
from attnres_cli.verdict.chapter import Chapter

CAPTION = (
    "Root mean square over evaluation tokens and width, mean over seeds, at the end of training: "
    "of what each sublayer writes, and of the loss's gradient there. Output 0 is the embedding."
)
_LOG_FROM = 20.0  # largest over smallest


def draw(chapter: Chapter) -> Figure | None:
    """Output and gradient magnitudes by output; None where no run was looked into."""
    arms = [arm.variant for arm in chapter.comparison.arms]
    probes = {name: chapter.probes_of(name) for name in arms}
    probes = {name: found for name, found in probes.items() if found}
    if not probes:
        return None
    figure, (outputs, gradients) = canvas(4.6, rows=2, sharex=True)
    look = styles(arms, chapter.comparison.baseline)
    written = {name: mean([p.output_rms for p in found]) for name, found in probes.items()}
    returned = {name: mean([p.gradient_rms for p in found]) for name, found in probes.items()}
    _lines(outputs, written, look)
    _lines(gradients, returned, look)
    outputs.set_ylabel("output magnitude")
    gradients.set_ylabel("gradient magnitude")
    gradients.set_xlabel("output (2 per layer)")
    gradients.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, outputs)
    return figure


def mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Number by number over rows of equal length."""
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _lines(axes: Axes, by_arm: dict[str, list[float]], look: dict[str, Style]) -> None:
    for name, values in by_arm.items():
        style = look[name]
        axes.plot(values, style.dashes, color=style.colour, label=short(name), lw=1.5)
    finite = [v for values in by_arm.values() for v in values if math.isfinite(v) and v > 0]
    if finite and max(finite) > _LOG_FROM * min(finite):
        axes.set_yscale("log")
