"""Who reads what (paper, Fig. 8): the mean depth-mixing matrix M of every arm that has one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from attnres_cli.records.run import Numbers, Probe
from attnres_cli.report.figures.depth import mean
from attnres_cli.report.figures.style import canvas, short
from attnres_cli.verdict.chapter import Chapter

_COLUMNS, _ROW = 2, 2.5
_LONGEST_TITLE = 30
_NEGATIVE = -1e-3


def draw(chapter: Chapter) -> Figure | None:
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


def caption(chapter: Chapter) -> str:
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
