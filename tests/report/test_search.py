"""What a search has found: a first look chooses, fresh seeds judge, and no word says more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import searches

from attnres_cli.records.run import Gate, Status
from attnres_cli.records.search_records import State
from attnres_cli.report.search_words import answer, counts, failures, notes, qualified
from attnres_cli.stats.looks import ALPHA
from attnres_cli.stats.optima import common_best, likeliest_common, may_be_best
from attnres_cli.verdict.optima import Finding, find
from attnres_cli.verdict.shape_results import cell, front, named, sizes

SAME = {"standard": 45.0, "attnres": 45.0}


def of(finding: Finding, variant: str):
    return next(one for one in finding.optima if one.family.variant == variant)


@pytest.fixture
def clear() -> Finding:
    """Valleys far apart."""
    return find(*searches.valleys())


def test_the_best_shape_is_the_lowest_over_fresh_seeds_not_the_lucky_first_look(clear):
    one = of(clear, "standard")
    promised = min(one.shapes, key=lambda s: s.promised)

    assert one.best is one.confirmed[0]
    assert one.best.mean == min(s.mean for s in one.confirmed)
    assert one.best is not promised  # in this search they are two
    assert one.best.mean == pytest.approx(np.mean(list(one.best.fresh.values())))
    assert one.best.surprise == one.best.mean - one.best.promised
    assert set(one.best.fresh) == {1, 2, 3}


def test_valleys_far_apart_have_optima_that_differ(clear):
    (pair,) = clear.pairs

    assert pair.differ
    assert [clear.optima[i].family.variant for i in (pair.ours, pair.theirs)] == [
        "standard",
        "attnres",
    ]
    assert pair.choices[0].trial.dimensions["n_layers"] == 6
    assert pair.choices[1].trial.dimensions["n_layers"] == 9
    text = answer(clear)
    assert text.startswith("Within params=9M, standard prefers 6 layers of width 354")
    assert "attnres prefers 9 layers of width 288" in text
    assert (
        f"of the 7 confirmed shapes (of 14 tried) the optima differ (p {pair.p:.2g}): none" in text
    )


def test_optima_are_not_said_to_differ_while_what_is_likeliest_best_for_both_lacks_fresh_seeds():
    search, runs = searches.valleys()
    (pair,) = find(search, runs).pairs
    trials = [f.trials[: len(searches.SHAPES)] for f in search.families]
    first = [{cell(t): t.values[0] for t in each} for each in trials]
    likely = likeliest_common(*first)[0]
    digest = next(t.recipe_digest for t in trials[0] if cell(t) == likely)
    assert pair.differ
    assert likely in pair.cells

    fewer = find(search, [r for r in runs if r.recipe_digest != digest or r.seed == 0])

    (pair,) = fewer.pairs
    assert pair.test is None
    why = f"{sizes(likely)} may be best for both and lacks fresh seeds"
    assert f"whether the optima differ is not known ({why})" in answer(fewer)
    assert {t.variant for t in pair.lacking if t.recipe_digest == digest} == {"standard", "attnres"}


def test_one_valley_for_both_cannot_be_told_apart_and_names_the_shape_that_may_be_best():
    finding = find(*searches.valleys(SAME, seed=8))
    (pair,) = finding.pairs

    assert not pair.differ
    ours, theirs = (one.best.cell for one in finding.optima)
    assert ours != theirs  # each its own lowest, which is luck
    assert (
        f"the optima cannot be told apart (p {pair.p:.2g}): {sizes(pair.cells[pair.test.hardest])} "
        "may be best for both"
    ) in answer(finding)


def test_the_shape_that_is_lowest_for_both_is_named_as_what_may_be_best_for_both():
    finding = find(*searches.valleys(SAME, noise=0.001))

    ours, theirs = (one.best.cell for one in finding.optima)
    assert ours == theirs
    assert f"{sizes(ours)} may be best for both" in answer(finding)


def test_optima_at_one_shape_never_differ_whatever_options_the_first_look_chose():
    """Fresh seeds find a design best where the other is, with options that looked worse at first:
    the test, which takes the first look's, would rule that shape out.
    """
    search, runs = searches.valleys()
    lowest = of(find(search, runs), "standard").best.trial.recipe_digest
    ours = search.families[1]
    spec, shape = "attnres:n_blocks=2", next(t for t in ours.trials if t.recipe_digest == lowest)
    better = replace(shape, variant=spec, number=99, values=(1.7,))
    more = [
        replace(r, id=1000 + r.id, variant=spec, result=replace(r.result, val_loss=loss))
        for r in runs
        if (r.variant, r.recipe_digest) == ("attnres", lowest)
        for loss in [1.2 + 0.01 * r.seed if r.seed else 1.7]
    ]
    families = (search.families[0], replace(ours, trials=(*ours.trials, better)))

    finding = find(replace(search, families=families), [*runs, *more])

    assert [one.best.trial.variant for one in finding.optima] == ["standard", spec]
    assert len({one.best.cell for one in finding.optima}) == 1
    assert not finding.pairs[0].differ
    assert "both are lowest at one shape" in answer(finding)


def test_searches_without_any_interaction_say_that_optima_differ_at_most_at_the_nominal_rate():
    said = [
        find(*searches.valleys(SAME, noise=0.02, seed=seed, confirmed=2)).pairs[0].differ
        for seed in range(80)
    ]

    assert np.mean(said) <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / len(said))


def test_shapes_are_the_same_whatever_a_design_takes_from_the_mlps_to_hold_the_budget():
    search, runs = searches.valleys()
    ours = search.families[1]
    narrower = tuple(
        replace(t, dimensions=t.dimensions | {"d_ff": int(t.dimensions["d_ff"]) - 3})
        for t in ours.trials
    )
    families = (search.families[0], replace(ours, trials=narrower))

    finding = find(replace(search, families=families), runs)

    assert finding.pairs[0].p == find(search, runs).pairs[0].p


def test_the_first_look_chooses_what_all_shapes_are_held_against(clear):
    """And never the seeds that judge, even where they prefer another shape."""
    (pair,) = clear.pairs
    for one, choice in zip(clear.optima, pair.choices, strict=True):
        assert choice.promised == min(shape.promised for shape in one.confirmed)
        losses = np.array([list(shape.fresh.values()) for shape in one.confirmed])
        p = may_be_best(losses, one.confirmed.index(choice))
        assert [shape.may_be_best for shape in one.confirmed] == [value >= ALPHA for value in p]
    assert pair.choices[0] is not clear.optima[0].best

    ours, theirs = (
        np.array(
            [
                list(next(s for s in one.confirmed if s.cell == cell).fresh.values())
                for cell in pair.cells
            ]
        )
        for one in clear.optima
    )
    places = [pair.cells.index(choice.cell) for choice in pair.choices]
    assert pair.test == common_best(ours, theirs, *places)


def test_fresh_seeds_alone_judge(clear):
    """Losses of the first seed, and of seeds that the search did not ask for, change nothing."""
    search, runs = searches.valleys()
    more = [
        replace(run, id=1000 + run.id, seed=seed, result=replace(run.result, val_loss=0.1))
        for run in runs[:15]
        for seed in (7, 8)
    ]
    elsewhere = [replace(run, fingerprint="another") for run in more]
    at_first = [
        replace(run, result=replace(run.result, val_loss=0.1))
        if run.seed == 0 and run.result
        else run
        for run in runs
    ]

    assert find(search, [*runs, *more, *elsewhere]).pairs == clear.pairs
    assert find(search, at_first).pairs[0].p == clear.pairs[0].p


def test_the_shapes_that_may_be_best_are_a_range_that_holds_the_lowest(clear):
    for one in clear.optima:
        held = [shape for shape in one.confirmed if shape.may_be_best]

        assert one.best in held
        assert [shape for shape in one.shapes if shape.is_lowest] == [one.best]
        assert len(held) < len(one.confirmed)
    assert (
        "attnres: 3 of 7 confirmed shapes may be its best (95 %): layers 9, width 288"
        in "\n".join(notes(clear))
    )


def test_a_shape_that_the_other_variant_was_not_trained_at_is_asked_for():
    search, runs = searches.valleys()
    best = of(find(search, runs), "attnres").shapes[0].trial
    kept = [
        r
        for r in runs
        if (r.variant, r.recipe_digest) != ("standard", best.recipe_digest) or r.seed == 0
    ]

    finding = find(search, kept)

    (pair,) = finding.pairs
    assert pair.test is None
    assert [(t.variant, t.recipe_digest) for t in pair.lacking] == [
        ("standard", best.recipe_digest)
    ]
    assert (
        "whether the optima differ is not known (standard has not been trained with all fresh "
        "seeds at 9 layers of width 288"
    ) in answer(finding)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": Status.RUNNING, "result": None}, "seed 2 is running, or was killed"),
        ({"status": Status.FAILED, "result": None, "error": "x\nOSError: full"}, "seed 2 failed: "),
        ({"gates": (Gate("learned", passed=False, value=5.0),)}, "seed 2 did not pass the gate"),
        ({"status": Status.DIVERGED}, "seed 2 diverged"),
        (None, "seed 2 was not trained"),
    ],
)
def test_a_shape_that_lacks_a_seed_is_listed_and_judged_by_none(change, why):
    search, runs = searches.valleys()
    best = of(find(search, runs), "standard").best.trial
    place = next(
        i
        for i, run in enumerate(runs)
        if (run.variant, run.recipe_digest, run.seed) == ("standard", best.recipe_digest, 2)
    )
    changed = runs[:place] + runs[place + 1 :]
    changed += [] if change is None else [replace(runs[place], **change)]

    one = of(find(search, changed), "standard")

    shape = next(s for s in one.shapes if s.trial == best)
    assert why in shape.missing[0]
    assert not shape.is_confirmed
    assert shape.may_be_best is None
    assert set(shape.fresh) == {1, 3}
    assert shape in one.listed
    assert shape is not one.best


def test_runs_that_were_computed_in_different_ways_are_not_paired():
    search, runs = searches.valleys()
    bf16 = [
        replace(r, result=replace(r.result, settings=replace(r.result.settings, precision="bf16")))
        if r.variant == "attnres" and r.seed == 2 and r.result
        else r
        for r in runs
    ]

    finding = find(search, bf16)

    assert finding.pairs[0].test is None
    assert (
        "computed in different ways: cpu bf16 eager, 1 thread, cpu fp32 eager, 1 thread"
        in answer(finding)
    )


def test_one_seed_is_never_a_preference():
    finding = find(*searches.valleys(seeds=()))

    text = answer(finding)
    assert "prefer" not in text
    assert "of one seed, the best of 14 shapes, which is no verdict" in text
    assert "whether the optima differ is not known" in text.lower()
    assert all(shape.may_be_best is None for one in finding.optima for shape in one.shapes)
    assert all(len(one.listed) == 5 for one in finding.optima)
    assert "every loss is of one seed (0)" in "\n".join(qualified(finding))


def test_nothing_is_called_preferred_where_no_confirmed_shape_is_refuted():
    finding = find(*searches.valleys(SAME, noise=0.5))

    text = answer(finding)

    assert "prefers" not in text
    for one in finding.optima:
        n, lowest = len(one.confirmed), named(one.confirmed[0])
        assert f"{one.family.variant} may be best at any of its {n} confirmed shapes" in text
        assert f"and is lowest at {lowest}" in text


def test_a_shape_without_a_rival_is_not_called_preferred():
    search, runs = searches.valleys(SAME, noise=0.001)
    least = min(search.families[0].trials[:14], key=lambda t: t.values).recipe_digest
    runs = [r for r in runs if r.seed == 0 or r.recipe_digest == least]
    one_shape = tuple(
        replace(f, trials=tuple(t for t in f.trials if t.recipe_digest == least))
        for f in search.families
    )

    beside_others = answer(find(search, runs))
    alone = answer(find(replace(search, families=one_shape), runs))

    for text in (beside_others, alone):
        assert "prefers" not in text
        assert "whether the optima differ is not known" in text
    assert "which alone has fresh seeds" in beside_others
    assert (
        "one shape of 14 has fresh seeds for both, `--confirm 2` gives it a rival" in beside_others
    )
    assert "standard has but " in alone
    assert "both have one shape alone" in alone


def test_one_fresh_seed_is_no_test_either():
    finding = find(*searches.valleys(seeds=(1,)))

    assert finding.pairs[0].test is None
    assert "a test takes two fresh seeds or more, this search has one" in answer(finding)
    assert "is lowest, which was not tested" in answer(finding)


def test_every_trial_is_counted_for_what_became_of_it_and_failures_have_their_error(clear):
    search = clear.search
    one = of(clear, "standard")

    states = {"complete": 15, "failed": 1, "running": 1, "diverged": 0}
    assert one.counts == states | {"extra": 0}
    assert counts(one, search) == (
        "standard: 15 of 18 trials complete, 1 running, 1 failed; 14 different shapes; "
        "grid: 15 shapes, 18 trials"
    )
    assert failures(clear)[0] == (
        "standard",
        "4 x 96, 2 heads, seed 0",
        "RuntimeError: out of memory on <device 0>",
    )


def test_failed_runs_of_fresh_seeds_are_listed_beside_failed_trials():
    search, runs = searches.valleys()
    before = failures(find(search, runs))
    lost = next(run for run in runs if run.seed == 2 and run.variant == "standard")
    error = "Traceback (most recent call last):\nOSError: the disk is full"
    failed = replace(lost, status=Status.FAILED, result=None, error=error)

    found = failures(find(search, [failed if run is lost else run for run in runs]))

    (more,) = set(found) - set(before)
    assert len(found) == len(before) + 1
    assert (more[0], more[2]) == ("standard", "OSError: the disk is full")
    assert more[1].endswith(" heads, seed 2")


def test_points_of_one_shape_are_one_shape_and_a_failure_says_which_point_it_is():
    sizes = (2, 32, 2)
    points = [
        searches.trial(
            number,
            "attnres:n_blocks=4",
            sizes,
            recipe_digest=f"{number:012x}",
            values=(loss,),
            dimensions={**searches.trial(0, "", sizes).dimensions, "lr": lr, "n_blocks": 4},
        )
        for number, (lr, loss) in enumerate(((1e-9, 5.5), (0.02, 2.5), (1e9, math.inf)))
    ]
    family = searches.family("attnres", points)
    search = searches.search([family], n_trials=3, confirm_seeds=())

    finding = find(search, [searches.run(t, 0, t.values[0]) for t in points])

    assert "2 of 3 trials complete, 1 diverged; 1 different shape (2 points); " in counts(
        finding.optima[0], search
    )
    what = "2 x 32, 2 heads, lr=1e+09, seed 0"
    assert failures(finding) == [("attnres:n_blocks=4", what, "diverged")]


def test_no_fewer_trials_are_said_to_be_asked_for_than_there_are():
    search, runs = searches.valleys()

    one = find(replace(search, n_trials=1), runs).optima[0]

    assert counts(one, replace(search, n_trials=1)).startswith(
        "standard: 15 of 16 trials complete, 1 running, 1 failed; "
    )


def test_shapes_beyond_those_asked_for_are_no_part_of_them():
    search, runs = searches.valleys()
    family = search.families[0]
    trials = [replace(t, is_extra=t.number in (0, 1)) for t in family.trials]
    two = replace(search, families=(replace(family, trials=tuple(trials)),), n_trials=15)

    one = find(two, runs).optima[0]

    assert counts(one, two).startswith(
        "standard: 13 of 15 trials complete, 1 running, 1 failed, and 2 shapes beyond "
        "them that were best for another variant; 14 different shapes; "
    )
    assert sum(one.counts.values()) == len(trials)


def test_one_trial_and_one_shape_are_not_called_trials_and_shapes():
    search, runs = searches.valleys(seeds=())
    family = search.families[0]
    trials = (family.trials[0], replace(family.trials[1], is_extra=True))
    alone = replace(search, families=(replace(family, trials=trials[:1]),), n_trials=1)
    and_more = replace(alone, families=(replace(family, trials=trials),))

    finding = find(alone, runs)
    (more,) = find(and_more, runs).optima

    assert counts(finding.optima[0], alone).startswith(
        "standard: 1 of 1 trial complete; 1 different shape; "
    )
    assert "the best of 1 shape," in answer(finding)
    assert "complete, and 1 shape beyond it that was best for another variant; " in counts(
        more, and_more
    )


def test_a_trial_that_diverged_is_no_shape_and_no_error_of_ours():
    search, runs = searches.valleys()
    family = search.families[0]
    trials = (replace(family.trials[0], values=(math.nan,)), *family.trials[1:])

    one = find(replace(search, families=(replace(family, trials=trials),)), runs).optima[0]

    assert one.counts["diverged"] == 1
    assert one.counts["complete"] == 14
    assert (trials[0], "diverged") in one.failed
    assert trials[0] not in [shape.trial for shape in one.shapes]


def test_of_a_shape_with_several_options_the_first_look_says_which_one_is_compared():
    search, runs = searches.valleys(confirmed=15)
    ours = search.families[1]
    blocks = [
        replace(
            t,
            number=100 + t.number,
            variant="attnres:n_blocks=4",
            dimensions=t.dimensions | {"n_blocks": 4},
            values=(t.values[0] - 0.001,),
        )
        for t in ours.trials
        if t.state is State.COMPLETE
    ]
    again = [
        replace(r, id=1000 + r.id, variant="attnres:n_blocks=4")
        for r in runs
        if r.variant == "attnres"
    ]
    both = replace(ours, trials=(*ours.trials, *blocks))

    finding = find(replace(search, families=(search.families[0], both)), [*runs, *again])

    (pair,) = finding.pairs
    assert pair.choices[1].trial.variant == "attnres:n_blocks=4"
    assert len(pair.cells) == 14


def test_three_variants_are_three_pairs_whose_p_is_corrected():
    search, runs = searches.valleys({"standard": 60.0, "attnres": 30.0, "hc": 32.0})

    finding = find(search, runs)

    assert [(p.ours, p.theirs) for p in finding.pairs] == [(0, 1), (0, 2), (1, 2)]
    least = min(finding.pairs, key=lambda pair: pair.test.p)
    assert least.p == pytest.approx(3 * least.test.p)
    assert [pair.differ for pair in finding.pairs] == [True, True, False]
    assert "the optima of attnres and hc cannot be told apart" in answer(finding)


def test_a_difference_that_was_not_found_says_how_many_seeds_would_find_it():
    finding = find(*searches.valleys({"standard": 60.0, "attnres": 45.0}, noise=0.006, seed=4))

    (pair,) = finding.pairs
    assert pair.needed is not None
    assert pair.needed > 3
    assert f"would take about {pair.needed} fresh seeds" in answer(finding)


def test_the_front_is_what_no_other_trial_is_better_than_in_both():
    random = np.random.default_rng(3)
    trials = [
        searches.trial(i, "standard", sizes, values=tuple(random.integers(0, 6, 2).astype(float)))
        for i, sizes in enumerate(searches.SHAPES)
    ]
    one = find(searches.search([searches.family("standard", trials)]), []).optima[0]

    kept = front(one)

    for trial in trials:
        beaten = any(
            all(a <= b for a, b in zip(other.values, trial.values, strict=True))
            and other.values != trial.values
            for other in trials
        )
        assert (trial in kept) != beaten


def test_a_search_without_a_complete_trial_has_no_answer():
    trials = [searches.trial(0, "standard", (4, 96, 2), state=State.RUNNING, values=())]
    finding = find(searches.search([searches.family("standard", trials)]), [])

    assert answer(finding) == "No answer: no trial of params=9M is complete."
    assert finding.optima[0].best is None
