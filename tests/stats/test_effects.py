"""Effects of choices: known ones are found, whatever a search tried, and intervals hold them."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.stats.effects import LEAST, Effect, Look, effects

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import effects as simulated

NOISE = 0.01


def grid(seed: int = 0, rung: int = 0) -> list[Look]:
    """Every design of two streams, one of which has an option, and two add-ons in one slot or two:
    `a` is 0.1 below `b`, norm 2 by 0.06 below the mean of the others, `+x0` 0.04 above nothing.
    """
    random, found = np.random.default_rng(seed), []
    streams = [{"stream": "b"}, *({"stream": "a", "a.norm": n} for n in (1, 2, 4))]
    for stream, first, second in itertools.product(streams, ("none", "x0", "vres"), ("none", "x0")):
        loss = 1.7 - 0.1 * (stream["stream"] == "a") - 0.06 * (stream.get("a.norm") == 2)
        loss += 0.02 * (stream["stream"] == "a") + 0.04 * ("x0" in (first, second))
        made = stream | {"addon 1": first, "addon 2": second}
        found.append(Look(made, rung, loss + NOISE * random.normal()))
    return found


def by_name(looks: list[Look]) -> dict[tuple[str, object], Effect]:
    return {(each.choice, each.value): each for each in effects(looks)}


def test_effects_that_are_there_are_found_in_the_order_of_their_size():
    found = by_name(grid())

    assert list(found)[:2] == [("stream", "b"), ("a.norm", 2)]
    for name, truth in {("stream", "b"): 0.1, ("a.norm", 2): -0.06, ("+x0", True): 0.04}.items():
        assert found[name].low < truth < found[name].high
        assert found[name].mean == pytest.approx(truth, abs=0.015)
        assert not found[name].low < 0 < found[name].high
    assert found["+vres", True].low < 0 < found["+vres", True].high


def test_of_two_values_one_stands_for_both_and_of_more_each_stands_for_itself():
    names = set(by_name(grid()))

    assert names == {
        ("stream", "b"),
        ("+x0", True),
        ("+vres", True),
        *(("a.norm", n) for n in (1, 2, 4)),
    }


def test_a_shift_of_a_rung_is_no_effect_and_other_units_change_effects_alone():
    looks = grid()
    top = [replace(look, rung=1, loss=look.loss - 0.3) for look in grid(1)]

    found, apart = by_name(looks), by_name([*looks, *top])

    assert apart["a.norm", 2].mean == pytest.approx(-0.06, abs=0.015)
    widths = [each["a.norm", 2].high - each["a.norm", 2].low for each in (found, apart)]
    assert widths[1] < widths[0]  # there are twice as many runs
    moved = by_name([replace(look, loss=100 + 2 * look.loss) for look in looks])
    for name, each in found.items():
        assert moved[name].mean == pytest.approx(2 * each.mean, rel=1e-3)


def test_an_addon_is_the_same_in_either_slot_and_twice_once():
    looks = grid()
    swapped = [
        replace(look, choices=look.choices | {"addon 1": look.choices["addon 2"],
                                              "addon 2": look.choices["addon 1"]})
        for look in looks
    ]  # fmt: skip

    assert effects(swapped) == effects(looks)
    assert by_name(looks)["+x0", True].n_designs == 4 * 2  # alone or with vres; twice is once


def test_runs_that_diverged_are_counted_and_not_fitted():
    looks = grid()
    lost = [Look({"stream": "b", "addon 1": "x0", "addon 2": "gpas"}, 0, math.inf)]

    found = by_name([*looks, *lost, replace(lost[0], rung=1, loss=math.nan)])

    assert {each.n_diverged for name, each in found.items() if name[0] == "a.norm"} == {0}
    assert found["stream", "b"].n_diverged == 1  # one design
    assert ("+gpas", True) not in found
    for name, each in by_name(looks).items():
        assert (found[name].mean, found[name].n_designs) == (each.mean, each.n_designs)


def test_too_few_designs_and_choices_with_one_value_have_no_effects():
    looks = grid()

    assert effects(looks[: LEAST - 2]) == []
    assert effects([]) == []
    only_b = [look for look in looks if look.choices["stream"] == "a"]
    assert {each.choice for each in effects(only_b)} == {"a.norm", "+x0", "+vres"}


def test_losses_that_are_all_equal_have_effects_of_zero():
    for each in effects([replace(look, loss=1.5) for look in grid()]):
        assert each.mean == 0
        assert each.low < 0 < each.high


@pytest.mark.parametrize("is_adaptive", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_intervals_hold_the_truth_and_the_lowest_effect_is_not_exaggerated(is_adaptive: bool):
    found = simulated.errors("pairs", 12, 60, is_adaptive=is_adaptive)

    covered = {rule: np.mean(abs(rows[:, 0]) <= rows[:, 1]) for rule, rows in found.items()}
    lowest = {rule: np.mean(rows[rows[:, 3] == 1, 0]) for rule, rows in found.items()}
    assert 0.9 < covered["mixed"] < 0.99
    assert max(covered["squares"], covered["means"]) < 0.9
    assert abs(lowest["mixed"]) < 0.008
    assert lowest["squares"] < -0.02


@pytest.mark.nightly
@pytest.mark.parametrize("case", simulated.CASES)
def test_intervals_hold_the_truth_on_every_surface(case: str):
    for size, is_adaptive in itertools.product((60, 150), (False, True)):
        rows = simulated.errors(case, 60, size, is_adaptive=is_adaptive, seed=1)["mixed"]
        assert 0.91 < np.mean(abs(rows[:, 0]) <= rows[:, 1]) < 0.98
