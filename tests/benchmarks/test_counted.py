"""No design makes a GPU wait, counted by a stand-in for CUDA below a CUDA build of torch.

It takes one in an environment of its own, with attnres installed there, gcc and CUDA's headers:

    python -m venv cuda && cuda/bin/python -m pip install torch -e .
    ATTNRES_CUDA_PYTHON=cuda/bin/python make nightly
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.nn.residual import registry

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "counted.py"
PYTHON = os.environ.get("ATTNRES_CUDA_PYTHON", "")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PYTHON,
        reason="needs a CUDA build of torch: ATTNRES_CUDA_PYTHON=VENV/bin/python make nightly",
    ),
]
FEW = 6  # waits of a checkpoint, one for each dtype or so


def counted(folder: Path, *typed: str) -> list[dict[str, Any]]:
    """What the script writes; it fails where something is wrong."""
    path = folder / "counted.json"
    command = [PYTHON, SCRIPT, *typed, "--json", path]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())["results"]


def launches_of(entry: dict[str, Any]) -> float:
    return sum(entry["step"]["calls"][name] for name in ("launches", "cublas", "triton"))


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return counted(tmp_path_factory.mktemp("eager"))


def test_no_step_of_any_design_waits_and_each_can_be_captured(eager: list[dict[str, Any]]):
    assert [entry["design"] for entry in eager] == list(registry())
    for entry in eager:
        calls = entry["step"]["calls"]
        assert launches_of(entry) > 300, entry["design"]
        assert (entry["design"], calls["waits"], calls["pageable"]) == (entry["design"], 0, 0)
        assert (entry["design"], entry["capture"]) == (entry["design"], "")


def test_the_design_that_launches_most_is_mhc_with_seven_times_as_many_as_standard(
    eager: list[dict[str, Any]],
):
    launches = {entry["design"]: launches_of(entry) for entry in eager}
    assert max(launches, key=launches.__getitem__) == "mhc"
    assert 6.5 < launches["mhc"] / launches["standard"] < 7.5


def test_an_evaluation_waits_once_and_a_checkpoint_a_few_times(eager: list[dict[str, Any]]):
    for entry in eager:
        evaluation = entry["evaluation"]["calls"]
        assert (evaluation["waits"], evaluation["pageable"]) == (1, 0), entry["design"]
        for what in ("checkpoint", "restoration"):
            assert 0 < entry[what]["calls"]["waits"] <= FEW, entry["design"]


def test_a_replayed_step_launches_a_fraction_of_an_eager_one(tmp_path: Path):
    eager, replayed = counted(tmp_path, "attnres", "--ways", "eager", "graphs")
    assert replayed["step"]["calls"]["replays"] == 2  # forward and backward
    assert replayed["evaluation"]["calls"]["replays"] == 64
    assert launches_of(replayed) < launches_of(eager) / 4
