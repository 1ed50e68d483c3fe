"""Which figures a report has, what stands above and below them, and their files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from attnres_cli.report.figures import comparison as losses
from attnres_cli.report.figures import depth, gains, multipliers, search, sizes
from attnres_cli.report.figures.style import house_style
from attnres_cli.report.search_words import trials_text
from attnres_cli.report.table import capital
from attnres_cli.verdict import labels
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import between, plural
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.report_section import Chapter

_NOT_IN_XML = bytes({*range(32)} - {*b"\t\n\r"})


@dataclass(frozen=True)
class Drawing:
    """A figure, its name (a word, for a file), what stands above and below it, and what its numbers
    are `of`: figures of one comparison share that.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    of: str = ""

    @property
    def told(self) -> str:
        """All that a file says of it."""
        return f"{self.caption} {self.of}".rstrip()


def drawings(chapter: Chapter, without: Sequence[str] = ()) -> list[Drawing]:
    """The figures that this comparison has something for, in the order of a page, but not those of
    the names `without`.
    """
    if not chapter.comparison.arms:
        return []
    of, mixing = _about_comparison(chapter), depth.mixing_caption(chapter)
    magnitudes = depth.magnitudes_caption(chapter)
    figures = (
        ("forest", "Paired differences from the baseline", losses.FOREST, losses.draw_forest),
        ("curves", "Loss curves", losses.CURVES, losses.draw_curves),
        ("cost", "Cost beside gain", losses.COST, losses.draw_cost),
        ("blocks", "Loss against block size", losses.BLOCK_SIZES, losses.draw_block_sizes),
        (
            "multipliers",
            "Learning rate of what a design adds",
            multipliers.CAPTION,
            multipliers.draw,
        ),
        ("depth", "Outputs and gradients over depth", magnitudes, depth.draw_magnitudes),
        ("mixing", "Depth mixing: who reads what", mixing, depth.draw_mixing),
    )
    found = []
    with house_style():
        for name, title, caption, draw in figures:
            if name not in without:
                found += _made(name, title, caption, draw(chapter), of)
    return found


def of_sizes(found: Ladder) -> list[Drawing]:
    """The figures of a ladder: differences over the sizes, and loss over compute with its laws."""
    with house_style():
        laws = sizes.draw(found) if found.has_laws else None
        figure = gains.draw(found)
    title = "Differences from the baseline over the sizes"
    return [
        *_made("scaling", "Loss over compute", sizes.caption(found), laws),
        *_made("gains", title, gains.caption(found), figure),
    ]


def of_search(finding: Finding) -> list[Drawing]:
    """The figures that this search has something for; none before a trial is complete."""
    of = _about_search(finding)
    with house_style():
        shapes = search.draw_shapes(finding)
        paper = search.draw_paper_shapes(finding)
        front = search.draw_front(finding)
    return [
        *_made("shapes", "Loss by shape", search.SHAPES, shapes, of),
        *_made("shapes-paper", "The paper's own shapes", search.PAPER_SHAPES, paper),
        *_made("pareto", "What is given up for what", search.FRONT, front, of),
    ]


def _made(
    name: str, title: str, caption: str, figure: Figure | None, of: str = ""
) -> list[Drawing]:
    return [] if figure is None else [Drawing(name, title, caption, figure, of)]


def picture(drawing: Drawing, suffix: str) -> bytes:
    """The figure's file, as .svg, .png or .pdf; the same bytes whenever it is drawn."""
    out, kind = io.BytesIO(), suffix.removeprefix(".")
    told = {
        "svg": {"Title": drawing.title, "Description": drawing.told, "Date": None},
        "pdf": {"Title": drawing.title, "Subject": drawing.told, "CreationDate": None},
        "png": {"Title": drawing.title, "Description": drawing.told},
    }
    with house_style():
        drawing.figure.savefig(out, format=kind, metadata=told[kind])
    return out.getvalue() if kind != "svg" else out.getvalue().translate(None, delete=_NOT_IN_XML)


def _about_comparison(chapter: Chapter) -> str:
    """What the numbers are of: `Recipe quick (5821f707fa1b); 3 seeds per arm; attnres 0.1.0`."""
    found = chapter.comparison
    seeds = plural(between([len(arm.losses) for arm in found.arms]), "seed")
    versions = sorted({text.split(",")[0] for text in found.versions})
    return (
        f"{capital(labels.title(found))} ({found.recipe_digest}); {seeds} per arm; "
        f"{labels.tokens(found)}; {', '.join(versions)}."
    )


def _about_search(finding: Finding) -> str:
    """What the numbers are of: recipe, budget, seeds, tokens, trials, rule of the learning rate."""
    asked = finding.search
    fresh = ", ".join(map(str, asked.confirm_seeds))
    seeds = f"first look on seed {asked.first_seed}" + (f", fresh seeds {fresh}" if fresh else "")
    trials = [t for one in finding.optima for t in one.family.trials]
    complete = "; ".join(
        f"{one.family.variant} {trials_text(one, asked)}" for one in finding.optima
    )
    return (
        f"Recipe {asked.recipe} ({asked.recipe_digest}); {asked.budget} within "
        f"{100 * asked.tolerance:.3g} %; {seeds}; "
        f"{between([int(t.dimensions['tokens']) for t in trials] or [0])} tokens per run; "
        f"{complete}; learning rate: {asked.learning_rate}."
    )
