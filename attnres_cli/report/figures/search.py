"""Figures of a search: loss by shape (paper, Fig. 7), and what is given up for what. Each
`draw_...` gives None where there is nothing to draw.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from attnres_cli.config import shipped
from attnres_cli.records.search_records import Trial
from attnres_cli.report.figures.style import (
    LOSS,
    Look,
    bare_colorbar,
    canvas,
    legend,
    looks,
    short,
)
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum, front, is_sound, options

SHAPES = (
    "Validation loss of the first look, nats per token: one run each, the lowest where a cell "
    "holds several shapes; a star marks the lowest of all, which is lucky, a frame the cell of the "
    "lowest mean over fresh seeds. All maps are on one colour scale, whose light end also holds "
    "all that is above it. Cells with f or d hold no loss: all their shapes failed or "
    "diverged; empty ones were not tried."
)
PAPER_SHAPES = (
    "The Attention Residuals paper, Fig. 7: validation losses of single runs at 6.5e19 FLOPs and "
    "about 230M active parameters, on a colour scale of their own; which AttnRes is not said. "
    "Compare where the optimum lies, not values: data and models are others."
)
FRONT = (
    "Filled, joined by steps: the front, trials that no other one of the same variant is better "
    "than in both; hollow: all others. Every point is one run of the first look, so that a front "
    "holds the lucky ones; failed and diverged ones have no values and are not drawn."
)
_MOST = 6  # columns or rows of a map
_ALIKE = 1.1  # sizes closer than this share a column
_TOP = 4.0  # the scale ends at so many times the median's distance from the lowest
_MANY = 5  # columns; of more, maps stand below each other
_ASPECT, _HEADS = "aspect", "heads_per_layer"
_LABELS = {_ASPECT: "d_model / n_layers", _HEADS: "n_heads / n_layers"}
_OBJECTIVES = {
    "step_time": ("training step (ms)", 1000.0),
    "params": ("parameters", 1.0),
    "flops": ("training FLOPs of a run", 1.0),
    "memory": ("peak memory (bytes)", 1.0),
}
"""Name and factor of an objective, whose values are seconds, numbers and bytes."""

Losses = NDArray[np.float64]
Marks = Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Map:
    """One variant's losses by cell; `lost` says why a cell has none, `best` is over fresh seeds."""

    name: str
    losses: Losses
    lost: Marks = field(default_factory=dict)
    best: tuple[int, int] | None = None


@dataclass(frozen=True)
class Axis:
    """One direction of a map: the dimension of trials along it, and its groups, ascending."""

    dimension: str
    groups: tuple[tuple[float, ...], ...]

    def place(self, trial: Trial) -> int:
        """The number of the group that a trial's shape falls into."""
        value = float(trial.dimensions[self.dimension])
        return next(i for i, group in enumerate(self.groups) if group[0] <= value <= group[-1])

    @property
    def label(self) -> str:
        """What stands beside it."""
        return _LABELS.get(self.dimension, self.dimension)

    @property
    def names(self) -> list[str]:
        """Of the groups: `45`, or `44-47` of several sizes."""
        ends = [(_number(group[0]), _number(group[-1])) for group in self.groups]
        return [low if low == high else f"{low}-{high}" for low, high in ends]


def draw_shapes(finding: Finding) -> Figure | None:
    """A heat map per variant: the lowest loss by shape; None where all have one width per layer."""
    axes = axes_of(finding)
    if axes is None:
        return None
    x, y = axes
    maps = [
        Map(
            one.family.variant,
            best_losses(one, x, y),
            lost_cells(one, x, y),
            next(((y.place(s.trial), x.place(s.trial)) for s in one.confirmed), None),
        )
        for one in finding.optima
        if one.shapes
    ]
    if y.dimension == x.dimension:
        return _maps(maps, x.names, [""], (x.label, ""))
    return _maps(maps, x.names, y.names, (x.label, y.label))


def draw_paper_shapes(finding: Finding) -> Figure | None:
    """The paper's maps, where the search has the same axes; else None."""
    axes = axes_of(finding)
    if axes is None or axes[1].dimension != _HEADS:
        return None
    held = shipped.paper()["figure7"]
    order = np.argsort(held["heads_per_layer"])
    names = {"standard": "baseline (paper)", "attnres": "AttnRes (paper)"}
    maps = [Map(told, np.array(held[name])[order]) for name, told in names.items()]
    x, y = held["width_per_layer"], sorted(held["heads_per_layer"])
    labels = (_LABELS[_ASPECT], _LABELS[_HEADS])
    return _maps(maps, [f"{v:g}" for v in x], [f"{v:g}" for v in y], labels)


def axes_of(finding: Finding) -> tuple[Axis, Axis] | None:
    """The map's x, width per layer, and its y; None where all shapes have about the same x.

    y is the dimension with the fewest empty cells, of those of which shapes of one width per layer
    have several values; where there is none, y is width per layer again, in one group. Every trial
    that has ended has a place, whatever became of it.
    """
    shapes = [shape.trial for one in finding.optima for shape in one.shapes]
    trials = [*shapes, *(trial for one in finding.optima for trial, _ in one.unmeasured)]
    x = _axis(_ASPECT, trials)
    if len(x.groups) < 2 or not shapes:
        return None
    found = [(0.0, Axis(_ASPECT, (tuple(v for group in x.groups for v in group),)))]
    for name in dict.fromkeys((_HEADS, "n_heads", *_searched(trials))):
        y = _axis(name, trials)
        cells = len({(x.place(trial), y.place(trial)) for trial in shapes})
        if len(y.groups) > 1 and cells > max(len(x.groups), len(y.groups)):
            found.append((cells / len(y.groups), y))
    return x, max(found, key=lambda each: each[0])[1]


