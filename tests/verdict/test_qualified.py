"""What qualifies an answer is one list, and stands beside it in every format."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER

from attnres_cli.records.comparison_terms import BY_DESIGN, ArmRecipe, Given, Terms, Tuned
from attnres_cli.records.run import Removed, Status
from attnres_cli.report import comparison as reported
from attnres_cli.report import page
from attnres_cli.report.formats import show
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.qualified import n_read, qualifiers

RATE = "one learning rate for every arm, the recipe's: at its own an arm may do better (--tune-lr)"


@pytest.fixture
def doubtful(make_arm, make_run, judge, facts) -> Comparison:
    """A clear answer with much to say against it."""
    runs = [
        *make_arm("standard", *(2.0 + loss for loss in BASE)),
        *make_arm("attnres", *(2.0 + loss for loss in BETTER[:4])),
        make_run("attnres", 4, val_loss=3.45, versions={"torch": "2.10.0"}),
        replace(make_run("attnres", 5, status=Status.PENDING), created_at="later"),
        make_run("mhc", 0, status=Status.FAILED, error="ValueError: no"),
    ]
    gone = Removed(
        "abcdef012345", "laurel", 3, facts.fingerprint, "", "", "2026", Status.COMPLETE, 3.5
    )
    found = judge(runs, rules=Rules(removed=(gone,)))
    return replace(found, registered="exploratory: this recipe is not preregistered")


def test_all_that_qualifies_an_answer_is_in_one_list(doubtful: Comparison):
    told = qualifiers(doubtful, n_tables=2)

    assert told[0] == "exploratory: this recipe is not preregistered"
    for words in (
        "one of 2 tables, each of which errs in 5 % of studies: all of them in up to 10 %",
        "runs 1 pending: the same ablate command goes on",
        "1 run failed: the same command with --retry-failed goes on",
        "the baseline ends above the bigram line",
        RATE,
        "judged by 5 of 6 seeds, the next look is at 8: attnres",
        "removed: laurel seed 3, having ended at 3.5000",
        "other versions than the baseline",
    ):
        assert sum(words in line for line in told) == 1, words


def test_registered_tables_err_together_and_no_exploratory_one_changes_how_they_are_read(
    doubtful: Comparison,
):
    registered = replace(doubtful, registered="preregistered abcdef012345")
    shown = [registered, registered, doubtful]

    assert qualifiers(registered, n_tables=3)[0].endswith("all of them in up to 15 %")
    assert qualifiers(registered, n_tables=30)[0].endswith("1.5 of them on average, at most")
    assert not any("tables" in line for line in qualifiers(registered))
    assert (n_read(registered, shown), n_read(doubtful, shown)) == (2, 3)


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json", "latex", "html"])
def test_what_qualifies_an_answer_stands_beside_it_in_every_format(
    form: str, doubtful: Comparison, monkeypatch: pytest.MonkeyPatch
):
    lines, out = qualifiers(doubtful), io.StringIO()
    if form == "html":
        monkeypatch.setattr(page, "drawings", lambda chapter: [])
        head = page.to_html([Chapter(doubtful)]).partition("<section")[0]
        text = html.unescape(re.sub(r"</?code>", "`", head))
    else:
        show(reported.report_of([doubtful]), form, out)
        text = out.getvalue()
    if form == "json":
        assert json.loads(text)["qualified"] == lines
    elif form == "csv":
        assert {row["qualified"] for row in csv.DictReader(io.StringIO(text))} == {"; ".join(lines)}
    else:
        until_table = re.split(r"─{9}|\| ---|\\begin\{tabular\}", text)[0]
        flat = " ".join(until_table.replace("\\%", "%").replace("\\_", "_").split())
        assert flat.index("Better than standard: attnres") < flat.index(f"But: {lines[0]}")
        for line in lines:
            assert f"But: {line}" in flat


def test_nothing_qualifies_an_answer_at_tuned_rates(base, make_arm, judge, facts):
    rates = (0.005, 0.01, 0.02)
    tuned = Tuned(0.01, rates, (1.9, 1.5, 1.8), (7, 8), 0.01, False, "between its neighbours")
    terms = Terms(is_tuned=True)
    own = [
        ArmRecipe("abcdef012345", facts.fingerprint, terms, name, "b" * 12, tuned)
        for name in ("standard", "attnres")
    ]
    edge = [replace(own[0], how=replace(tuned, lr=0.02, is_on_edge=True)), own[1]]
    arms = base, make_arm("attnres", *BETTER)

    assert qualifiers(judge(*arms, terms=terms, own=own)) == []
    (told,) = qualifiers(judge(*arms, terms=terms, own=edge))
    assert told.startswith("standard: between its neighbours; lr 0.02 is taken")


def test_an_arm_that_takes_anothers_learning_rate_is_named(make_arm, judge, facts):
    own = [
        ArmRecipe("abcdef012345", facts.fingerprint, BY_DESIGN, name, "b" * 12, Given(0.01, mine))
        for name, mine in (("standard", True), ("attnres", True), ("mhc", False))
    ]
    arms = [make_arm(each.variant, *BASE) for each in own]

    (told,) = qualifiers(judge(*arms, terms=BY_DESIGN, own=own))
    assert told == (
        "no learning rate of its own in this recipe: mhc; at one an arm may do better (--tune-lr)"
    )


def test_a_baseline_that_learned_too_little_and_data_with_nothing_to_learn_are_named(
    make_arm, judge, facts
):
    def told(loss: float, **changes: object) -> str:
        data = replace(facts, **changes)
        return "\n".join(qualifiers(judge(make_arm("standard", loss, loss + 0.1), data=data)))

    assert "above the bigram line" not in told(1.5)
    assert "above the bigram line" in told(2.5)
    assert "above" not in told(3.2, bigram_loss=None)
    assert "above the unigram line" in told(3.4, bigram_loss=None)
    assert "above" not in told(3.4, unigram_loss=None, bigram_loss=None)
    poor = {"unigram_loss": math.log(256), "bigram_loss": None}
    (line,) = told(5.6, **poor).splitlines()
    assert "there is nothing to learn" in line
    assert "nothing to learn" not in told(5.6, **poor, floor=1.2)


def test_epochs_and_few_evaluation_tokens_qualify_an_answer(make_arm, judge):
    runs = make_arm("standard", 1.5, 1.6, tokens=950_000)

    told = "\n".join(qualifiers(judge(runs, rules=Rules(eval_tokens=1000))))

    assert "reads its training tokens 10.0 times" in told
    assert "evaluated on 1,000 tokens" in told
