"""Tuning and matching on real studies: killed, continued, extended, never trained twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from grids import done, query, started

from attnres_cli.lab.protocol import rates

pytestmark = pytest.mark.slow

SMOKE = ["standard", "attnres", "--recipe", "smoke", "--seeds", "2"]
SMOKE += ["--set", "train.eval_tokens=512", "--set", "train.tokens=4k"]
TUNED = [*SMOKE, "--tune-lr"]


def runs(folder: Path) -> list[tuple[Any, ...]]:
    """(recipe, variant, seed, status, loss, attempts) of every run."""
    columns = "recipe_digest, variant, seed, status, val_loss, attempts"
    return query(folder, f"SELECT {columns} FROM attnres_runs ORDER BY 1, 2, 3")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("tuned")
    return folder, done(folder, "ablate", *TUNED)


def test_all_terms_are_compared_once_and_the_report_repeats_them(tuned):
    folder, document = tuned
    before = runs(folder)

    assert document["more"] == []
    for arm in document["arms"]:
        assert set(rates(0.02)) <= set(arm["own"]["rates"])
        assert len(arm["own"]["second"]) >= 3
        assert sorted(arm["losses"]) == ["0", "1"]
    beside = {arm["variant"]: arm["beside"] for arm in document["arms"]}
    assert {terms: one["n"] for terms, one in beside["attnres"].items()} == {
        "shared": 2,
        "own_rate": 2,
    }
    assert done(folder, "report") == document
    assert done(folder, "ablate", *TUNED) == document
    assert runs(folder) == before  # nothing was trained again
    assert len({run[:3] for run in before}) == len(before)


def test_a_killed_tuning_continues_to_the_same_study(tmp_path: Path, tuned):
    with started(tmp_path, "ablate", *TUNED) as killed:
        tuning = "SELECT 1 FROM attnres_runs WHERE seed >= 1000000 AND status = 'complete'"
        killed.wait_for(lambda: len(query(tmp_path, tuning)) >= 5)
        killed.die()
    assert any(run[3] != "complete" for run in runs(tmp_path))
    document = done(tmp_path, "ablate", *TUNED)
    assert [run[:-1] for run in runs(tmp_path)] == [run[:-1] for run in runs(tuned[0])]
    assert [arm["own"] for arm in document["arms"]] == [arm["own"] for arm in tuned[1]["arms"]]


def test_an_added_arm_and_seed_train_only_missing_runs(tmp_path: Path, tuned):
    shutil.copytree(tuned[0], tmp_path, dirs_exist_ok=True)
    before = {run[:3]: run for run in runs(tmp_path)}

    document = done(tmp_path, "ablate", "rezero", *TUNED, "--seeds", "3")

    after = {run[:3]: run for run in runs(tmp_path)}
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    tuning = [run for run in new if run[2] >= 1_000_000]
    assert {variant for _, variant, _ in tuning} == {"rezero"}
    assert len(tuning) >= (5 + 3) * 4
    assert {seed for _, variant, seed in new if variant != "rezero"} == {2}
    assert [sorted(arm["losses"]) for arm in document["arms"]] == [["0", "1", "2"]] * 3


def test_arms_matched_by_time_stay_so_and_share_the_baselines_runs(tmp_path: Path):
    long = [*SMOKE[:-1], "train.tokens=64k"]
    done(tmp_path, "ablate", "standard", *long[2:])
    before = runs(tmp_path)

    first = done(tmp_path, "ablate", *long, "--match", "time")
    again = done(tmp_path, "ablate", *long, "--match", "time")

    assert first == again
    base, arm = sorted(first["arms"], key=lambda arm: arm["variant"] != "standard")
    assert arm["tokens"] != base["tokens"]
    assert arm["tokens"] == arm["own"]["after"]
    assert arm["verdict"] != "blocked"
    assert [run for run in runs(tmp_path) if run[1] == "standard"] == before
    assert done(tmp_path, "report") == first
