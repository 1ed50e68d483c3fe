"""The fused kernels as the compiler has them, for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.nn.depthmix import engines

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(FOLDER))
import bounds  # noqa: E402

KERNELS = {"dots", "scores", "mix", "mix_group", "gather", "finish"}
KERNEL = {"kernel": "mix", "target": 90, "arm": "attnres"}
WITHIN = {
    "kernels": [KERNEL | {"spills": [32, 32], "in_loops": 0, "shared": 99 * 1024}],
    "arms": [{"target": 90, "arm": "attnres", "kernels": 12, "seconds": 60}],
    "bytes": [{"kernel": "mix", "target": 90, "width": 1024, "heads": 1, "ratio": 1.1}],
}


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("kernels", "spills", [0, 33]),
        ("kernels", "in_loops", 1),
        ("kernels", "shared", 99 * 1024 + 1),
        ("arms", "kernels", 14),
        ("arms", "seconds", 61),
        ("bytes", "ratio", 1.11),
    ],
)
def test_each_bound_is_checked_and_named(part: str, name: str, value: object):
    document = deepcopy(WITHIN)
    assert bounds.passed(document) == []

    document[part][0][name] = value

    (complaint,) = bounds.passed(document)
    assert "sm_90" in complaint
    assert str(value) in complaint


@pytest.mark.skipif(not engines.has_triton(), reason="Triton is not installed")
@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        pytest.param(90, ["--quick"], marks=pytest.mark.slow),
        pytest.param(80, ["--widths", "2048"], marks=pytest.mark.nightly),
        pytest.param(100, ["--widths", "8192"], marks=pytest.mark.nightly),
        pytest.param(120, ["--widths", "4096"], marks=pytest.mark.nightly),
        # 90 seconds: heads by width, and norms, depth and types at one width
        pytest.param(90, ["--all", "--widths", "1024", "8192"], marks=pytest.mark.nightly),
    ],
)
def test_kernels_neither_spill_nor_move_bytes_in_vain(target, arguments, tmp_path):
    path = tmp_path / "result.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, FOLDER / "targets.py", "--targets", str(target), "--json", path]

    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    for part in ("kernels", "bytes"):
        assert {entry["kernel"] for entry in document[part]} == KERNELS
    if "--all" in arguments:
        arms = "\n".join(entry["arm"] for entry in document["arms"])
        parts = ["heads=8", "norm=sigmoid", "norm=none", "score=static", "key_norm=off", "64 sub"]
        assert all(part in arms for part in (*parts, "1024", "8192"))
        assert arms.endswith("width 8192, bfloat16")
