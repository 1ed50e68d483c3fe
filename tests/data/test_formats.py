"""Every kind of data, from a recipe to a finished run by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import process

from attnres_cli.config import recipe
from attnres_cli.data.documents import standard_library
from attnres_cli.errors import RecipeError

CONTENT = np.frombuffer(b"".join(d.content for d in standard_library())[:200_000], dtype=np.uint8)
EVALUATED = "train.eval_tokens=1k"


def command(folder: Path, *sets: str) -> tuple[int, str, str]:
    overrides = [part for each in (*sets, EVALUATED) for part in ("--set", each)]
    grid = ["standard", "--recipe", "smoke", "--seeds", "1", "--workers", "1", "--format", "json"]
    return process("ablate", *grid, *overrides, folder=folder)


def losses(folder: Path, *sets: str) -> list[float]:
    """The final losses of the runs that the command has trained."""
    code, out, err = command(folder, *sets)
    assert code == 0, err
    return [loss for arm in json.loads(out)["arms"] for loss in arm["losses"].values()]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The same text in every format, 90 % of it to train on where a format has two files."""
    half = CONTENT[:180_000], CONTENT[180_000:]
    for folder in ("nanogpt", "llmc"):
        (tmp_path / folder).mkdir()
    for name, part in zip(("train", "val"), half, strict=True):
        part.astype("<u2").tofile(tmp_path / f"nanogpt/{name}.bin")
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, len(part)
        content = header.tobytes() + part.astype("<u2").tobytes()
        (tmp_path / f"llmc/text_{name}_000000.bin").write_bytes(content)
    np.save(tmp_path / "all.npy", CONTENT.astype(np.int32))
    return tmp_path


@pytest.mark.slow
def test_the_same_tokens_in_another_format_give_the_same_run(files: Path):
    found = [
        losses(files, f"data.source={source}", f"data.path={path}", "data.vocab_size=256", *more)
        for source, path, *more in (
            ("nanogpt", "nanogpt"),
            ("llmc", "llmc/*.bin"),
            ("npy", "all.npy", "data.val_fraction=0.1"),
        )
    ]

    assert found[0] == found[1] == found[2]
    assert 1 < found[0][0] < np.log(256)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["pointers", "permutations", "recall"])
def test_a_generated_task_is_learned_and_stays_above_its_floor(files: Path, source: str):
    from attnres_cli.data import sources

    tokens = sources.load(recipe.load("smoke", [f"data.source={source}", EVALUATED]))

    (loss,) = losses(files, f"data.source={source}")

    assert tokens.floor < loss < np.log(tokens.vocab_size) - 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["data.source=llmc", "data.path=nanogpt"], "expected magic"),
        (["data.source=nanogpt", "data.path=nanogpt", "data.vocab_size=100"], "is beyond the"),
        (["data.source=npy", "data.path=nanogpt/val.bin"], "is no .npy file"),
        (["data.source=pointers", "data.nodes=200"], "--set model.seq_len=403"),
        (["data.source=stdlib", "data.tokenizer=word"], "unknown tokenizer"),
        (["data.source=text", "data.path=all.npy"], "holds no text: left out, as no text: all.npy"),
    ],
)
def test_bad_data_are_one_line_and_exit_code_2_and_nothing_is_trained(
    files: Path, sets: list[str], words: str
):
    code, _, err = command(files, *sets)

    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not (files / "attnres.db").exists()


# The recipe


def refusal(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe.load("smoke", overrides)

    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_was_trained_before_there_were_these_formats_keeps_its_digest():
    loaded = {name: recipe.load(name) for name in ("quick", "smoke", "small")}
    digests = {name: one.at_rate(one.optim.lr).digest for name, one in loaded.items()}

    assert digests == {"quick": "5821f707fa1b", "smoke": "7d36719ae8d6", "small": "88c659a2b0f3"}
    assert recipe.load("quick", ["data.source=text"]).at_rate(6e-3).digest == "f0952485d795"
    assert recipe.load("quick", ["data.val_fraction=0.1"]).at_rate(6e-3).digest == "1cbcdbb20ff1"


def test_the_digest_sees_that_validation_data_lie_apart_and_not_where():
    here, there, none = (
        recipe.load("smoke", ["data.source=nanogpt", "data.path=a", *more]).digest
        for more in (["data.val_path=b"], ["data.val_path=c"], [])
    )

    assert here == there != none


def test_the_digest_does_not_see_whether_a_default_is_written_out():
    plain = recipe.load("smoke", ["data.source=pointers"])
    written = recipe.load("smoke", ["data.source=pointers", "data.nodes=8", "data.hops=4"])

    assert plain.digest == written.digest
    assert plain.data == written.data


@pytest.mark.parametrize("source", ["pointers", "llmc", "huggingface", "stdlib"])
def test_a_recipe_is_the_same_after_it_was_stored(source: str):
    loaded = recipe.load("smoke", [f"data.source={source}"])

    again = recipe.Recipe.model_validate(json.loads(json.dumps(loaded.model_dump())))

    assert again == loaded
    assert again.digest == loaded.digest


@pytest.mark.parametrize(
    ("override", "source"),
    [
        ("data.nodes=4", "pointers"),
        ("data.degree=3", "permutations"),
        ("data.pairs=3", "recall"),
        ("data.vocab_size=300", "nanogpt"),
        ("data.column=text", "huggingface"),
        ("data.tokenizer=a.json", "stdlib"),
        ("data.val_path=a", "text"),
    ],
)
def test_a_key_that_the_source_does_not_read_is_refused_with_one_that_does(
    override: str, source: str
):
    other = "recall" if source != "recall" else "pointers"

    message = refusal(f"data.source={other}", override)

    assert f"got source: {other}" in message
    assert f"--set data.source={source}" in message


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.source=pointers", "data.nodes=1"],
        ["data.source=permutations", "data.degree=7"],
        ["data.source=recall", "data.values=1"],
        ["data.source=nanogpt", "data.dtype=int8"],
        ["data.source=recall", "data.pairs=40"],
        ["data.source=text", "data.val_fraction="],
    ],
)
def test_an_impossible_value_is_refused_with_its_key(overrides: list[str]):
    assert overrides[1].split("=")[0].removeprefix("data.") in refusal(*overrides)


@pytest.mark.parametrize(
    "others",
    [
        ["data.source=recall"],
        ["data.source=text", "data.path=a", "data.val_path=b"],
        ["data.source=huggingface", "data.path=a", "data.val_split=test"],
    ],
)
def test_a_fraction_for_validation_is_refused_where_something_else_validates(others: list[str]):
    assert "data.val_fraction is not read" in refusal(*others, "data.val_fraction=0.1")
    assert recipe.load("smoke", others)


def test_a_recipe_with_a_fraction_takes_validation_data_that_are_typed():
    assert recipe.load("paper-436m", ["data.path=a", "data.val_path=b"]).data.val_fraction == 0.001
