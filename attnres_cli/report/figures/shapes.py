"""Loss by shape (paper, Fig. 7): heat maps beside each other, and losses over the aspect."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attnres_cli import recipe
from attnres_cli.report.figures.style import canvas, legend, short, styles
from attnres_cli.report.optima import Finding
from attnres_cli.report.shapes import Optimum, options
from attnres_cli.trials import Trial

CAPTION = (
    "Validation loss of the first look, nats per token: one run each, the lowest where a cell "
    "holds several shapes; a star marks the lowest of all, which is lucky. All maps are on one "
    "colour scale, whose light end also holds all that is above it. Cells with p, f or d hold no "
    "loss: all their shapes were pruned, failed or diverged; empty ones were not tried."
)
PAPER_CAPTION = (
    "The Attention Residuals paper, Fig. 7: validation losses of single runs at 6.5e19 FLOPs and "
    "about 230M active parameters, on a colour scale of their own; which AttnRes is not said. "
    "Compare where the optimum lies, not values: data and models are others."
)
ASPECT_CAPTION = (
    "Hollow: first look, one seed; the line goes through the lowest at about the same aspect. "
    "Filled: mean over fresh seeds, bars: its 95 % t interval, which holds the seeds' own luck "
    "too. Crosses at the bottom: pruned, failed or diverged, which have no loss."
)
_MOST = 6  # columns or rows of a map
_ALIKE = 1.1  # sizes closer than this share a column
_TOP = 4.0  # the scale ends at so many times the median's distance from the lowest
_MANY = 5  # columns; of more, maps stand below each other

Reading = Callable[[Trial], float]
Losses = NDArray[np.float64]
Marks = Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Axis:
    """One direction of a map: what it is called, how it is read, and its groups, ascending."""

    label: str
    read: Reading
    groups: tuple[tuple[float, ...], ...]

    def place(self, trial: Trial) -> int:
        """The number of the group that a trial's shape falls into."""
        value = self.read(trial)
        return next(i for i, group in enumerate(self.groups) if group[0] <= value <= group[-1])

    @property
    def names(self) -> list[str]:
        """Of the groups: `45`, or `44-47` of several sizes."""
        ends = [(_number(group[0]), _number(group[-1])) for group in self.groups]
        return [low if low == high else f"{low}-{high}" for low, high in ends]


def draw(finding: Finding) -> Figure | None:
    """A heat map per variant; None where fewer than two sizes of two dimensions were trained."""
    found = [one for one in finding.optima if one.shapes]
    axes = axes_of(finding)
    if axes is None:
        return None
    x, y = axes
    maps = {one.family.variant: best_losses(one, x, y) for one in found}
    marks = {one.family.variant: lost_cells(one, x, y) for one in found}
    return _maps(maps, x.names, y.names, (x.label, y.label), marks)


def draw_paper(finding: Finding) -> Figure | None:
    """The paper's maps, where the search has the same axes; else None."""
    axes = axes_of(finding)
    if axes is None or (axes[0].label, axes[1].label) != (_ASPECT, _HEADS):
        return None
    held = recipe.paper()["figure7"]
    order = np.argsort(held["heads_per_layer"])
    names = {"standard": "baseline (paper)", "attnres": "AttnRes (paper)"}
    maps = {told: np.array(held[name])[order] for name, told in names.items()}
    y = [f"{value:g}" for value in sorted(held["heads_per_layer"])]
    return _maps(maps, [f"{v:g}" for v in held["width_per_layer"]], y, (_ASPECT, _HEADS), {})


