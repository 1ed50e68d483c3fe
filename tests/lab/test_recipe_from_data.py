"""`attnres init` writes a recipe that loads somebody's data as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.errors import DataError
from attnres_cli.lab.recipe_from_data import recipe_text

TEXT = "a text of my own, " * 3000
TOKENS = np.random.default_rng(0).zipf(1.5, 200_000) % 50_257


def begun(path: Path) -> Recipe:
    file = path.parent / "begun.yaml"
    file.write_text(recipe_text(str(path), file.name), encoding="utf-8")
    recipe = load(str(file))
    tokens = sources.load(recipe)
    assert recipe.train.tokens <= 4 * tokens.description.train_tokens
    return recipe


def shard(tokens: np.ndarray) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    return header.tobytes() + tokens.astype("<u2").tobytes()


@pytest.fixture
def folder(here: Path) -> Path:
    """Its name means something else to YAML and shells."""
    (found := here / "mine: 'ü'").mkdir()
    return found


def test_a_folder_of_text_is_read_as_text_despite_other_files(folder: Path):
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt").write_text(TEXT)
    (folder / "logo.png").write_bytes(b"\x89PNG\0")
    data = begun(folder).data
    assert (data.source, data.path, data.val_path) == ("text", str(folder), None)


@pytest.mark.parametrize("names", [("wiki.train.tokens", "wiki.valid.tokens"), ("train", "val")])
def test_text_named_train_and_val_is_split_that_way(folder: Path, names: tuple[str, str]):
    for name in (*names, "test"):
        (folder / name).mkdir()
        (folder / name / "a.txt").write_text(TEXT)
    data = begun(folder).data
    assert (data.path, data.val_path) == tuple(str(folder / name) for name in names)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("tokens.bin", TOKENS.astype("<u2").tobytes(), ("nanogpt", None)),
        ("tokens.bin", TOKENS.astype("<u4").tobytes(), ("nanogpt", "uint32")),
        ("x_train_000000.bin", shard(TOKENS), ("llmc", None)),
    ],
)
def test_token_files_take_precedence_over_text(folder: Path, name: str, content: bytes, found):
    (folder / name).write_bytes(content)
    (folder / "input.txt").write_text(TEXT)
    data = begun(folder).data
    assert (data.source, data.dtype) == found


def test_an_array_is_read_unless_it_holds_no_tokens(folder: Path):
    np.save(folder / "tokens.npy", TOKENS)
    assert begun(folder).data.source == "npy"
    np.save(folder / "tokens.npy", np.zeros((100, 100)))
    (folder / "a.txt").write_text(TEXT)
    assert begun(folder).data.source == "text"


def test_a_tokenizer_beside_token_files_gives_their_vocabulary(folder: Path):
    np.save(folder / "tokens.npy", TOKENS % 256)
    held = {"model": {"vocab": {"a": 0, "b": 299}}, "added_tokens": [{"id": 300}]}
    (folder / "tokenizer.json").write_text(json.dumps(held))
    assert begun(folder).data.vocab_size == 301


def test_the_budget_of_tokens_fits_small_data(folder: Path):
    (folder / "a.txt").write_text(TEXT[:4000])
    recipe = begun(folder)
    assert recipe.train.tokens == 4 * 3800
    assert recipe.train.eval_tokens == 192


def test_data_without_enough_tokens_are_refused(folder: Path):
    with pytest.raises(DataError, match="holds no text"):
        recipe_text(str(folder), "x.yaml")
    for content, words in (b"\0\1", "holds no text"), (b"hi", "2 tokens"):
        (folder / "a").write_bytes(content)
        with pytest.raises(DataError, match=words):
            recipe_text(str(folder), "x.yaml")


def test_the_command_writes_a_recipe_once_and_says_what_to_type(folder: Path, attnres):
    (folder / "a.txt").write_text(TEXT)
    typed = ("init", folder.name, "--output", "my.yaml")
    *_, command = attnres.prints(*typed).strip().splitlines()
    assert command == "  attnres ablate --recipe my.yaml"
    assert "my.yaml is there already" in attnres.refuses(*typed)
    small = ("--dry-run", "--seeds", "2", "--set", "model.n_layers=1")
    attnres.prints(*command.split()[1:], *small)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "my.yaml"}


def test_files_that_are_not_read_as_their_names_say_are_told(folder: Path, attnres):
    for name in ("part1", "part2", "val"):
        (folder / f"{name}.txt").write_text(TEXT + name)
    told = attnres.prints("init", folder.name, "--output", "one.yaml")
    assert "note: called validation, and divided as all else: val.txt" in told
    (folder / "part1.txt").rename(folder / "train.txt")
    told = attnres.prints("init", folder.name, "--output", "two.yaml")
    assert "note: not read, beside train and val: part2.txt" in told


def test_a_key_of_rows_passes_over_token_files(folder: Path):
    np.save(folder / "x.npy", TOKENS % 256)
    rows = "".join(json.dumps({"story": TEXT[:900], "n": "a"}) + "\n" for _ in range(90))
    (folder / "stories.jsonl").write_text(rows)
    assert 'column: "story"' in recipe_text(str(folder), "x.yaml", ["data.column=story"])


def test_a_mistake_is_one_line_and_writes_nothing(here, attnres):
    for typed, words in (
        (["none"], "none does not exist"),
        (["a.txt", "--output", "my.txt"], "--output takes the name of a .yaml file"),
        (["a.txt", "--output", "no/my.yaml"], "cannot be written: No such file"),
        (["."], "would lie among its own data"),
    ):
        Path("a.txt").write_text(TEXT)
        assert words in attnres.refuses("init", *typed)
        assert [path.name for path in here.iterdir()] == ["a.txt"]


def test_rows_are_read_from_the_only_column_of_text_or_the_one_named(folder: Path, attnres):
    rows = [{"id": n, "body": f"{n} of my own, " * 20} for n in range(500)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "README.md").write_text("A page. " * 9)
    assert begun(folder).data.column == "body"
    rows = [row | {"lang": "en"} for row in rows]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    typed = ("init", folder.name, "--output", "my.yaml")
    words = "has no column text, only id, body, lang: --set data.column=body"
    assert words in attnres.refuses(*typed)
    attnres.prints(*typed, "--set", "data.column=body")
    assert load("my.yaml").data.column == "body"
    other = (*typed[:-1], "other.yaml", "--set", "train.tokens=1")
    assert "--set data.KEY=VALUE only" in attnres.refuses(*other)


def test_an_empty_file_is_said_to_be_empty(here: Path, attnres):
    Path("empty.txt").write_text("")
    assert "holds no text: it is empty" in attnres.refuses("init", "empty.txt")


def test_a_plan_shows_how_the_text_that_trains_begins(here: Path, attnres):
    text = 'He said: "caf\u00e9"\n' + TEXT
    rows = [json.dumps({"id": 7, "text": text}), json.dumps({"id": 8, "text": "b " + TEXT})]
    Path("a.jsonl").write_text("\n".join(rows))
    typed = [
        "ablate",
        "standard",
        "--recipe",
        "smoke",
        "--seeds",
        "1",
        "--dry-run",
        "--set",
        "train.eval_tokens=1k",
    ]
    own = ["--set", "data.source=text", "--set", "data.path=a.jsonl"]
    shown = json.dumps(text[:60], ensure_ascii=False)
    assert f"training text begins {shown}" in " ".join(attnres.prints(*typed, *own).split())
    assert "training text begins" not in attnres.prints(*typed)
