"""Budgets of tokens as branches of one run: the same numbers, for less training."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Attnres

from attnres_cli.config.recipe import load, rungs
from attnres_cli.records.run import RunRecord
from attnres_cli.store.store import Store
from attnres_cli.train.loop import joint
from attnres_cli.verdict.slope import is_budget

TEXT = """
model: {n_layers: 1, d_model: 16, n_heads: 2, seq_len: 16}
data: {source: text, path: text.txt}
optim: {lr: 1e-2, schedule: wsd, warmup_fraction: 0.1, decay_fraction: 0.25}
train: {tokens: 5120, batch_size: 4, eval_tokens: 256, n_evals: 2}
"""
LADDER = """
ladder:
  - {train.tokens: 2560, optim.warmup_fraction: 0.2}
  - {train.tokens: 5120, optim.warmup_fraction: 0.1}
  - {train.tokens: 10240, optim.warmup_fraction: 0.05}
"""
TRAIN = ("ablate", "standard", "attnres", "--seeds", "2", "--in-process", "--recipe")


@pytest.fixture(autouse=True)
def text(here: Path) -> None:
    (here / "text.txt").write_text("\n".join(map(str, range(5000))))
    (here / "budgets.yaml").write_text(TEXT + LADDER)
    (here / "whole.yaml").write_text(TEXT.replace("5120", "10240").replace("0.1,", "0.05,"))


def largest(study: str) -> dict[tuple[str, int], RunRecord]:
    """The runs with most tokens, by arm and seed."""
    runs = Store.open(study, create=False).runs()
    most = max(run.result.tokens for run in runs if run.result)
    return {(r.variant, r.seed): r for r in runs if r.result and r.result.tokens == most}


def test_budgets_train_each_step_once_and_end_bit_for_bit_as_runs_of_their_own(attnres: Attnres):
    attnres.prints(*TRAIN, "budgets.yaml", "--study", "branched.db")
    attnres.prints(*TRAIN, "whole.yaml", "--study", "whole.db")

    branched, whole = largest("branched.db"), largest("whole.db")

    assert branched.keys() == whole.keys()
    assert len(whole) == 4
    for key, run in branched.items():
        assert run.result.val_loss == whole[key].result.val_loss
        assert run.recipe_digest == whole[key].recipe_digest
        assert "trained on from run" in run.note
        assert "step 60" in run.note  # of 160, where the budget of half of them began to decay

    told = attnres.prints("runs", "merge", "branched.db", "whole.db", "--into", "both.db")
    assert told.split()[-3:] == ["whole.db", "4", "equal"]


def test_a_dry_run_foresees_where_budgets_go_on(attnres: Attnres):
    plans = attnres.json(*TRAIN, "budgets.yaml", "--dry-run")

    going_on = [
        [run["step"] for run in plan["going_on"]]
        for plan in (plans, *plans["more"])
        if "going_on" in plan
    ]
    assert going_on == [[], [30] * 4, [60] * 4]


def test_other_rates_and_warm_ups_are_no_beginning_of_a_longer_run(attnres: Attnres):
    (Path("other.yaml")).write_text(TEXT.replace("1e-2", "2e-2"))
    attnres.prints(*TRAIN, "other.yaml")
    attnres.prints(*TRAIN, "whole.yaml")

    assert {run.note for run in largest("attnres.db").values()} == {""}


def test_the_shipped_budgets_are_branches_of_one_run_and_measure_a_slope():
    sizes = rungs(load("budgets"))

    assert [size.train.tokens for size in sizes] == [220_000, 440_000, 880_000, 1_760_000]
    assert [joint(size) for size in sizes] == [150, 300, 601, 1203]
    assert all(is_budget(one, other) for one in sizes for other in sizes)
    assert not is_budget(sizes[0], sizes[1].of("standard").at(220_000))
