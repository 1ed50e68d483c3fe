"""How every figure looks: one type size, one width, and a look for every variant that it keeps."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnres_cli.config import complete, shipped
from attnres_cli.verdict.comparison import ArmResult, Comparison

LOSS = "validation loss (nats/token)"
WIDTH = 4.8  # inches: on a phone it shrinks by a quarter, and 10 pt type is still read
_PALETTE = (
    "#CC6677", "#332288", "#44AA99", "#AA4499", "#999933", "#88CCEE", "#882255", "#117733",
    "#DDCC77",
)  # fmt: skip
"""Paul Tol's `muted`, told apart with any colour vision (technical note SRON/EPS/TN/09-002)."""
_BASELINE = "#222222"
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP*X<"
OTHERS = "#BFBFBF"
"""The colour of arms that are drawn alike."""
_MOST_NAMED = 8
_FAR = 6.0
_LONGEST = 50
_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "attnres",  # the same figure is the same file
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """How a variant is drawn: no other has its colour and dashes, nor its colour and marker."""

    colour: str
    dashes: str = "-"
    marker: str = "o"


def house_style() -> AbstractContextManager[None]:
    """Draw and save within this, whatever the user's matplotlibrc says."""
    return rc_context(_SETTINGS)


def looks_of(comparison: Comparison) -> dict[str, Look]:
    """The looks of its arms."""
    return looks((arm.variant for arm in comparison.arms), comparison.baseline)


def looks(variants: Iterable[str], baseline: str) -> dict[str, Look]:
    """A look for each variant: the baseline near black, others by their place in the suites, or
    else by their name. Two share a colour only where there are more variants than colours; then
    dashes and markers tell them apart.
    """
    places, n = _places(), len(_PALETTE)
    others = sorted(set(variants) - {baseline}, key=lambda name: (places.get(name, 1000), name))
    found, taken = {baseline: Look(_BASELINE)}, [0] * n
    for name in others:
        own = places.get(name, zlib.crc32(name.encode())) % n
        index = min(range(n), key=lambda i: (taken[i], (i - own) % n))
        nth = taken[index]  # of this colour
        marker = _MARKERS[(index + nth) % len(_MARKERS)]
        found[name] = Look(_PALETTE[index], _DASHES[nth % len(_DASHES)], marker)
        taken[index] += 1
    return found


@cache
def _places() -> dict[str, int]:
    """Every variant of a suite, numbered as they first come; the default suite first."""
    suites = sorted(complete.suites(), key=lambda name: (name != "quick", name != "table4"))
    named = [spec for suite in suites for spec in shipped.suite(suite) if spec != "standard"]
    return {spec: place for place, spec in enumerate(dict.fromkeys(named))}


def named(comparison: Comparison) -> list[str]:
    """The arms that a figure names: of many the baseline and the eight of least loss."""
    arms = [arm.variant for arm in comparison.arms]
    found = [name for name in arms if name != comparison.baseline]
    return arms if len(found) <= _MOST_NAMED else [comparison.baseline, *found[:_MOST_NAMED]]


def background(names: Sequence[str], all_names: Sequence[str]) -> dict[str, str]:
    """The labels of arms that are drawn alike: one for all of them, at the first."""
    others = [name for name in all_names if name not in names]
    return dict.fromkeys(others, "_") | {others[0]: f"{len(others)} others"} if others else {}


def in_sight(values: Sequence[float]) -> float:
    """How far from 0 a scale reaches: six times as far as half of the values, or to the last."""
    sizes = sorted(abs(value) for value in values)
    bound = _FAR * sizes[len(sizes) // 2] or sizes[-1]  # of designs that mostly do not differ, all
    return max(size for size in sizes if size <= bound)


@dataclass(frozen=True)
class Gap:
    """A paired difference as it is drawn: with its interval, those of single seeds, and an arrow
    instead where it is off the scale.
    """

    arm: ArmResult
    mean: float
    seeds: Sequence[float]
    is_far: bool

    @property
    def ends(self) -> Sequence[float]:
        """Of the interval; none before the first look."""
        return self.arm.interval or ()


def arrow(mean: float, digits: int) -> str:
    """What is off the scale, `+0.31 →`, to the side where it lies."""
    right, left = "\N{RIGHTWARDS ARROW}", "\N{LEFTWARDS ARROW}"
    text = f"{mean:+.{digits}g}"
    return f"{text} {right}" if mean > 0 else f"{left} {text}"


def gaps(comparison: Comparison) -> list[Gap]:
    """The arms that have a difference from the baseline."""
    found = [(arm, arm.difference.mean) for arm in comparison.arms if arm.difference is not None]
    far = in_sight([mean for _, mean in found]) if found else 0.0
    base = comparison.base.losses if comparison.base is not None else {}
    return [
        Gap(arm, mean, [arm.losses[n] - base[n] for n in arm.pairs], abs(mean) > far)
        for arm, mean in found
    ]


def scatter(
    axes: Axes,
    gaps: Sequence[Gap],
    at: Sequence[float],
    comparison: Comparison,
    edges: tuple[float, float],
) -> None:
    """Draw each difference, with its interval, at its place `at`; one off the scale as an arrow at
    the edge of it. Of many arms the others are grey.
    """
    looks, names = looks_of(comparison), named(comparison)
    alike = background(names, [gap.arm.variant for gap in gaps if not gap.is_far])
    for gap, x in zip(gaps, at, strict=True):
        name = gap.arm.variant
        look = looks[name] if name in names else Look(OTHERS)
        if gap.is_far:
            mark, edge = ("^", edges[1]) if gap.mean > 0 else ("v", edges[0])
            axes.plot(x, edge, mark, ms=7, color=look.colour)
            told = f"  {short(name)} {gap.mean:+.3g}"
            axes.text(x, edge, told, ha="left", va="center", fontsize=8)
            continue
        axes.errorbar(
            x, gap.mean, yerr=[[abs(gap.mean - end)] for end in gap.ends] or None,
            fmt=look.marker, ms=7, color=look.colour, elinewidth=1.4,
            label=alike.get(name, short(name)), zorder=2 if name in alike else 3,
        )  # fmt: skip


def canvas(
    height: float, rows: int = 1, columns: int = 1, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of the common width, `height` inches high, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    return figure, list(axes.flat)


def legend(figure: Figure, axes: Axes) -> None:
    """The names of what is drawn, below the axes, where they cover nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = 2 if max(len(label) for label in labels) <= 22 else 1
    figure.legend(handles, labels, loc="outside lower left", ncols=columns)
    lines = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.21 * lines + 0.1)


def bare_colorbar(figure: Figure, image: AxesImage, **where: Any) -> Axes:
    """The axes of a scale of colours without a frame."""
    bar = figure.colorbar(image, **where)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return bar.ax


def short(name: str, longest: int = _LONGEST) -> str:
    """A variant's name, its middle left out where it has more than so many characters."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
