"""Reports and figures as files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attnres_cli.errors import UsageError
from attnres_cli.report import terms
from attnres_cli.report.chapter import Chapter


def write(path: Path, content: bytes, option: str) -> None:
    """Make or replace a file in one step, so that whoever reads it sees the old or the new one.

    Raises:
        UsageError: it cannot be written there; `option` names where the path was given.

    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from error


def places(where: str) -> tuple[Path, str, str]:
    """Folder, beginning of names and suffix of the figures to be written.

    `figures` or `figures/` is a folder of SVG files, `figures/run.png` stands for
    figures/run-curves.png and so on, as PNG; .svg and .pdf likewise.

    Raises:
        UsageError: a suffix of no figure.

    """
    from attnres_cli.report.figures import SUFFIXES

    path = Path(where)
    if where.endswith(("/", os.sep)) or not path.suffix or path.is_dir():
        return path, "", ".svg"
    if path.suffix not in SUFFIXES:
        raise UsageError(
            "--figures takes a folder, which gets SVG files, or a name that ends in "
            f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got '{where}'"
        )
    return path.parent, f"{path.stem}-", path.suffix


def save_figures(chapters: Sequence[Chapter], where: str) -> list[Path]:
    """Draw all figures of all chapters into files as `places` says; their paths.

    The terms stand in the names where there are several chapters.

    Raises:
        UsageError: as `places` and `write`.

    """
    from attnres_cli.report.figures import drawings, picture

    folder, begin, suffix = places(where)
    written = []
    for chapter in chapters:
        of = terms.name(chapter.comparison.terms).replace(", ", "-").replace(" ", "-")
        name = f"{begin}{of}-" if len(chapters) > 1 else begin
        for drawing in drawings(chapter):
            path = folder / f"{name}{drawing.name}{suffix}"
            write(path, picture(drawing, suffix), "--figures")
            written.append(path)
    return written
