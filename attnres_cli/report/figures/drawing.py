"""Which figures a report has, what stands above and below them, and their files."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.figure import Figure

from attnres_cli.report.figures import comparison as losses
from attnres_cli.report.figures import depth, multipliers, search, sizes
from attnres_cli.report.figures.style import house_style
from attnres_cli.report.search_words import trials_text
from attnres_cli.report.table import capital
from attnres_cli.verdict import labels
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import between, plural
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.report_section import Chapter

Thing = TypeVar("Thing")
_NOT_IN_XML = bytes({*range(32)} - {*b"\t\n\r"})


@dataclass(frozen=True)
class Drawing:
    """A figure; its name is for a file, and figures of one comparison share what they are `of`."""

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
    """The figures that this comparison has something for, but not those named `without`."""
    if not chapter.comparison.arms:
        return []
    rates = "Learning rate of what a design adds"
    magnitudes, mixing = depth.magnitudes_caption(chapter), depth.mixing_caption(chapter)
    figures = (
        ("forest", "Paired differences from the baseline", losses.FOREST, losses.draw_forest),
        ("curves", "Loss curves", losses.CURVES, losses.draw_curves),
        ("cost", "Cost beside gain", losses.COST, losses.draw_cost),
        ("blocks", "Loss against block size", losses.BLOCK_SIZES, losses.draw_block_sizes),
        ("multipliers", rates, multipliers.CAPTION, multipliers.draw),
        ("depth", "Outputs and gradients over depth", magnitudes, depth.draw_magnitudes),
        ("mixing", "Depth mixing: who reads what", mixing, depth.draw_mixing),
    )
    wanted = [figure for figure in figures if figure[0] not in without]
    return _drawn(chapter, wanted, _about_comparison(chapter))


def of_sizes(found: Ladder) -> list[Drawing]:
    """The figures of a ladder: differences over the sizes, and loss over compute with its laws."""
    gains = "Differences from the baseline over the sizes"
    figures = [("gains", gains, sizes.gains_caption(found), sizes.draw_gains)]
    if found.has_laws:
        laws = ("scaling", "Loss over compute", sizes.laws_caption(found), sizes.draw_laws)
        figures.insert(0, laws)
    return _drawn(found, figures)


def of_search(finding: Finding) -> list[Drawing]:
    """The figures that this search has something for; none before a trial is complete."""
    of, paper = _about_search(finding), "The paper's own shapes"
    return [
        *_drawn(finding, [("shapes", "Loss by shape", search.SHAPES, search.draw_shapes)], of),
        *_drawn(finding, [("shapes-paper", paper, search.PAPER_SHAPES, search.draw_paper_shapes)]),
        *_drawn(
            finding, [("pareto", "What is given up for what", search.FRONT, search.draw_front)], of
        ),
    ]


def _drawn(
    thing: Thing,
    figures: Sequence[tuple[str, str, str, Callable[[Thing], Figure | None]]],
    of: str = "",
) -> list[Drawing]:
    """The figures of a thing, by name, title and caption; without those that it has nothing for."""
    with house_style():
        return [
            Drawing(name, title, caption, figure, of)
            for name, title, caption, draw in figures
            if (figure := draw(thing)) is not None
        ]


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
