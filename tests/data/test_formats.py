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


BAD = {
    "source=llmc path={}/nanogpt": "expected magic",
    "source=nanogpt path={}/nanogpt vocab_size=100": "is beyond the",
    "source=npy path={}/nanogpt/val.bin": "is no .npy file",
    "source=pointers nodes=200": "--set model.seq_len=403",
    "source=stdlib tokenizer=word": "unknown tokenizer",
    "source=text path={}/all.npy": "all.npy is a NumPy array: --set data.source=npy",
}


@pytest.mark.parametrize("sets", BAD)
def test_bad_data_exit_with_code_2_and_one_line_before_anything_is_trained(
    files: Path, ablate: Ablate, tmp_path: Path, sets: str
):
    code, _, err = ablate(*(f"data.{each}" for each in sets.format(files).split()))
    assert (code, err.strip().count("\n")) == (2, 0)
    assert BAD[sets] in err
    assert list(tmp_path.glob("attnres.*")) == []
