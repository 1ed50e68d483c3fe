"""Event files, read back as TensorBoard reads them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import typer
from studies import FACTS, RESULT, VERSIONS, fill
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from typer.testing import CliRunner, Result

from attnres_cli.cli import export as cli_export
from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import UsageError
from attnres_cli.lab.events import names
from attnres_cli.records.run import Point, Probe, RunSpec, Status
from attnres_cli.store.store import Store

CURVE = (Point(0, None, 5.5), Point(5, 2.5, None), Point(10, 1.75, 1.5))
ROW = (1.0, 0.5, 0.25)
PROBES = (
    Probe(0, ROW, ROW, ROW, entropy=ROW, mixing=(ROW, ROW, ROW)),
    Probe(10, (2.0, 3.0, 4.0), ROW, ROW, no_mixing="it has none"),
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two seeds of two arms under recipe smoke; the last of them diverged."""
    monkeypatch.chdir(tmp_path)
    losses = {"standard": [1.5, 1.625], "attnres:block_size=4": [1.25, float("nan")]}
    return fill(tmp_path / "attnres.db", load("smoke"), losses, curve=CURVE, probes=PROBES)


def export(*words: str) -> Result:
    app = typer.Typer()
    app.command()(cli_export.export)
    return CliRunner().invoke(app, list(words))


def refusal(*words: str) -> str:
    """What is said, which is one line."""
    error = export(*words).exception
    assert isinstance(error, UsageError)
    assert "\n" not in str(error)
    return str(error)


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(found: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def folders(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("*tfevents*")}


def test_all_ended_runs_go_each_into_a_folder_of_recipe_variant_and_seed():
    said = export("--tensorboard", "boards")

    assert said.exit_code == 0, said.output
    assert said.output.splitlines() == ["boards  4 runs", "tensorboard --logdir boards"]
    arms = ("standard", "attnres:block_size=4")
    assert folders(Path("boards")) == {
        f"smoke/{arm}/seed-{seed}" for arm in arms for seed in (0, 1)
    }


def test_losses_stand_over_steps_and_over_tokens():
    export("--tensorboard", "boards")

    found = read(Path("boards/smoke/standard/seed-1"))

    assert scalars(found, "train_loss") == [(5, 2.5), (10, 1.75)]
    assert scalars(found, "val_loss") == [(0, 5.5), (10, 1.5)]
    assert scalars(found, "over_tokens/train_loss") == [(5_000, 2.5), (10_000, 1.75)]
    assert scalars(found, "over_tokens/val_loss") == [(0, 5.5), (10_000, 1.5)]


def test_final_values_and_what_is_inside_the_model_are_there():
    export("--tensorboard", "boards")

    found = read(Path("boards/smoke/standard/seed-1"))

    assert scalars(found, "final/val_loss") == [(10, 1.625)]
    assert scalars(found, "final/step_ms") == [(10, 10.0)]
    assert scalars(found, "output_rms/02") == [(0, 0.25), (10, 4.0)]
    assert scalars(found, "entropy/01") == [(0, 0.5)]
    assert not [tag for tag in found.Tags()["scalars"] if "mixing" in tag]


def test_hyperparameters_are_those_of_the_recipe_and_say_how_a_run_ended(store: Store):
    export("--tensorboard", "boards")

    found = read(Path("boards/smoke/attnres:block_size=4/seed-1"))

    content = found.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    start = HParamsPluginData.FromString(content)
    values = start.session_start_info.hparams
    recipe = load("smoke")
    assert values["variant"].string_value == "attnres:block_size=4"
    assert values["seed"].number_value == 1
    assert values["optim.lr"].number_value == recipe.optim.lr
    assert values["train.checkpoint_activations"].number_value == 0
    assert values["status"].string_value == "diverged"


def test_the_time_of_an_event_is_that_at_which_its_run_ended(store: Store):
    export("--tensorboard", "boards")

    (event, _) = read(Path("boards/smoke/standard/seed-0")).Scalars("train_loss")

    ended = store.standings([1])[1].finished_at
    assert ended is not None
    assert event.wall_time == datetime.fromisoformat(ended).timestamp()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--variant", "standard"], {"smoke/standard/seed-0", "smoke/standard/seed-1"}),
        (["--status", "diverged"], {"smoke/attnres:block_size=4/seed-1"}),
        (["--recipe", "smoke", "--status", "diverged"], {"smoke/attnres:block_size=4/seed-1"}),
        (["1"], {"smoke/standard/seed-0"}),
    ],
)
def test_filters_or_a_number_choose_runs(words: list[str], expected: set[str]):
    assert export("--tensorboard", "boards", *words).exit_code == 0
    assert folders(Path("boards")) == expected


def test_runs_that_have_not_ended_are_left_out_and_counted(store: Store):
    store.plan([RunSpec(load("smoke"), "denseformer", 0, FACTS.fingerprint)], FACTS)

    said = export("--tensorboard", "boards")

    assert "boards  4 runs, 1 not ended" in said.output
    assert "none of these runs has ended" in refusal(
        "--tensorboard", "others", "--variant", "denseformer"
    )
    assert not Path("others").exists()


def test_recipes_of_one_name_are_told_apart(store: Store, tiny_recipe: Recipe):
    other = load("smoke", ["optim.lr=0.5"])
    (record,) = store.plan([RunSpec(other, "standard", 0, FACTS.fingerprint)], FACTS)
    claimed = store.claim([record.id])
    assert claimed is not None
    store.finish(replace(claimed, status=Status.COMPLETE, result=RESULT, versions=VERSIONS))

    found = names(store.runs())

    assert found[0] == f"smoke-{load('smoke').digest}-01234567/standard/seed-0"
    assert found[-1] == f"smoke-{other.digest}-01234567/standard/seed-0"
    assert len(set(found)) == 5


def test_a_folder_that_holds_something_is_refused_and_left_as_it_was(tmp_path: Path):
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "notes").write_text("mine")

    assert "boards is not empty: name a new folder" in refusal("--tensorboard", "boards")
    assert "cannot be written: Not a directory" in refusal("--tensorboard", "boards/notes/x")
    assert [path.name for path in (tmp_path / "boards").iterdir()] == ["notes"]


def test_what_does_not_go_together_is_refused():
    assert "takes the number of a run" in refusal()
    assert "--variant chooses runs for --tensorboard" in refusal("1", "--variant", "standard")
    assert "give it or --tensorboard" in refusal("--tensorboard", "boards", "--output", "x")
    assert "give ID or --status" in refusal("1", "--tensorboard", "boards", "--status", "complete")
    assert "did you mean 'standard'" in refusal("--tensorboard", "b", "--variant", "standart")
    assert not Path("boards").exists()


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path):
    program = (
        "import sys; sys.modules['tensorboard'] = None; from attnres_cli.cli import app as cli; "
        "sys.argv = ['attnres', 'runs', 'export', '--tensorboard', 'boards']; cli.main()"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 2
    assert "pip install 'attnres-cli[tensorboard]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "boards").exists()
