"""Figures of a search: loss by shape (paper, Fig. 7), and what is given up for what. Each
`draw_...` gives None where there is nothing to draw.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from attnres_cli.config import shipped
from attnres_cli.records.search_records import Trial
from attnres_cli.report.figures import style
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum

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
Place = tuple[int, int]  # row and column of a cell


@dataclass(frozen=True)
class Map:
    """One variant's losses by cell; `lost` says why a cell has none, `best` is over fresh seeds."""

    name: str
    losses: Losses
    lost: Mapping[Place, str] = field(default_factory=dict)
    best: Place | None = None


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
        ends = [dict.fromkeys((_number(group[0]), _number(group[-1]))) for group in self.groups]
        return ["-".join(each) for each in ends]


def draw_shapes(finding: Finding) -> Figure | None:
    """A heat map per variant: the lowest loss by shape; None where all have one width per layer."""
    axes = axes_of(finding)
    if axes is None:
        return None
    x, y = axes
    maps = [map_of(one, x, y) for one in finding.optima if one.shapes]
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
    x, y = ([f"{v:g}" for v in sorted(held[k])] for k in ("width_per_layer", "heads_per_layer"))
    return _maps(maps, x, y, (_LABELS[_ASPECT], _LABELS[_HEADS]))


def axes_of(finding: Finding) -> tuple[Axis, Axis] | None:
    """The map's x, width per layer, and its y; None where all shapes have about the same x.

    y is the dimension with the fewest empty cells, of those of which shapes of one width per layer
    have several values; where there is none, y is width per layer again, in one group. Every trial
    that has ended has a place, whatever became of it.
    """
    shapes = [shape.trial for one in finding.optima for shape in one.shapes]
    trials = [*shapes, *(trial for one in finding.optima for trial in _lost(one))]
    x = _axis(_ASPECT, trials)
    if len(x.groups) < 2 or not shapes:
        return None
    found = [(0.0, Axis(_ASPECT, (tuple(v for group in x.groups for v in group),)))]
    options = [
        name
        for name in trials[0].options
        if all(isinstance(v := t.options.get(name), int | float) and v > 0 for t in trials)
    ]
    for name in dict.fromkeys((_HEADS, "n_heads", *options)):
        y = _axis(name, trials)
        cells = len({(x.place(trial), y.place(trial)) for trial in shapes})
        if len(y.groups) > 1 and cells > max(len(x.groups), len(y.groups)):
            found.append((cells / len(y.groups), y))
    return x, max(found, key=lambda each: each[0])[1]


def _axis(dimension: str, trials: Sequence[Trial]) -> Axis:
    return Axis(dimension, groups([float(trial.dimensions[dimension]) for trial in trials]))


def _lost(one: Optimum) -> list[Trial]:
    """Trials that ended without a loss."""
    return [trial for trial in one.family.trials if trial.outcome in ("failed", "diverged")]


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


def map_of(one: Optimum, x: Axis, y: Axis) -> Map:
    """A variant's map: in each cell the lowest first look, or nan and the first letters of why."""

    def cell(trial: Trial) -> Place:
        return y.place(trial), x.place(trial)

    losses, lost = np.full((len(y.groups), len(x.groups)), np.nan), dict[Place, set[str]]()
    for shape in one.shapes:
        losses[cell(shape.trial)] = np.fmin(losses[cell(shape.trial)], shape.promised)
    for trial in _lost(one):
        if math.isnan(losses[cell(trial)]):
            lost.setdefault(cell(trial), set()).add(trial.outcome[0])
    letters = {place: " ".join(sorted(found)) for place, found in lost.items()}
    best = cell(one.confirmed[0].trial) if one.confirmed else None
    return Map(one.family.variant, losses, letters, best)


