"""Which runs are compared where a study holds runs of several codes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparisons import arm_of

from attnres_cli.errors import UsageError
from attnres_cli.nn import code as digests
from attnres_cli.nn.code import Kept
from attnres_cli.records import code as codes
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.verdict.codes import left_out, of_one_code
from attnres_cli.verdict.registered import compared
from attnres_cli.verdict.select import Runs

OLD = Code("standard", "trunk", "engine", "loop", "data")


@pytest.fixture
def runs_of(make_arm):
    """A function that makes an arm's runs by a code."""

    def make(variant: str, *losses: float, code: Code = OLD, **changes) -> list[RunRecord]:
        found = make_arm(variant, *losses, versions=code.versions, **changes)
        return [replace(run, code=code.digest, versions=code.versions) for run in found]

    return make


def of(variant: str, edited: str = "", **parts: str) -> Code:
    return replace(OLD, design=variant + edited, **parts)


def test_an_edited_design_is_compared_only_by_its_newest_code(runs_of, facts):
    base = runs_of("standard", 1.0, 1.1, 1.2, code=of("standard"))
    old = runs_of("denseformer", 0.5, 0.6, 0.7, code=of("denseformer"))
    new = runs_of("denseformer", 2.0, 2.1, 2.2, code=of("denseformer", " edited"))
    study = [*base, *old, *new]

    chosen = Runs(study).choose(None, "standard")

    assert chosen.records == [*base, *new]
    assert list(chosen.older) == old
    (comparison,) = compared(Runs(study), chosen, facts, [])
    assert arm_of(comparison, "denseformer").mean == pytest.approx(2.1)
    assert left_out(comparison.older, comparison.records) == [
        "not compared here: 3 runs of denseformer by other code (design changed): "
        f"attnres report --code {old[0].code}"
    ]


def test_an_edited_trunk_leaves_all_earlier_runs_out(runs_of):
    before = [*runs_of("standard", 1.0), *runs_of("hc", 1.0, code=of("hc"))]
    waiting = runs_of("standard", 1.0, status=Status.PENDING)
    after = runs_of("standard", 1.5, code=of("standard", trunk="another", loop="another"))

    chosen = Runs([*before, *after]).choose(None, "standard")

    assert chosen.records == after
    assert left_out(chosen.older, chosen.records) == [
        "not compared here: 2 runs of standard, hc by other code (trunk, loop changed): "
        f"attnres report --code {before[1].code}"
    ]
    assert left_out(waiting, after) == []  # only ended runs are named


def test_a_code_that_is_asked_for_is_compared_with_the_shared_code_of_its_time(runs_of):
    base = runs_of("standard", 1.0)
    old = runs_of("denseformer", 0.5, code=of("denseformer"))
    new = runs_of("denseformer", 2.0, code=of("denseformer", " edited"))
    other = runs_of("standard", 3.0, code=of("standard", engine="another"))

    def chosen(*codes: str) -> list[RunRecord]:
        study = [*base, *old, *new, *other]
        return Runs(study).choose(None, "standard", codes=codes).records

    assert chosen(old[0].code[:6]) == [*base, *old]
    assert chosen(base[0].code) == [*base, *new]
    assert chosen() == other
    with pytest.raises(UsageError, match="unknown code of these runs '0123'"):
        chosen("0123")


def test_runs_without_a_recorded_code_are_never_pooled_with_others(runs_of):
    unknown, known = runs_of("standard", 1.0, code=Code()), runs_of("standard", 1.5)

    assert of_one_code([*unknown, *known]) == (known, unknown)
    assert of_one_code([*known, *unknown]) == (unknown, known)
    assert of_one_code([*known, *unknown], [known[0].code]) == (known, unknown)
    chosen = Runs([*unknown, *known]).choose(None, "standard", codes=["unknown"])
    assert chosen.records == unknown
    assert "(not recorded)" in left_out(unknown, known)[0]


def test_other_recipes_and_data_do_not_decide_which_code_is_compared(runs_of):
    small = {"recipe": ("small", "bbbbbbbbbbbb")}
    old, new = runs_of("standard", 1.0), runs_of("standard", 1.0, code=of("new"), **small)
    whole = [*old, *new]

    newest = Runs(whole).choose(None, "standard")
    both = Runs(whole).every(newest, None, "standard")

    assert [(each.records, each.older) for each in both] == [(old, ()), (new, ())]


def test_codes_that_a_release_declares_to_be_the_same_are_one(runs_of, monkeypatch):
    first = runs_of("standard", 1.0)[0].versions
    last = first | {"code_trunk": "renamed twice"}
    assert Code.of(first) != Code.of(last)

    steps = [("trunk", "renamed"), ("renamed", "renamed twice")]
    kept = tuple(Kept("trunk", before, now, "0" * 40) for before, now in steps)
    monkeypatch.setattr(digests, "KEPT", kept)
    monkeypatch.setattr(digests, "first", digests.first.__wrapped__)  # without what it remembers
    monkeypatch.setattr(codes, "_first", codes._first.__wrapped__)

    assert Code.of(first) == Code.of(last) == OLD
    assert Code.of(first | {"code_loop": "renamed"}) != OLD  # another part of that digest
