"""`attnres verify` and `attnres runs export`, on a study that was really trained."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from attnres_cli.cli.app import app
from attnres_cli.config.recipe import validate
from attnres_cli.data import sources
from attnres_cli.errors import AttnresError, DataError, DeviceError, UsageError
from attnres_cli.lab.verify import departs
from attnres_cli.nn import model
from attnres_cli.records.run import WEIGHTS, Departure, Point, weights_file

ARGUMENTS = ["standard", "attnres:block_size=2", "--recipe", "smoke", "--seeds", "1"]
ARGUMENTS += ["--workers", "2", "--set", "data.source=text", "--set", "data.path=text.txt"]
ARGUMENTS += ["--set", "model.tie_embeddings=true"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a study of it: runs 1 and 2 complete, 3 waiting."""
    folder = tmp_path_factory.mktemp("trained")
    words = (hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(2000))
    (folder / "text.txt").write_text("\n".join(words))
    command = [sys.executable, "-m", "attnres_cli", "ablate", *ARGUMENTS]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    columns = "recipe_digest, variant, seed, fingerprint, status, attempts, created_at, code"
    copied = "recipe_digest, variant, 7, fingerprint, 'pending', 0, created_at, code"
    change(
        folder,
        f"INSERT INTO attnres_runs ({columns}) SELECT {copied} FROM attnres_runs WHERE id = 1",
    )
    return folder


