"""Figures: what they show is what was measured, and they say what it is of."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from comparisons import BETTER, PROBE, arm_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnres_cli.config import complete, shipped
from attnres_cli.records.run import Point, Status
from attnres_cli.records.step_ratio import StepRatio
from attnres_cli.report.figures import comparison, depth, pays
from attnres_cli.report.figures.drawing import SUFFIXES, drawings, picture
from attnres_cli.report.figures.style import house_style, in_sight, looks, short
from attnres_cli.stats.multiples import Budget

LONG = "attnres:block_size=4,heads=16,key_norm=off,norm=sigmoid,score=static"


def texts(figure: Figure) -> list[str]:
    """All words in a figure, once it has been drawn."""
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(lambda it: hasattr(it, "get_text"))]


@pytest.fixture
def chapter(base, make_chapter, make_arm):
    """A baseline, a better arm and one with blocks of each of two sizes; five seeds."""
    runs = [*base, *make_arm("attnres", *BETTER)]
    runs += make_arm("attnres:block_size=2", 1.44, 1.61, 1.55, 1.36, 1.50)
    return make_chapter([*runs, *make_arm("attnres:block_size=4", 1.47, 1.66, 1.58, 1.38, 1.53)])


def test_a_forest_has_each_arms_mean_interval_seeds_and_verdict(chapter):
    arm = arm_of(chapter.comparison)

    figure = comparison.draw_forest(chapter)

    lines = [np.asarray(line.get_xdata(), float).tolist() for line in figure.axes[0].lines]
    assert list(arm.interval) in lines
    assert [arm.difference.mean] in lines
    assert pytest.approx([-0.11, -0.11, -0.10, -0.09, -0.10]) in lines
    assert {arm.variant, arm.verdict} <= set(texts(figure))


def test_a_forest_of_many_arms_has_a_line_for_each(base, make_chapter, make_arm):
    def drawn(n: int) -> tuple[float, set[bool]]:
        others = [make_arm(f"arm{i}", 1.44 + i / 100, 1.61, 1.55, 1.36, 1.50) for i in range(n)]
        figure = comparison.draw_forest(
            make_chapter([*base, *itertools.chain.from_iterable(others)])
        )
        names = [text for text in figure.axes[0].texts if text.get_text().startswith("arm")]
        return figure.get_figheight(), {text.get_position()[0] < 0 for text in names}

    (few, above), (many, beside) = drawn(12), drawn(13)
    assert (above, beside) == ({False}, {True})
    assert many < few


def test_curves_are_means_over_seeds_until_a_loss_is_not_finite(make_run):
    start, gone = Point(0, None, 5.5), Point(7, 9.0, math.nan)
    runs = [
        make_run("standard", seed, curve=(start, Point(400, 1.6, loss)))
        for seed, loss in enumerate((1.0, 2.0))
    ]

    sd = pytest.approx(math.sqrt(0.5))
    assert comparison.curve_of(runs, "val_loss") == [(0.0, 5.5, 0.0), (102_400.0, 1.5, sd)]
    assert comparison.curve_of(runs, "train_loss") == [(102_400.0, 1.6, 0.0)]
    diverged = make_run("standard", 0, curve=(start, gone))
    assert comparison.curve_of([diverged], "val_loss") == [(0.0, 5.5, 0.0)]


def test_all_training_losses_are_drawn_as_a_running_mean_over_five_points(make_chapter, make_run):
    losses = [3 - step / 20 + 0.1 * (-1) ** step for step in range(21)]
    curve = tuple(
        Point(20 * i, loss, loss if i in (0, 20) else None) for i, loss in enumerate(losses)
    )

    figure = comparison.draw_curves(make_chapter([make_run("standard", 0, curve=curve)]))

    line = max(figure.axes[0].lines, key=lambda line: len(line.get_xdata()))
    assert len(line.get_xdata()) == len(losses) - 4
    assert line.get_ydata()[0] == pytest.approx(np.mean(losses[:5]))


def test_cost_is_beside_gain_by_flops_and_block_sizes_lie_between_full_and_baseline(chapter):
    (by_flops,) = comparison.draw_cost(chapter).axes
    blocks = comparison.draw_block_sizes(chapter)

    points = {c.get_label(): c.lines[0].get_xdata().tolist() for c in by_flops.containers}
    assert points["attnres"] == points["standard"] == [6_000_000 * 102_400]
    (line,) = (c.lines[0] for c in blocks.axes[0].containers)
    assert line.get_xdata().tolist() == [2, 4]
    assert line.get_ydata().tolist() == pytest.approx([7.46 / 5, 7.62 / 5])
    assert {"standard (baseline)", "attnres (Full)"} <= set(texts(blocks))


def test_a_gain_stands_beside_the_time_of_a_step_with_the_line_at_which_it_pays(chapter):
    held = chapter.comparison
    budgets = (Budget(0.5, -0.3, 0.004, 7), Budget(2, 0.2, 0.004, 7))
    ratios = {"attnres": StepRatio(8, 1.4, 1.3, 1.5)}
    timed = replace(held, rules=replace(held.rules, budgets=budgets), step_ratios=ratios)

    (axes,) = pays.draw_pays(replace(chapter, comparison=timed)).axes

    (points,) = axes.containers
    gap = next(arm for arm in held.arms if arm.variant == "attnres").difference.mean
    assert (points.lines[0].get_xdata(), points.lines[0].get_ydata()) == ([1.4], [gap])
    (line,) = [line for line in axes.lines if line.get_label() == "pays below"]
    at = dict(zip(np.round(line.get_xdata(), 6), line.get_ydata(), strict=True))
    assert (at[0.5], at[1.0], at[2.0]) == pytest.approx((0.3, 0.0, -0.2))
    for lacking in (replace(timed, step_ratios={}), replace(timed, rules=held.rules)):
        assert pays.draw_pays(replace(chapter, comparison=lacking)) is None


def test_magnitudes_over_depth_are_means_over_seeds(make_chapter, make_arm):
    chapter = make_chapter(runs := make_arm("standard", 1.5, 1.6))
    first = replace(chapter.probes[runs[0].id], output_rms=(3.0, 1.5, 4.0))

    figure = depth.draw_magnitudes(replace(chapter, probes={**chapter.probes, runs[0].id: first}))

    outputs, gradients = figure.axes
    assert outputs.lines[0].get_ydata() == pytest.approx([2.0, 1.0, 3.0])
    assert gradients.lines[0].get_ydata() == pytest.approx([0.08, 0.002, 0.04])
    assert gradients.get_yscale() == "log"


def test_a_heat_map_shows_m_and_its_caption_sums_it_up(chapter, make_chapter, make_arm):
    nonlinear = replace(PROBE, mixing=None, no_mixing="it is not linear")
    without = make_chapter(runs := make_arm("standard", 1.5, 1.6))
    without = replace(without, probes={run.id: nonlinear for run in runs})

    figure, caption = depth.draw_mixing(chapter), depth.mixing_caption(chapter)

    shown = figure.axes[0].images[0].get_array()
    assert np.ma.getmaskarray(shown).tolist() == np.triu(np.ones((3, 3), bool), 1).tolist()
    assert shown[2].tolist() == pytest.approx([0.05, 0.7, 0.25])
    assert "newest source (the diagonal) 0.50, of the embedding 0.15, entropy 1.00 nats" in caption
    assert depth.draw_mixing(without) is None
    assert "standard: no matrix, it is not linear" in depth.mixing_caption(without)


def test_an_arm_with_named_inputs_has_a_heat_map_for_each(make_chapter, make_arm):
    chapter = make_chapter(runs := make_arm("standard", 1.5, 1.6))
    keys = ((1.0, 0.0, 0.0), (0.9, 0.1, 0.0), (0.8, 0.1, 0.1))
    apart = replace(PROBE, mixing_k=keys, mixing_v=PROBE.mixing)

    figure = depth.draw_mixing(replace(chapter, probes={run.id: apart for run in runs}))

    drawn = [axes for axes in figure.axes if axes.images and axes.get_title()]
    titles = [axes.get_title() for axes in drawn]
    assert titles == ["standard: queries", "standard: keys", "standard: values"]
    assert drawn[1].images[0].get_array()[2].tolist() == pytest.approx([0.8, 0.1, 0.1])


def test_every_arm_of_a_suite_has_its_own_look_and_keeps_it_when_others_join():
    before = looks(["standard", "attnres", "denseformer"], "standard")
    for suite in complete.suites():
        arms = shipped.suite(suite)

        found = looks(arms, "standard")

        assert found["standard"].colour == looks(["x"], "x")["x"].colour
        assert len({(style.colour, style.dashes) for style in found.values()}) == len(arms)
        assert len({(style.colour, style.marker) for style in found.values()}) == len(arms)
        if suite in ("quick", "table4", "fig6"):
            assert all(found[name] == look for name, look in before.items() if name in found)


def test_every_figure_says_recipe_seeds_tokens_and_version(chapter):
    drawn = drawings(chapter)

    assert [d.name for d in drawn] == ["forest", "curves", "cost", "blocks", "depth", "mixing"]
    for drawing in drawn:
        assert "Recipe quick, the same for every arm (abcdef012345); 5 seeds per" in drawing.told
        assert "102,400 tokens per run; attnres 0.1.0." in drawing.told


def test_the_best_of_many_arms_are_named_and_one_far_off_is_cut_off(make_chapter, make_arm):
    near = [run for n in range(10) for run in make_arm(f"arm{n}", 1.495 + n / 100, 1.6, 1.55)]
    runs = [*make_arm("standard", 1.55, 1.65, 1.6), *near, *make_arm("lost", 4.5, 4.6, 4.7)]

    drawn = {drawing.name: drawing.figure for drawing in drawings(make_chapter(runs))}

    for name in ("curves", "cost", "depth"):
        labels = drawn[name].axes[0].get_legend_handles_labels()[1]
        assert labels[:9] == ["standard", *(f"arm{n}" for n in range(8))]
        assert labels[9:] == ["2 others" if name == "cost" else "3 others"]
    (forest,), (cost,) = drawn["forest"].axes, drawn["cost"].axes
    assert forest.get_xlim()[1] < 1
    assert "+3 \N{RIGHTWARDS ARROW}" in [text.get_text() for text in forest.texts]
    assert cost.get_ylim()[1] < 1
    assert [text.get_text().strip() for text in cost.texts] == ["lost +3"]


@pytest.mark.slow
def test_no_words_are_clipped_or_lie_over_each_other(make_chapter, make_arm):
    runs = [
        *make_arm("standard", 1.50, 1.70, 1.60),
        *(run for n in range(11) for run in make_arm(f"{LONG}{n}", 1.4 + n / 99, 1.6, 1.5)),
    ]

    with house_style():
        for drawing in drawings(make_chapter(runs)):
            figure, name = drawing.figure, drawing.name
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            renderer = canvas.get_renderer()
            words = [text for text in words_of(figure) if text.get_text().strip()]
            boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in words]
            assert len(boxes) > 5
            for text, box in boxes:
                assert min(box.x0, box.y0) >= -1, (name, text)
                assert box.x1 <= figure.bbox.x1 + 1, (name, text)
                assert box.y1 <= figure.bbox.y1 + 1, (name, text)
            for (text, box), (other, beside) in itertools.combinations(boxes, 2):
                shared = Bbox.intersection(box, beside)
                assert shared is None or min(shared.width, shared.height) < 2, (name, text, other)


def words_of(figure: Figure) -> Iterator[Text]:
    """All words that are drawn; a tick beyond its axis keeps words that are not."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        yield from (axes.title, *axes.texts, axes.xaxis.label, axes.yaxis.label)
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.get_offset_text()
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    yield from (each for each in (tick.label1, tick.label2) if each.get_visible())


