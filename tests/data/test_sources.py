"""Files, folders and the standard library: what is found, what is left out, what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from another_user import as_nobody
from inputs import changed, split

from attnres_cli.config import recipe
from attnres_cli.config.recipe import Recipe
from attnres_cli.data import sources
from attnres_cli.data.documents import Document, Texts, of_path, standard_library
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DataError


@pytest.fixture(scope="module")
def library() -> list[Document]:
    return standard_library()


def refusal(path: Path | None) -> str:
    """The one line that a user sees."""
    with pytest.raises(DataError) as caught:
        of_path(path)

    message = str(caught.value)
    assert "\n" not in message
    return message


def load(tiny: Recipe, path: Path, **keys: float) -> Tokens:
    """The tokens that a recipe on this text sees."""
    return sources.load(changed(tiny, data={"source": "text", "path": str(path), **keys}))


# Text


def test_a_file_is_read_as_the_bytes_it_holds(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xc3\xa9\r\n\x01")

    assert of_path(path) == Texts([Document("a.txt", b"caf\xc3\xa9\r\n\x01")], ("all UTF-8",))


def test_a_folder_is_read_with_all_folders_below_under_names_that_do_not_move(tmp_path: Path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/b.txt").write_text("b")
    (tmp_path / "a.txt").write_text("a")

    found = of_path(tmp_path).documents

    assert found == [Document("a.txt", b"a"), Document("deep/er/b.txt", b"b")]


def test_hidden_files_and_folders_are_skipped(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("no")
    (tmp_path / ".DS_Store").write_text("no")
    (tmp_path / "a.txt").write_text("yes")

    assert [document.name for document in of_path(tmp_path).documents] == ["a.txt"]


def test_a_folder_that_is_itself_hidden_is_read(tmp_path: Path):
    (tmp_path / ".corpus").mkdir()
    (tmp_path / ".corpus/a.txt").write_text("yes")

    assert [document.name for document in of_path(tmp_path / ".corpus").documents] == ["a.txt"]


def test_empty_files_and_dangling_links_are_skipped(tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    (tmp_path / "a.txt").write_text("yes")

    assert [document.name for document in of_path(tmp_path).documents] == ["a.txt"]


# What is no text


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + np.random.default_rng(0).bytes(40_000)
LATIN_1 = ("Größe, Weiß und Öl: ein Café. " * 400).encode("latin-1")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PNG, "left out, as no text: odd"),
        (np.random.default_rng(1).bytes(200).replace(b"\0", b""), "left out, as no text: odd"),
        ("text".encode("utf-16"), "left out, as UTF-16 (iconv -f UTF-16 -t UTF-8 makes text of "
         "it): odd"),
        (LATIN_1, "not UTF-8, taken as the bytes they are (Latin-1 or the like): odd"),
    ],
)  # fmt: skip
def test_files_that_are_no_text_are_left_out_by_name_and_encodings_are_said(
    tmp_path: Path, content: bytes, said: str
):
    (tmp_path / "a.txt").write_text("größer")
    (tmp_path / "odd").write_bytes(content)
    (tmp_path / "empty").touch()

    found = of_path(tmp_path)

    assert found.remarks == (said,)
    names = [document.name for document in found.documents]
    assert names == (["a.txt", "odd"] if content is LATIN_1 else ["a.txt"])
    if content is not LATIN_1:
        assert said in refusal(tmp_path / "odd")


def test_of_many_files_that_are_no_text_a_few_are_named_on_one_line(tmp_path: Path):
    (tmp_path / "a.txt").write_text("text")
    for number in range(8):
        (tmp_path / f"{number}\n\x1b.png").write_bytes(PNG)

    found = of_path(tmp_path)

    names = ", ".join(rf"{number}\n\x1b.png" for number in range(5))
    assert found.remarks == (f"left out, as no text: {names} and 3 more",)


def test_a_character_cut_off_at_the_end_and_a_late_nul_are_text(tmp_path: Path):
    (tmp_path / "cut.txt").write_bytes("Größe".encode()[:3])
    (tmp_path / "late.txt").write_bytes(b"a" * 8000 + b"\0")

    assert of_path(tmp_path).remarks == ("all UTF-8",)


def test_a_picture_in_a_folder_neither_trains_nor_validates(tmp_path: Path, tiny_recipe: Recipe):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"text {number}, " * 1000)
    clean = load(tiny_recipe, tmp_path)
    (tmp_path / "logo.png").write_bytes(PNG)

    found = load(tiny_recipe, tmp_path)

    assert found.fingerprint == clean.fingerprint
    assert found.description.split == (
        "the last 5 % of each of 3 files validates: of whole files one would be most of it; "
        "left out, as no text: logo.png"
    )


def test_the_tokenizer_of_a_recipe_is_no_text_of_its_folder(tmp_path: Path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "tokenizer.json").write_text("{}")

    found = of_path(tmp_path, but=tmp_path / "tokenizer.json")

    assert [document.name for document in found.documents] == ["a.txt"]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_a_file_name_that_is_no_utf_8_does_no_harm(tmp_path: Path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("a" * 100)
    (tmp_path / "b.txt").write_text("b" * 100)

    tokens = split("text", of_path(tmp_path).documents, val_fraction=0.5)

    assert len(tokens.val) == 100


def test_no_path_is_refused_with_the_option_that_gives_one():
    assert "--set data.path=" in refusal(None)


def test_a_missing_path_is_refused_with_its_name_and_the_option(tmp_path: Path):
    message = refusal(tmp_path / "none.txt")

    assert "none.txt" in message
    assert "does not exist" in message
    assert "--set data.path=" in message


def test_an_empty_file_is_refused(tmp_path: Path):
    (tmp_path / "empty.txt").touch()

    message = refusal(tmp_path / "empty.txt")

    assert "empty.txt" in message
    assert "no text" in message


@pytest.mark.parametrize("content", [None, ""])
def test_a_folder_without_text_is_refused(tmp_path: Path, content: str | None):
    folder = tmp_path / "corpus"
    folder.mkdir()
    if content is not None:
        (folder / "a.txt").write_text(content)

    message = refusal(folder)

    assert "corpus" in message
    assert "no text" in message


def test_a_name_longer_than_the_system_allows_is_refused(tmp_path: Path):
    assert "too long" in refusal(tmp_path / ("x" * 5000))


@pytest.mark.parametrize(
    ("closed", "asked"),
    [("a", "a"), ("a", ""), ("folder", "folder/b"), ("folder", "folder"), ("folder", "")],
)
def test_what_may_not_be_read_is_refused_with_the_reason(public: Path, closed: str, asked: str):
    (public / "a").write_text("open")
    (public / "folder").mkdir()
    (public / "folder/b").write_text("secret")
    (public / closed).chmod(0)

    with as_nobody():
        assert "Permission denied" in refusal(public / asked)


# From recipe to tokens


def test_a_recipe_on_a_text_loads_its_tokens(tmp_path: Path, tiny_recipe: Recipe):
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 101)) * 100)

    tokens = load(tiny_recipe, path=tmp_path / "a.txt")

    assert (len(tokens.train), len(tokens.val)) == (9500, 500)
    assert tokens.source == "text"


def test_a_moved_folder_keeps_its_fingerprint_and_a_changed_one_does_not(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "here").mkdir()
    for number in range(40):
        (tmp_path / f"here/{number}.txt").write_bytes(bytes([number]) * 500)
    before = load(tiny_recipe, path=tmp_path / "here").fingerprint

    there = (tmp_path / "here").rename(tmp_path / "there")
    moved = load(tiny_recipe, path=there).fingerprint
    (there / "7.txt").write_bytes(b"\xff" + bytes([7]) * 499)
    changed = load(tiny_recipe, path=there).fingerprint

    assert moved == before
    assert changed != before


def test_a_text_shorter_than_a_sequence_is_refused_with_both_sizes(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "a.txt").write_text("short")

    with pytest.raises(DataError, match=r"training data hold 5 tokens.*17.*more data"):
        load(tiny_recipe, path=tmp_path / "a.txt")


def test_a_text_with_too_little_to_evaluate_on_is_refused_with_both_sizes(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "a.txt").write_text("x" * 5000)

    with pytest.raises(DataError, match=r"validation data hold 250 tokens.*256.*more data"):
        load(tiny_recipe, path=tmp_path / "a.txt")


def test_the_validation_fraction_of_the_recipe_is_used(tmp_path: Path, tiny_recipe: Recipe):
    (tmp_path / "a.txt").write_text("x" * 5000)

    tokens = load(tiny_recipe, tmp_path / "a.txt", val_fraction=0.2)

    assert len(tokens.val) == 1000


# Validation text of its own


def separate(tmp_path: Path, tiny: Recipe) -> Tokens:
    places = {"path": str(tmp_path / "here"), "val_path": str(tmp_path / "there")}
    return sources.load(changed(tiny, data={"source": "text", **places}))


def test_a_validation_path_validates_and_all_of_the_path_trains(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/b.txt").write_text("b" * 300)
    (tmp_path / "here/a.txt").write_text("a" * 100)
    (tmp_path / "there").write_text("c" * 500)

    tokens = separate(tmp_path, tiny_recipe)

    assert tokens.train.tobytes() == b"a" * 100 + b"b" * 300
    assert tokens.val.tobytes() == b"c" * 500


def test_a_validation_path_with_nothing_there_is_called_by_its_key(
    tmp_path: Path, tiny_recipe: Recipe
):
    (tmp_path / "here").write_text("a" * 300)

    with pytest.raises(DataError, match=r"data\.val_path .*there does not exist"):
        separate(tmp_path, tiny_recipe)


@pytest.mark.parametrize(("first", "second"), [("here", "here/b.txt"), ("here/b.txt", "here")])
def test_a_validation_path_within_the_path_or_around_it_is_refused(
    tmp_path: Path, tiny_recipe: Recipe, first: str, second: str
):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/b.txt").write_text("b" * 300)
    places = {"path": str(tmp_path / first), "val_path": str(tmp_path / second)}

    with pytest.raises(DataError, match="share files"):
        sources.load(changed(tiny_recipe, data={"source": "text", **places}))


# The standard library


def test_the_standard_library_has_more_than_a_hundred_files(library: list[Document]):
    names = [document.name for document in library]

    assert len(names) > 100
    assert len(set(names)) == len(names)
    assert all(name.endswith(".py") for name in names)
    assert "json/decoder.py" in names


def test_the_standard_library_comes_without_tests_packages_and_build_settings(
    library: list[Document],
):
    parts = {part for document in library for part in document.name.split("/")}

    assert not parts & {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    assert "__pycache__" not in parts
    assert not any(part.startswith(("config-", "_sysconfigdata")) for part in parts)


def test_the_standard_library_has_the_same_fingerprint_twice(library: list[Document]):
    again = standard_library()

    first, second = (split("stdlib", found, 0.05) for found in (library, again))

    assert first.fingerprint == second.fingerprint


def test_the_standard_library_gives_validation_the_fraction_asked_for(library: list[Document]):
    tokens = split("stdlib", library, 0.05)

    share = len(tokens.val) / (len(tokens.val) + len(tokens.train))

    assert share == pytest.approx(0.05, abs=0.005)


def test_the_default_data_are_enough_for_the_quick_recipe():
    tokens = sources.load(recipe.load("quick"))

    assert tokens.source == "stdlib"
    assert 0 < tokens.description.bigram_loss < tokens.description.unigram_loss
