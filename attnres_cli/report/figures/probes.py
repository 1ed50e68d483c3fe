"""What probes measured inside the models: over depth, magnitudes of outputs and gradients (paper,
Fig. 5); and who reads what, the mean depth-mixing matrix M (Fig. 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from attnres_cli.records.run import Numbers, Probe
from attnres_cli.report.figures.style import Style, canvas, legend, short, styles
from attnres_cli.verdict.chapter import Chapter

DEPTH = (
    "Root mean square over evaluation tokens and width, mean over seeds, at the end of training: "
    "of what each sublayer writes, and of the loss's gradient there. Output 0 is the embedding."
)
_LOG_FROM = 20.0  # largest over smallest


def depth(chapter: Chapter) -> Figure | None:
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


_COLUMNS, _ROW = 2, 2.5
_LONGEST_TITLE = 30
_NEGATIVE = -1e-3


def mixing(chapter: Chapter) -> Figure | None:
    """A heat map per arm, a row per site and a column per output; None where no arm has M."""
    found = {name: matrix for name, matrix in _matrices(chapter).items() if matrix is not None}
    if not found:
        return None
    rows = -(-len(found) // _COLUMNS)
    figure, axes = canvas(0.2 + _ROW * rows, rows, _COLUMNS)
    for place, (name, matrix) in zip(axes, found.items(), strict=False):
        _map(figure, place, matrix)
        place.set_title(_title(name), fontsize=8.5)
    for place in axes[len(found) :]:
        place.set_visible(False)
    figure.supxlabel("output read (0: the embedding)", fontsize=10)
    figure.supylabel("site (the last: before the head)", fontsize=10)
    return figure


def mixing_caption(chapter: Chapter) -> str:
    """What the maps show, and of every arm the numbers that sum them up; or why it has none."""
    parts = [
        "Mean weight over evaluation tokens and seeds at the end of training, each arm on a scale "
        "of its own. Means over all sites but the first:"
    ]
    for arm in chapter.comparison.arms:
        probes = chapter.probes_of(arm.variant)
        if probes:
            parts.append(f"{arm.variant}: {_summary(probes)};")
    return " ".join(parts).rstrip(";") + "."


def _summary(probes: Sequence[Probe]) -> str:
    if probes[0].mixing is None:
        return f"no matrix, {probes[0].no_mixing}"
    numbers = (
        ("weight of the newest source (the diagonal)", [p.newest_share for p in probes]),
        ("of the embedding", [p.embedding_share for p in probes]),
        ("entropy", [p.entropy for p in probes]),
    )
    told = [
        f"{name} {value:.2f}" for name, rows in numbers if (value := _over_sites(rows)) is not None
    ]
    return ", ".join(told) + (" nats" if told and told[-1].startswith("entropy") else "")


def _over_sites(rows: Sequence[Numbers | None]) -> float | None:
    held = [row for row in rows if row is not None and len(row) > 1]
    if not held:
        return None
    sites = mean(held)[1:]
    return sum(sites) / len(sites)


def _matrices(chapter: Chapter) -> dict[str, NDArray[np.float64] | None]:
    """Of every arm the mean of M over its runs."""
    found: dict[str, NDArray[np.float64] | None] = {}
    for arm in chapter.comparison.arms:
        held = [p.mixing for p in chapter.probes_of(arm.variant) if p.mixing is not None]
        found[arm.variant] = np.mean(np.array(held), axis=0) if held else None
    return found


def _map(figure: Figure, axes: Axes, matrix: NDArray[np.float64]) -> None:
    """M below its diagonal; what no site can read stays white."""
    seen = np.ma.masked_array(matrix, np.triu(np.ones_like(matrix, dtype=bool), k=1))
    chosen = seen[1:] if len(seen) > 1 else seen  # the first site has one output to read
    largest, has_negative = float(np.abs(chosen).max()), float(seen.min()) < _NEGATIVE
    image = axes.imshow(
        seen,
        cmap="PuOr" if has_negative else "cividis",
        vmin=-largest if has_negative else 0.0,
        vmax=largest,
        interpolation="none",
        extent=(-0.5, matrix.shape[1] - 0.5, matrix.shape[0] + 0.5, 0.5),
    )
    axes.grid(visible=False)
    for line in (axes.xaxis, axes.yaxis):
        line.set_major_locator(MaxNLocator(6, integer=True))
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.03)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _title(name: str) -> str:
    """A long name in two lines."""
    name = short(name)
    if len(name) <= _LONGEST_TITLE:
        return name
    cut = max(name.rfind(",", 0, _LONGEST_TITLE), name.rfind(":", 0, _LONGEST_TITLE)) + 1
    return f"{name[: cut or _LONGEST_TITLE]}\n{name[cut or _LONGEST_TITLE :]}"