def draw_aspect(finding: Finding) -> Figure | None:
    """Losses over d_model / n_layers; None where all shapes have about the same."""
    found = [one for one in finding.optima if one.shapes]
    groups = _groups([_aspect(shape.trial) for one in found for shape in one.shapes])
    if len(groups) < 2:
        return None
    figure, (axes,) = canvas(3.2)
    names = [one.family.variant for one in found]
    look = styles(names, "standard" if "standard" in names else names[0])
    for number, one in enumerate(found, 1):
        style, name = look[one.family.variant], one.family.variant
        points = [(_aspect(shape.trial), shape.promised) for shape in one.shapes]
        axes.plot(*zip(*points, strict=True), style.marker, ms=4, mfc="none", color=style.colour)
        lowest = _envelope(points)
        axes.plot(*zip(*lowest, strict=True), style.dashes, color=style.colour, lw=1.2)
        _fresh(axes, one, 1.02**number, (style.marker, style.colour))
        lost = [_aspect(trial) for trial, _ in one.unmeasured]
        bottom = [0.01 + 0.03 * number] * len(lost)
        at_bottom = axes.get_xaxis_transform()
        axes.plot(lost, bottom, "x", ms=4, color=style.colour, alpha=0.7, transform=at_bottom)
        axes.plot([], [], style.dashes, marker=style.marker, color=style.colour, label=short(name))
    axes.set_xscale("log")
    middles = [math.sqrt(group[0] * group[-1]) for group in groups]
    axes.set_xticks(
        middles, [f"{value:.0f}" if value >= 10 else f"{value:.2g}" for value in middles]
    )
    axes.minorticks_off()
    axes.set_xlabel(_ASPECT)
    axes.set_ylabel("validation loss (nats/token)")
    legend(figure, axes)
    return figure


def _fresh(axes: Axes, one: Optimum, aside: float, look: tuple[str, str]) -> None:
    for shape in one.confirmed:
        bar = None if shape.ci95 is None else shape.ci95[1] - (shape.mean or 0.0)
        axes.errorbar(
            aside * _aspect(shape.trial), shape.mean or 0.0, yerr=bar, fmt=look[0], ms=5,
            color=look[1], elinewidth=1, zorder=4,
        )  # fmt: skip


def _envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest point of each group of aspects."""
    groups = _groups([aspect for aspect, _ in points], 2 * _MOST)
    return [
        min((p for p in points if group[0] <= p[0] <= group[-1]), key=lambda p: p[1])
        for group in groups
    ]


def _aspect(trial: Trial) -> float:
    return float(trial.dimensions["aspect"])


def _dimension(name: str) -> Reading:
    return lambda trial: float(trial.dimensions[name])


_ASPECT, _HEADS = "d_model / n_layers", "n_heads / n_layers"
_READINGS: dict[str, Reading] = {
    _HEADS: _dimension("heads_per_layer"),
    "n_heads": _dimension("n_heads"),
}
"""What may stand upwards; and whatever else was searched."""


def axes_of(finding: Finding) -> tuple[Axis, Axis] | None:
    """Width per layer, and the other dimension over which the map has the fewest empty cells, of
    those of which shapes of one aspect have several; None where there is none, or one aspect.
    Every trial that has ended has its place, whatever became of it.
    """
    shapes = [shape.trial for one in finding.optima for shape in one.shapes]
    trials = [*shapes, *(trial for one in finding.optima for trial, _ in one.unmeasured)]
    x = Axis(_ASPECT, _aspect, _groups([_aspect(trial) for trial in trials]))
    found: list[tuple[float, Axis]] = []
    for label, read in (_READINGS | _searched(trials)).items() if len(x.groups) > 1 else ():
        y = Axis(label, read, _groups([read(trial) for trial in trials]))
        cells = len({(x.place(trial), y.place(trial)) for trial in shapes})
        if len(y.groups) > 1 and cells > max(len(x.groups), len(y.groups)):
            found.append((cells / len(y.groups), y))
    return (x, max(found, key=lambda each: each[0])[1]) if found else None


def _searched(trials: Sequence[Trial]) -> dict[str, Reading]:
    """Options that every trial has as a number above zero."""
    held = [options(trial) for trial in trials]
    names = [name for name in held[0] if all(name in each for each in held)]
    return {
        name: _dimension(name)
        for name in names
        if all(isinstance(v := each[name], int | float) and v > 0 for each in held)
    }


def _number(value: float) -> str:
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def _groups(values: Sequence[float], most: int = _MOST) -> tuple[tuple[float, ...], ...]:
    """Values above zero in groups of those that are near, ascending; at most so many groups."""
    found = [[value] for value in sorted(set(values))]
    while len(found) > 1:
        gaps = [after[-1] / before[0] for before, after in itertools.pairwise(found)]
        least = min(range(len(gaps)), key=gaps.__getitem__)
        if len(found) <= most and gaps[least] > _ALIKE:
            break
        found[least : least + 2] = [found[least] + found[least + 1]]
    return tuple(tuple(group) for group in found)


def best_losses(one: Optimum, x: Axis, y: Axis) -> Losses:
    """Rows of y, columns of x: the lowest first look of the cell's shapes, nan of none."""
    found = np.full((len(y.groups), len(x.groups)), np.nan)
    for shape in one.shapes:
        row, column = y.place(shape.trial), x.place(shape.trial)
        found[row, column] = np.fmin(found[row, column], shape.promised)
    return found


