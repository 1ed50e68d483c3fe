"""Simulations: workflows in which words are those of `compare`, and ladders of known worth."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.stats import scaling
from attnres_cli.verdict.judge import compare

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import ladders
from workflows import BASELINE, by_looks, error_rates, p_values, planned, powers


@pytest.mark.parametrize(
    "states",
    [
        [(1, 7)],
        [(2, 5), (2, 8), (4, 8), (4, 12)],
        [(1, 3), (3, 3), (3, 5)],
        [(2, 7), (3, 7), (3, 11)],
    ],
)
def test_the_simulation_calls_the_arms_that_compare_calls(states, make_run, facts):
    random = np.random.default_rng(0)
    n_arms, n_seeds = (max(each) for each in zip(*states, strict=True))
    called = 0
    for _ in range(12):
        base = random.normal(1.5, 0.1, n_seeds)
        gaps = random.normal([-0.05, 0.03, 0.0, -0.1][:n_arms], 0.03, (n_seeds, n_arms))
        losses = {BASELINE: base} | {str(k): base + gaps[:, k] for k in range(n_arms)}
        ever: set[str] = set()
        for end in range(1, len(states) + 1):
            runs = []
            for run in planned(states[:end]):
                loss = float(losses[run.variant][run.seed])
                made = make_run(run.variant, run.seed, val_loss=loss)
                runs.append(replace(made, created_at=run.created_at))
            words = {arm.variant: arm.verdict for arm in compare(runs, facts, BASELINE).arms}
            ever |= {name for name, word in words.items() if word in ("better", "worse")}
        (found,) = by_looks(p_values(gaps[None]), states)
        assert ever == {str(k) for k in np.flatnonzero(found)}
        called += len(ever)
    assert called


def test_the_error_rates_and_powers_of_workflows_are_printed(capsys: pytest.CaptureFixture[str]):
    error_rates(200)
    powers(200)

    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if " | looks | " in line]
    assert len(rows) == 10 + 8


@pytest.mark.parametrize("law", ladders.LAWS)
def test_a_simulated_arm_has_its_known_worth_at_the_largest_size(law: str):
    floor, a, alpha, _ = ladders.LAWS[law]

    compute, losses = ladders.ladder(law, "none", 4, 10**12, np.random.default_rng(0))

    needed = ladders.WORTH * compute[1, -1]
    assert losses[1, -1] == pytest.approx(floor + a * needed**-alpha, rel=1e-6)


def test_intervals_hold_the_truth_and_narrow_ones_are_detected(monkeypatch):
    cell = ("no floor, 8x", "paired", 4, 2, 60)

    held = ladders.covered(*cell)
    monkeypatch.setattr(scaling, "CONFIDENCE", 0.5)

    assert min(held) >= 52
    assert max(ladders.covered(*cell)) <= 42


def test_the_papers_table_2_is_printed_with_its_intervals(capsys: pytest.CaptureFixture[str]):
    ladders.table_2()

    rows = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "1.321 [1.185, 1.473] | 1.865 | 0.0574" in rows["| attnres"]
