"""Every kind of data, from a recipe to a finished run by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import attnres

from attnres_cli.config import recipe
from attnres_cli.data import sources
from attnres_cli.data.documents import standard_library
from attnres_cli.errors import RecipeError

EVALUATED = "train.eval_tokens=1k"
Ablate = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text in every format, 90% of it to train on where a format has two files."""
    folder = tmp_path_factory.mktemp("formats")
    library = b"".join(document.content for document in standard_library())
    content = np.frombuffer(library[:200_000], dtype=np.uint8)
    for name in ("nanogpt", "llmc"):
        (folder / name).mkdir()
    for name, part in (("train", content[:180_000]), ("val", content[180_000:])):
        part.astype("<u2").tofile(folder / f"nanogpt/{name}.bin")
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, len(part)
        shard = header.tobytes() + part.astype("<u2").tobytes()
        (folder / f"llmc/text_{name}_000000.bin").write_bytes(shard)
    np.save(folder / "all.npy", content.astype(np.int32))
    return folder


@pytest.fixture
def ablate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ablate:
    """Runs the command on one arm and one seed in an empty folder."""
    monkeypatch.chdir(tmp_path)
    grid = ["standard", "--recipe", "smoke", "--seeds", "1", "--workers", "1", "--format", "json"]

    def command(*sets: str) -> tuple[int, str, str]:
        overrides = [part for each in (*sets, EVALUATED) for part in ("--set", each)]
        return attnres(capsys, "ablate", *grid, *overrides)

    return command


def loss_of(out: str) -> float:
    """The final loss of the one run."""
    ((loss,),) = (arm["losses"].values() for arm in json.loads(out)["arms"])
    return loss


@pytest.mark.slow
def test_the_same_tokens_in_another_format_give_the_same_run(files: Path, ablate: Ablate):
    found = []
    for source, path, *more in (
        ("nanogpt", "nanogpt"),
        ("llmc", "llmc/*.bin"),
        ("npy", "all.npy", "data.val_fraction=0.1"),
    ):
        places = f"data.source={source}", f"data.path={files}/{path}"
        code, out, err = ablate(*places, "data.vocab_size=256", *more)
        assert code == 0, err
        found.append(loss_of(out))
        Path("attnres.db").unlink()

    assert found[0] == found[1] == found[2]
    assert 1 < found[0] < np.log(256)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["pointers", "permutations", "recall"])
def test_a_generated_task_is_learned_and_stays_above_its_floor(source: str, ablate: Ablate):
    tokens = sources.load(recipe.load("smoke", [f"data.source={source}", EVALUATED]))

    code, out, err = ablate(f"data.source={source}")

    assert code == 0, err
    assert tokens.floor < loss_of(out) < np.log(tokens.vocab_size) - 0.1


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["data.source=llmc", "data.path={}/nanogpt"], "expected magic"),
        (["data.source=nanogpt", "data.path={}/nanogpt", "data.vocab_size=100"], "is beyond the"),
        (["data.source=npy", "data.path={}/nanogpt/val.bin"], "is no .npy file"),
        (["data.source=pointers", "data.nodes=200"], "--set model.seq_len=403"),
        (["data.source=stdlib", "data.tokenizer=word"], "unknown tokenizer"),
        (["data.source=text", "data.path={}/all.npy"], "left out, as no text: all.npy"),
    ],
)
def test_bad_data_exit_with_code_2_and_one_line_before_anything_is_trained(
    files: Path, ablate: Ablate, tmp_path: Path, sets: list[str], words: str
):
    code, _, err = ablate(*(text.format(files) for text in sets))

    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert list(tmp_path.glob("attnres.*")) == []


# The recipe


def refusal(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe.load("smoke", overrides)

    message = str(caught.value)
    assert "\n" not in message
    return message


def test_recipes_keep_the_digest_they_had_before_these_formats():
    loaded = {name: recipe.load(name, ["data.edition=1"]) for name in ("quick", "smoke", "small")}
    digests = {name: one.at_rate(one.optim.lr).digest for name, one in loaded.items()}

    assert digests == {"quick": "5821f707fa1b", "smoke": "7d36719ae8d6", "small": "88c659a2b0f3"}
    assert recipe.load("quick", ["data.source=text"]).at_rate(6e-3).digest == "f0952485d795"
    assert (
        recipe.load("quick", ["data.val_fraction=0.1", "data.edition=1"]).at_rate(6e-3).digest
        == "1cbcdbb20ff1"
    )


def test_the_digest_sees_separate_validation_data_but_neither_places_nor_defaults():
    here, there, none, plain, written = (
        recipe.load("smoke", [f"data.{key}" for key in keys]).digest
        for keys in (
            ["source=nanogpt", "path=a", "val_path=b"],
            ["source=nanogpt", "path=a", "val_path=c"],
            ["source=nanogpt", "path=a"],
            ["source=pointers"],
            ["source=pointers", "nodes=8", "hops=4"],
        )
    )

    assert here == there != none
    assert plain == written


@pytest.mark.parametrize("source", ["pointers", "llmc", "huggingface", "stdlib"])
def test_a_recipe_is_the_same_after_it_was_stored(source: str):
    loaded = recipe.load("smoke", [f"data.source={source}"])

    again = recipe.Recipe.model_validate(json.loads(json.dumps(loaded.model_dump())))

    assert (again, again.digest) == (loaded, loaded.digest)


IMPOSSIBLE = {
    "pointers": ["nodes=1"],
    "permutations": ["degree=7"],
    "recall": ["values=1", "pairs=40"],
    "nanogpt": ["dtype=int8"],
    "text": ["val_fraction="],
}
READ_BY = {
    "pointers": "nodes=4",
    "permutations": "degree=3",
    "recall": "pairs=3",
    "nanogpt": "vocab_size=300",
    "huggingface": "column=text",
    "stdlib": "tokenizer=a.json",
    "text": "val_path=a",
}


@pytest.mark.parametrize("source", READ_BY)
def test_a_key_of_another_source_and_an_impossible_value_are_refused(source: str):
    other = "recall" if source != "recall" else "pointers"

    message = refusal(f"data.source={other}", f"data.{READ_BY[source]}")

    assert f"got source: {other}" in message
    assert f"--set data.source={source}" in message
    for override in IMPOSSIBLE.get(source, ()):
        message = refusal(f"data.source={source}", f"data.{override}")
        assert override.partition("=")[0] in message


@pytest.mark.parametrize(
    "others",
    [
        ["data.source=recall"],
        ["data.source=text", "data.path=a", "data.val_path=b"],
        ["data.source=huggingface", "data.path=a", "data.val_split=test"],
    ],
)
def test_a_validation_fraction_is_refused_where_something_else_validates(others: list[str]):
    assert "data.val_fraction is not read" in refusal(*others, "data.val_fraction=0.1")
    assert recipe.load("smoke", others)
    # the fraction of a recipe's file gives way to validation data that are typed
    assert recipe.load("paper-436m", ["data.path=a", "data.val_path=b"]).data.val_fraction == 0.001
