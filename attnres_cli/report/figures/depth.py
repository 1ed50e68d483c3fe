"""Figures over depth: magnitudes of outputs and gradients, and who reads what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from attnres_cli.records.run import Numbers, Probe
from attnres_cli.report.figures import style
from attnres_cli.report.figures.style import canvas, legend, looks_of, named, short
from attnres_cli.verdict.report_section import Chapter

MAGNITUDES = (
    "Root mean square over evaluation tokens and width, mean over seeds, at the end of training: "
    "of what each sublayer writes, and of the loss's gradient there. Output 0 is the embedding. "
    "Of many arms the baseline and the eight of least loss are named; grey ones may leave the "
    "scale."
)
_LOG_FROM = 20.0  # largest over smallest
_MAP_COLUMNS, _MAP_HEIGHT = 2, 2.5
_MANY, _MANY_COLUMNS, _MANY_HEIGHT = 9, 3, 1.75
_LONGEST_TITLE, _MANY_LONGEST = 30, 22
_NEGATIVE = -1e-3


def draw_magnitudes(chapter: Chapter) -> Figure | None:
    """Output and gradient magnitudes by output (paper, Fig. 5); None where no run was probed."""
    probes = _probes(chapter)
    if not probes:
        return None
    figure, (outputs, gradients) = canvas(4.6, rows=2, sharex=True)
    every = looks_of(chapter.comparison)
    looks = {name: every[name] for name in named(chapter.comparison)}
    _lines(outputs, {name: [p.output_rms for p in of] for name, of in probes.items()}, looks)
    _lines(gradients, {name: [p.gradient_rms for p in of] for name, of in probes.items()}, looks)
    outputs.set_ylabel("output magnitude")
    gradients.set(xlabel="output (2 per layer)", ylabel="gradient magnitude")
    gradients.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, outputs)
    return figure


def magnitudes_caption(chapter: Chapter) -> str:
    """What the curves show, and how evenly experts were used where there are any."""
    loads = {
        name: [max(p.imbalance) for p in of if p.imbalance] for name, of in _probes(chapter).items()
    }
    told = "; ".join(f"{name} {np.mean(found):.2f}" for name, found in loads.items() if found)
    if not told:
        return MAGNITUDES
    return (
        f"{MAGNITUDES} Tokens of the expert that has most of them, as times the mean of its "
        f"layer's experts, in the layer where that is most, mean over seeds: {told}."
    )


def _probes(chapter: Chapter) -> dict[str, list[Probe]]:
    """Of every arm that was probed, the probes of its runs."""
    found = {arm.variant: chapter.probes_of(arm.variant) for arm in chapter.comparison.arms}
    return {name: probes for name, probes in found.items() if probes}


def _lines(
    axes: Axes, rows: Mapping[str, Sequence[Numbers]], looks: Mapping[str, style.Look]
) -> None:
    """A line per arm, the mean over its rows; of arms without a look grey, on the others' scale."""
    means = {name: np.mean(of, axis=0) for name, of in rows.items()}
    drawn: list[float] = []
    for name, look in looks.items():
        if name in means:
            axes.plot(means[name], look.dashes, color=look.colour, label=short(name), lw=1.5)
            drawn += [v for v in means[name] if math.isfinite(v) and v > 0]
    if drawn and max(drawn) > _LOG_FROM * min(drawn):
        axes.set_yscale("log")
    axes.set_ylim(axes.get_ylim())
    for name, label in style.background([*looks], list(means)).items():
        axes.plot(means[name], color=style.OTHERS, label=label, lw=0.8, zorder=1)


def draw_mixing(chapter: Chapter) -> Figure | None:
    """Each arm's mean depth-mixing matrix M (paper, Fig. 8): a row per site, column per output."""
    matrices = {
        f"{name}{which}": [m for p in of if (m := getattr(p, part)) is not None]
        for name, of in _probes(chapter).items()
        for part, which in _parts(of)
    }
    found = {name: np.mean(each, axis=0) for name, each in matrices.items() if each}
    if not found:
        return None
    columns, height, size, longest = _MAP_COLUMNS, _MAP_HEIGHT, 8.5, _LONGEST_TITLE
    if len(found) > _MANY:
        columns, height, size, longest = _MANY_COLUMNS, _MANY_HEIGHT, 7, _MANY_LONGEST
    rows = -(-len(found) // columns)
    figure, axes = canvas(0.2 + height * rows, rows, columns)
    for place, (name, matrix) in zip(axes, found.items(), strict=False):
        _draw_matrix(figure, place, matrix)
        place.set_title(_title(name, longest), fontsize=size)
    for place in axes[len(found) :]:
        place.set_visible(False)
    figure.supxlabel("output read (0: the embedding)", fontsize=10)
    figure.supylabel("site (the last: before the head)", fontsize=10)
    return figure


def _parts(probes: Sequence[Probe]) -> list[tuple[str, str]]:
    """What a probe's matrices are called, and what is said of each after the arm's name."""
    if all(probe.mixing_k is None for probe in probes):
        return [("mixing", "")]
    return [("mixing", ": queries"), ("mixing_k", ": keys"), ("mixing_v", ": values")]


def _draw_matrix(figure: Figure, axes: Axes, matrix: NDArray[np.float64]) -> None:
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
    style.bare_colorbar(figure, image, ax=axes, shrink=0.8, pad=0.03)


def _title(name: str, longest: int) -> str:
    """A name longer than that in two lines."""
    name = short(name, 2 * longest)
    if len(name) <= longest:
        return name
    cut = max(name.rfind(mark, 0, longest) for mark in ",:") + 1 or longest
    return f"{name[:cut]}\n{name[cut:]}"


def mixing_caption(chapter: Chapter) -> str:
    """What the maps show, and of every arm the numbers that sum them up; or why it has none."""
    probed = _probes(chapter)
    told = (
        "Mean weight over evaluation tokens and seeds at the end of training, each arm on a scale "
        "of its own."
    )
    if len(probed) > _MANY:
        return f"{told} `attnres runs show` has the numbers of a run."
    arms = "; ".join(f"{name}: {_summary(probes)}" for name, probes in probed.items())
    return f"{told} Means over all sites but the first: {arms}."


def _summary(probes: Sequence[Probe]) -> str:
    if probes[0].mixing is None:
        return f"no matrix, {probes[0].no_mixing}"
    numbers = (
        ("weight of the newest source (the diagonal) {:.2f}", [p.newest_share for p in probes]),
        ("of the embedding {:.2f}", [p.embedding_share for p in probes]),
        ("entropy {:.2f} nats", [p.entropy for p in probes]),
    )
    told = [(text, [r[1:] for r in rows if r is not None and len(r) > 1]) for text, rows in numbers]
    return ", ".join(text.format(np.mean(rows)) for text, rows in told if rows)
