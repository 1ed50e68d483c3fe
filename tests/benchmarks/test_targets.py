"""The fused kernels as the compiler has them, for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli.nn.depthmix import engines

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "targets.py"


@pytest.mark.skipif(not engines.has_triton(), reason="Triton is not installed")
def test_kernels_neither_spill_nor_move_bytes_in_vain(tmp_path: Path):
    path = tmp_path / "result.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", str(path)],
        capture_output=True,
        text=True,
        env=env | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text())
    found = {kernel["kernel"] for kernel in document["kernels"]}
    assert found == {"scores", "mix", "mix_group", "gather", "along", "finish"}
    assert {entry["kernel"] for entry in document["bytes"]} == found - {"along"}
