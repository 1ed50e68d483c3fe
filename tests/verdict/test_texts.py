"""Designs on several texts: words of each, whether they agree, and the heterogeneity's interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Attnres
from comparisons import BASE, BETTER, WORSE, Judge, MakeArm
from scipy import stats
from studies import FACTS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import DataDescription
from attnres_cli.report.figures.texts import draw_texts
from attnres_cli.report.texts import report_of
from attnres_cli.stats.pairs import apart, paired
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.texts import on_texts

NOISY = (1.2, 1.9, 1.5, 1.45, 1.6)
LITTLE_BETTER = (1.492, 1.693, 1.590, 1.391, 1.543)


@pytest.fixture
def on(judge: Judge, make_arm: MakeArm, facts: DataDescription):
    """A function that compares arms, given by their losses, on a text of that name."""

    def compared(name: str, **arms: Sequence[float]) -> Comparison:
        data = replace(facts, fingerprint=name * 4, source=name)
        every = {"standard": BASE} | arms
        runs = [make_arm(arm, *losses, fingerprint=name * 4) for arm, losses in every.items()]
        return judge(*runs, data=data)

    return compared


def test_the_interval_between_two_texts_is_welchs():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0, 1, 12), rng.normal(0.3, 2, 8)
    mean, ends = apart(paired(ours, [0] * 12), paired(theirs, [0] * 8), 0.01)
    oracle = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.99)
    assert mean == pytest.approx(ours.mean() - theirs.mean())
    assert ends == pytest.approx((oracle.low, oracle.high))


def test_equal_words_agree_opposite_ones_differ_and_the_rest_is_open(on):
    (texts,) = on_texts(
        [
            on("code", agrees=BETTER, smaller=BETTER, differs=BETTER, opens=BETTER, lacks=BETTER),
            on("prose", agrees=BETTER, smaller=LITTLE_BETTER, differs=WORSE, opens=NOISY),
        ]
    )
    assert texts.names == ["code", "prose"]
    assert {row.variant: row.agreement for row in texts.rows} == {
        "agrees": "agree", "smaller": "other size", "differs": "differ", "opens": "open",
    }  # fmt: skip
    said = report_of(texts).text[0]
    assert said.startswith("On 2 texts, of 4 designs beside standard: better on all: agrees")
    assert "the texts differ on differs (better on code and worse on prose)" in said
    assert said.endswith("1 is open.")


def test_of_three_texts_the_two_furthest_apart_are_named(on):
    (texts,) = on_texts([on("a", x=BETTER), on("b", x=LITTLE_BETTER), on("c", x=WORSE)])
    (row,) = texts.rows
    assert row.places == (0, 2)
    assert row.between is not None
    assert row.between[0] == pytest.approx(0.206, abs=0.01)
    assert any("(a to c)" in cell.text for cell in report_of(texts).tables[0].cells[0])


def test_two_tokenizers_are_no_texts(on):
    one, other = on("a", x=BETTER), on("b", x=BETTER)
    other = replace(other, data=replace(other.data, vocab_size=50_257))
    assert on_texts([one, other]) == []


def test_comparisons_of_one_text_or_of_other_budgets_are_no_texts(on, judge, make_arm, facts):
    alone = on("a", x=BETTER)
    assert on_texts([alone, alone]) == []
    data = replace(facts, fingerprint="b" * 4)
    arms = [
        make_arm(name, *losses, fingerprint="b" * 4, tokens=204_800)
        for name, losses in (("standard", BASE), ("x", BETTER))
    ]
    assert on_texts([alone, judge(*arms, data=data)]) == []


@pytest.fixture
def attnres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Attnres:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Attnres(capsys)


def test_a_report_of_two_recipes_on_other_texts_says_whether_they_agree(
    attnres, tiny_recipe: Recipe, monkeypatch
):
    study, names = Path("attnres.db"), []
    for number in range(3):
        recipe = tiny_recipe.model_copy(update={"name": f"text{number}"})
        optim = recipe.optim.model_copy(update={"lr": recipe.optim.lr * (1 + number)})
        facts = replace(FACTS, fingerprint=f"{number}" * 16)
        monkeypatch.setattr("studies.FACTS", facts)
        recipe = recipe.model_copy(update={"optim": optim})
        fill(study, recipe, {"standard": BASE, "attnres": BETTER, "hc": WORSE})
        names += ["--recipe", f"text{number}"]

    two = attnres.json("report", *names[:4])
    assert {arm["variant"]: arm["agreement"] for arm in two["arms"]} == {
        "attnres": "agree", "hc": "agree",
    }  # fmt: skip
    assert two["more"][0]["recipes"]  # and their losses beside each other
    printed = attnres.prints("report", *names[:4])
    assert "B minus A" not in printed  # losses of other tokens
    assert "why no interval" not in printed
    three = attnres.json("report", *names)
    assert [text["name"] for text in three["texts"]] == ["text0", "text1", "text2"]
    few = attnres.json("report", "hc", *names[:4])
    assert [arm["variant"] for arm in few["arms"]] == ["hc"]
    assert "leave it out" in attnres.refuses("report", "hc", *names)
    for form in ("table", "markdown", "csv", "latex", "html"):
        assert "text1" in attnres.prints("report", *names, "--format", form)
    assert "Differences on every text" in attnres.prints("report", *names, "--format", "html")
    attnres.prints("report", *names[:4], "--figures", "drawn")
    assert [path.name for path in Path("drawn").iterdir()] == ["texts.svg"]


def test_a_figure_has_a_dot_for_each_design_and_text(on):
    (found,) = on_texts([on("a", x=BETTER, y=WORSE), on("b", x=WORSE, y=BETTER)])
    (axes,) = draw_texts(found).axes
    dots = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1]
    named = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert named == ["a", "b"]
    means = [arm.difference.mean for row in found.rows for arm in row.at]
    assert dots == means
    assert [text.get_text() for text in axes.texts] == ["x", "differ", "y", "differ"]


def test_texts_with_settings_of_their_own_kinds_stand_in_one_table(on):
    tuned = on("prose", x=BETTER)
    tuned = replace(tuned, terms=replace(tuned.terms, is_tuned=True))
    (texts,) = on_texts([on("code", x=BETTER), on("prose", x=WORSE), tuned])
    assert [row.agreement for row in texts.rows] == ["agree"]
    assert "prose: each arm at its own tuned settings" in report_of(texts).caveats


def test_a_design_that_a_text_lacks_agrees_with_nothing_there(on):
    (texts,) = on_texts([on("a", x=BETTER), on("b", x=BETTER), on("c", y=BETTER)])
    assert [(row.variant, row.agreement) for row in texts.rows] == [("x", "open")]
    assert report_of(texts).text == ("On 3 texts, of 1 design beside standard: 1 is open.",)


def test_the_table_has_what_was_fixed_beforehand_and_one_for_each_size(on):
    fixed, extra = (replace(on("a", x=BETTER), registered=r) for r in ("registered", "exploratory"))
    large = [replace(one, arms=tuple(replace(arm, n_params=9) for arm in one.arms))
             for one in (on("a", x=WORSE), on("b", x=WORSE))]  # fmt: skip
    found = on_texts([on("b", x=BETTER), fixed, extra, *large])
    assert [one.names for one in found] == [["b", "a"], ["b", "a"]]
    assert found[0].comparisons[1] is fixed


def test_texts_do_not_differ_before_their_first_look(on):
    few = {name: on(name, x=of[:3]) for name, of in (("a", BETTER), ("b", WORSE))}
    (texts,) = on_texts([*few.values()])
    assert [row.agreement for row in texts.rows] == ["open"]