def test_a_figure_is_the_same_file_whenever_it_is_drawn(make_chapter, make_arm):
    chapter = make_chapter(make_arm("standard", 1.5), probed=False)

    for suffix, begin in zip(SUFFIXES, (b"<?xml", b"\x89PNG", b"%PDF"), strict=True):
        one, two = (picture(drawings(chapter)[0], suffix) for _ in range(2))
        assert one.startswith(begin)
        assert one == two


def test_only_what_was_measured_is_drawn(make_chapter, make_run, make_arm):
    failed = make_run("standard", 0, status=Status.FAILED, error="boom")
    runs = [*make_arm("standard", 1.5), *make_arm("attnres:block_size=4", 1.4)]

    assert drawings(make_chapter([failed])) == []
    assert [d.name for d in drawings(make_chapter(runs, probed=False))] == ["curves"]


def test_a_scale_reaches_to_values_near_most_and_a_long_name_keeps_both_its_ends():
    assert in_sight([0.02, -0.03, 1.7]) == 0.03
    assert in_sight([0.0, 0.0, 0.1]) == 0.1
    assert in_sight([-0.2]) == 0.2
    assert len(short(LONG)) <= 50
    assert short(LONG).startswith("attnres:block_size=4")
    assert short(LONG).endswith("score=static")


def test_a_report_imports_matplotlib_only_for_figures_and_never_pyplot_or_torch():
    code = (
        "import sys, attnres_cli.cli.report, attnres_cli.report.comparison, "
        "attnres_cli.report.file_formats, attnres_cli.report.terminal, "
        "attnres_cli.report.progress, attnres_cli.verdict.select; "
        "assert 'matplotlib' not in sys.modules; import attnres_cli.report.page; "
        "assert not {'torch', 'matplotlib.pyplot'} & sys.modules.keys()"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
