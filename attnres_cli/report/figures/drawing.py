"""Which figures a report has, what stands above and below them, and their files."""

from __future__ import annotations

import io
from dataclasses import dataclass

from matplotlib.figure import Figure

from attnres_cli.report.figures import (
    aspect,
    comparison,
    heatmap,
    importance,
    pareto,
    probes,
    scaling,
)
from attnres_cli.report.figures.style import house_style
from attnres_cli.report.search_words import trials_text
from attnres_cli.report.table import capital
from attnres_cli.verdict import labels
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.format import between
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.optima import Finding

SUFFIXES = (".svg", ".png", ".pdf")
"""Of the files that figures can be written to."""


@dataclass(frozen=True)
class Drawing:
    """A figure, its name (a word, for a file) and what stands above and below it."""

    name: str
    title: str
    caption: str
    figure: Figure


def drawings(chapter: Chapter) -> list[Drawing]:
    """The figures that this comparison has something for, in the order of a page."""
    if not chapter.comparison.arms:
        return []
    of = " " + _about_comparison(chapter)
    with house_style():
        drawn = (
            (
                "forest",
                "Paired differences from the baseline",
                comparison.FOREST,
                comparison.forest,
            ),
            ("curves", "Loss curves", comparison.CURVES, comparison.curves),
            ("cost", "Cost beside gain", comparison.COST, comparison.cost),
            ("blocks", "Loss against block size", comparison.BLOCKS, comparison.blocks),
            ("depth", "Outputs and gradients over depth", probes.DEPTH, probes.depth),
            (
                "mixing",
                "Depth mixing: who reads what",
                probes.mixing_caption(chapter),
                probes.mixing,
            ),
        )
        return [
            Drawing(name, title, caption + of, figure)
            for name, title, caption, draw in drawn
            if (figure := draw(chapter)) is not None
        ]


def of_sizes(found: Ladder) -> Drawing:
    """The figure of a ladder: loss over compute."""
    with house_style():
        figure = scaling.draw(found)
    return Drawing("scaling", "Loss over compute", scaling.caption(found), figure)


def of_search(finding: Finding) -> list[Drawing]:
    """The figures that this search has something for; none before a trial is complete."""
    of = " " + _about_search(finding)
    with house_style():
        drawn = (
            ("shapes", "Loss by shape", heatmap.CAPTION + of, heatmap.draw),
            ("shapes-paper", "The paper's own shapes", heatmap.PAPER_CAPTION, heatmap.draw_paper),
            ("aspect", "Loss over width per layer", aspect.CAPTION + of, aspect.draw),
            ("pareto", "What is given up for what", pareto.CAPTION + of, pareto.draw),
            ("importance", "What the loss depends on", importance.CAPTION + of, importance.draw),
        )
        return [
            Drawing(name, title, caption, figure)
            for name, title, caption, draw in drawn
            if (figure := draw(finding)) is not None
        ]


def picture(drawing: Drawing, suffix: str) -> bytes:
    """The file that a figure is, of one of SUFFIXES; the same bytes whenever it is drawn.

    Its metadata hold title and caption.
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


def _about_comparison(chapter: Chapter) -> str:
    """What the numbers are of: `Recipe quick (5821f707fa1b); 3 seeds per arm; attnres 0.1.0`."""
    held = chapter.comparison
    counts = [len(arm.losses) for arm in held.arms]
    seeds = f"{between(counts)} seed{'' if set(counts) == {1} else 's'} per arm"
    versions = sorted({text.split(",")[0] for text in held.versions})
    return (
        f"{capital(labels.title(held))} ({held.recipe_digest}); {seeds}; "
        f"{labels.tokens(held)}; {', '.join(versions)}."
    )


def _about_search(finding: Finding) -> str:
    """What the numbers are of: recipe, budget, seeds, tokens, trials, rule of the learning rate."""
    search = finding.search
    fresh = ", ".join(map(str, search.confirm_seeds))
    seeds = f"first look on seed {search.first_seed}" + (f", fresh seeds {fresh}" if fresh else "")
    trials = [t for one in finding.optima for t in one.family.trials]
    complete = "; ".join(
        f"{one.family.variant} {trials_text(one, search)}" for one in finding.optima
    )
    return (
        f"Recipe {search.recipe} ({search.recipe_digest}); {search.budget} within "
        f"{100 * search.tolerance:.3g} %; {seeds}; "
        f"{between([int(t.dimensions['tokens']) for t in trials] or [0])} tokens per run; "
        f"{complete}; learning rate: {search.learning_rate}."
    )
