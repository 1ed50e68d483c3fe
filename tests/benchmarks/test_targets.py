"""The fused kernels as the compiler has them, for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.nn.depthmix import engines

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "targets.py"


pytestmark = pytest.mark.skipif(not engines.has_triton(), reason="Triton is not installed")

KERNELS = {"scores", "mix", "mix_group", "gather", "finish"}


def compile_for(target: int, *arguments: str, folder: Path) -> dict[str, Any]:
    """What the script wrote, within all its bounds."""
    path = folder / "result.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), "--targets", str(target), "--json", str(path)]

    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    for part in ("kernels", "bytes"):
        assert {entry["kernel"] for entry in document[part]} == KERNELS
    return document


def test_kernels_neither_spill_nor_move_bytes_in_vain(tmp_path: Path):
    compile_for(90, "--quick", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "width"), [(80, 2048), (100, 8192), (120, 4096)])
def test_kernels_keep_their_bounds_for_every_target(target: int, width: int, tmp_path: Path):
    compile_for(target, "--widths", str(width), folder=tmp_path)


@pytest.mark.slow
def test_kernels_keep_their_bounds_for_every_size(tmp_path: Path):
    """Some 90 seconds: heads by width, and norms, depth and types at one width."""
    widths = ["1024", "8192"]  # 2048 and 4096 are of other targets, above

    document = compile_for(90, "--all", "--widths", *widths, folder=tmp_path)

    arms = "\n".join(entry["arm"] for entry in document["arms"])
    parts = (
        "heads=8",
        "norm=sigmoid",
        "norm=none",
        "score=static",
        "key_norm=off",
        "64 sub",
        *widths,
    )
    assert all(part in arms for part in parts)
    assert arms.endswith("width 8192, bfloat16")
