"""A long run takes no more memory at its end than when it had warmed up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, resource, sys
import numpy as np
import torch
torch.set_num_threads(1)
from attnres_cli.data.documents import Document
from attnres_cli.data.tokens import of_bytes
from attnres_cli.config.recipe import validate
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.keeper import Keeper, Stop
from attnres_cli.train.loop import train
from pathlib import Path

variant, steps = sys.argv[1], int(sys.argv[2])
text = np.random.default_rng(0).integers(97, 105, size=200_000).astype(np.uint8).tobytes()
tokens = of_bytes("text", [Document("one", text[:180_000])], [Document("two", text[180_000:])])
recipe = validate({
    "model": {"n_layers": 2, "d_model": 32, "n_heads": 2, "seq_len": 32},
    "optim": {"lr": 1e-3},
    "train": {"tokens": 128 * steps, "batch_size": 4, "eval_tokens": 2048, "n_evals": 20},
}, "test")
resident = {}

def on_step(step, loss):
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident[step] = pages * resource.getpagesize()

settings = Settings("cpu", "test", "fp32", compiled=False, threads=1, engine="eager")
keeper = Keeper(Checkpoints(Path(sys.argv[3]), {}), 1.0, Stop())
train(RunSpec(recipe, variant, 0, tokens.fingerprint), tokens, settings, "cpu", on_step, keeper)
print(json.dumps(resident))
"""


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["standard", "attnres:block_size=2"])
def test_resident_memory_is_flat_over_a_long_run(variant: str, tmp_path: Path):
    steps = 2000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, variant, str(steps), str(tmp_path / "run")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip

    resident = {int(step): count for step, count in json.loads(done.stdout).items()}
    early = max(count for step, count in resident.items() if step <= steps // 5)
    late = max(resident.values())
    assert late - early < 4 * 2**20
