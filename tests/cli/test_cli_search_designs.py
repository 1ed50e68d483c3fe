"""`attnres search --designs` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Attnres

BRIEF = ["--recipe", "smoke", "--set", "train.tokens=2k", "--workers", "1"]
SMALL = ["--designs", "attnres:norm=softmax|sigmoid;standard", *BRIEF]


def test_a_dry_run_says_how_large_the_space_is_and_trains_nothing(attnres: Attnres, folder: Path):
    out = attnres.prints("search", *SMALL, "--trials", "8", "--dry-run")
    assert (
        "3 combinations, 100% legal; each design has the parameters and tokens of standard" in out
    )
    assert "3 designs at 512 tokens, about 1 of them at 1,536; sampler tpe" in out
    assert "rates tuned first, 4 runs each: attnres" in out
    assert "the 2 best are tuned (about 32 runs each) and compared on 7 fresh seeds" in out
    assert "predicted time of the looks: " in out
    sparse = attnres.prints(
        "search", "--designs", "attnres:*", *BRIEF, "--trials", "8", "--dry-run"
    )
    assert "8 designs at 512 tokens" in sparse  # though few of its combinations are legal
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["attnres"], "leave VARIANT out"),
        (["--space", "n_layers=2..4"], "leave --space out"),
        (["--suite", "fig7"], "leave --suite out"),
        (["--budget", "params=2M"], "type what designs have equal, --budget params"),
        (["--confirm", "6"], "--confirm: at most 5 designs are compared"),
        (["--confirm", "0", "--seeds", "3"], "--confirm 0 compares nothing: leave --seeds out"),
        (["--sampler", "gp"], "proposes by TPE: leave --sampler gp out"),
        (["--objective", "params"], "unknown objective 'params'"),
        (["--set", "slope=null", "--objective", "time"], "--set slope=0.2"),
    ],
)
def test_what_does_not_go_with_designs_is_refused(words: list[str], told: str, attnres: Attnres):
    assert told in attnres.refuses("search", *SMALL, *words)


@pytest.mark.parametrize("typed", ["", " ; "])
def test_an_empty_space_is_not_all_designs(typed: str, attnres: Attnres):
    assert "type --designs all" in attnres.refuses("search", "--designs", typed, *BRIEF)


def test_a_space_without_a_legal_design_is_refused(attnres: Attnres):
    told = attnres.refuses("search", "--designs", "attnres:heads=5", *BRIEF)
    assert "no design of this space fits the recipe" in told


@pytest.mark.slow
def test_looks_alone_give_no_verdict_and_go_on_where_they_stopped(attnres: Attnres):
    looks = ["search", *SMALL, "--trials", "2", "--confirm", "0"]
    out = attnres.prints(*looks)
    assert "2 designs of 3 combinations tried; the best first look promised " in out
    assert "not compared on fresh seeds yet" in out or "it is standard itself" in out
    assert attnres.prints(*looks) == out

    more = json.loads(attnres.prints(*[*looks[:-3], "3", *looks[-2:]], "--format", "json"))
    assert more["n_tried"] == 3
    assert {trial["variant"] for trial in more["trials"]} == {
        "standard", "attnres", "attnres:norm=sigmoid",
    }  # fmt: skip
    report = json.loads(attnres.prints("report", "--format", "json"))
    assert report["answer"] == more["answer"]

    attnres.prints("ablate", "standard", "rezero", "--seeds", "5", *BRIEF)
    page = attnres.prints("report", "--format", "html")
    assert f"Search {more['search']['name']}" in page  # beside the comparison, on a page of all
    assert "rezero" in page
    assert "first looks, all: val_loss in nats per token on one seed" in page.lower()


@pytest.mark.nightly
def test_the_best_design_is_tuned_and_compared_on_fresh_seeds(attnres: Attnres):
    words = ["--trials", "2", "--confirm", "1", "--seeds", "5", "--format", "json"]
    found = json.loads(attnres.prints("search", *SMALL, *words))
    tuned = next(one for one in found["more"] if one["terms"]["is_tuned"])
    arms = {arm["variant"]: arm for arm in tuned["arms"]}
    assert {"standard", "attnres"} <= set(arms)
    looked = {trial["variant"] for trial in found["trials"]}
    assert set(arms) <= looked | {"standard", "attnres"}
    assert {seed for arm in tuned["arms"] for seed in arm["seeds"]} == {1, 2, 3, 4, 5}
    listed = json.loads(
        attnres.prints("report", "--recipe", found["search"]["name"], "--format", "json")
    )
    assert listed["answer"] == found["answer"]
