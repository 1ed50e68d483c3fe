"""Figures of a comparison, or of a ladder. Each module draws one, and knows when there is nothing
to draw. Matplotlib's objects alone: no pyplot, no state; imported where figures are asked for.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from attnres_cli.report.figures import blocks, cost, curves, depth, forest, mixing, scaling
from attnres_cli.report.figures.style import Drawing, house_style
from attnres_cli.verdict import labels
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.ladder import Ladder

__all__ = ["SUFFIXES", "Drawing", "drawings", "of_sizes", "picture"]

SUFFIXES = (".svg", ".png", ".pdf")
"""Of the files that figures can be written to."""


def drawings(chapter: Chapter) -> list[Drawing]:
    """The figures that this comparison has something for, in the order of a page."""
    if not chapter.comparison.arms:
        return []
    of = _of(chapter)
    kinds = (
        ("forest", "Paired differences from the baseline", forest.draw, forest.CAPTION),
        ("curves", "Loss curves", curves.draw, curves.CAPTION),
        ("cost", "Cost beside gain", cost.draw, cost.CAPTION),
        ("blocks", "Loss against block size", blocks.draw, blocks.CAPTION),
        ("depth", "Outputs and gradients over depth", depth.draw, depth.CAPTION),
        ("mixing", "Depth mixing: who reads what", mixing.draw, mixing.caption(chapter)),
    )
    with house_style():
        drawn = [(name, title, draw(chapter), caption) for name, title, draw, caption in kinds]
    return [
        Drawing(name, title, f"{caption} {of}", figure)
        for name, title, figure, caption in drawn
        if figure is not None
    ]


def of_sizes(found: Ladder) -> Drawing:
    """The figure of a ladder: loss over compute."""
    with house_style():
        figure = scaling.draw(found)
    return Drawing("scaling", "Loss over compute", scaling.caption(found), figure)


def picture(drawing: Drawing, suffix: str) -> bytes:
    """The file that a figure is, of one of SUFFIXES; the same bytes whenever it is drawn.

    SVG and PDF say within what they show, PNG has no such place that readers look at.
    """
    out, kind = io.BytesIO(), suffix.removeprefix(".")
    told = {
        "svg": {"Title": drawing.title, "Description": drawing.caption, "Date": None},
        "pdf": {"Title": drawing.title, "Subject": drawing.caption, "CreationDate": None},
        "png": {"Title": drawing.title, "Description": drawing.caption},
    }
    with house_style():
        drawing.figure.savefig(out, format=kind, metadata=told[kind])
    return out.getvalue()


def _of(chapter: Chapter) -> str:
    """What the numbers are of: `Recipe quick (5821f707fa1b); 3 seeds per arm; attnres 0.1.0`."""
    comparison = chapter.comparison
    counts = sorted({len(arm.losses) for arm in comparison.arms})
    seeds = f"{_range(counts)} seed{'' if counts == [1] else 's'} per arm"
    versions = sorted({text.split(",")[0] for text in comparison.versions})
    title = labels.title(comparison)
    return (
        f"{title[0].upper()}{title[1:]} ({comparison.recipe_digest}); {seeds}; "
        f"{labels.tokens(comparison)}; {', '.join(versions)}."
    )


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
