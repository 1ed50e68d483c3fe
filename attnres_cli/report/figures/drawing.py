"""Which figures a report has, what stands above and below them, and their files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from attnres_cli.errors import UsageError
from attnres_cli.files import slug
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.report.figures import comparison as losses
from attnres_cli.report.figures import depth, search, sizes
from attnres_cli.report.figures.effects import EFFECTS, draw_effects
from attnres_cli.report.figures.pays import PAYS, draw_pays
from attnres_cli.report.figures.style import house_style
from attnres_cli.report.figures.texts import TEXTS, draw_texts
from attnres_cli.report.file_formats import write
from attnres_cli.report.search_words import trials_text
from attnres_cli.report.table import capital
from attnres_cli.stats.effects import Effect
from attnres_cli.verdict import labels
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import between, plural
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.report_section import Chapter
from attnres_cli.verdict.texts import Texts

Thing = TypeVar("Thing")
SUFFIXES = (".svg", ".png", ".pdf")
"""Of the files that figures can be written to."""
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
        ("pays", "Gain beside the time of a step", PAYS, draw_pays),
        ("blocks", "Loss against block size", losses.BLOCK_SIZES, losses.draw_block_sizes),
        ("multipliers", rates, losses.MULTIPLIERS, losses.draw_multipliers),
        ("depth", "Outputs and gradients over depth", magnitudes, depth.draw_magnitudes),
        ("mixing", "Depth mixing: who reads what", mixing, depth.draw_mixing),
    )
    wanted = [figure for figure in figures if figure[0] not in without]
    return _drawn(chapter, wanted, _about_comparison(chapter))


def of_sizes(found: Ladder) -> list[Drawing]:
    """The figures of a ladder: differences over the sizes, and loss over compute with its laws."""
    gains = "Differences from the baseline over the sizes"
    figures = [("gains", gains, sizes.GAINS, sizes.draw_gains)]
    if found.has_laws:
        laws = ("scaling", "Loss over compute", sizes.laws_caption(found), sizes.draw_laws)
        figures.insert(0, laws)
    return _drawn(found, figures, sizes.about(found))


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


def of_texts(texts: Texts) -> list[Drawing]:
    """The figure of designs on several texts."""
    return _drawn(texts, [("texts", "Differences on every text", TEXTS, draw_texts)])


def of_effects(effects: Sequence[Effect], of: str = "") -> list[Drawing]:
    """The figure of what the choices of a search over designs changed."""
    return _drawn(effects, [("effects", "What each choice changed", EFFECTS, draw_effects)], of)


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


def places(where: str) -> tuple[Path, str, str]:
    """Folder, beginning of names and suffix of the figures to be written.

    `figures` or `figures/` is a folder of SVG files; `figures/run.png` stands for
    figures/run-curves.png and so on, as PNG; .svg and .pdf likewise. Raises UsageError for others.
    """
    path = Path(where)
    if where.endswith(("/", os.sep)) or not path.suffix or path.is_dir():
        return path, "", ".svg"
    if path.suffix not in SUFFIXES:
        raise UsageError(
            "--figures takes a folder, which gets SVG files, or a name that ends in "
            f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got '{where}'"
        )
    return path.parent, f"{path.stem}-", path.suffix


def save_figures(
    where: str,
    chapters: Sequence[Chapter] = (),
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
    effects: Sequence[Effect] = (),
    texts: Sequence[Texts] = (),
) -> list[Path]:
    """Draw all figures into files named by recipe, terms and search; their paths."""
    folder, begin, suffix = places(where)
    recipes = {chapter.recipe_and_data for chapter in chapters}
    found: list[tuple[list[str], list[Drawing]]] = []
    for chapter in chapters:
        held = chapter.comparison
        named = [f"{held.recipe}-{held.recipe_digest}"] if len(recipes) > 1 else []
        named += [_slug_of(held.terms)] if len(recipes) < len(chapters) else []
        found.append((named, drawings(chapter)))
    for ladder in ladders:
        named = [ladder.rungs[0].comparison.recipe, _slug_of(ladder.terms)]
        found.append((named if len(ladders) > 1 else [], of_sizes(ladder)))
    for finding in findings:
        named = ["search", *[finding.search.name] * (len(findings) > 1)]
        found.append((named, of_search(finding)))
    found.append((["search"], of_effects(effects)))
    found += [([], of_texts(each)) for each in texts]
    paths: dict[Path, Drawing] = {}
    for named, drawing in [(named, each) for named, of in found for each in of]:
        tries = chain([named], ([*named, str(again)] for again in count(2)))
        names = (slug("-".join([*words, drawing.name])) for words in tries)
        every = (folder / f"{begin}{name}{suffix}" for name in names)
        paths[next(path for path in every if path not in paths)] = drawing
    for path, drawing in paths.items():
        write(path, picture(drawing, suffix), "--figures")
    return list(paths)


def _slug_of(terms: Terms) -> str:
    return labels.name(terms).replace(", ", "-").replace(" ", "-")


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
