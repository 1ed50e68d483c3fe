"""Which runs of a study a report is of."""

from __future__ import annotations

import pytest

from attnres_cli.errors import StudyError, UsageError
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord
from attnres_cli.verdict.select import Choice, Runs

QUICK, SMALL = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
OLD, NEW = "0123456789abcdef", "fedcba9876543210"  # fingerprints of data


@pytest.fixture
def study(make_run) -> list[RunRecord]:
    """Three groups of runs, planned one after the other."""
    quick, small = ("quick", QUICK), ("small", SMALL)
    return [
        make_run("standard", 0, recipe=quick, fingerprint=OLD),
        make_run("denseformer", 0, recipe=quick, fingerprint=OLD),
        make_run("standard", 0, recipe=quick, fingerprint=NEW),
        make_run("standard", 0, recipe=small, fingerprint=OLD),
        make_run("attnres:block_size=4,heads=2", 0, recipe=small, fingerprint=OLD),
    ]


def test_a_report_is_by_default_of_the_recipe_planned_last(study: list[RunRecord]):
    assert Runs(study).choose(None, "standard") == Choice(
        records=study[3:],
        recipe_digest=SMALL,
        fingerprint=OLD,
        baseline="standard",
        others=(f"{QUICK}@{OLD} (quick)", f"{QUICK}@{NEW} (quick)"),
    )
    assert Runs(study[:2]).choose(None, "standard").others == ()


@pytest.mark.parametrize("recipe", ["quick", "mine/quick.yaml", QUICK])
def test_a_recipe_is_chosen_by_name_file_or_digest_on_the_data_used_last(recipe: str, study):
    chosen = Runs(study).choose(recipe, "standard")

    assert (chosen.recipe_digest, chosen.fingerprint) == (QUICK, NEW)


def test_a_page_is_of_every_recipe_on_all_data_the_newest_last(study: list[RunRecord]):
    def fails(spec: str, digest: str) -> str:
        raise UsageError("no such arm at this depth")

    newest = Runs(study).choose(None, "standard")
    found = Runs(study, canonical=fails).every(newest, None, "standard")

    of = [(each.recipe_digest, each.fingerprint) for each in found]
    assert sorted(of[:-1]) == [(QUICK, OLD), (QUICK, NEW)]
    assert found[-1] is newest
    assert sum(len(each.records) for each in found) == len(study)
    assert {each.baseline for each in found} == {"standard"}


def test_a_study_without_runs_or_with_only_tuning_runs_says_what_to_type(make_run):
    for runs in ([], [make_run("standard", FIRST_TUNING_SEED)]):
        with pytest.raises(StudyError, match=r"holds no runs yet.*`attnres ablate --study my\.db`"):
            Runs(runs, study="my.db").choose(None, "standard")


def test_an_unknown_recipe_or_baseline_comes_with_the_nearest_one(study: list[RunRecord]):
    for runs, recipe, baseline, words in (
        (study, "quik", "standard", "'quik': did you mean 'quick'"),
        (study[:2], "quick", "denseforme", "'denseforme': did you mean 'denseformer'"),
        (study, "small", "denseformer", "unknown baseline 'denseformer'"),  # of another recipe
    ):
        with pytest.raises(UsageError, match=words):
            Runs(runs).choose(recipe, baseline)


def test_a_baseline_is_found_by_any_order_of_its_options_and_standard_always(study):
    found = Runs(study).choose(None, "attnres:heads=2,block_size=4").baseline

    assert found == "attnres:block_size=4,heads=2"
    assert Runs(study[1:2]).choose(None, "standard").baseline == "standard"  # has not run
