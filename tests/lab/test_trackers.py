"""Runs exported to Weights & Biases and MLflow, read back by what their own clients read with."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from studies import fill
from typer.testing import CliRunner, Result

from attnres_cli.cli.export import export as command
from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError
from attnres_cli.records.run import Point, Probe
from attnres_cli.store.store import Store

CURVE = (Point(0, None, 5.5), Point(5, 2.5, None), Point(10, 1.75, 1.5))
ROW = (1.0, 0.5, 0.25)
PROBES = (Probe(10, (2.0, 3.0, 4.0), ROW, ROW, no_mixing="it has none"),)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two seeds of two arms under recipe smoke; the last of them diverged."""
    monkeypatch.chdir(tmp_path)
    losses = {"standard": [1.5, 1.625], "attnres:block_size=4": [1.25, math.nan]}
    found = fill(tmp_path / "attnres.db", load("smoke"), losses, curve=CURVE, probes=PROBES)
    found.note(1, "the GPU was hot")
    found.tag([1], "keep")
    return found


def export(*words: str) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own use of SQLAlchemy
def test_mlflow_has_curves_final_values_settings_and_notes_of_each_run(store: Store):
    if find_spec("mlflow") is None:
        pytest.skip("needs attnres-cli[mlflow], 40 MB that [dev] does not bring")
    said = export("--mlflow", "tracked")  # which imports it, silenced
    import mlflow

    assert said.exit_code == 0, said.output
    database = f"sqlite:///{Path('tracked').absolute() / 'mlflow.db'}"
    lines = said.output.splitlines()
    assert lines == ["tracked  4 runs", f"mlflow server --backend-store-uri {database}"]
    client = mlflow.MlflowClient(database)
    experiment = client.get_experiment_by_name("smoke")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {
        f"{v}/seed-{s}" for v in ("standard", "attnres:block_size=4") for s in (0, 1)
    }
    one = runs["standard/seed-0"]
    found = client.get_metric_history(one.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in found] == [(5, 2.5), (10, 1.75)]
    assert one.data.metrics["final/val_loss"] == 1.5
    assert one.data.metrics["output_rms/02"] == 4.0
    assert float(one.data.params["optim.lr"]) == load("smoke").optim.lr
    assert one.data.tags["mlflow.note.content"] == "the GPU was hot"
    assert one.data.tags["tags"] == "keep"
    ended = datetime.fromisoformat(str(store.standings([1])[1].finished_at))
    assert one.info.end_time == 1000 * ended.timestamp()
    assert [run.info.status for run in runs.values()].count("FAILED") == 1


@pytest.mark.slow
def test_wandb_has_offline_runs_with_curves_settings_and_notes():
    pytest.importorskip("wandb", reason="62 MB that [dev] does not bring")

    said = export("--wandb", "tracked")

    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[-1] == "wandb sync tracked/wandb/offline-run-*"
    files = {named(file): file for file in Path("tracked").rglob("*.wandb")}
    arms = ("standard", "attnres:block_size=4")
    assert set(files) == {f"{arm}/seed-{seed}" for arm in arms for seed in (0, 1)}
    file = files["standard/seed-0"]
    run = next(record.run for record in records(file) if record.HasField("run"))
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert (run.project, run.run_group, run.notes, list(run.tags)) == (
        "smoke", "standard", "the GPU was hot", ["keep"],
    )  # fmt: skip
    assert config["optim.lr"] == load("smoke").optim.lr
    rows = [row(each.history) for each in records(file) if each.HasField("history")]
    assert [each["_step"] for each in rows] == [0, 5, 10]
    assert [each.get("train_loss") for each in rows] == [None, 2.5, 1.75]
    assert [each.get("val_loss") for each in rows] == [5.5, None, 1.5]
    assert (rows[-1]["final/val_loss"], rows[-1]["output_rms/02"]) == (1.5, 4.0)
    folders = Path("tracked/wandb").glob("offline-run-*")
    told = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run", *map(str, folders)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert file.name in told.stdout + told.stderr


def row(history: Any) -> dict[str, Any]:
    return {
        each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in history.item
    }


def named(file: Path) -> str:
    return next(record.run.display_name for record in records(file) if record.HasField("run"))


def records(file: Path) -> Iterator[Any]:
    """The messages in a file, by the client's own definition of them: LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            message = wandb_internal_pb2.Record()
            message.ParseFromString(parts)
            parts = b""
            yield message


def test_one_tool_at_a_time():
    error = export("--wandb", "one", "--mlflow", "two").exception

    assert isinstance(error, UsageError)
    assert str(error) == "give --wandb or --mlflow, one after the other"
    assert not Path("one").exists()


@pytest.mark.parametrize("tool", ["wandb", "mlflow"])
def test_without_the_package_one_line_says_what_to_install(
    tool: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, tool, None)

    error = export(f"--{tool}", "tracked").exception

    assert isinstance(error, UsageError)
    assert f"pip install 'attnres-cli[{tool}]'" in str(error)
    assert not Path("tracked").exists()
