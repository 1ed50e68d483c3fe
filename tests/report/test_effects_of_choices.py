"""What the choices of a search changed: rows and dots are the effects, as they are typed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnres_cli.report.figures.drawing import of_effects, picture
from attnres_cli.report.search_designs import MOST, effects_document, effects_table, name_of
from attnres_cli.stats.effects import Effect


def effect(choice: str, value: object, mean: float, half: float = 0.01, **more: int) -> Effect:
    made = Effect(choice, value, mean, mean - half, mean + half, 12, 0)
    return replace(made, **more)


FOUND = [
    effect("attnres.ways", "qkv", -0.045),
    effect("+vres", True, -0.03, n_diverged=2),
    effect("stream", "delta", 0.012),
    effect("delta.null", False, 0.004),
]


def test_effects_are_named_as_they_are_typed():
    assert [name_of(each) for each in FOUND] == [
        "attnres.ways=qkv",
        "+vres",
        "stream=delta",
        "delta.null=off",
    ]
    assert name_of(effect("hc.n_streams", 4, 0.0)) == "hc.n_streams=4"
    assert name_of(effect("attnres.window", None, 0.0)) == "attnres.window=none"


def test_a_row_has_effect_interval_designs_and_those_that_diverged():
    table = effects_table(FOUND)

    cells = [[cell.text for cell in row] for row in table.cells]
    assert [column.title for column in table.columns] == ["choice", "effect [95%]", "designs"]
    assert cells[:2] == [
        ["attnres.ways=qkv", "-0.0450 [-0.0550, -0.0350]", "12"],
        ["+vres", "-0.0300 [-0.0400, -0.0200]", "12 (2 diverged)"],
    ]


def test_a_table_of_many_says_of_how_many_and_json_has_all():
    many = [effect("hc.n_streams", n, 0.1 / (n + 1)) for n in range(MOST + 5)]

    assert len(effects_table(many).rows) == MOST
    assert f"the {MOST} largest of {MOST + 5} effects" in effects_table(many).title
    assert "largest" not in effects_table(FOUND).title
    assert len(effects_document(many)) == MOST + 5
    assert effects_document(FOUND)[0] == {
        "choice": "attnres.ways=qkv",
        "effect": -0.045,
        "low": pytest.approx(-0.055),
        "high": pytest.approx(-0.035),
        "n_designs": 12,
        "n_diverged": 0,
    }


def test_the_figure_has_a_dot_a_bar_and_a_name_for_each_of_the_largest():
    (drawing,) = of_effects([*FOUND, *(effect("hc.n_streams", n, 0.002) for n in range(MOST))])

    (axes,) = drawing.figure.axes
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    bars = [tuple(line.get_xdata()) for line in lines if len(line.get_xdata()) == 2]
    assert len(bars) + sum("→" in t.get_text() or "←" in t.get_text() for t in axes.texts) == MOST
    names = [text.get_text() for text in axes.texts if text.get_ha() == "left"]
    assert {"attnres.ways=qkv", "+vres", "stream=delta", "delta.null=off"} <= set(names)
    assert b"attnres.ways=qkv" in picture(drawing, ".svg")


def test_an_interval_with_zero_is_gray_and_a_huge_effect_leaves_the_scale():
    found = [effect("stream", "rezero", 0.5), *FOUND]

    (axes,) = of_effects(found)[0].figure.axes

    assert "+0.5 →" in [text.get_text() for text in axes.texts]
    dots = {float(line.get_xdata()[0]): line for line in axes.lines if line.get_marker() == "o"}
    assert set(dots) == {each.mean for each in FOUND}
    assert dots[0.004].get_color() != dots[-0.03].get_color() == dots[0.012].get_color()


def test_a_search_without_effects_has_no_figure():
    assert of_effects([]) == []
