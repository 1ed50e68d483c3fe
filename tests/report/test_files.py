"""Reports as files, and as LaTeX."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_cli.errors import UsageError
from attnres_cli.report.files import write


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