def _axis(dimension: str, trials: Sequence[Trial]) -> Axis:
    return Axis(dimension, groups([float(trial.dimensions[dimension]) for trial in trials]))


def _searched(trials: Sequence[Trial]) -> list[str]:
    """Options that every trial has as a number above zero."""
    held = [options(trial) for trial in trials]
    return [
        name
        for name in held[0]
        if all(isinstance(v := each.get(name), int | float) and v > 0 for each in held)
    ]


def _number(value: float) -> str:
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def groups(values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Values above zero in groups of those that are near, ascending; at most six groups."""
    found = [[value] for value in sorted(set(values))]
    while len(found) > 1:
        gaps = [after[-1] / before[0] for before, after in itertools.pairwise(found)]
        least = min(range(len(gaps)), key=gaps.__getitem__)
        if len(found) <= _MOST and gaps[least] > _ALIKE:
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
    """For each (row, column) without a loss the first letters of why: failed, diverged."""
    losses, found = best_losses(one, x, y), dict[tuple[int, int], set[str]]()
    for trial, why in one.unmeasured:
        place = (y.place(trial), x.place(trial))
        if math.isnan(losses[place]):
            found.setdefault(place, set()).add(why[0])
    return {place: " ".join(sorted(letters)) for place, letters in found.items()}


def _maps(
    maps: Sequence[Map], x: Sequence[str], y: Sequence[str], labels: tuple[str, str]
) -> Figure:
    """Heat maps of one scale, the lowest cell of each starred."""
    columns = min(len(maps), 1 if max(len(x), max(map(len, x))) > _MANY else 2)
    rows = -(-len(maps) // columns)
    figure, axes = canvas(0.95 + rows * (0.45 + 0.3 * len(y)), rows, columns, sharey=True)
    every = np.concatenate([each.losses.ravel() for each in maps])
    every = every[np.isfinite(every)]
    low, middle = float(every.min()), float(np.median(every))
    scale = Normalize(low, min(float(every.max()), low + _TOP * (middle - low)) or low + 1e-9)
    for place, each in zip(axes, maps, strict=False):
        image = place.imshow(each.losses, cmap="cividis", norm=scale, origin="lower", aspect="auto")
        place.set_title(short(each.name, 30), fontsize=9)
        place.set_xticks(range(len(x)), x, fontsize=8)
        place.set_yticks(range(len(y)), y, fontsize=8)
        place.grid(visible=False)
        place.tick_params(length=0)
        _numbers(place, each.losses, scale, 6.5 if columns > 1 else 8)
        _marks(place, each)
    for place in axes[len(maps) :]:
        place.set_visible(False)
    for place in axes[: len(maps)][-columns:]:
        place.set_xlabel(labels[0], fontsize=9.5)
    figure.supylabel(labels[1], fontsize=9.5)
    bar = bare_colorbar(figure, image, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.02)
    bar.locator_params(nbins=5)
    return figure


def _marks(axes: Axes, of: Map) -> None:
    """Letters where a shape has no loss; two lines, dark and light, around the best one's cell."""
    for (row, column), letters in of.lost.items():
        axes.text(column, row, letters, ha="center", va="center", fontsize=8, color="#555555")
    if of.best is not None:
        row, column = of.best
        for width, colour in ((3.0, "black"), (1.2, "white")):
            corner = (column - 0.46, row - 0.46)
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, lw=width, ec=colour))


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


def draw_front(finding: Finding) -> Figure | None:
    """Loss over the second objective; None where the search has one, or no complete trial."""
    objectives = finding.search.objectives
    found = [one for one in finding.optima if front(one)]
    if len(objectives) < 2 or not found:
        return None
    label, factor = _OBJECTIVES.get(objectives[1], (objectives[1], 1.0))
    names = [one.family.variant for one in found]
    look_of = looks(names, "standard" if "standard" in names else names[0])
    figure, (axes,) = canvas(3.2)
    for one in found:
        _draw_front(axes, one, look_of[one.family.variant], factor)
    axes.set_xlabel(label)
    axes.set_ylabel(LOSS)
    if objectives[1] != "step_time":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=6)
    legend(figure, axes)
    return figure


def _draw_front(axes: Axes, one: Optimum, look: Look, factor: float) -> None:
    best = front(one)
    others = [t for t in one.family.trials if is_sound(t) and t not in best]
    axes.plot(
        [factor * t.values[1] for t in others], [t.values[0] for t in others], look.marker,
        ms=4, mfc="none", color=look.colour, alpha=0.7,
    )  # fmt: skip
    ordered = sorted(best, key=lambda t: t.values[1])
    axes.plot(
        [factor * t.values[1] for t in ordered], [t.values[0] for t in ordered],
        drawstyle="steps-post", ls=look.dashes, marker=look.marker, ms=6, color=look.colour,
        lw=1.2, label=short(one.family.variant),
    )  # fmt: skip
