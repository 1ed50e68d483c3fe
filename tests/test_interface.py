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
from attnres_cli import Shape, Transformer, load, open_study, parse
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError, UsageError
from attnres_cli.verdict.fields import keys
from attnres_cli.verdict.rows import FIELDS

LOSSES = {"standard": [2.0, 2.1, 2.2, 2.0, 2.1], "attnres": [1.9, 2.0, 2.11, 1.89, 2.01]}


@pytest.fixture(autouse=True)
def study(here: Path, tiny_recipe: Recipe) -> None:
    fill(here / "attnres.db", tiny_recipe, LOSSES)


def test_ten_lines_of_a_notebook(here: Path):
    pytest.importorskip("pandas")
    shape = Shape(2, 16, 2, 2, 8, 24, vocab_size=256, seq_len=16)
    config = {"shape": asdict(shape), "variant": "attnres"}  # as `attnres runs export 2` writes it
    (here / "winner").mkdir()
    (here / "winner" / "config.json").write_text(json.dumps(config))
    untrained = Transformer(shape, parse("attnres").build(shape.d_model, shape.n_sublayers))
    save_model(untrained, "winner/model.safetensors")

    study = open_study("attnres.db")
    study.frame("verdicts")[["variant", "mean", "difference", "ci_low", "ci_high", "verdict"]]
    study.frame("curves").pivot_table(index="step", columns="variant", values="val_loss")
    study.runs()[0]["val_loss"]  # the same as plain records

    model = load("winner")  # what `attnres runs export 2 --output winner` wrote
    design = parse("attnres:block_size=4").build(d_model=64, n_sublayers=8)
    own = Transformer(Shape(4, 64, 4, 4, 16, 172, vocab_size=256, seq_len=128), design)

    assert list(study.frame("verdicts").variant) == ["standard", "attnres"]
    assert study.frame("runs").status.eq("complete").all()
    assert model(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 256)
    assert own(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 256)


def test_a_study_gives_verdicts_runs_and_curves_as_records():
    opened = open_study("attnres.db")

    standard, attnres = opened.verdicts()
    runs, curves = opened.runs(), opened.curves()

    assert (standard["variant"], standard["difference"]) == ("standard", None)
    assert attnres["difference"] == pytest.approx(-0.49 / 5)
    assert attnres["ci_low"] < attnres["difference"] < attnres["ci_high"] < 0
    assert (attnres["verdict"], attnres["n_seeds"]) == ("better", 5)
    assert list(attnres) == [*keys(FIELDS), "qualified"]  # the columns of CSV
    assert opened.verdicts(baseline="attnres")[1]["verdict"] == "worse"
    assert {(r["variant"], r["seed"]): r["val_loss"] for r in runs} == {
        (variant, seed): loss for variant, all_ in LOSSES.items() for seed, loss in enumerate(all_)
    }
    assert len(curves) == 2 * len(runs)
    names = {"run", "recipe", "variant", "seed", "step", "train_loss", "val_loss"}
    assert curves[0].keys() == names


def test_a_data_frame_of_verdicts_takes_a_baseline_and_a_recipe():
    pytest.importorskip("pandas")
    frame = open_study("attnres.db").frame("verdicts", baseline="attnres", recipe="tiny")
    assert list(frame.verdict) == ["baseline", "worse"]


def test_a_missing_study_table_or_package_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StudyError, match=r"none\.db"):
        open_study("none.db")
    with pytest.raises(UsageError, match="unknown table 'verdict': did you mean 'verdicts'"):
        open_study("attnres.db").frame("verdict")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"a data frame needs .* pip install .*\[pandas\]'"):
        open_study("attnres.db").frame()


def test_the_interface_is_imported_when_it_is_used():
    program = "import sys, attnres_cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
    found: dict[str, object] = {}
    exec("from attnres_cli import *", found)
    names = {"Residual", "register", "parse", "Transformer", "Shape", "load", "open_study"}
    assert names <= found.keys()
    assert set(attnres_cli.__all__) <= set(dir(attnres_cli))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        attnres_cli.nothing  # noqa: B018
