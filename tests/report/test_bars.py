"""The forest plot that stands in a page's verdict table."""

from __future__ import annotations

import pytest
from comparisons import BASE, BETTER

from attnres_cli.report.page import card, with_bars


def test_every_difference_is_drawn_on_one_scale_with_its_interval_and_seeds(
    base, make_arm, make_chapter
):
    held = make_chapter([*base, *make_arm("attnres", *BETTER)]).comparison
    (arm,) = [each for each in held.arms if each.difference is not None]

    table = with_bars(held)
    empty, bar = (row[1] for row in table.rows)

    seeds = [ours - theirs for ours, theirs in zip(BETTER, BASE, strict=True)]
    low, high = min(0.0, *arm.interval, *seeds), max(0.0, *arm.interval, *seeds)
    assert table.columns[1].title == f"{low:+.2g} to {high:+.2g}"
    assert (empty.mean, empty.text) == (None, "")

    def value(place: float) -> float:
        return low + (place - 2) / 96 * (high - low)

    step = 0.1 * (high - low) / 96  # of places with one decimal
    assert value(bar.zero) == pytest.approx(0.0, abs=step)
    assert value(bar.mean) == pytest.approx(arm.difference.mean, abs=step)
    assert [value(end) for end in bar.ends] == pytest.approx(arm.interval, abs=step)
    assert [value(place) for place in bar.seeds] == pytest.approx(seeds, abs=step)


def test_an_arm_far_off_the_scale_has_its_mean_beside_an_arrow(make_arm, make_chapter):
    near = [run for n in range(10) for run in make_arm(f"arm{n}", 1.495 + n / 100, 1.6, 1.55)]
    runs = [*make_arm("standard", 1.55, 1.65, 1.6), *near, *make_arm("lost", 4.5, 4.6, 4.7)]

    table = with_bars(make_chapter(runs).comparison)
    bars = {row[0].text: row[1] for row in table.rows}

    assert bars["lost"].text == "+3 \N{RIGHTWARDS ARROW}"
    assert bars["arm0"].mean is not None
    assert float(table.columns[1].title.split()[-1]) < 1
    short = card(table)
    assert [column.title for column in short.columns][::2] == ["variant", "verdict"]
    assert all(len(row) == 3 for row in short.rows)
    assert (short.title, len(short.rows)) == ("The first 8 of 12 arms", 8)
