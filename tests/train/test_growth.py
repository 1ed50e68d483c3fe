"""A long run takes no more memory at its end than after its warm-up."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from training import Lab, keeper_of


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param("attnres:block_size=2", marks=pytest.mark.slow),
        pytest.param("standard", marks=pytest.mark.nightly),
    ],
)
def test_resident_memory_is_flat_over_a_long_run(variant: str, lab: Lab, tmp_path: Path):
    steps, resident = 2000, {}

    def listen(step: int, _loss: float | None) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident[step] = pages * resource.getpagesize()

    lab.run(
        variant,
        on_step=listen,
        keeper=keeper_of(tmp_path, every_s=1.0),
        model={"n_layers": 2, "d_model": 32, "seq_len": 32},
        optim={"lr": 1e-3},
        train={"tokens": 128 * steps, "eval_tokens": 1024, "n_evals": 20},
    )

    early = max(n_bytes for step, n_bytes in resident.items() if step <= steps // 5)
    assert max(resident.values()) - early < 4 * 2**20
