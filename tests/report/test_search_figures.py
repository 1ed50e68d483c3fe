"""The figures of a search show its numbers, and are left out where they would show nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import searches

from attnres_cli.config.shipped import paper
from attnres_cli.records.search_records import State
from attnres_cli.report.figures.drawing import of_search
from attnres_cli.report.figures.search import axes_of, map_of
from attnres_cli.verdict.optima import Finding, find


@pytest.fixture(scope="module")
def finding() -> Finding:
    return find(*searches.valleys())


def drawn(finding: Finding) -> dict:
    return {drawing.name: drawing for drawing in of_search(finding)}


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def maps(drawing) -> dict:
    """Its maps by their titles; the scale of colors is no map."""
    return {axes.get_title(): axes for axes in drawing.figure.axes if axes.images}


def of_standard(trials) -> Finding:
    return find(searches.search([searches.family("standard", trials)]), [])


def test_a_map_holds_the_lowest_loss_of_each_cell_and_blanks_where_nothing_was_trained(finding):
    x, y = axes_of(finding)
    one = finding.optima[0]

    losses = map_of(one, x, y).losses

    assert losses.shape == (len(y.groups), len(x.groups))
    assert np.nanmin(losses) == min(shape.promised for shape in one.shapes)
    cells = {(y.place(s.trial), x.place(s.trial)) for s in one.shapes}
    assert np.isfinite(losses).sum() == len(cells) < losses.size
    for shape in one.shapes:
        assert losses[y.place(shape.trial), x.place(shape.trial)] <= shape.promised


def test_maps_on_one_scale_star_the_optimum_frame_the_lowest_mean_and_mark_lost_trials(finding):
    x, y = axes_of(finding)

    shapes = maps(drawn(finding)["shapes"])

    assert set(shapes) == {"standard", "attnres"}
    assert shapes["standard"].images[0].norm is shapes["attnres"].images[0].norm
    for one in finding.optima:
        axes, best = shapes[one.family.variant], one.best.trial
        starred = [t for t in texts(axes) if "★" in t]
        assert starred == [f"{min(s.promised for s in one.shapes):.3f}\n★"]
        frames = {tuple(p.get_center()) for p in axes.patches}
        assert frames == {(x.place(best), y.place(best))}  # over fresh seeds
        marked = {t.get_position()[::-1]: t.get_text() for t in axes.texts if len(t.get_text()) < 4}
        losses = np.asarray(axes.images[0].get_array().filled(np.nan))
        lost = {(y.place(t), x.place(t)): "f" for t in one.family.trials if t.outcome == "failed"}
        assert marked == {cell: letter for cell, letter in lost.items() if np.isnan(losses[cell])}
        assert marked
        assert np.isfinite(losses).sum() == len(axes.texts) - len(marked)
    unconfirmed = drawn(find(*searches.valleys(seeds=())))["shapes"]
    assert not any(axes.patches for axes in maps(unconfirmed).values())


def test_the_papers_maps_are_its_numbers_and_say_that_they_are_the_papers(finding):
    drawing = drawn(finding)["shapes-paper"]

    shown = {t.split("\n")[0] for t in texts(maps(drawing)["AttnRes (paper)"])}
    assert shown == {f"{loss:.3f}" for row in paper()["figure7"]["attnres"] for loss in row}
    best = next(t for t in maps(drawing)["baseline (paper)"].texts if "★" in t.get_text())
    assert best.get_text().startswith("1.847")
    assert best.get_position() == (3, 0)  # 60 wide per layer, 0.3 heads
    assert "Attention Residuals paper" in drawing.caption
    assert "quick" not in drawing.told


def test_captions_say_recipe_budget_seeds_tokens_trials_and_the_rule_of_the_rate(finding):
    caption = drawn(finding)["shapes"].told

    for words in ("Recipe quick (5821f707fa1b)", "params=9M within 2 %", "439,296 tokens",
                  "first look on seed 0, fresh seeds 1, 2, 3", "standard 15 of 18 trials complete",
                  "learning rate: the recipe's 0.01"):  # fmt: skip
        assert words in caption


def test_many_sizes_share_columns_and_every_shape_falls_into_one():
    random = np.random.default_rng(0)
    sizes = zip(*(random.integers(*of, 60) for of in ((2, 30), (10, 60), (1, 9))), strict=True)
    trials = [
        searches.trial(i, "standard", (int(n), 8 * int(width), int(heads)), recipe_digest=f"{i}")
        for i, (n, width, heads) in enumerate(sizes)
    ]
    found = of_standard(trials)

    x, y = axes_of(found)

    assert 2 <= len(x.groups) <= 6
    assert 2 <= len(y.groups) <= 6
    flat = [value for group in x.groups for value in group]
    assert flat == sorted(set(flat))
    assert len({(x.place(s.trial), y.place(s.trial)) for s in found.optima[0].shapes}) > 6
    assert "shapes" in drawn(found)


def test_where_heads_follow_from_the_width_another_dimension_stands_upwards():
    trials = [
        replace(made, dimensions=made.dimensions | {"lr": lr, "heads_per_layer": 1.0})
        for i, n in enumerate((2, 3, 4, 6))
        for lr in (0.01, 0.02, 0.04)
        for made in [searches.trial(i, "standard", (n, 96, n), recipe_digest=f"{i}{lr}")]
    ]

    _, y = axes_of(of_standard(trials))

    assert y.label == "lr"
    assert y.names == ["0.01", "0.02", "0.04"]


def test_a_search_of_one_width_per_layer_has_no_map_and_one_of_nothing_else_has_a_row():
    running = searches.trial(0, "standard", (4, 96, 2), state=State.RUNNING, values=())
    one_width, only_widths = (
        drawn(of_standard([searches.trial(i, "standard", size) for i, size in enumerate(sizes)]))
        for sizes in (((4, 96, 2), (4, 96, 3), (4, 96, 4)), ((2, 96, 2), (3, 96, 3), (4, 96, 4)))
    )

    assert one_width == drawn(of_standard([running])) == {}
    (axes,) = maps(only_widths["shapes"]).values()
    assert axes.images[0].get_array().shape == (1, 3)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["24", "32", "48"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [""]


def test_the_front_is_drawn_where_there_are_two_goals_and_only_there(finding):
    search, runs = searches.valleys()
    two = find(searches.timed(search), runs)

    (axes,) = drawn(two)["pareto"].figure.axes

    assert "pareto" not in drawn(finding)
    lines = {line.get_label(): line for line in axes.lines}
    for one in two.optima:
        expected = sorted((1000 * t.values[1], t.values[0]) for t in one.front)
        points = np.column_stack(lines[one.family.variant].get_data())
        assert points == pytest.approx(np.array(expected))
        losses = [loss for _, loss in expected]
        assert losses == sorted(losses, reverse=True)


def test_a_loss_far_above_all_others_does_not_wash_out_the_map():
    search, runs = searches.valleys()
    family = search.families[0]
    one = replace(family, trials=(replace(family.trials[0], values=(9.0,)), *family.trials[1:]))

    drawing = drawn(find(replace(search, families=(one,)), runs))["shapes"]

    (axes,) = maps(drawing).values()
    assert axes.images[0].norm.vmax < 3
    assert math.isclose(axes.images[0].norm.vmin, min(t.values[0] for t in one.trials if t.values))
