"""Merging studies: each run once, with all that belongs to it, or nothing at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import studies
from comparisons import BASE, BETTER, WORSE
from studies import FACTS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.lab.merging import merge
from attnres_cli.records.code import Code
from attnres_cli.records.merged import Fate
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import Point, Probe, RunSpec, Status
from attnres_cli.store.store import Store

THIRD = (0.25, 0.5, 0.75)
PROBE = Probe(10, *[THIRD] * 8, mixing=(THIRD,) * 3)


pytestmark = pytest.mark.usefixtures("here")


def spec(recipe: Recipe, variant: str, seed: int) -> RunSpec:
    return RunSpec(recipe, variant, seed, FACTS.fingerprint)


def planned(path: Path, *specs: RunSpec) -> Store:
    store = Store.open(str(path), create=True)
    store.plan(specs, FACTS)
    return store


def fates(found: Sequence[Sequence[object]]) -> list[list[Fate]]:
    return [[each.fate for each in part] for part in found]  # type: ignore[attr-defined]


def checkpoint(store: Store, number: int, step: int) -> None:
    (record,) = store.runs(ids=[number])
    folder = store.folder_of(record)
    folder.mkdir(parents=True)
    for kind in ("json", "safetensors"):
        (folder / f"{step:09d}.{kind}").write_text(f"{kind} {step}")


def test_equal_runs_are_merged_into_one_and_others_are_added(any_study: str, tiny_recipe: Recipe):
    one = fill(Path("a.db"), tiny_recipe, {"standard": [1.5, 1.6]}, probes=(PROBE,))
    two = fill(Path("b.db"), tiny_recipe, {"standard": [1.5], "attnres": [1.4, 1.3]})
    target = Store.open(any_study, create=True)
    found = merge([one, two], target)
    assert fates(found) == [[Fate.ADDED] * 2, [Fate.EQUAL, Fate.ADDED, Fate.ADDED]]
    runs = target.runs()
    expected = [("standard", 0), ("standard", 1), ("attnres", 0), ("attnres", 1)]
    assert [(run.variant, run.seed) for run in runs] == expected
    assert [run.origin for run in runs] == ["a.db run 1", "a.db run 2", "b.db run 2", "b.db run 3"]
    for run, source in zip(runs, [*one.runs(), *two.runs()[1:]], strict=True):
        assert replace(run, id=source.id, origin="") == source
    assert target.probes([runs[0].id])[runs[0].id] == (PROBE,)
    assert target.data(FACTS.fingerprint) == FACTS
    assert target.recipe(tiny_recipe.digest) == tiny_recipe
    again = merge([one, two], target)
    assert {fate for part in fates(again) for fate in part} == {Fate.EQUAL}
    assert target.runs() == runs


def test_two_results_of_one_run_are_refused_and_nothing_is_merged(tiny_recipe: Recipe):
    one = fill(Path("a.db"), tiny_recipe, {"standard": [1.5]})
    two = fill(Path("b.db"), tiny_recipe, {"standard": [1.25], "attnres": [1.4]})
    target = Store.open("c.db", create=True)
    other = fill(Path("d.db"), tiny_recipe, {"standard": [1.5]}, curve=(Point(0, None, 5.0),))
    with pytest.raises(StudyError, match="nothing is merged"):
        merge([other], one)
    with pytest.raises(StudyError, match=r"a.db run 1 and b.db run 1 are one run .* 1.5 and 1.25"):
        merge([one, two], target)
    assert target.runs() == []


def test_a_result_of_other_hardware_does_not_replace_the_first(tiny_recipe: Recipe):
    one = fill(Path("a.db"), tiny_recipe, {"standard": [1.5]})
    other = replace(studies.SETTINGS, device_name="Another CPU")
    two = fill(Path("b.db"), tiny_recipe, {"standard": [1.5000001]}, settings=other)
    before = one.runs()
    assert fates(merge([two], one)) == [[Fate.OTHER_MEANS]]
    assert one.runs() == before


def test_an_ended_run_replaces_a_waiting_one(tiny_recipe: Recipe):
    target = planned(Path("c.db"), spec(tiny_recipe, "standard", 0), spec(tiny_recipe, "x0", 0))
    target.note(1, "mine")
    target.tag([1], "ours")
    source = fill(Path("a.db"), tiny_recipe, {"standard": [1.5]})
    source.tag([1], "theirs")
    assert fates(merge([source], target)) == [[Fate.REPLACED]]
    run, waiting = target.runs()
    assert (run.id, run.status) == (1, Status.COMPLETE)
    assert (run.note, run.tags) == ("mine", ("ours", "theirs"))
    assert run.result == source.runs()[0].result
    assert waiting.status is Status.PENDING
    assert fates(merge([target], source)) == [[Fate.EQUAL, Fate.ADDED]]  # and the other way


def test_a_running_run_is_not_replaced_here_and_left_out_there(tiny_recipe: Recipe):
    running = planned(Path("c.db"), spec(tiny_recipe, "standard", 0))
    running.claim([1])
    ended = fill(Path("a.db"), tiny_recipe, {"standard": [1.5]})
    with pytest.raises(StudyError, match=r"run 1, which has ended in a.db, is running here"):
        merge([ended], running)
    target = Store.open("d.db", create=True)
    assert fates(merge([running], target)) == [[Fate.RUNNING]]
    assert target.runs() == []


def test_weights_and_checkpoints_come_along(tiny_recipe: Recipe):
    source = fill(Path("a.db"), tiny_recipe, {"standard": [1.5]}, weights_sha256="ab" * 32)
    weights = source.weights_of(source.runs()[0])
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    (weights.parent / "longer").mkdir()
    (weights.parent / "longer" / "000000005.json").write_text("{}")
    planned(Path("a.db"), spec(tiny_recipe, "attnres", 0))
    checkpoint(source, 2, 7)
    target = planned(Path("c.db"), spec(tiny_recipe, "attnres", 0))
    merge([source], target)
    waiting, ended = target.runs()
    assert target.weights_of(ended).read_bytes() == b"weights"
    assert (target.folder_of(ended) / "longer" / "000000005.json").exists()
    kept = sorted(file.name for file in target.folder_of(waiting).iterdir())
    assert kept == ["000000007.json", "000000007.safetensors"]
    shutil.rmtree(target.folder)  # as where a first merge was killed before it copied them
    merge([source], target)
    assert target.weights_of(ended).read_bytes() == b"weights"


def test_a_checkpoint_here_is_not_mixed_with_one_from_there(tiny_recipe: Recipe):
    source = planned(Path("a.db"), spec(tiny_recipe, "attnres", 0))
    target = planned(Path("c.db"), spec(tiny_recipe, "attnres", 0))
    checkpoint(source, 1, 7)
    checkpoint(target, 1, 3)
    merge([source], target)
    (folder,) = target.folder.iterdir()
    assert sorted(file.stem for file in folder.iterdir()) == ["000000003"] * 2


def test_removed_runs_and_their_reasons_come_along(tiny_recipe: Recipe):
    source = fill(Path("a.db"), tiny_recipe, {"standard": [1.5, 1.6]})
    source.remove([2], "the disk was full")
    target = Store.open("c.db", create=True)
    merge([source], target)
    merge([source], target)
    assert target.removed() == source.removed()


def test_the_command_prints_what_became_of_each_studys_runs(tiny_recipe: Recipe, attnres):
    fill(Path("a.db"), tiny_recipe, {"standard": [1.5, 1.6]})
    fill(Path("b.db"), tiny_recipe, {"standard": [1.5]})
    for words in ["a.db", "a.db", "--into", "c.db"], ["a.db", "--into", "./a.db"]:
        assert "each study is named once" in attnres.refuses("runs", "merge", *words)
    assert not Path("c.db").exists()
    words = ("runs", "merge", "a.db", "b.db", "--into", "c.db")
    shown = [line.split() for line in attnres.prints(*words).splitlines() if ".db" in line]
    assert shown == [["a.db", "2", "added"], ["b.db", "1", "equal"]]
    assert attnres.json(*words)[2] == {"study": "b.db", "run": 1, "here": 1, "fate": "equal"}


def test_what_is_fixed_after_runs_of_it_were_planned_here_is_not_merged(tiny_recipe: Recipe):
    here = fill(Path("a.db"), tiny_recipe, {"standard": [1.5] * 5, "attnres": [1.4] * 5})
    of = {"arms": ("standard", "attnres"), "baseline": "standard", "seeds": (0, 1, 2, 3, 4)}
    of |= {"metric": "val_loss", "test": "paired-t", "recipe_digest": tiny_recipe.digest}
    later = Store.open("b.db", create=True)
    later.register([(Registration(**of), tiny_recipe)])
    with pytest.raises(
        StudyError, match=r"was preregistered in b\.db after runs of it were planned"
    ):
        merge([later], here)
    grows = Store.open("c.db", create=True)
    grows.plan([spec(tiny_recipe, "standard", 0)], FACTS)
    assert grows.keep_until_decided(tiny_recipe, FACTS, "standard", 9) == 9
    with pytest.raises(StudyError, match=r"until decided in c\.db, and was planned otherwise here"):
        merge([grows], here)


def test_a_run_that_ended_elsewhere_joined_when_it_was_planned_here(tiny_recipe: Recipe):
    here = planned(Path("a.db"), spec(tiny_recipe, "standard", 0))
    before = here.runs()[0].created_at
    merge([fill(Path("b.db"), tiny_recipe, {"standard": [1.5]})], here)
    assert (here.runs()[0].created_at, here.runs()[0].status) == (before, Status.COMPLETE)


def test_the_newest_code_is_not_that_of_runs_that_were_merged_last(tiny_recipe: Recipe, attnres):
    def code(trunk: str):
        return lambda name: Code(name, trunk, "engine", "loop", "data")

    old = fill(Path("old.db"), tiny_recipe, {"standard": BASE, "attnres": WORSE}, code("old"))
    new = fill(Path("new.db"), tiny_recipe, {"standard": BASE, "attnres": BETTER}, code("new"))
    merge([old], new)
    found = attnres.json("report", "--study", "new.db")
    assert found["arms"][0]["verdict"] == "baseline"
    assert [arm["verdict"] for arm in found["arms"]] == ["baseline", "better"]
