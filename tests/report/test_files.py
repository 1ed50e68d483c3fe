"""Reports and figures as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnres_cli.errors import UsageError
from attnres_cli.report.files import places, save_figures, write
from attnres_cli.verdict.chapter import Chapter


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path):
    path = tmp_path / "new" / "page.html"
    write(path, b"old, and longer", "--output")

    write(path, b"new", "--output")

    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    (tmp_path / "folder").mkdir()

    with pytest.raises(UsageError, match=r"--output .*folder cannot be written: "):
        write(tmp_path / "folder", b"new", "--output")

    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


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


def test_figures_of_one_comparison_are_named_after_what_they_show(
    tmp_path: Path, make_chapter, make_arm
):
    chapter = make_chapter([*make_arm("standard", 1.5, 1.6), *make_arm("attnres", 1.4, 1.6)])

    written = save_figures(str(tmp_path / "run.png"), [chapter])

    names = ["run-forest.png", "run-curves.png", "run-cost.png", "run-depth.png", "run-mixing.png"]
    assert [path.name for path in written] == names
    assert {path.name for path in tmp_path.iterdir()} == set(names)


@pytest.fixture
def chapter(make_chapter, make_arm) -> Chapter:
    """With one figure, the curves."""
    return make_chapter([*make_arm("standard", 1.5), *make_arm("attnres", 1.4)], probed=False)


def test_figures_of_two_comparisons_on_the_same_terms_are_both_kept(
    tmp_path: Path, chapter: Chapter
):
    labels = ("preregistered 0123", "exploratory: not as preregistered (0123)")
    both = [
        replace(chapter, comparison=replace(chapter.comparison, registered=label))
        for label in labels
    ]

    written = save_figures(str(tmp_path / "run.svg"), both)

    names = ["run-shared-curves.svg", "run-shared-2-curves.svg"]
    assert [path.name for path in written] == names
    for label, path in zip(labels, written, strict=True):
        assert label.partition(":")[0] in path.read_text()


def test_a_name_that_is_a_path_draws_into_the_folder_that_was_named(
    tmp_path: Path, chapter: Chapter
):
    hostile = replace(chapter, comparison=replace(chapter.comparison, recipe="../../x"))
    folder = tmp_path / "a" / "b"

    written = save_figures(f"{folder}/", [chapter, hostile])

    assert {path.resolve().parent for path in written} == {folder}
