"""Ladders: simulated sizes of known worth, and the paper's Table 2."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.stats import scaling

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(FOLDER))
import ladders  # noqa: E402


@pytest.mark.parametrize("law", ladders.LAWS)
def test_a_simulated_arm_has_its_known_worth_at_the_largest_size(law: str):
    floor, a, alpha, _ = ladders.LAWS[law]

    compute, losses = ladders.ladder(law, "none", 4, 10**12, np.random.default_rng(0))

    needed = ladders.WORTH * compute[1, -1]
    assert losses[1, -1] == pytest.approx(floor + a * needed**-alpha, rel=1e-6)


def test_most_intervals_hold_the_truth_and_too_narrow_ones_are_detected(
    monkeypatch: pytest.MonkeyPatch,
):
    cell = ("no floor, 8x", "paired", 4, 2, 60)

    held = ladders.covered(*cell)
    monkeypatch.setattr(scaling, "CONFIDENCE", 0.5)

    assert min(held) >= 52
    assert max(ladders.covered(*cell)) <= 42


def test_the_papers_table_2_is_printed_with_its_intervals(capsys: pytest.CaptureFixture[str]):
    ladders.table_2()

    rows = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "1.321 [1.185, 1.473] | 1.865 | 0.0574" in rows["| attnres"]
