"""Reports and figures as files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
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
    """Make or replace a file in one step, so that readers see the old or the new one. Raises
    UsageError, naming `option`, where it cannot be written.
    """
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
    """Draw all figures into files; their paths. Names begin with recipe and terms, or the search,
    where there are several.
    """
    from attnres_cli.report.figures.drawing import drawings, of_search, of_sizes, picture

    folder, begin, suffix = places(where)
    recipes = {chapter.recipe_and_data for chapter in chapters}
    drawn: dict[str, Drawing] = {}
    for chapter in chapters:
        comparison = chapter.comparison
        named = [f"{comparison.recipe}-{comparison.recipe_digest}"] if len(recipes) > 1 else []
        if len(recipes) < len(chapters):
            named.append(_slug_of(comparison.terms))
        _add(drawn, named, drawings(chapter))
    for found in ladders:
        recipe, terms = found.rungs[0].comparison.recipe, _slug_of(found.terms)
        _add(drawn, [recipe, terms] if len(ladders) > 1 else [], of_sizes(found))
    for finding in findings:
        named = [finding.search.name] if len(findings) > 1 else []
        _add(drawn, ["search", *named], of_search(finding))
    paths = [folder / f"{begin}{name}{suffix}" for name in drawn]
    for path, drawing in zip(paths, drawn.values(), strict=True):
        write(path, picture(drawing, suffix), "--figures")
    return paths


def _slug_of(terms: Terms) -> str:
    return labels.name(terms).replace(", ", "-").replace(" ", "-")


def _add(drawn: dict[str, Drawing], named: Sequence[str], drawings: Sequence[Drawing]) -> None:
    """Add drawings under unused names: a second comparison on the same terms gets a number."""
    for drawing in drawings:
        name, again = slug("-".join([*named, drawing.name])), 1
        while name in drawn:
            again += 1
            name = slug("-".join([*named, str(again), drawing.name]))
        drawn[name] = drawing