@pytest.fixture(autouse=True)
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of it, which a test may change; the data lie where they lay."""
    here = tmp_path / "study"
    shutil.copytree(trained, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    yield here
    torch.set_num_threads(threads)


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "attnres.db")
    with connection:
        connection.execute(statement)
    connection.close()


def attnres(*arguments: str) -> Result:
    """What the command prints. What is refused is raised."""
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, AttnresError):
        raise result.exception
    return result


def weights_of(folder: Path, run: int) -> Path:
    (found,) = (folder / "attnres.runs").glob(f"{run}-*/{WEIGHTS}")
    return found


@pytest.mark.parametrize("run", ["1", "2"])
def test_a_run_trained_again_is_equal_and_the_study_is_not_changed(folder: Path, run: str):
    def digests() -> dict[Path, str]:
        held = [path for path in folder.rglob("*") if path.is_file()]
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in held}

    before = digests()

    found = attnres("verify", run)

    assert found.exit_code == 0, found.output
    assert found.stdout.startswith(f"run {run} (")
    assert "equal, bit for bit: 32 points of the curve, final loss" in found.stdout
    assert found.stdout.rstrip().endswith(", weights")
    assert digests() == before


def test_a_curve_that_departs_is_told_with_the_step_and_both_losses(folder: Path):
    change(folder, "UPDATE attnres_curve SET train_loss = 3.25 WHERE run_id = 1 AND step >= 10")

    found = attnres("verify", "1")
    plain = json.loads(attnres("verify", "1", "--format", "json").stdout)

    assert found.exit_code == 3
    assert "run 1 (standard, seed 0): not equal" in found.stdout
    assert f"first at step 10: training loss 3.25 recorded, {plain['departs']['now']!r} now" in (
        found.stdout
    )
    assert "nothing that is recorded has changed" in found.stdout
    assert (plain["equal"], plain["departs"]["step"], plain["weights_differ"]) == (False, 10, [])


def test_weights_that_differ_are_named(folder: Path):
    path = weights_of(folder, 1)
    held = load_file(path)
    name = next(iter(held))
    save_file({**held, name: held[name] + 1}, folder / "other")
    digest = hashlib.sha256((folder / "other").read_bytes()).hexdigest()
    (folder / "other").rename(path.with_name(weights_file(digest)))
    change(folder, f"UPDATE attnres_runs SET weights_sha256 = '{digest}' WHERE id = 1")

    found = attnres("verify", "1")

    assert found.exit_code == 3
    assert "the 32 points of the curve are equal" in found.stdout
    assert f"final weights that differ: {name}\n" in found.stdout


def test_what_has_changed_since_is_named_before_and_after(folder: Path):
    torch_now = torch.__version__
    change(folder, f"UPDATE attnres_runs SET versions = replace(versions, '{torch_now}', '1.0')")
    change(folder, "UPDATE attnres_runs SET device_name = 'Abacus'")

    found = attnres("verify", "1")

    assert found.exit_code == 0
    assert f"changed since run 1: torch: 1.0, now {torch_now}" in found.stderr
    assert "changed since: device_name: Abacus, now " in found.stdout


def test_without_kept_weights_the_curve_alone_is_compared(folder: Path):
    weights_of(folder, 1).unlink()

    found = attnres("verify", "1")

    assert found.exit_code == 0
    assert "no weights are kept to compare" in found.stdout


def test_other_data_are_refused_before_anything_is_trained(folder: Path):
    text = folder / "text.txt"
    text.write_text(text.read_text() + "more")

    with pytest.raises(DataError, match=r"run 1 was trained on data \w+, which are now \w+"):
        attnres("verify", "1")


def test_a_run_of_a_device_that_is_not_here_is_refused(folder: Path):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    change(folder, "UPDATE attnres_runs SET device = 'cuda', device_name = 'A GPU'")

    with pytest.raises(DeviceError, match=r"run 1 was computed with cuda fp32 eager, .* on A GPU"):
        attnres("verify", "1")


def test_a_run_that_has_not_ended_has_nothing_to_verify_or_export():
    with pytest.raises(UsageError, match="run 3 is pending: only what has ended is verified"):
        attnres("verify", "3")
    with pytest.raises(UsageError, match="run 3 is pending and has no final weights"):
        attnres("runs", "export", "3")


@pytest.mark.parametrize("command", [["verify"], ["runs", "export"]])
def test_a_number_that_is_no_runs_is_refused(command: list[str]):
    with pytest.raises(UsageError, match=r"no run 17 in study attnres.db, it holds 1 to 3"):
        attnres(*command, "17")


def test_curves_depart_at_the_first_loss_that_differs_or_is_missing():
    curve = (Point(0, None, 5.5), Point(2, 5.0, None), Point(4, 4.0, 4.5))
    nan = (*curve[:2], Point(4, float("nan"), None))

    assert departs(curve, curve) is None
    assert departs(nan, (*curve[:2], Point(4, None, None))) is None
    assert departs(curve, nan) == Departure(4, "training loss", 4.0, None)
    assert departs(curve, curve[:2]) == Departure(4, "training loss", 4.0, None)
    other = (*curve[:2], Point(4, 4.0, 4.25))
    assert departs(curve, other) == Departure(4, "validation loss", 4.5, 4.25)


@pytest.mark.parametrize("run", [1, 2])
def test_an_exported_run_is_the_model_that_was_trained(folder: Path, run: int):
    done = attnres("runs", "export", str(run), "--output", "mine/model")

    names: dict[str, object] = {}
    exec(done.stdout.splitlines()[-1], names)
    taken = names["model"]
    assert isinstance(taken, model.Transformer)
    assert not taken.training
    config = json.loads((folder / "mine" / "model" / "config.json").read_text())
    recipe = validate(config["recipe"], "config.json")
    assert recipe.digest == config["recipe_digest"]
    tokens = sources.load(recipe)
    assert tokens.fingerprint == config["data"]["fingerprint"]
    total, count = 0.0, 0
    torch.set_num_threads(config["computed_with"]["threads"])
    with torch.no_grad():
        for batch in tokens.eval_batches(
            recipe.train.eval_tokens, recipe.train.batch_size, recipe.model.seq_len
        ):
            windows = torch.from_numpy(batch)
            loss = model.next_token_loss(taken(windows[:, :-1]), windows[:, 1:])
            total += loss.item() * len(batch)
            count += len(batch)
    assert total / count == pytest.approx(config["val_loss"], abs=1e-6)
    assert config["versions"]["torch"] == torch.__version__
    assert sum(p.numel() for p in taken.parameters()) == config["n_params"]


def test_a_run_is_exported_to_transformers_and_stays_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    done = attnres("runs", "export", "2", "--to", "hf")

    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [
        "run-2/model.safetensors", "run-2/config.json", "run-2/modeling_attnres.py",
        "run-2/tokenizer.json", "run-2/tokenizer_config.json", "from",
    ]  # fmt: skip
    assert done.stdout.endswith("from_pretrained('run-2', trust_remote_code=True)\n")
    assert model.load("run-2").shape.n_layers == 2
    transformers = pytest.importorskip("transformers")
    cache = str(folder / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    found: dict[str, Any] = {}
    exec(done.stdout.splitlines()[-1], found)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(found["model"](tokens).logits, model.load("run-2")(tokens))


def test_what_an_export_to_transformers_lacks_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    changed = "json_set(resolved, '$.data.tokenizer', 'tiktoken:gpt2')"
    change(folder, f"UPDATE attnres_recipes SET resolved = {changed}")
    monkeypatch.setitem(sys.modules, "transformers", None)

    done = attnres("runs", "export", "2", "--to", "hf")

    assert "no tokenizer is among them: data.tokenizer is tiktoken:gpt2" in done.stderr
    assert not list((folder / "run-2").glob("tokenizer*"))
    assert "transformers is not here: pip install 'attnres-cli[hf]'" in done.stderr
    with pytest.raises(UsageError, match="--to is for the weights of one run: give it or --wandb"):
        attnres("runs", "export", "--to", "hf", "--wandb", "there")


def test_an_exported_run_needs_torch_and_safetensors_alone(folder: Path):
    attnres("runs", "export", "2")
    program = (
        "import sys\n"
        "for name in ('pydantic', 'yaml', 'sqlalchemy', 'alembic', 'typer', 'rich', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from attnres_cli.nn.model import load\n"
        "print(load('run-2').shape.n_layers)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(model.__file__).parents[2])},
    )

    assert done.stdout == "2\n"


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [_cut, _flip])
def test_weights_that_are_not_as_they_were_written_are_used_nowhere(folder: Path, damage):
    damage(weights_of(folder, 1))

    for command in (["verify", "1"], ["runs", "export", "1"]):
        with pytest.raises(UsageError, match=r"weights of run 1 are damaged.*attnres runs rm 1`"):
            attnres(*command)
    assert not (folder / "run-1").exists()

    attnres("runs", "export", "2")
    damage(folder / "run-2" / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        model.load(folder / "run-2")


def test_weights_of_a_study_of_before_are_exported_unless_they_are_no_weights(folder: Path):
    held = weights_of(folder, 1)
    old = held.rename(held.with_name("weights.safetensors"))
    change(folder, "UPDATE attnres_runs SET weights_sha256 = NULL")

    attnres("runs", "export", "1")
    assert model.load(folder / "run-1").shape.n_layers == 2

    _cut(old)
    with pytest.raises(UsageError, match=r"weights of run 1 are damaged"):
        attnres("runs", "export", "1", "--output", "again")


def test_weights_that_are_not_there_are_refused_with_how_to_get_them(folder: Path):
    weights_of(folder, 1).unlink()

    with pytest.raises(UsageError, match=r"not kept .*`attnres runs rm 1`, and `attnres ablate`"):
        attnres("runs", "export", "1")


def test_a_study_that_was_copied_alone_says_so_and_how_to_mend_it(folder: Path):
    shutil.copy(folder / "attnres.db", folder / "alone.db")

    with pytest.raises(UsageError, match=r"folder .*alone.runs is not there: a study is copied to"):
        attnres("runs", "export", "1", "--study", "alone.db")
    found = attnres("verify", "1", "--study", "alone.db")
    assert found.exit_code == 0
    assert "warning: weights are not compared, the folder" in found.stderr


def test_an_exported_run_is_not_overwritten(folder: Path):
    attnres("runs", "export", "1", "--output", "mine")

    with pytest.raises(UsageError, match=r"mine already has model\.safetensors"):
        attnres("runs", "export", "2", "--output", "mine")


def test_a_folder_that_cannot_be_made_is_refused(folder: Path):
    with pytest.raises(UsageError, match=r"--output text.txt/mine cannot be written: Not a dir"):
        attnres("runs", "export", "1", "--output", "text.txt/mine")


def test_removed_runs_leave_no_weights(folder: Path):
    attnres("runs", "rm", "1")
    assert [path.name[:2] for path in (folder / "attnres.runs").iterdir()] == ["2-"]

    attnres("runs", "rm", "2", "3")
    assert not (folder / "attnres.runs").exists()
