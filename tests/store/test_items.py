"""Answers of runs to the items of tasks, as a study keeps them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from older import make_older
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.lab.merging import merge
from attnres_cli.records.items import Answered, Items, Kind
from attnres_cli.report.items import report_of
from attnres_cli.store.store import Store

HASHES = ("00ff" * 4, "12" * 8, "ab" * 8)
CLOZE = Items(
    1, "cloze", "0123456789ab", Kind.CHOICE, (0, 1, 5), HASHES,
    {"acc": (1.0, 0.0, 1.0), "gold_nats": (-2.5, -3.25, -1.75), "gold_bytes": (4.0, 6.0, 2.0),
     "n_choices": (2.0, 4.0, 4.0)},
    truncated=2, weights_sha256="a" * 64, harness="0.4.13",
)  # fmt: skip


StudyOf = Callable[[str], Store]


@pytest.fixture
def study_of(tmp_path: Path, tiny_recipe: Recipe) -> StudyOf:
    """Makes a study of two runs in the file of that name."""
    return lambda name: fill(tmp_path / name, tiny_recipe, {"standard": [1.5, 1.6]})


def sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def without_time(found: list[Items]) -> list[Items]:
    assert all(len(each.evaluated_at) == len("2026-11-23T20:00:00+00:00") for each in found)
    return [replace(each, evaluated_at="") for each in found]


def test_items_are_read_as_written_and_replaced_by_run_and_task(any_study: str, study_of: StudyOf):
    merge([study_of("a.db")], store := Store.open(any_study, create=True))
    other = replace(CLOZE, run_id=2, doc_ids=(7,), doc_hashes=HASHES[:1], values={"acc": (0.5,)})
    for found in (other, CLOZE, replace(CLOZE, task="local/recall"), replace(CLOZE, truncated=0)):
        store.keep_items(found)

    held = without_time(store.items())

    assert held == [replace(CLOZE, truncated=0), replace(CLOZE, task="local/recall"), other]
    assert without_time(store.items([2])) == [other]
    assert store.items([]) == []
    store.remove([1])
    assert without_time(store.items()) == [other]  # a removed run takes its items along


def test_means_and_the_score_of_guessing():
    assert CLOZE.mean("acc") == pytest.approx(2 / 3)
    assert CLOZE.standard_error("acc") == pytest.approx(1 / 3)
    assert CLOZE.bits_per_byte == pytest.approx(7.5 / 12 / math.log(2))
    assert CLOZE.chance == pytest.approx((1 / 2 + 1 / 4 + 1 / 4) / 3)
    assert CLOZE.chance_nats == pytest.approx(-(math.log(2) + 2 * math.log(4)) / 3)
    written = replace(CLOZE, kind=Kind.GENERATION, values={"exact_match": (0.0, 0.0, 1.0)})
    assert (written.chance, written.chance_nats, written.bits_per_byte) == (None, None, None)


def test_an_item_without_a_number_is_left_out_of_means_and_a_single_one_has_no_error():
    lacking = {**CLOZE.values, "acc": (1.0, math.nan, 0.0), "gold_nats": (-2.5, math.nan, -1.75)}
    items = replace(CLOZE, values=lacking)
    one = {"acc": (1.0,), "gold_nats": (-2.5,), "gold_bytes": (4.0,)}
    single = replace(CLOZE, doc_ids=(0,), doc_hashes=HASHES[:1], values=one)
    answered = [Answered(f"run {n}", "standard", 0, each) for n, each in enumerate((items, single))]

    found = report_of(answered, "a.db")

    (first, second), bits = found.tables[0].rows, (4.25 / 6 / math.log(2), 2.5 / 4 / math.log(2))
    assert (items.mean("acc"), items.standard_error("acc")) == (0.5, 0.5)
    assert items.bits_per_byte == pytest.approx(bits[0])
    assert "left out of means: 1 item without a number" in found.notes
    assert first[5].startswith(f"{bits[0]:.3f} ± ")
    assert second[5:7] == [f"{bits[1]:.3f}", "1.000"]


def test_merging_keeps_items_and_adds_those_of_other_tasks(tmp_path: Path, study_of: StudyOf):
    one, two = study_of("a.db"), study_of("b.db")
    one.keep_items(CLOZE)
    for task in ("cloze", "recall"):
        two.keep_items(replace(CLOZE, task=task, truncated=1))
    target = Store.open(str(tmp_path / "c.db"), create=True)

    merge([one, two], target)

    held = [(each.run_id, each.task, each.truncated) for each in target.items()]
    assert held == [(1, "cloze", 2), (1, "recall", 1)]


def test_damaged_items_are_refused_in_one_line(tmp_path: Path, study_of: StudyOf):
    store, path = study_of("s.db"), tmp_path / "s.db"
    for change in (
        "data = x'00'",
        "data = substr(data, 1, length(data) - 9)",
        "n_items = 2",
        "n_items = 0",
        "n_items = 'three'",
        "metrics = '[\"acc\"]'",
        'metrics = \'["\x1b", "b", "c", "d"]\'',
        "kind = 'other'",
        "task = char(27)",
    ):
        sql(path, "DELETE FROM attnres_items")
        store.keep_items(CLOZE)
        sql(path, f"UPDATE attnres_items SET {change}")

        with pytest.raises(StudyError, match="is damaged") as caught:
            Store.open(str(path), create=False).items()

        assert "\n" not in str(caught.value)


def test_ten_thousand_items_take_less_than_two_hundred_kilobytes(tmp_path: Path, study_of: StudyOf):
    n = 10_000
    values = {"acc": tuple(float(i % 3 == 0) for i in range(n)), "n_choices": (4.0,) * n}
    values |= {"gold_nats": tuple(-math.sqrt(i) for i in range(n)), "gold_bytes": (9.0,) * n}
    hashes = tuple(f"{i * 0x9E3779B97F4A7C15 % 2**64:016x}" for i in range(n))
    store = study_of("s.db")

    store.keep_items(replace(CLOZE, doc_ids=tuple(range(n)), doc_hashes=hashes, values=values))

    ((size,),) = sql(tmp_path / "s.db", "SELECT length(data) FROM attnres_items")
    assert size < 200_000
    assert store.items()[0].doc_hashes == hashes


def test_a_study_without_the_table_gets_one_when_written_to(tmp_path: Path, study_of: StudyOf):
    path = tmp_path / "s.db"
    before = study_of("s.db").runs()
    make_older(path, "0008")
    held = path.read_bytes()

    store = Store.open(str(path), create=False)
    assert (store.runs(), store.items(), store.step_ratios("d")) == (before, [], [])
    assert store.until_decided("d", "f", "standard") is None
    assert path.read_bytes() == held
    merge([store], other := Store.open(str(tmp_path / "other.db"), create=True))
    assert len(other.runs()) == 2

    store = Store.open(str(path), create=True)
    store.keep_items(CLOZE)
    assert (store.runs(), without_time(store.items())) == (before, [CLOZE])
