"""Names, paths and files as others give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_cli.errors import DataError, UsageError
from attnres_cli.files import check_name, path_of, read_text, sha256, slug


def test_a_name_stays_as_it_is_and_a_path_or_no_line_of_text_is_no_name():
    for name in ("quick", "quick/search", "my recipe, v1.2", "größer", ""):
        assert check_name(name, "recipe") == name
    for name in "../../x", "/etc/x", "a//b", "a/./b", "..", "a\\b", "a\x1b[31m", "a\nb", "x" * 101:
        with pytest.raises(ValueError, match="recipe: "):
            check_name(name, "recipe")


def test_whatever_becomes_a_part_of_a_path_is_one_part_that_stays_in_its_folder(tmp_path: Path):
    for name in "../../x", "/etc/passwd", "..", "", "a\0b", "\x1b]0;x\a", "-rf", "x" * 1000, "a\nb":
        (file := tmp_path / slug(name)).write_bytes(b"")
        assert file.resolve().parent == tmp_path
        assert slug(name).isprintable()
        assert slug(name)[0] not in ".-"


def test_a_path_that_cannot_be_meant_is_refused_with_its_reason(tmp_path: Path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    reasons = {
        "~nobody_here/x": "no such home",
        "x" * 300: "File name too long",
        "a\0b": "no path",
        str(tmp_path / "a"): "Too many levels of symbolic links",
    }

    for text, reason in reasons.items():
        with pytest.raises(DataError, match=reason):
            path_of(text, "data.path", DataError)


def test_a_text_beyond_its_limit_is_refused_whatever_it_says_of_its_size(tmp_path: Path):
    file = tmp_path / "text"
    file.write_text("x" * 11, encoding="utf-8")
    assert read_text(file, "recipe", most=11) == "x" * 11
    with pytest.raises(UsageError, match="too large: at most 10 bytes"):
        read_text(file, "recipe", most=10)
    with pytest.raises(UsageError, match="is no file"):
        read_text(Path("/dev/zero"), "recipe")


def test_a_digest_is_of_the_whole_file(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf8f01cfea")
