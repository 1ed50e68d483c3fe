"""Which runs of a study a report is of."""

from __future__ import annotations

import pytest

from attnres_cli.errors import StudyError, UsageError
from attnres_cli.records.run import RunRecord
from attnres_cli.verdict.select import Choice, choose, every


@pytest.fixture
def study(make_run) -> list[RunRecord]:
    """Three groups of runs, planned one after the other."""
    quick, small = ("quick", "aaaaaaaaaaaa"), ("small", "bbbbbbbbbbbb")
    return [
        make_run("standard", 0, recipe=quick),
        make_run("denseformer", 0, recipe=quick),
        make_run("standard", 0, recipe=quick, fingerprint="fedcba9876543210"),
        make_run("standard", 0, recipe=small),
        make_run("attnres:block_size=4,heads=2", 0, recipe=small),
    ]


def test_a_report_is_by_default_of_the_recipe_planned_last(study: list[RunRecord]):
    chosen = choose(study, "attnres.db", None, "standard")

    assert chosen == Choice(
        records=[record for record in study if record.recipe_digest == "bbbbbbbbbbbb"],
        recipe_digest="bbbbbbbbbbbb",
        fingerprint="0123456789abcdef",
        baseline="standard",
        others=(
            "aaaaaaaaaaaa@0123456789abcdef (quick)",
            "aaaaaaaaaaaa@fedcba9876543210 (quick)",
        ),
    )


@pytest.mark.parametrize("recipe", ["quick", "aaaaaaaaaaaa"])
def test_a_recipe_is_chosen_by_name_or_digest_on_the_data_used_last(
    recipe: str, study: list[RunRecord]
):
    chosen = choose(study, "attnres.db", recipe, "standard")

    assert (chosen.recipe_digest, chosen.fingerprint) == ("aaaaaaaaaaaa", "fedcba9876543210")


def test_a_page_is_of_every_recipe_on_every_data_the_newest_last(study: list[RunRecord]):
    newest = choose(study, "attnres.db", None, "standard")

    def fails(spec: str, digest: str) -> str:
        raise UsageError("no such arm at this depth")

    found = every(newest, study, None, "standard", fails)

    of = [(each.recipe_digest, each.fingerprint) for each in found]
    assert sorted(of[:-1]) == [
        ("aaaaaaaaaaaa", "0123456789abcdef"),
        ("aaaaaaaaaaaa", "fedcba9876543210"),
    ]
    assert found[-1] is newest
    assert sum(len(each.records) for each in found) == len(study)
    assert {each.baseline for each in found} == {"standard"}


def test_a_study_of_one_recipe_holds_no_others(study: list[RunRecord]):
    assert choose(study[:2], "attnres.db", None, "standard").others == ()


def test_a_study_without_runs_says_what_to_type():
    with pytest.raises(StudyError, match=r"`attnres ablate --study my\.db`"):
        choose([], "my.db", None, "standard")


def test_an_unknown_recipe_comes_with_the_nearest_one(study: list[RunRecord]):
    with pytest.raises(UsageError, match="'quik': did you mean 'quick'"):
        choose(study, "attnres.db", "quik", "standard")


def test_an_unknown_baseline_comes_with_the_nearest_one(study: list[RunRecord]):
    with pytest.raises(UsageError, match="'denseforme': did you mean 'denseformer'"):
        choose(study[:2], "attnres.db", None, "denseforme")


def test_a_baseline_must_be_an_arm_of_the_recipe_chosen(study: list[RunRecord]):
    with pytest.raises(UsageError, match="unknown baseline 'denseformer'"):
        choose(study, "attnres.db", "small", "denseformer")


def test_options_of_a_baseline_may_come_in_any_order(study: list[RunRecord]):
    chosen = choose(study, "attnres.db", None, "attnres:heads=2,block_size=4")

    assert chosen.baseline == "attnres:block_size=4,heads=2"


def test_standard_is_a_baseline_even_where_it_has_not_run(study: list[RunRecord]):
    assert choose(study[1:2], "attnres.db", None, "standard").baseline == "standard"