def _maps(
    maps: Sequence[Map], x: Sequence[str], y: Sequence[str], labels: tuple[str, str]
) -> Figure:
    """Heat maps of one scale, the lowest cell of each starred."""
    columns = min(len(maps), 1 if max(len(x), max(map(len, x))) > _MANY else 2)
    rows = -(-len(maps) // columns)
    figure, axes = style.canvas(0.95 + rows * (0.45 + 0.3 * len(y)), rows, columns, sharey=True)
    every = np.concatenate([each.losses.ravel() for each in maps])
    every = every[np.isfinite(every)]
    low, middle = float(every.min()), float(np.median(every))
    scale = Normalize(low, min(float(every.max()), low + _TOP * (middle - low)) or low + 1e-9)
    for place, each in zip(axes, maps, strict=False):
        image = place.imshow(each.losses, cmap="cividis", norm=scale, origin="lower", aspect="auto")
        place.set_title(style.short(each.name, 30), fontsize=9)
        place.set_xticks(range(len(x)), x, fontsize=8)
        place.set_yticks(range(len(y)), y, fontsize=8)
        place.grid(visible=False)
        place.tick_params(length=0)
        _write(place, each, scale, 6.5 if columns > 1 else 8)
    for place in axes[len(maps) :]:
        place.set_visible(False)
    for place in axes[: len(maps)][-columns:]:
        place.set_xlabel(labels[0], fontsize=9.5)
    figure.supylabel(labels[1], fontsize=9.5)
    bar = style.bare_colorbar(
        figure, image, ax=axes, location="bottom", shrink=0.7, aspect=40, pad=0.02
    )
    bar.locator_params(nbins=5)
    return figure


def _write(axes: Axes, of: Map, scale: Normalize, size: float) -> None:
    """Losses, the lowest starred; letters where a shape has none; a frame around the best one's
    cell, of two lines, dark and light.
    """
    lowest = np.unravel_index(int(np.nanargmin(of.losses)), of.losses.shape)
    for (row, column), loss in np.ndenumerate(of.losses):
        is_best = (row, column) == lowest
        if not math.isnan(loss):
            axes.text(
                column, row, f"{loss:.3f}" + ("\n★" if is_best else ""), ha="center", va="center",
                fontsize=size, weight="bold" if is_best else "normal", linespacing=0.9,
                color="white" if scale(loss) < 0.55 else "black",
            )  # fmt: skip
    for (row, column), letters in of.lost.items():
        axes.text(column, row, letters, ha="center", va="center", fontsize=8, color="#555555")
    if of.best is not None:
        row, column = of.best
        for width, colour in ((3.0, "black"), (1.2, "white")):
            corner = (column - 0.46, row - 0.46)
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, lw=width, ec=colour))


def draw_front(finding: Finding) -> Figure | None:
    """Loss over the second objective; None where the search has one, or no complete trial."""
    objectives = finding.search.objectives
    found = [one for one in finding.optima if one.front]
    if len(objectives) < 2 or not found:
        return None
    label, factor = _OBJECTIVES.get(objectives[1], (objectives[1], 1.0))
    names = [one.family.variant for one in found]
    look_of = style.looks(names, "standard" if "standard" in names else names[0])
    figure, (axes,) = style.canvas(3.2)
    for one in found:
        _draw_front(axes, one, look_of[one.family.variant], factor)
    axes.set_xlabel(label)
    axes.set_ylabel(style.LOSS)
    if objectives[1] != "step_time":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.locator_params(axis="x", nbins=6)
    style.legend(figure, axes)
    return figure


def _draw_front(axes: Axes, one: Optimum, look: style.Look, factor: float) -> None:
    best = one.front
    others = [t for t in one.family.trials if t.outcome == "complete" and t not in best]
    hollow: dict[str, Any] = {"ls": "", "ms": 4, "mfc": "none", "alpha": 0.7}
    joined: dict[str, Any] = {"drawstyle": "steps-post", "ls": look.dashes, "lw": 1.2, "ms": 6}
    joined["label"] = style.short(one.family.variant)
    ordered = sorted(best, key=lambda trial: trial.values[1])
    for trials, drawn in ((others, hollow), (ordered, joined)):
        goals, losses = [factor * t.values[1] for t in trials], [t.values[0] for t in trials]
        axes.plot(goals, losses, marker=look.marker, color=look.colour, **drawn)
