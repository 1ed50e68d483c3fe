"""Reports and figures as files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from attnres_cli.errors import UsageError
from attnres_cli.files import slug
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.verdict import labels
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.report_section import Chapter

if TYPE_CHECKING:
    from attnres_cli.report.figures.drawing import Drawing


SUFFIXES = (".svg", ".png", ".pdf")
"""Of the files that figures can be written to."""


def write(path: Path, content: bytes, option: str) -> None:
    """Make or replace a file in one step. Raises UsageError, naming `option`, if it cannot."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from error


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
) -> list[Path]:
    """Draw all figures into files named by recipe, terms and search; their paths."""
    from attnres_cli.report.figures.drawing import drawings, of_search, of_sizes, picture

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
