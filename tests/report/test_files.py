"""Reports and figures as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnres_cli.errors import UsageError
from attnres_cli.report.figures.drawing import places, save_figures
from attnres_cli.report.file_formats import write


def test_a_file_is_replaced_whole_or_not_at_all_and_nothing_is_left_beside_it(tmp_path: Path):
    path, folder = tmp_path / "new" / "page.html", tmp_path / "new" / "folder"
    write(path, b"old, and longer", "--output")
    write(path, b"new", "--output")
    folder.mkdir()
    with pytest.raises(UsageError, match=r"--output .*folder cannot be written: "):
        write(folder, b"new", "--output")

    assert path.read_bytes() == b"new"
    assert set(path.parent.iterdir()) == {path, folder}


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("out", ("out", "", ".svg")),
        ("out/v1.2/", ("out/v1.2", "", ".svg")),
        ("out/run.png", ("out", "run-", ".png")),
        ("run.pdf", (".", "run-", ".pdf")),
    ],
)
def test_the_suffix_says_what_figures_are_drawn_as(where: str, found: tuple[str, str, str]):
    folder, begin, suffix = places(where)

    assert (str(folder), begin, suffix) == found
    with pytest.raises(UsageError, match=r"ends in \.svg, \.png or \.pdf, got 'out/a\.jpg'"):
        places("out/a.jpg")


def test_figures_of_one_comparison_are_named_by_what_they_show(tmp_path, make_chapter, make_arm):
    chapter = make_chapter([*make_arm("standard", 1.5, 1.6), *make_arm("attnres", 1.4, 1.6)])

    written = save_figures(str(tmp_path / "run.png"), [chapter])

    names = ["run-forest.png", "run-curves.png", "run-cost.png", "run-depth.png", "run-mixing.png"]
    assert [path.name for path in written] == names
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_figures_of_two_comparisons_are_kept_in_one_folder(tmp_path: Path, make_chapter, make_arm):
    runs = [*make_arm("standard", 1.5), *make_arm("attnres", 1.4)]
    chapter = make_chapter(runs, probed=False)  # one figure, the curves
    labels = ("preregistered 0123", "exploratory: not as preregistered (0123)")
    found, hostile = chapter.comparison, replace(chapter.comparison, recipe="../../x")
    both = [replace(chapter, comparison=replace(found, registered=label)) for label in labels]
    folder = tmp_path / "a" / "b"

    written = save_figures(str(tmp_path / "run.svg"), both)
    beside = save_figures(f"{folder}/", [chapter, replace(chapter, comparison=hostile)])

    names = ["run-shared-curves.svg", "run-shared-2-curves.svg"]
    assert [path.name for path in written] == names
    for label, path in zip(labels, written, strict=True):
        assert label.partition(":")[0] in path.read_text()
    assert {path.resolve().parent for path in beside} == {folder}
