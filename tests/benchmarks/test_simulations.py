"""Simulations: workflows in which words are those of `compare`, and ladders of known worth."""

from __future__ import annotations

import lzma
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.config.recipe import load
from attnres_cli.lab import grid
from attnres_cli.stats import scaling
from attnres_cli.store.store import Store
from attnres_cli.verdict.judge import compare

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import ladders
import rates
import tuning
from workflows import (
    BASELINE,
    by_looks,
    error_rates,
    grown,
    p_values,
    planned,
    powers,
    tried,
    typed,
    watched,
)


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
    grown(200)

    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if " | looks | " in line]
    assert len(rows) == 10 + 8
    assert sum("--until decided" in line for line in lines) == 2
    assert sum(line.split(" | ")[1:2] in (["one"], ["shared"]) for line in lines) == 3


def test_several_tables_err_more_often_than_the_one_that_they_are():
    for study in (tried, typed, watched):
        several, one = study(2000, "normal").values()
        assert one < 5 < several


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


def test_what_tuning_may_have_missed_is_not_held_against_an_arm():
    random = np.random.default_rng(0)
    scenario = tuning.SCENARIOS["scales matter much, best within the grid"]
    words = [tuning.study(scenario, random) for _ in range(200)]

    called, said = (sum(bool(each[k]) for each in words) for k in (0, 1))
    assert said <= 20 < called  # of 10 that 5 % are, within three standard errors


def test_a_design_has_a_row_with_three_terms_and_its_word():
    at = {"mean": -0.01, "interval": [-0.02, 0.0]}
    lesser = {"shared": {"mean": 0.03, "interval": None}, "own_rate": at}
    arms = [
        {"variant": "standard", "difference": None, "verdict": "baseline"},
        {"variant": "hc", "difference": at, "verdict": "inconclusive", "beside": lesser},
    ]

    assert rates.on_three_terms({"arms": arms}) == [
        "| `standard` | - | - | - | baseline |",
        "| `hc` | +0.0300 | -0.0100 [-0.0200, +0.0000] | -0.0100 [-0.0200, +0.0000] | inconclusive "
        "|",
    ]


def test_the_pages_on_tuning_have_what_their_studies_decide_and_quick_takes_it(tmp_path: Path):
    results = Path(__file__).parents[2] / "docs" / "results"
    recipe, settled = grid.named(load("quick")), set[str]()
    for name in ("rates", "rest", "inputs"):  # `nanochat` is tuned in the last two: rest is newer
        study = tmp_path / f"{name}.db"
        study.write_bytes(lzma.decompress((results / f"{name}.db.xz").read_bytes()))
        page = (results / f"{name}.md").read_text(encoding="utf-8")
        tried = rates.settings_of(Store.open(str(study), create=False))
        decided = {variant: how for variant, each in tried.items() if (how := rates.tuned(each))}
        for variant, how in decided.items():
            losses = ", ".join(f"{a:g} {b:.4f}" for a, b in zip(how.rates, how.losses, strict=True))
            assert f"| `{variant}` | {losses} |" in page
            if variant in settled:  # as `standard`, which every plan tunes
                continue
            optim = recipe.changed(("optim.lr", how.lr), *how.changes).optim
            assert recipe.of(variant).optim == optim
            assert (dict(recipe.regret)[variant] is None) == how.is_on_edge
        settled |= decided.keys()
    assert settled == dict(recipe.arms).keys()
