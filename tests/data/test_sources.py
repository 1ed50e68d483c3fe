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


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    """The folder, with these files in it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def names(path: Path, but: Path | None = None) -> list[str]:
    """The documents that are found in a folder."""
    return [document.name for document in of_path(path, but=but).documents]


def refusal(path: Path | None) -> str:
    with pytest.raises(DataError) as caught:
        of_path(path)
    (line,) = str(caught.value).splitlines()
    return line


def load(tiny: Recipe, path: Path, val_path: Path | None = None, **keys: float) -> Tokens:
    """The tokens that a recipe on this text sees."""
    places = {"path": str(path)} | ({} if val_path is None else {"val_path": str(val_path)})
    return sources.load(changed(tiny, data={"source": "text", **places, **keys}))


def test_files_and_folders_are_read_as_the_bytes_they_hold_under_relative_names(tmp_path: Path):
    written(tmp_path, {"deep/er/b.txt": "b", "a.txt": b"caf\xc3\xa9\r\n\x01"})
    first = Document("a.txt", b"caf\xc3\xa9\r\n\x01")
    assert of_path(tmp_path / "a.txt") == Texts([first], ("all UTF-8",))
    assert of_path(tmp_path).documents == [first, Document("deep/er/b.txt", b"b")]


def test_hidden_and_empty_files_dangling_links_and_the_tokenizer_are_skipped(tmp_path: Path):
    skipped = {".git/config": "no", ".DS_Store": "no", "empty.txt": "", "tokenizer.json": "{}"}
    folder = written(tmp_path / ".corpus", skipped | {"a.txt": "yes"})  # hidden itself
    (folder / "dangling.txt").symlink_to("nowhere")
    assert names(folder, but=folder / "tokenizer.json") == ["a.txt"]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_a_file_name_that_is_not_utf_8_does_no_harm(tmp_path: Path):
    written(tmp_path, {os.fsdecode(b"caf\xe9.txt"): "a" * 100, "b.txt": "b" * 100})
    tokens = split("text", of_path(tmp_path).documents, val_fraction=0.5)
    assert len(tokens.val) == 100


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 150
NOISE = np.random.default_rng(1).bytes(200).replace(b"\0", b"")
LATIN_1 = ("Größe, Weiß und Öl: ein Café. " * 400).encode("latin-1")


ODD = {
    PNG: "left out, as no text: odd",
    NOISE: "left out, as no text: odd",
    "text".encode("utf-16"): "left out, as UTF-16 (iconv -f UTF-16 -t UTF-8 makes text of it): odd",
    LATIN_1: "not UTF-8, taken as the bytes they are (Latin-1 or the like): odd",
}


def test_files_that_are_not_text_are_left_out_by_name_and_encodings_are_said(tmp_path: Path):
    for content, said in ODD.items():
        written(tmp_path, {"a.txt": "größer", "odd": content, "empty": ""})
        assert of_path(tmp_path).remarks == (said,)
        assert names(tmp_path) == (["a.txt", "odd"] if content is LATIN_1 else ["a.txt"])
        if content is not LATIN_1:
            assert said in refusal(tmp_path / "odd")


def test_a_few_of_many_files_that_are_not_text_are_named_on_one_line(tmp_path: Path):
    written(tmp_path, {"cut.txt": "Größe".encode()[:3], "late.txt": b"a" * 8000 + b"\0"})
    assert of_path(tmp_path).remarks == ("all UTF-8",)  # a cut character and a late NUL are text
    written(tmp_path, {f"{number}\n\x1b.png": PNG for number in range(8)})
    shown = ", ".join(rf"{number}\n\x1b.png" for number in range(5))
    assert of_path(tmp_path).remarks == (f"left out, as no text: {shown} and 3 more",)


def test_a_picture_in_a_folder_neither_trains_nor_validates(tmp_path: Path, tiny_recipe: Recipe):
    tmp_path = tmp_path / "texts"  # beside the cache
    written(tmp_path, {f"{number}.txt": f"text {number}, " * 1000 for number in range(3)})
    clean = load(tiny_recipe, tmp_path)
    (tmp_path / "logo.png").write_bytes(PNG)

    found = load(tiny_recipe, tmp_path)

    assert found.fingerprint == clean.fingerprint
    assert str(found.description.split).startswith(
        "the last 5 % of each of 3 files validates: of whole files one would be most of it; "
        "left out, as no text: logo.png"
    )


def test_a_path_without_text_is_refused_with_its_name_and_the_option(tmp_path: Path):
    written(tmp_path, {"empty.txt": "", "corpus/a.txt": ""})
    (tmp_path / "bare").mkdir()

    assert "--set data.path=" in refusal(None)
    for name, *words in (
        ("none.txt", "does not exist", "--set data.path="),
        ("empty.txt", "no text"),
        ("corpus", "no text"),
        ("bare", "no text"),
        ("x" * 5000, "too long"),
    ):
        message = refusal(tmp_path / name)
        assert all(word in message for word in (name[:20], *words)), message


def test_a_path_without_permission_is_refused_with_the_reason(public: Path):
    written(public, {"a": "open", "folder/b": "secret"})
    for closed, paths in (("a", ["a", ""]), ("folder", ["folder/b", "folder", ""])):
        (public / closed).chmod(0)
        with as_nobody():
            for path in paths:
                assert "Permission denied" in refusal(public / path)
        (public / closed).chmod(0o755)


def test_a_recipe_on_a_text_loads_its_tokens_and_uses_its_fraction_or_its_validation_path(
    tmp_path: Path, tiny_recipe: Recipe
):
    written(tmp_path, {"here/b.txt": "b" * 300, "here/a.txt": "a" * 100, "there": "c" * 500})
    path = written(tmp_path, {"a.txt": bytes(range(1, 101)) * 100}) / "a.txt"

    tokens, fifth = load(tiny_recipe, path), load(tiny_recipe, path, val_fraction=0.2)
    apart = load(tiny_recipe, tmp_path / "here", tmp_path / "there")

    assert (len(tokens.train), len(tokens.val), tokens.source) == (9500, 500, "text")
    assert len(fifth.val) == 2000
    assert apart.train.tobytes() == b"a" * 100 + b"\n" + b"b" * 300
    assert apart.val.tobytes() == b"c" * 500


def test_only_a_changed_folder_has_another_fingerprint(tmp_path: Path, tiny_recipe: Recipe):
    written(tmp_path / "here", {f"{number}.txt": bytes([number]) * 500 for number in range(40)})
    before = load(tiny_recipe, tmp_path / "here").fingerprint
    there = (tmp_path / "here").rename(tmp_path / "there")
    moved = load(tiny_recipe, there).fingerprint
    written(there, {"7.txt": b"\xff" + bytes([7]) * 499})
    assert moved == before != load(tiny_recipe, there).fingerprint


def test_a_validation_path_must_exist_apart_from_the_path(tmp_path: Path, tiny_recipe: Recipe):
    written(tmp_path, {"here/b.txt": "b" * 300})

    for path, val_path, words in (
        ("here", "there", r"data\.val_path .*there does not exist"),
        ("here", "here/b.txt", "share files"),
        ("here/b.txt", "here", "share files"),
    ):
        with pytest.raises(DataError, match=words):
            load(tiny_recipe, tmp_path / path, tmp_path / val_path)


def test_the_standard_library_is_the_source_of_the_quick_recipe_and_the_same_each_time():
    library = standard_library()
    found = [document.name for document in library]
    parts = {part for name in found for part in name.split("/")}

    assert len(set(found)) == len(found) > 100
    assert all(name.endswith(".py") for name in found)
    assert "json/decoder.py" in found
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    assert not parts & left_out
    assert not any(part.startswith(("config-", "_sysconfigdata")) for part in parts)
    tokens, again = (
        sources.load(recipe.load("quick", ["data.edition=1"])),
        split("stdlib", standard_library(), 0.05),
    )
    assert (tokens.source, tokens.fingerprint) == ("stdlib", again.fingerprint)
    share = len(tokens.val) / (len(tokens.val) + len(tokens.train))
    assert share == pytest.approx(0.05, abs=0.005)
    assert 0 < tokens.description.bigram_loss < tokens.description.unigram_loss
