"""`attnres verify` and `attnres runs export`, on a study that was really trained."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ended
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from attnres_cli.cli.app import app
from attnres_cli.config.recipe import validate
from attnres_cli.data import sources
from attnres_cli.errors import AttnresError, DataError, DeviceError, ExportError, UsageError
from attnres_cli.files import sha256
from attnres_cli.lab import verify
from attnres_cli.lab.verify import departs
from attnres_cli.nn import model
from attnres_cli.nn.exported import load
from attnres_cli.records.run import WEIGHTS, Point, weights_file
from attnres_cli.records.verification import Departure

ABLATE = ["ablate", "standard", "attnres:block_size=2", "--recipe", "smoke", "--seeds", "1"]
ABLATE += ["--in-process", "--set", "data.source=text", "--set", "data.path=text.txt"]
ABLATE += ["--set", "model.tie_embeddings=true", "--set", "train.tokens=8k"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a study of it: runs 1 and 2 complete, 3 waiting."""
    folder = tmp_path_factory.mktemp("trained")
    words = (hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(2000))
    (folder / "text.txt").write_text("\n".join(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert ended(*ABLATE) == 0
    copied = "recipe_digest, variant, fingerprint, created_at, code"
    pending = f"SELECT {copied}, 7, 'pending', 0 FROM attnres_runs WHERE id = 1"
    change(folder, f"INSERT INTO attnres_runs ({copied}, seed, status, attempts) {pending}")
    return folder


@pytest.fixture(autouse=True)
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy that a test may change; the data stay where they were."""
    here = tmp_path / "study"
    shutil.copytree(trained, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    yield here
    torch.set_num_threads(threads)


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "attnres.db")) as connection, connection:
        connection.execute(statement)


def attnres(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(words: str, *arguments: str, error: type[AttnresError] = UsageError) -> None:
    with pytest.raises(error, match=words):
        raise attnres(*arguments).exception or AssertionError


def weights_of(folder: Path, run: int) -> Path:
    (found,) = (folder / "attnres.runs").glob(f"{run}-*/{WEIGHTS}")
    return found


def test_a_run_trained_again_is_equal_unless_its_weights_differ_and_the_study_stays_unchanged(
    folder: Path,
):
    path = weights_of(folder, 1)
    held = load_file(path)
    name = next(iter(held))
    save_file({**held, name: held[name] + 1}, folder / "other")
    new = sha256(folder / "other")
    (folder / "other").rename(path.with_name(weights_file(new)))
    change(folder, f"UPDATE attnres_runs SET weights_sha256 = '{new}' WHERE id = 1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    differs, found = attnres("verify", "1"), attnres("verify", "2")

    assert (differs.exit_code, found.exit_code) == (3, 0), found.output
    assert "the 16 points of the curve are equal" in differs.stdout
    assert f"final weights that differ: {name}\n" in differs.stdout
    words = r"run 2 \(.*equal, bit for bit: 16 points of the curve, final loss.*, weights\n"
    assert re.fullmatch(words, found.stdout, re.DOTALL)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_processor_agrees_where_seeds_differ_by_more_and_it_begins_alike(folder: Path):
    with closing(sqlite3.connect(folder / "attnres.db")) as connection, connection:
        connection.row_factory = sqlite3.Row
        one = dict(connection.execute("SELECT * FROM attnres_runs WHERE id = 1").fetchone())
        for number, shift in ((11, 0.02), (12, -0.02)):
            other = one | {"id": number, "seed": number, "val_loss": one["val_loss"] + shift}
            marks = ", ".join("?" * len(other))
            connection.execute(
                f"INSERT INTO attnres_runs ({', '.join(other)}) VALUES ({marks})",
                tuple(other.values()),
            )
    weights_of(folder, 1).unlink()
    change(folder, "UPDATE attnres_runs SET val_loss = val_loss + 1e-3 WHERE id = 1")

    same_machine = attnres("verify", "1")
    change(folder, "UPDATE attnres_runs SET device_name = 'Abacus' WHERE id = 1")
    other_machine = attnres("verify", "1", "--format", "json")

    assert same_machine.exit_code == 3
    assert "run 1 (standard, seed 0): not equal" in same_machine.stdout
    assert other_machine.exit_code == 0
    told = json.loads(other_machine.stdout)
    assert (told["equal"], told["agrees"]) == (False, True)
    assert told["apart"] == pytest.approx(1e-3)
    assert told["spread"] == pytest.approx(0.02, rel=0.05)


def test_a_curve_that_departs_and_changes_since_the_run_are_named_with_both_values(folder: Path):
    torch_now = torch.__version__
    older = f"versions = replace(versions, '{torch_now}', '1.0'), device_name = 'Abacus'"
    change(folder, f"UPDATE attnres_runs SET {older} WHERE id = 2")
    change(folder, "UPDATE attnres_curve SET train_loss = 3.25 WHERE run_id = 1 AND step >= 10")
    weights_of(folder, 2).unlink()
    found, changed = attnres("verify", "1"), attnres("verify", "2")
    plain = json.loads(attnres("verify", "1", "--format", "json").stdout)
    assert (found.exit_code, changed.exit_code) == (3, 0)
    assert "run 1 (standard, seed 0): not equal" in found.stdout
    losses = f"training loss 3.25 recorded, {plain['departs']['now']!r} now"
    assert f"first at step 10: {losses}" in found.stdout
    assert "nothing that is recorded has changed" in found.stdout
    assert (plain["equal"], plain["departs"]["step"], plain["weights_differ"]) == (False, 10, [])
    assert f"changed since run 2: torch: 1.0, now {torch_now}" in changed.stderr  # before it trains
    assert "changed since: device_name: Abacus, now " in changed.stdout  # and afterwards
    assert "no weights are kept to compare" in changed.stdout


def test_runs_that_did_not_end_and_other_data_or_devices_are_refused_before_training(folder: Path):
    refused("run 3 is pending: only what has ended is verified", "verify", "3")
    refused("run 3 is pending and has no final weights", "runs", "export", "3")
    for command in ["verify"], ["runs", "export"]:
        refused(r"no run 17 in study attnres.db, it holds 1 to 3", *command, "17")
    if not torch.cuda.is_available():
        change(folder, "UPDATE attnres_runs SET device = 'cuda', device_name = 'A GPU'")
        words = r"run 1 was computed with cuda fp32 eager, .* on A GPU"
        refused(words, "verify", "1", error=DeviceError)
    with (folder / "text.txt").open("a") as text:
        text.write("more")
    words = r"run 1 was trained on data \w+, which are now \w+"
    refused(words, "verify", "1", error=DataError)


def test_ctrl_c_says_that_nothing_was_kept(capsys, monkeypatch):
    monkeypatch.setattr(verify, "retrain", lambda *_: signal.raise_signal(signal.SIGINT))
    assert ended("verify", "1") == 130
    assert capsys.readouterr().err.endswith("attnres: interrupted; nothing was kept\n")


def test_curves_depart_at_the_first_loss_that_differs_or_is_missing():
    curve = (Point(0, None, 5.5), Point(2, 5.0, None), Point(4, 4.0, 4.5))
    nan = (*curve[:2], Point(4, float("nan"), None))
    other = (*curve[:2], Point(4, 4.0, 4.25))
    assert departs(curve, curve) is None
    assert departs(nan, (*curve[:2], Point(4, None, None))) is None
    for shorter in nan, curve[:2]:
        assert departs(curve, shorter) == Departure(4, "training loss", 4.0, None)
    assert departs(curve, other) == Departure(4, "validation loss", 4.5, 4.25)


def test_an_exported_run_is_the_model_that_was_trained(folder: Path):
    names: dict[str, Any] = {}
    exec(attnres("runs", "export", "2", "--output", "mine/model").stdout.splitlines()[-1], names)
    taken = names["model"]
    assert (type(taken), taken.training) == (model.Transformer, False)
    config = json.loads((folder / "mine" / "model" / "config.json").read_text())
    recipe = validate(config["recipe"], "config.json")
    assert recipe.digest == config["recipe_digest"]
    tokens, train = sources.load(recipe), recipe.train
    assert tokens.fingerprint == config["data"]["fingerprint"]
    torch.set_num_threads(config["computed_with"]["threads"])
    losses: list[float] = []
    with torch.no_grad():
        for batch in tokens.eval_batches(train.eval_tokens, 1, recipe.model.seq_len):
            windows = torch.from_numpy(batch)
            losses.append(model.next_token_loss(taken(windows[:, :-1]), windows[:, 1:]).item())
    assert sum(losses) / len(losses) == pytest.approx(config["val_loss"], abs=1e-6)
    assert config["versions"]["torch"] == torch.__version__
    assert sum(p.numel() for p in taken.parameters()) == config["n_params"]


def test_a_run_exported_to_transformers_can_still_be_loaded_by_us(folder: Path, monkeypatch):
    done = attnres("runs", "export", "2", "--to", "hf")

    names = ["model.safetensors", "config.json", "modeling_attnres.py", "tokenizer.json"]
    names = [f"run-2/{name}" for name in (*names, "tokenizer_config.json")]
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*names, "from"]
    assert done.stdout.endswith("from_pretrained('run-2', trust_remote_code=True)\n")
    assert load("run-2").shape.n_layers == 2
    transformers = pytest.importorskip("transformers")
    cache = str(folder / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    found: dict[str, Any] = {}
    exec(done.stdout.splitlines()[-1], found)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(found["model"](tokens).logits, load("run-2")(tokens))


def test_an_export_to_transformers_says_what_it_lacks(folder: Path, monkeypatch):
    changed = "json_set(resolved, '$.data.tokenizer', 'tiktoken:gpt2')"
    change(folder, f"UPDATE attnres_recipes SET resolved = {changed}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = attnres("runs", "export", "2", "--to", "hf")
    assert "no tokenizer is among them: data.tokenizer is tiktoken:gpt2" in done.stderr
    assert not list((folder / "run-2").glob("tokenizer*"))
    assert "transformers is not here: pip install" in done.stderr
    words = "--to is for the weights of one run: give it or --wandb"
    refused(words, "runs", "export", "--to", "hf", "--wandb", "there")


WITHOUT = """
import sys
for name in ('pydantic', 'yaml', 'sqlalchemy', 'alembic', 'typer', 'rich', 'scipy'):
    sys.modules[name] = None
from attnres_cli import load
print(load('run-2').shape.n_layers)
"""


@pytest.mark.slow
def test_an_exported_run_needs_only_torch_and_safetensors():
    attnres("runs", "export", "2")
    env = os.environ | {"PYTHONPATH": str(Path(model.__file__).parents[2])}
    assert subprocess.check_output([sys.executable, "-c", WITHOUT], text=True, env=env) == "2\n"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])


@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_weights_are_used_nowhere_and_those_of_an_older_study_only_whole(
    folder: Path, damage
):
    damage(weights_of(folder, 1))
    for command in ["verify"], ["runs", "export"]:
        refused(r"weights of run 1 are damaged.*attnres runs rm 1`", *command, "1")
    assert not (folder / "run-1").exists()
    held = weights_of(folder, 2)
    attnres("runs", "export", "2")
    damage(folder / "run-2" / "model.safetensors")
    with pytest.raises(ExportError, match=r"run-2.* is damaged"):
        load(folder / "run-2")
    old = held.rename(held.with_name("weights.safetensors"))
    change(folder, "UPDATE attnres_runs SET weights_sha256 = NULL")
    attnres("runs", "export", "2", "--output", "old")
    assert load(folder / "old").shape.n_layers == 2
    cut(old)
    refused(r"weights of run 2 are damaged", "runs", "export", "2", "--output", "again")


def test_an_export_needs_weights_and_a_folder_that_can_be_made_and_overwrites_nothing(folder: Path):
    shutil.copy(folder / "attnres.db", folder / "alone.db")
    export = ("runs", "export", "1")
    words = r"folder .*alone.runs is not there: a study is copied to"
    refused(words, *export, "--study", "alone.db")
    found = attnres("verify", "1", "--study", "alone.db")
    assert found.exit_code == 0
    assert "warning: weights are not compared, the folder" in found.stderr
    attnres(*export, "--output", "mine")
    refused(r"mine already has model\.safetensors", "runs", "export", "2", "--output", "mine")
    words = r"--output text.txt/mine cannot be written: Not a dir"
    refused(words, *export, "--output", "text.txt/mine")
    weights_of(folder, 1).unlink()
    refused(r"not kept .*`attnres runs rm 1`, and `attnres ablate`", *export)


def test_removed_runs_leave_no_weights(folder: Path):
    attnres("runs", "rm", "1")
    assert [path.name[:2] for path in (folder / "attnres.runs").iterdir()] == ["2-"]
    attnres("runs", "rm", "2", "3")
    assert not (folder / "attnres.runs").exists()
