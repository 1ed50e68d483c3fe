"""Tasks judged: which answers pair, what blocks, which words are said, how rates are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from answers import answers

from attnres_cli.records.items import Items, Kind
from attnres_cli.records.run import Removed, RunRecord, Status
from attnres_cli.stats.crossed import crossed
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.downstream import Downstream, Judged, downstream
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.paper import beside_tasks
from attnres_cli.verdict.task_answers import FIRST_MEASURE, joined, tasks_of

LOSSES = [1.50, 1.70, 1.60, 1.40, 1.55, 1.45, 1.65]


def cloze(run: RunRecord, **changes: object) -> Items:
    """The arm attnres is better."""
    gain = 0.25 if run.variant == "attnres" else 0.0
    return answers(run, "cloze", **({"gain": gain} | changes))  # type: ignore[arg-type]


@pytest.fixture
def runs(make_arm) -> list[RunRecord]:
    return [run for name in ("standard", "attnres", "mhc") for run in make_arm(name, *LOSSES)]


@pytest.fixture
def items(runs) -> list[Items]:
    """What every run answers to `cloze`."""
    return [cloze(run) for run in runs]


@pytest.fixture
def judged(runs, facts) -> Callable[..., Downstream]:
    """The tasks of the runs, or of those given, by these answers."""

    def judge(items: Sequence[Items], of: Sequence[RunRecord] = runs, **rules) -> Downstream:
        return downstream(compare(of, facts, "standard", rules=Rules(**rules)), items)

    return judge


def row(found: Downstream, variant: str, measure: str = "bits_per_byte") -> Judged:
    (one,) = [r for r in found.rows if (r.variant, r.measure.name) == (variant, measure)]
    return one


def test_the_words_are_those_of_the_crossed_interval_at_the_arms_part_of_the_rate(judged, items):
    found = judged(items)

    words = {(r.variant, r.measure.name): r.verdict for r in found.rows}
    assert words["attnres", "bits_per_byte"] == words["attnres", "choice_nats"] == "better"
    assert words["mhc", "bits_per_byte"] == words["mhc", "acc"] == "inconclusive"
    assert words["standard", "acc"] == "baseline"
    one = row(found, "attnres", "acc")
    ours, theirs = (np.array([items[i + k].values["acc"] for i in range(7)]) for k in (7, 0))
    alpha = found.comparison.family.rates["attnres"] * 0.6 * 0.8 * (1 - FIRST_MEASURE) / 2
    assert one.interval == pytest.approx(crossed(ours - theirs).interval(alpha), abs=1e-5)
    assert one.difference == pytest.approx(ours.mean() - theirs.mean())
    assert one.detectable == pytest.approx(crossed(ours - theirs).detectable(alpha))
    bits = row(found, "attnres")
    assert bits.value == pytest.approx(np.mean([each.bits_per_byte for each in items[7:14]]))
    assert bits.difference is not None
    assert bits.difference < 0


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Kind.CHOICE, ["bits_per_byte", "choice_nats", "acc"]),
        (Kind.ANSWER, ["bits_per_byte", "acc"]),
        (Kind.TEXT, ["bits_per_byte"]),
        (Kind.GENERATION, ["exact_match"]),
    ],
)
def test_likelihood_is_judged_before_accuracy_and_has_most_of_the_rate(judged, runs, kind, names):
    (task,) = judged([cloze(run, kind=kind) for run in runs]).tasks

    assert [measure.name for measure in task.measures] == names
    rates = [task.rate_of(measure) for measure in task.measures]
    assert sum(rates) == pytest.approx(task.rate)
    assert len(rates) == 1 or rates[0] == pytest.approx(FIRST_MEASURE * task.rate)
    assert rates == sorted(rates, reverse=True)


def test_all_rates_of_a_study_add_up_to_one_in_twenty(judged, runs, items):
    late = [replace(answers(r, "late"), evaluated_at=f"2026-11-24T{r.id:02}") for r in runs]

    found = judged([*items, *late])

    looks = found.comparison.family.looks
    per_arm = sum(rate for name in ("attnres", "mhc") for _, rate in islice(looks(name), 20))
    parts = sum(task.rate_of(measure) for task in found.tasks for measure in task.measures)
    assert 0.5 * ALPHA < per_arm * parts <= ALPHA


def test_tasks_that_join_later_share_the_rest_of_the_rate(runs, facts):
    one = Items(0, "t", "0" * 12, Kind.TEXT, (0,), ("0" * 16,), {}, 0, "", "0")

    def at(*times: str) -> dict[int, Items]:
        return {n: replace(one, run_id=n, evaluated_at=time) for n, time in enumerate(times)}

    groups = joined(
        {"b": at("01", "04"), "a": at("02", "05"), "c": at("03"), "d": at("06", "09"),
         "e": at("08", "10"), "f": at("11")}
    )  # fmt: skip
    items = [
        replace(answers(run, name), evaluated_at=time)
        for name, time in (("z", "2026-01"), ("a", "2026-02"))
        for run in runs
    ]
    tasks = tasks_of(compare(runs, facts, "standard"), items)

    assert groups == [["b", "a", "c"], ["d", "e"], ["f"]]
    assert [(task.name, round(task.rate, 3)) for task in tasks] == [("z", 0.8), ("a", 0.1)]


def test_below_five_seeds_there_is_no_word_and_mcnemar_speaks_of_each_seed(make_arm, judged):
    runs = [*make_arm("standard", *LOSSES[:2]), *make_arm("attnres", *LOSSES[:2])]
    items = [cloze(run, gain=2.0 * (run.variant == "attnres")) for run in runs]

    found = row(judged(items, runs), "attnres", "acc")

    assert (found.verdict, found.reason, found.interval) == ("pending", "2 of 5 seeds", None)
    assert [each.seed for each in found.within] == [0, 1]
    assert all(each.arm_alone > each.baseline_alone and each.p < 1e-6 for each in found.within)


def test_between_looks_the_words_are_those_of_the_last(make_arm, judged):
    runs = [*make_arm("standard", *LOSSES, 1.5, 1.6), *make_arm("attnres", *LOSSES, 1.4, 1.6)]
    planned = [replace(run, created_at="1" if run.seed < 7 else "2") for run in runs]  # with seven
    items = [cloze(run) for run in runs]

    before = row(judged(items, [run for run in planned if run.seed < 7]), "attnres")
    after = row(judged(items, planned), "attnres")

    assert before.interval == after.interval
    assert after.look is not None
    assert (after.look.n, after.look.next, after.seeds) == (7, 11, tuple(range(7)))


def test_a_task_at_chance_blocks_accuracy_unless_the_arm_is_above_it(judged, runs):
    guessed = judged([cloze(run, skill=0.0) for run in runs])
    learned = judged([cloze(run, skill=2.0 if run.variant == "attnres" else 0.0) for run in runs])
    wrong = {"exact_match": (0.0,) * 200}
    written = judged([cloze(run, kind=Kind.GENERATION, values=wrong) for run in runs])

    accuracy = row(guessed, "attnres", "acc")
    assert accuracy.verdict == "blocked"
    assert accuracy.reason == "at chance: neither arm nor baseline is above 25.0 %"
    assert accuracy.difference is not None
    assert row(guessed, "attnres").verdict == "better"
    assert row(learned, "attnres", "acc").verdict == "better"
    assert row(learned, "mhc", "acc").verdict == "blocked"
    reason = row(written, "attnres", "exact_match").reason
    assert reason == "at chance: neither arm nor baseline is above 0.0 %"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (None, "is not evaluated"),
        ({"content": "f" * 12}, "was asked otherwise"),
        ({"weights_sha256": "b" * 64}, "was evaluated with other weights than it has"),
        ({"n_items": 50}, "answered 50 of 200 items"),
    ],
)
def test_answers_that_do_not_pair_end_a_row_and_say_why(judged, runs, change, why):
    weights = [replace(r, result=replace(r.result, weights_sha256="a" * 64)) for r in runs]
    items = [cloze(run) for run in runs if run.id != 13]
    late = "2026-11-23T19:00:00+00:00"  # the newest content counts
    items += [] if change is None else [cloze(runs[12], evaluated_at=late, **change)]

    found = judged(items, weights)

    one = row(found, "attnres")
    assert (one.verdict, one.seeds) == ("pending", (0, 1, 2, 3, 4))
    assert one.reason == f"seed 5 {why}: `attnres evaluate 13 --tasks cloze`"
    assert row(found, "mhc").verdict == "inconclusive"
    own = judged([replace(each, task="fs") for each in items], weights)
    assert row(own, "attnres").reason.endswith("13 --tasks fs`, or with the task file of fs")


def test_items_pair_by_document_and_runs_of_other_tables_do_not_count(judged, items):
    def turned(items: Items) -> Items:
        back = {name: of[::-1] for name, of in items.values.items()}
        ids, hashes = items.doc_ids[::-1], items.doc_hashes[::-1]
        return replace(items, doc_ids=ids, doc_hashes=hashes, values=back)

    mixed = [turned(each) if each.run_id % 2 else each for each in items]
    more = [replace(i, values={**i.values, "acc_norm": i.values["acc"]}) for i in items]
    stranger = replace(items[0], run_id=99, content="0" * 12)

    for measure in ("bits_per_byte", "acc"):
        one, other = (row(judged(each), "attnres", measure) for each in (items, mixed))
        assert other.interval == pytest.approx(one.interval)
    assert judged(more).tasks[0].others == ("acc_norm",)  # named
    assert judged([*items, stranger]).rows == judged(items).rows


def test_blocked_losses_removed_runs_and_too_few_items_block_a_row(make_run, runs, judged):
    every = [*runs, make_run("gone", 0, status=Status.DIVERGED, steps=7)]
    kept = [run for run in runs if run.id != 10]  # attnres, seed 2
    removed = Removed(
        runs[0].recipe_digest, "attnres", 2, runs[0].fingerprint, "", "", "", Status.COMPLETE, 1.6
    )
    items = [cloze(run) for run in kept]

    few = row(judged([cloze(run, n_items=10) for run in runs]), "attnres")
    assert few.reason == "a task takes 20 items or more"
    for found, reason in (
        (row(judged([cloze(run) for run in every], every), "gone"), "diverged"),
        (row(judged(items, kept, removed=(removed,)), "attnres"), "seed 2 was removed"),
    ):
        assert found.verdict == "blocked"
        assert reason in found.reason
    with_reason = replace(removed, reason="power cut")
    left_out = row(judged(items, kept, removed=(with_reason,)), "attnres")
    assert left_out.seeds == (0, 1, 3, 4, 5, 6)


def test_the_papers_table_3_stands_beside_tasks_of_its_kinds(judged, runs, items):
    items += [answers(run, "sums", kind=Kind.GENERATION) for run in runs]
    items += [answers(run, "texts", kind=Kind.TEXT) for run in runs]

    found = {(each.kind, each.variant): each for each in beside_tasks(judged(items))}

    of_choice = found[Kind.CHOICE, "attnres"]
    assert (len(of_choice.gains), of_choice.gains["GPQA-Diamond"]) == (7, 7.5)
    assert of_choice.said == {"cloze": "same sign"}
    assert len(found[Kind.GENERATION, "attnres"].gains) == 8
    assert found[Kind.GENERATION, "attnres"].said == {"sums": "within noise"}
    assert found[Kind.TEXT, "attnres"].said == {"texts": "not in the paper"}
    assert found[Kind.CHOICE, "mhc"].mean is None
