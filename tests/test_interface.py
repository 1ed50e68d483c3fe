"""What `from attnres_cli import ...` gives, as a notebook uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from studies import fill

import attnres_cli
from attnres_cli import Shape, Transformer, open_study, parse
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError, UsageError

LOSSES = {"standard": [2.0, 2.1, 2.2, 2.0, 2.1], "attnres": [1.9, 2.0, 2.11, 1.89, 2.01]}


@pytest.fixture
def study(tmp_path: Path, tiny_recipe: Recipe) -> str:
    path = tmp_path / "study.db"
    fill(path, tiny_recipe, LOSSES)
    return str(path)


def winner(folder: Path) -> None:
    """What `attnres runs export 2 --output winner` writes, untrained."""
    shape = Shape(2, 16, 2, 2, 8, 24, vocab_size=256, seq_len=16)
    model = Transformer(shape, parse("attnres").build(shape.d_model, shape.n_sublayers))
    config = {"shape": asdict(shape), "variant": "attnres"}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_model(model, str(folder / "model.safetensors"))


def test_ten_lines_of_a_notebook(
    tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("pandas")
    fill(tmp_path / "attnres.db", tiny_recipe, LOSSES)
    winner(tmp_path / "winner")
    monkeypatch.chdir(tmp_path)

    from attnres_cli import Shape, Transformer, load, open_study, parse

    study = open_study("attnres.db")
    study.frame("verdicts")[["variant", "loss", "difference", "ci_low", "ci_high", "verdict"]]
    study.frame("curves").pivot_table(index="step", columns="variant", values="val_loss")
    study.runs()[0]["val_loss"]  # the same as plain records

    model = load("winner")  # what `attnres runs export 2 --output winner` wrote
    design = parse("attnres:block_size=4").build(d_model=64, n_sublayers=8)
    own = Transformer(Shape(4, 64, 4, 4, 16, 172, vocab_size=256, seq_len=128), design)

    assert list(study.frame("verdicts").variant) == ["standard", "attnres"]
    assert study.frame("runs").status.eq("complete").all()
    assert model(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 256)
    assert own(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 256)


def test_a_study_gives_its_verdicts_as_records(study: str):
    standard, attnres = open_study(study).verdicts()

    assert standard["variant"] == "standard"
    assert standard["difference"] is None
    assert attnres["difference"] == pytest.approx(-0.49 / 5)
    assert attnres["ci_low"] < attnres["difference"] < attnres["ci_high"] < 0
    assert attnres["verdict"] == "better"
    assert attnres["seeds"] == 5


def test_a_study_gives_its_runs_and_curves_as_records(study: str):
    opened = open_study(study)

    runs, curves = opened.runs(), opened.curves()

    assert {(r["variant"], r["seed"]): r["val_loss"] for r in runs} == {
        (variant, seed): loss for variant, all_ in LOSSES.items() for seed, loss in enumerate(all_)
    }
    assert len(curves) == 2 * len(runs)
    assert curves[0].keys() == {
        "run",
        "recipe",
        "variant",
        "seed",
        "step",
        "train_loss",
        "val_loss",
    }
    assert opened.verdicts(baseline="attnres")[1]["verdict"] == "worse"


def test_what_cannot_be_given_is_said_in_a_line(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(StudyError, match=r"none\.db"):
        open_study(str(tmp_path / "none.db"))
    with pytest.raises(UsageError, match="unknown table 'verdict': did you mean 'verdicts'"):
        open_study(study).frame("verdict")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        UsageError, match=r"a data frame needs .* pip install 'attnres-cli\[pandas\]'"
    ):
        open_study(study).frame()


def test_the_interface_is_imported_when_it_is_used():
    program = (
        "import sys, attnres_cli; assert 'torch' not in sys.modules; "
        "from attnres_cli import *; print(Residual, register, parse, Transformer, Shape, load)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert set(attnres_cli.__all__) <= set(dir(attnres_cli))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        attnres_cli.nothing  # noqa: B018