def lost_cells(one: Optimum, x: Axis, y: Axis) -> Marks:
    """By (row, column) what became of trials there that have no loss: the first letters of
    pruned, failed and diverged. Cells where another shape has a loss are left out.
    """
    losses, found = best_losses(one, x, y), dict[tuple[int, int], set[str]]()
    for trial, why in one.unmeasured:
        place = (y.place(trial), x.place(trial))
        if math.isnan(losses[place]):
            found.setdefault(place, set()).add(why[0])
    return {place: " ".join(sorted(letters)) for place, letters in found.items()}


def _maps(
    maps: Mapping[str, Losses],
    x: Sequence[str],
    y: Sequence[str],
    labels: tuple[str, str],
    marks: Mapping[str, Marks],
) -> Figure:
    """Heat maps of one scale, the lowest cell of each starred."""
    columns = min(len(maps), 1 if max(len(x), max(map(len, x))) > _MANY else 2)
    rows = -(-len(maps) // columns)
    figure, axes = canvas(0.95 + rows * (0.45 + 0.3 * len(y)), rows, columns, sharey=True)
    every = np.concatenate([losses.ravel() for losses in maps.values()])
    every = every[np.isfinite(every)]
    low, middle = float(every.min()), float(np.median(every))
    scale = Normalize(low, min(float(every.max()), low + _TOP * (middle - low)) or low + 1e-9)
    for place, (name, losses) in zip(axes, maps.items(), strict=False):
        image = place.imshow(losses, cmap="cividis", norm=scale, origin="lower", aspect="auto")
        place.set_title(short(name, 30), fontsize=9)
        place.set_xticks(range(len(x)), x, fontsize=8)
        place.set_yticks(range(len(y)), y, fontsize=8)
        place.grid(visible=False)
        place.tick_params(length=0)
        _numbers(place, losses, scale, 6.5 if columns > 1 else 8)
        for (row, column), letters in marks.get(name, {}).items():
            place.text(column, row, letters, ha="center", va="center", fontsize=8, color="#555555")
    for place in axes[len(maps) :]:
        place.set_visible(False)
    for place in axes[: len(maps)][-columns:]:
        place.set_xlabel(labels[0], fontsize=9.5)
    figure.supylabel(labels[1], fontsize=9.5)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.ax.locator_params(nbins=5)
    bar.outline.set_visible(False)
    return figure


def _numbers(axes: Axes, losses: Losses, scale: Normalize, size: float) -> None:
    best = np.unravel_index(int(np.nanargmin(losses)), losses.shape)
    for (row, column), loss in np.ndenumerate(losses):
        if math.isnan(loss):
            continue
        is_best = (row, column) == tuple(map(int, best))
        axes.text(
            column, row, f"{loss:.3f}" + ("\n★" if is_best else ""), ha="center", va="center",
            fontsize=size, weight="bold" if is_best else "normal", linespacing=0.9,
            color="white" if scale(loss) < 0.55 else "black",
        )  # fmt: skip
