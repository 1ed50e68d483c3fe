"""Tuning and matching on real studies: killed, continued, extended, never trained twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grids import done, query, started

pytestmark = pytest.mark.slow

SMOKE = ["standard", "attnres", "--recipe", "smoke", "--seeds", "2", "--set", "train.tokens=4k"]
TUNED = [*SMOKE, "--tune-lr"]


def runs(folder: Path) -> list[tuple[Any, ...]]:
    """(recipe, variant, seed, status, loss, attempts) of every run."""
    columns = "recipe_digest, variant, seed, status, val_loss, attempts"
    return query(folder, f"SELECT {columns} FROM attnres_runs ORDER BY 1, 2, 3")


def losses(folder: Path) -> list[tuple[Any, ...]]:
    return [run[:-1] for run in runs(folder)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tuned")
    return folder, done(folder, "ablate", *TUNED)


def test_both_comparisons_come_out_and_the_report_repeats_them(tuned):
    folder, document = tuned

    (more,) = document["more"]
    rates = {arm["variant"]: arm["own"]["rates"] for arm in more["arms"]}
    assert rates["standard"] == rates["attnres"]
    assert [sorted(arm["losses"]) for arm in more["arms"]] == [["0", "1"]] * 2
    shared = {(a["variant"], s): v for a in document["arms"] for s, v in a["losses"].items()}
    mine = {(a["variant"], s): v for a in more["arms"] for s, v in a["losses"].items()}
    assert shared.keys() == mine.keys()
    assert done(folder, "report") == document


def test_a_second_command_trains_nothing(tuned):
    folder, document = tuned
    before = runs(folder)

    assert done(folder, "ablate", *TUNED) == document
    assert runs(folder) == before
    assert len({run[:3] for run in before}) == len(before)


def test_a_tuning_that_is_killed_goes_on_to_the_same_study(tmp_path: Path, tuned):

    def n_tuned() -> int:
        return sum(run[2] >= 1_000_000 and run[3] == "complete" for run in runs(tmp_path))

    with started(tmp_path, "ablate", *TUNED) as killed:
        killed.wait_for(lambda: n_tuned() >= 5)
        killed.die()
    assert any(run[3] != "complete" for run in runs(tmp_path))

    document = done(tmp_path, "ablate", *TUNED)

    assert losses(tmp_path) == losses(tuned[0])
    (ours,), (theirs,) = document["more"], tuned[1]["more"]
    assert [arm["own"] for arm in ours["arms"]] == [arm["own"] for arm in theirs["arms"]]


def test_an_arm_and_a_seed_that_are_added_train_what_is_missing_alone(tuned):
    folder, _ = tuned
    before = {run[:3]: run for run in runs(folder)}

    document = done(folder, "ablate", "rezero", *TUNED, "--seeds", "3")

    after = {run[:3]: run for run in runs(folder)}
    assert before.items() <= after.items()
    new = after.keys() - before.keys()
    tuning = [run for run in new if run[2] >= 1_000_000]
    assert {variant for _, variant, _ in tuning} == {"rezero"}
    assert len(tuning) == 5 * 2
    assert {seed for _, variant, seed in new if variant != "rezero"} == {2}
    assert [sorted(arm["losses"]) for arm in document["more"][0]["arms"]] == [["0", "1", "2"]] * 3


def test_what_was_matched_by_time_stays_so_and_shares_the_baselines_runs(tmp_path: Path):
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


def test_matched_arms_are_tuned_at_their_own_width(tmp_path: Path):
    document = done(tmp_path, "ablate", *TUNED, "--match", "params")

    (more,) = document["more"]
    assert (more["terms"]["match"], more["terms"]["is_tuned"]) == ("params", True)
    wide = {arm["variant"]: arm["params"] for arm in document["arms"]}
    assert {arm["variant"]: arm["params"] for arm in more["arms"]} == wide
    assert wide["attnres"] == pytest.approx(wide["standard"], rel=0.005)
    assert done(tmp_path, "report") == document
