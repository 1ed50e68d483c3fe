"""What a search has found: a first look chooses, fresh seeds judge, and no word says more."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
import searches

from attnres_cli.records.run import Gate, RunRecord, Status
from attnres_cli.records.search_records import Search, State, Trial
from attnres_cli.report.search_words import answer, blocks, counts, failures, notes, qualified
from attnres_cli.stats.optima import common_best, likeliest_common, may_be_best
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.optima import Finding, find
from attnres_cli.verdict.shape_results import named, sizes

SAME = {"standard": 45.0, "attnres": 45.0}


def edited(search: Search, *numbers: int, dimensions=(), **changes: object) -> Search:
    """The search with all trials changed, or only those of these numbers in each family."""

    def edit(trial: Trial) -> Trial:
        if numbers and trial.number not in numbers:
            return trial
        return replace(trial, dimensions=trial.dimensions | dict(dimensions), **changes)

    families = [replace(f, trials=tuple(map(edit, f.trials))) for f in search.families]
    return replace(search, families=tuple(families))


def with_loss(run: RunRecord, loss: float, **changes: object) -> RunRecord:
    assert run.result is not None
    return replace(run, result=replace(run.result, val_loss=loss), **changes)


@pytest.fixture
def clear() -> Finding:
    """Valleys far apart."""
    return find(*searches.valleys())


def test_the_best_shape_is_the_lowest_over_fresh_seeds_in_a_range_of_those_that_may_be_best(clear):
    for one in clear.optima:
        may_be = [shape for shape in one.confirmed if shape.may_be_best]
        assert one.best is one.confirmed[0] is may_be[0]
        assert one.best.mean == min(s.mean for s in one.confirmed)
        assert one.best.mean == pytest.approx(np.mean(list(one.best.fresh.values())))
        assert one.best.surprise == one.best.mean - one.best.promised
        assert set(one.best.fresh) == {1, 2, 3}
        assert [shape for shape in one.shapes if shape.is_lowest] == [one.best]
        assert len(may_be) < len(one.confirmed)

    standard, _ = clear.optima
    assert standard.best is not min(standard.shapes, key=lambda s: s.promised)  # the lucky one
    line = "attnres: 3 of 7 confirmed shapes may be its best (95 %): layers 9, width 288"
    assert line in "\n".join(notes(clear))


def test_valleys_far_apart_have_optima_that_differ(clear):
    (pair,) = clear.pairs

    assert pair.differ
    assert pair.names == ["standard", "attnres"]
    assert [choice.trial.dimensions["n_layers"] for choice in pair.choices] == [6, 9]
    text = answer(clear)
    assert text.startswith("At params=9M, standard does best at 6 layers of width 354")
    assert "attnres does best at 9 layers of width 288" in text
    told = f"The optima differ (p = {pair.p:.2g}): none of the 7 confirmed shapes (of 14 tried)"
    assert told in text


def test_optima_are_not_said_to_differ_where_runs_that_decide_are_missing_or_do_not_pair(clear):
    search, runs = searches.valleys()
    trials = [f.trials[: len(searches.SHAPES)] for f in search.families]
    likely, *_ = likeliest_common(*({t.cell: t.values[0] for t in each} for each in trials))
    common = next(t.recipe_digest for t in trials[0] if t.cell == likely)
    best = clear.optima[1].shapes[0].trial.recipe_digest
    bf16 = replace(searches.SETTINGS, precision="bf16")
    not_common = [r for r in runs if r.seed == 0 or r.recipe_digest != common]
    not_best = [
        r for r in runs if r.seed == 0 or (r.variant, r.recipe_digest) != ("standard", best)
    ]
    mixed = [
        replace(r, result=replace(r.result, settings=bf16))
        if (r.variant, r.seed) == ("attnres", 2) and r.result
        else r
        for r in runs
    ]
    assert likely in clear.pairs[0].cells

    for kept, lacking, why in (
        (not_common, [("standard", common), ("attnres", common)],
         f"{sizes(likely)} may be best for both and lacks fresh seeds."),
        (not_best, [("standard", best)],
         "standard has not been trained with all fresh seeds at 9 layers of width 288"),
        (mixed, [], "attnres: runs were computed in different ways: cpu bf16 eager, 1 thread, cpu "
         "fp32 eager, 1 thread"),
    ):  # fmt: skip
        finding = find(search, kept)

        (pair,) = finding.pairs
        assert pair.test is None
        assert [(t.variant, t.recipe_digest) for t in pair.lacking] == lacking
        assert f"Whether the optima differ is not known: {why}" in answer(finding)


def test_optima_that_cannot_be_told_apart_have_a_shape_for_both_or_seeds_that_would_tell():
    finding = find(*searches.valleys(SAME, seed=8))
    clear = find(*searches.valleys(SAME, noise=0.001))

    (pair,) = finding.pairs
    assert not pair.differ
    ours, theirs = (one.best.cell for one in finding.optima)
    assert ours != theirs  # each its own lowest, which is luck
    shape = sizes(pair.cells[pair.test.hardest])
    told = f"No evidence that the optima differ (p = {pair.p:.2g}): {shape} may be best for both"
    assert told in answer(finding)
    ours, theirs = (one.best.cell for one in clear.optima)
    assert ours == theirs
    assert f"{sizes(ours)} may be best for both" in answer(clear)
    near = find(*searches.valleys({"standard": 60.0, "attnres": 45.0}, noise=0.006, seed=4))
    assert near.pairs[0].needed > 3
    assert f"About {near.pairs[0].needed} fresh seeds would tell." in answer(near)


def test_seeds_that_were_looked_at_before_are_a_caveat():
    search, runs = searches.valleys()
    again = replace(search, earlier_seeds=(1, 2))

    (told,) = [line for line in qualified(find(again, runs)) if "looked at before" in line]
    assert told.startswith("fresh seeds 1, 2 were looked at before: errors of 5% are of one look")
    assert find(again, runs).search.confirm_seeds == (1, 2, 3)
    assert "looked at before" not in "\n".join(qualified(find(search, runs)))


def test_optima_at_one_shape_never_differ_whatever_options_the_first_look_chose():
    """Fresh seeds find a design best where the other is, with options that looked worse at first:
    the test, which takes the first look's, would rule that shape out.
    """
    search, runs = searches.valleys()
    lowest = find(search, runs).optima[0].best.trial.recipe_digest
    ours = search.families[1]
    spec, shape = "attnres:n_blocks=2", next(t for t in ours.trials if t.recipe_digest == lowest)
    better = replace(shape, variant=spec, number=99, values=(1.7,))
    more = [
        with_loss(r, 1.2 + 0.01 * r.seed if r.seed else 1.7, id=1000 + r.id, variant=spec)
        for r in runs
        if (r.variant, r.recipe_digest) == ("attnres", lowest)
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


def test_the_first_look_chooses_what_all_shapes_are_compared_with(clear):
    """And never the seeds that judge, even where they prefer another shape."""
    (pair,) = clear.pairs
    of_cells = []
    for one, choice in zip(clear.optima, pair.choices, strict=True):
        assert choice.promised == min(shape.promised for shape in one.confirmed)
        losses = np.array([list(shape.fresh.values()) for shape in one.confirmed])
        p = may_be_best(losses, one.confirmed.index(choice))
        assert [shape.may_be_best for shape in one.confirmed] == [value >= ALPHA for value in p]
        by_cell = {shape.cell: list(shape.fresh.values()) for shape in one.confirmed}
        of_cells.append(np.array([by_cell[cell] for cell in pair.cells]))
    assert pair.choices[0] is not clear.optima[0].best
    places = [pair.cells.index(choice.cell) for choice in pair.choices]
    assert pair.test == common_best(*of_cells, *places)


def test_only_shapes_and_their_fresh_seeds_judge(clear):
    """Losses of the first seed and of seeds that the search did not ask for change nothing, nor
    does what a design takes from the MLPs to hold the budget.
    """
    search, runs = searches.valleys()
    more = [with_loss(r, 0.1, id=1000 + r.id, seed=seed) for r in runs[:15] for seed in (7, 8)]
    elsewhere = [replace(run, fingerprint="another") for run in more]
    at_first = [with_loss(r, 0.1) if r.seed == 0 and r.result else r for r in runs]
    trials = [
        replace(t, dimensions=t.dimensions | {"d_ff": t.dimensions["d_ff"] - 3})
        for t in search.families[1].trials
    ]
    families = (search.families[0], replace(search.families[1], trials=tuple(trials)))

    assert find(search, [*runs, *more, *elsewhere]).pairs == clear.pairs
    for found in (find(search, at_first), find(replace(search, families=families), runs)):
        assert found.pairs[0].p == clear.pairs[0].p


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
def test_a_shape_that_lacks_a_seed_is_listed_and_not_judged(change, why):
    search, runs = searches.valleys()
    best = find(search, runs).optima[0].best.trial
    key = ("standard", best.recipe_digest, 2)
    (lost,) = [run for run in runs if (run.variant, run.recipe_digest, run.seed) == key]
    changed = [run for run in runs if run is not lost]
    changed += [] if change is None else [replace(lost, **change)]

    one = find(search, changed).optima[0]

    shape = next(s for s in one.shapes if s.trial == best)
    assert why in shape.missing[0]
    assert not shape.is_confirmed
    assert shape.may_be_best is None
    assert set(shape.fresh) == {1, 3}
    assert shape in one.listed
    assert shape is not one.best


def test_one_seed_is_never_a_preference_and_one_fresh_seed_is_no_test():
    finding, one_fresh = (find(*searches.valleys(seeds=seeds)) for seeds in ((), (1,)))

    text = answer(finding)
    assert "does best" not in text
    assert "of 14 shapes by one seed: no verdict" in text
    assert "Whether the optima differ is not known" in text
    assert all(shape.may_be_best is None for one in finding.optima for shape in one.shapes)
    assert all(len(one.listed) == 5 for one in finding.optima)
    assert "every loss is of one seed (0)" in "\n".join(qualified(finding))
    assert one_fresh.pairs[0].test is None
    text = answer(one_fresh)
    assert "a test takes two fresh seeds or more, this search has one" in text
    assert "(not tested)" in text


def test_nothing_is_preferred_where_no_confirmed_shape_is_refuted_or_has_a_rival():
    finding = find(*searches.valleys(SAME, noise=0.5))
    search, runs = searches.valleys(SAME, noise=0.001)
    least = min(search.families[0].trials[:14], key=lambda t: t.values).recipe_digest
    runs = [r for r in runs if r.seed == 0 or r.recipe_digest == least]
    one_shape = tuple(
        replace(f, trials=tuple(t for t in f.trials if t.recipe_digest == least))
        for f in search.families
    )

    text = answer(finding)
    beside_others = answer(find(search, runs))
    alone = answer(find(replace(search, families=one_shape), runs))

    for one in finding.optima:
        n, lowest = len(one.confirmed), named(one.confirmed[0])
        assert f"{one.family.variant} is lowest at {lowest}, but none of its {n} confirmed" in text
    rival = "one shape of 14 has fresh seeds for both, `--confirm 2` gives it a rival"
    unknown = "Whether the optima differ is not known"
    for said, *words in (
        (text,),
        (beside_others, unknown, "the only shape with fresh seeds", rival),
        (alone, unknown, ", the only shape", "both have one shape alone"),
    ):
        assert "does best" not in said
        assert all(each in said for each in words)


def test_trials_are_counted_of_those_asked_for_by_what_became_of_them():
    search, runs = searches.valleys()
    gone, two_more = edited(search, 0, values=(math.nan,)), edited(search, 0, 1, is_extra=True)
    first, second, *_ = search.families[0].trials
    of_one = replace(search.families[0], trials=(first,))
    of_two = replace(of_one, trials=(first, replace(second, is_extra=True)))
    plain = replace(search.families[1].trials[0], variant="attnres:n_blocks=4")
    points = [
        replace(plain, number=n, recipe_digest=f"{n:012x}", values=(loss,),
                dimensions=plain.dimensions | {"lr": lr, "n_blocks": 4})
        for n, (lr, loss) in enumerate(((1e-9, 5.5), (0.02, 2.5), (1e9, math.inf)))
    ]  # fmt: skip
    at_points = searches.search([searches.family("attnres", points)], n_trials=3, confirm_seeds=())

    for made, text in (
        (search, "15 of 18 trials complete, 1 running, 1 failed; 14 different shapes; grid: 15 "
         "shapes, 18 trials"),
        (replace(search, n_trials=1), "15 of 16 trials complete, 1 running, 1 failed; "),  # no less
        (gone, "14 of 18 trials complete, 1 running, 1 failed, 1 diverged; 13 different shapes; "),
        (replace(two_more, n_trials=15), "13 of 15 trials complete, 1 running, 1 failed, and 2 "
         "shapes beyond them that were best for another variant; 14 different shapes; "),
        (replace(search, families=(of_one,), n_trials=1), "1 of 1 trial complete; 1 different shape"
         "; "),
        (replace(search, families=(of_two,), n_trials=1), "1 of 1 trial complete, and 1 shape "
         "beyond it that was best for another variant; "),
        (at_points, "2 of 3 trials complete, 1 diverged; 1 different shape (2 points); "),
    ):  # fmt: skip
        one = find(made, runs).optima[0]
        assert counts(one, made).startswith(f"{one.family.variant}: {text}")
        assert sum(one.counts.values()) == len(one.family.trials)

    one = find(gone, runs).optima[0]
    trial = gone.families[0].trials[0]
    assert (trial, 0, "diverged") in one.failed
    assert trial not in [shape.trial for shape in one.shapes]  # no shape, nor an error of ours
    assert "of 1 shape by one seed" in answer(find(replace(search, families=(of_one,)), runs[:1]))
    of_points = find(at_points, [searches.run(t, 0, t.values[0]) for t in points])
    which = "14 x 232, 4 heads, lr=1e+09, seed 0"
    assert failures(of_points) == [("attnres:n_blocks=4", which, "diverged")]


def test_failed_trials_and_failed_runs_of_fresh_seeds_are_listed_with_their_errors(clear):
    search, runs = searches.valleys()
    lost = next(run for run in runs if run.seed == 2 and run.variant == "standard")
    error = "Traceback (most recent call last):\nOSError: the disk is full"
    failed = replace(lost, status=Status.FAILED, result=None, error=error)

    found = failures(find(search, [failed if run is lost else run for run in runs]))

    error = "RuntimeError: out of memory on <device 0>"
    assert failures(clear)[0] == ("standard", "4 x 96, 2 heads, seed 0", error)
    (more,) = set(found) - set(failures(clear))
    assert len(found) == len(failures(clear)) + 1
    assert (more[0], more[2]) == ("standard", "OSError: the disk is full")
    assert more[1].endswith(" heads, seed 2")


def test_the_first_look_chooses_among_several_options_of_a_shape():
    search, runs = searches.valleys(confirmed=15)
    ours, spec = search.families[1], "attnres:n_blocks=4"
    blocks = [
        replace(t, number=100 + t.number, variant=spec, dimensions=t.dimensions | {"n_blocks": 4},
                values=(t.values[0] - 0.001,))
        for t in ours.trials
        if t.state is State.COMPLETE
    ]  # fmt: skip
    again = [replace(r, id=1000 + r.id, variant=spec) for r in runs if r.variant == "attnres"]
    both = replace(ours, trials=(*ours.trials, *blocks))

    finding = find(replace(search, families=(search.families[0], both)), [*runs, *again])

    (pair,) = finding.pairs
    assert pair.choices[1].trial.variant == spec
    assert len(pair.cells) == 14


def test_three_variants_are_three_pairs_whose_p_is_corrected():
    search, runs = searches.valleys({"standard": 60.0, "attnres": 30.0, "hc": 32.0})

    finding = find(search, runs)

    pairs = [["standard", "attnres"], ["standard", "hc"], ["attnres", "hc"]]
    assert [pair.names for pair in finding.pairs] == pairs
    least = min(finding.pairs, key=lambda pair: pair.test.p)
    assert least.p == pytest.approx(3 * least.test.p)
    assert [pair.differ for pair in finding.pairs] == [True, True, False]
    assert "No evidence that the optima of attnres and hc differ" in answer(finding)


def test_the_front_is_what_no_other_trial_is_better_than_in_both():
    random = np.random.default_rng(3)
    trials = [
        searches.trial(i, "standard", sizes, values=tuple(random.integers(0, 6, 2).astype(float)))
        for i, sizes in enumerate(searches.SHAPES)
    ]
    one = find(searches.search([searches.family("standard", trials)]), []).optima[0]

    kept = one.front

    for trial in trials:
        others = [other.values for other in trials if other.values != trial.values]
        assert (trial in kept) != any(np.less_equal(each, trial.values).all() for each in others)


def test_a_searched_block_count_gets_a_line_of_its_own():
    search, runs = searches.valleys()
    nine_layers = (3, 4, 5)  # where the valley of attnres is
    others = [number for number in range(15) if number not in nine_layers]
    search = edited(search, *nine_layers, dimensions={"n_blocks": 4})
    found = find(edited(search, *others, dimensions={"n_blocks": 2}), runs)

    one = next(each for each in found.optima if each.family.variant == "attnres")
    best, worse = (
        next(s for s in one.confirmed if s.trial.dimensions["n_blocks"] == n) for n in (4, 2)
    )
    gap = np.mean([worse.fresh[seed] - best.fresh[seed] for seed in (1, 2, 3)])
    (line,) = [line for line in blocks(found) if line.startswith("attnres")]
    told = f"attnres, block count: 4 is best; 2 is worse than 4 by {gap:.4f}, at least 0."
    assert line.startswith(told)
    assert line.endswith("(one-sided, 95%).")
    by_size = find(edited(search, *others, dimensions={"n_blocks": "none"}), runs)
    (line,) = [line for line in blocks(by_size) if line.startswith("attnres")]
    assert f"4 is best; none is worse than 4 by {gap:.4f}, at least 0." in line
    alike = edited(search, *range(15), dimensions={"n_blocks": 4})
    assert blocks(find(alike, runs)) == []


@pytest.mark.parametrize("is_choice", [False, True])
def test_a_worse_block_count_has_the_bound_of_the_test_that_ruled_it_out(is_choice: bool):
    """Against the first look's choice; of that choice against any other, corrected."""
    search, runs = searches.valleys(noise=0.001)
    search = edited(search, dimensions={"n_blocks": 2})
    search = edited(
        search, 6, dimensions={"n_blocks": 4}, **{"values": (1.0,)} if is_choice else {}
    )
    found = find(search, runs)
    confirmed = found.optima[1].confirmed
    worse = next(s for s in confirmed if s.trial.number == 6)
    choice = min(confirmed, key=lambda s: s.promised)
    against = [s for s in confirmed if s is not worse] if is_choice else [choice]

    tests = [
        scipy.stats.ttest_rel([*worse.fresh.values()], [*s.fresh.values()], alternative="greater")
        for s in against
    ]
    test = min(tests, key=lambda each: each.pvalue)
    least = test.confidence_interval(1 - ALPHA / len(against)).low
    (line,) = [line for line in blocks(found) if line.startswith("attnres")]
    assert (choice is worse) == is_choice
    assert least > 0
    assert f"4 is worse than 2 by 0.0280, at least {least:.4f} (one-sided, 95%)" in line


def test_a_space_with_fewer_points_than_trials_lacks_none():
    search, runs = searches.valleys()
    few = [replace(f, sampler="grid: 15 points, no more than trials") for f in search.families]
    whole = [replace(f, trials=f.trials[:15]) for f in few]

    assert not [
        line
        for line in qualified(find(replace(search, families=tuple(whole)), runs))
        if "trials complete" in line
    ]
    assert "15 of 18 trials complete" in "\n".join(qualified(find(search, runs)))
