"""Runs exported to TensorBoard, Weights & Biases and MLflow, read back as their clients read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from studies import FACTS, fill
from wandb_files import records, rows_of

from attnres_cli.config.recipe import load
from attnres_cli.errors import installing
from attnres_cli.lab.trackers import names
from attnres_cli.records.run import Point, Probe, RunSpec
from attnres_cli.store.store import Store

ARMS = ("standard", "attnres:block_size=4")
CURVE = (Point(0, None, 5.5), Point(5, 2.5, None), Point(10, 1.75, 1.5))
ROW = (1.0, 0.5, 0.25)
PROBES = (
    Probe(0, ROW, ROW, ROW, entropy=ROW, mixing=(ROW, ROW, ROW)),
    Probe(10, (2.0, 3.0, 4.0), ROW, ROW, no_mixing="it has none"),
)
NAMES = {f"{arm}/seed-{seed}" for arm in ARMS for seed in (0, 1)}


@pytest.fixture(autouse=True)
def store(here: Path) -> Store:
    """Two seeds of two arms under recipe smoke; the last of them diverged."""
    losses = dict(zip(ARMS, ([1.5, 1.625], [1.25, math.nan]), strict=True))
    found = fill(here / "attnres.db", load("smoke"), losses, curve=CURVE, probes=PROBES)
    found.note(1, "the GPU was hot")
    found.tag([1], "keep")
    return found


@pytest.fixture
def exported(attnres) -> Callable[..., list[str]]:
    def printed(tool: str, *words: str) -> list[str]:
        code, out, err = attnres("runs", "export", f"--{tool}", "out", *words)
        assert (code, err) == (0, "")
        return out.splitlines()

    return printed


@pytest.fixture
def refusal(attnres) -> Callable[..., str]:
    return lambda *words: attnres.refuses("runs", "export", *words)


def board(name: str) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(f"out/smoke/{name}", size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def folders() -> set[str]:
    """The runs in folders of their own."""
    return {str(path.parent.relative_to("out/smoke")) for path in Path("out").rglob("*tfevents*")}


def test_each_ended_run_has_its_curves_final_values_and_time(store: Store, exported):
    assert exported("tensorboard") == ["out  4 runs", "tensorboard --logdir out"]
    assert folders() == NAMES

    found = board("standard/seed-1")
    for tag, values in {
        "train_loss": [(5, 2.5), (10, 1.75)],
        "val_loss": [(0, 5.5), (10, 1.5)],
        "over_tokens/train_loss": [(5_000, 2.5), (10_000, 1.75)],
        "over_tokens/val_loss": [(0, 5.5), (10_000, 1.5)],
        "final/val_loss": [(10, 1.625)],
        "final/step_ms": [(10, 10.0)],
        "output_rms/02": [(0, 0.25), (10, 4.0)],
        "entropy/01": [(0, 0.5)],
    }.items():
        assert [(event.step, event.value) for event in found.Scalars(tag)] == values
    assert not [tag for tag in found.Tags()["scalars"] if "mixing" in tag]
    ended = str(store.standings([2])[2].finished_at)
    assert found.Scalars("train_loss")[0].wall_time == datetime.fromisoformat(ended).timestamp()


def test_hyperparameters_are_the_recipes_and_say_how_a_run_ended(exported):
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    exported("tensorboard")

    found = board("attnres:block_size=4/seed-1").PluginTagToContent("hparams")
    start = HParamsPluginData.FromString(found[metadata.SESSION_START_INFO_TAG])
    values = start.session_start_info.hparams
    assert values["variant"].string_value == "attnres:block_size=4"
    assert values["seed"].number_value == 1
    assert values["optim.lr"].number_value == load("smoke").optim.lr
    assert values["train.checkpoint_activations"].number_value == 0
    assert values["status"].string_value == "diverged"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--variant", "standard"], {"standard/seed-0", "standard/seed-1"}),
        (["--recipe", "smoke", "--status", "diverged"], {"attnres:block_size=4/seed-1"}),
        (["1"], {"standard/seed-0"}),
    ],
)
def test_filters_or_a_number_choose_runs(words: list[str], expected: set[str], exported):
    exported("tensorboard", *words)
    assert folders() == expected


def test_runs_that_have_not_ended_are_left_out_and_counted(store: Store, exported, refusal):
    store.plan([RunSpec(load("smoke"), "denseformer", 0, FACTS.fingerprint)], FACTS)
    words = ("--tensorboard", "out", "--variant", "denseformer")
    assert "none of these runs has ended" in refusal(*words)
    assert not Path("out").exists()
    assert exported("tensorboard")[0] == "out  4 runs, 1 not ended"


def test_different_recipes_with_the_same_name_get_different_folders(store: Store):
    other = load("smoke", ["optim.lr=0.5"])
    fill(Path("attnres.db"), other, {"standard": [1.5]})
    found = names(store.runs())
    assert found[0] == f"smoke-{load('smoke').digest}-01234567/standard/seed-0"
    assert found[-1] == f"smoke-{other.digest}-01234567/standard/seed-0"
    assert len(set(found)) == 5


def test_runs_of_another_code_get_different_folders(store: Store):
    runs = store.runs()[:2]
    again = [replace(run, id=run.id + 100, code="another") for run in runs]
    assert len(set(names([*runs, *again]))) == 4


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(refusal):
    (boards := Path("boards")).mkdir()
    (boards / "notes").write_text("mine")
    assert "boards is not empty: name a new folder" in refusal("--tensorboard", "boards")
    assert "cannot be written: Not a directory" in refusal("--tensorboard", "boards/notes/x")
    assert [path.name for path in boards.iterdir()] == ["notes"]


def test_options_that_exclude_each_other_are_refused(refusal):
    for typed, words in (
        ("", "takes the number of a run"),
        ("1 --variant standard", "--variant chooses runs for --tensorboard"),
        ("--tensorboard out --output x", "give it or --tensorboard"),
        ("1 --tensorboard out --status complete", "give ID or --status"),
        ("--tensorboard out --variant standart", "did you mean 'standard'"),
        ("--wandb out --mlflow two", "give --wandb or --mlflow, one after the other"),
    ):
        assert words in refusal(*typed.split())
        assert not Path("out").exists()


@pytest.mark.parametrize("tool", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_refused_with_how_to_install_it(tool: str, monkeypatch, refusal):
    for name in list(sys.modules):
        if name.startswith((tool, f"torch.utils.{tool}")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    assert installing(tool) in refusal(f"--{tool}", "out")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own use of SQLAlchemy
def test_mlflow_has_curves_final_values_settings_and_notes_of_each_run(store: Store, exported):
    if find_spec("mlflow") is None:
        pytest.skip("needs pip install -e '.[mlflow]', 40 MB")
    lines = exported("mlflow")  # which imports it, silenced
    import mlflow

    database = f"sqlite:///{Path('out').absolute() / 'mlflow.db'}"
    assert lines == ["out  4 runs", f"mlflow server --backend-store-uri {database}"]
    client = mlflow.MlflowClient(database)
    experiment = client.get_experiment_by_name("smoke")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == NAMES
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
def test_wandb_has_offline_runs_with_curves_settings_and_notes(exported):
    pytest.importorskip("wandb", reason="needs pip install -e '.[wandb]', 62 MB")

    assert exported("wandb")[-1] == "wandb sync out/wandb/offline-run-*"

    files = {}
    for path in Path("out").rglob("*.wandb"):
        held = list(records(path))
        run = next(each.run for each in held if each.HasField("run"))
        files[run.display_name] = path, run, held
    assert set(files) == NAMES
    file, run, held = files["standard/seed-0"]
    assert (run.project, run.run_group) == ("smoke", "standard")
    assert (run.notes, list(run.tags)) == ("the GPU was hot", ["keep"])
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert config["optim.lr"] == load("smoke").optim.lr
    rows = rows_of(held)
    assert [each["step"] for each in rows] == [0, 5, 10]
    assert [each.get("train_loss") for each in rows] == [None, 2.5, 1.75]
    assert [each.get("val_loss") for each in rows] == [5.5, None, 1.5]
    assert (rows[-1]["final/val_loss"], rows[-1]["output_rms/02"]) == (1.5, 4.0)
    sync = [sys.executable, "-m", "wandb", "sync", "--dry-run"]
    sync += map(str, Path("out/wandb").glob("offline-run-*"))
    done = subprocess.run(sync, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert file.name in done.stdout + done.stderr
