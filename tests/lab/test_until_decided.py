"""`--until decided`: arms get seeds until they have their words, and no longer."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
from commands import Attnres, process
from grids import Command, started
from servers import Server

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.errors import StudyError
from attnres_cli.lab.merging import merge
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.lab.workers.worker import Store as WorkersStore
from attnres_cli.nn import residual
from attnres_cli.records.run import RunSpec, Status
from attnres_cli.store.store import Store

DATA = ["data.source=text", "data.path=text.txt", "train.tokens=4k"]
SMALL = ("--recipe", "smoke", *(word for each in DATA for word in ("--set", each)))
UNTIL = ("ablate", "standard", "nothing", "denseformer", *SMALL, "--plugin", "nothing.py")
UNTIL += ("--until", "decided", "--in-process")
NOTHING = '''
"""What comes out is the same for every token: it learns how frequent bytes are, at once."""
from attnres_cli import Residual, register

@register("nothing")
class Nothing(Residual):
    def __init__(self, d_model, n_sublayers):
        super().__init__(d_model, n_sublayers)

    def start(self, x):
        return x, x

    def read(self, state, l):
        return state[0], state

    def write(self, state, l, y):
        return state[0], y

    def finish(self, state):
        return 0 * state[1] + 1
'''
CALLED = ("better", "worse")
SMALL_GAP = (0.01, -0.02, 0.015, -0.01, 0.02)


@pytest.fixture(autouse=True)
def recipe(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Recipe smoke on a small text, in a folder of our own."""
    numbers = np.random.default_rng(0).integers(0, 999, 20_000)
    (here / "text.txt").write_text("\n".join(f"{n} {n} {n + 1}" for n in numbers))
    (here / "nothing.py").write_text(NOTHING)
    made = load("smoke", DATA)
    monkeypatch.setenv("ATTNRES_PLUGINS", "")
    monkeypatch.setattr(studies, "FACTS", sources.load(made).description)
    yield made
    sys.modules.pop("attnres_plugins.nothing", None)
    residual._REGISTRY.pop("nothing", None)


def seeds(study: str = "attnres.db") -> Counter[str]:
    """Runs of each arm of the study."""
    return Counter(run.variant for run in Store.open(study, create=False).runs())


def words(found: Any) -> dict[str, tuple[str, int]]:
    """By arm its verdict, and the seeds at which it was given."""
    return {arm["variant"]: (arm["verdict"], len(arm["pairs"])) for arm in found["arms"]}


@pytest.mark.slow
def test_an_arm_that_is_decided_trains_no_more_and_the_others_go_on(attnres: Attnres):
    found = words(attnres.json(*UNTIL, "--most", "7"))
    held = seeds()

    assert found["nothing"][0] in CALLED
    assert held["nothing"] == found["nothing"][1] < 7
    word, n = found["denseformer"]
    assert held["standard"] == held["denseformer"] == n
    assert n == 7 or word in CALLED
    assert attnres.json("report", "--plugin", "nothing.py")["most_seeds"] == 7
    again = words(attnres.json(*UNTIL))
    assert (again, seeds()) == (found, held)
    assert "--most 7, which stays" in attnres.refuses(*UNTIL, "--most", "9")


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_to_the_same_words(
    attnres: Attnres, monkeypatch: pytest.MonkeyPatch
):
    finish, n_ended = WorkersStore.finish, 0

    def killed(store: WorkersStore, record: Any) -> None:
        nonlocal n_ended
        finish(store, record)
        n_ended += 1
        if n_ended == 17:  # with six seeds of some arms
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WorkersStore, "finish", killed)
        assert attnres(*UNTIL, "--most", "6")[0] == 130
    found = words(attnres.json(*UNTIL))
    (Path("attnres.db")).unlink()

    assert found == words(attnres.json(*UNTIL, "--most", "6"))


@pytest.mark.slow
def test_two_commands_on_one_study_share_its_seeds_and_end_with_the_same_words(here: Path):
    typed = [*UNTIL[:-1], "--most", "6", "--workers", "1", "--format", "json"]
    with ThreadPoolExecutor() as both:
        ended = [*both.map(lambda _: process(*typed), range(2))]

    assert [code for code, *_ in ended] == [0, 0], ended
    first, second = (words(json.loads(out)) for _, out, _ in ended)
    assert first == second
    assert seeds()["nothing"] == first["nothing"][1]
    assert max(seeds().values()) <= 6


@pytest.mark.nightly  # each half of it is slow alone: two commands, a kill, a server
def test_two_commands_on_a_server_of_which_one_is_killed_end_as_one_alone_does_on_a_file(
    here: Path, attnres: Attnres, database: tuple[Server, str]
):
    study = database[0].url(database[1])
    typed = [*UNTIL[:-1], "--most", "6", "--workers", "1", "--format", "json"]

    def n_ended() -> int:
        store = Store.existing(study)
        return sum(run.result is not None for run in store.runs(curves=False)) if store else 0

    def begun() -> AbstractContextManager[Command]:
        return started(here, *typed, "--study", study)

    with begun() as first, begun() as second:
        first.wait_for(lambda: n_ended() > 6)
        first.die()
        with begun() as again:
            for command in (again, second):
                command.succeed()
    both = [words(json.loads(command.out)) for command in (again, second)]

    alone = words(attnres.json(*UNTIL, "--most", "6"))
    assert both == [alone, alone]
    assert seeds(study) == seeds()
    assert attnres.json("report", "--plugin", "nothing.py", "--study", study)["most_seeds"] == 6


def test_a_table_that_was_planned_keeps_its_looks_and_grows_to_the_next(
    recipe: Recipe, attnres: Attnres
):
    base = (2.5, 2.6, 2.55, 2.45, 2.4)
    near = tuple(loss + gap for loss, gap in zip(base, SMALL_GAP, strict=True))
    studies.fill(Path("attnres.db"), recipe, {"standard": base, "attnres": near}, code_of)
    planned = ("ablate", "standard", "attnres", *SMALL, "--until", "decided", "--in-process")

    attnres.json(*planned, "--most", "7")
    assert seeds() == {"standard": 5, "attnres": 5}  # its next look is at eight
    found = attnres.json(*planned, "--most", "8")

    assert seeds() == {"standard": 8, "attnres": 8}
    assert (found["planned_seeds"], found["most_seeds"]) == (5, None)


def test_a_run_that_failed_on_a_later_seed_is_counted_and_trained_again_if_asked(
    recipe: Recipe, attnres: Attnres
):
    losses = {"standard": (2.5,) * 8, "attnres": (2.51, 2.48, 2.515, 2.49, 2.52, 2.5, 2.51)}
    store = studies.fill(Path("attnres.db"), recipe, losses, code_of)
    data = studies.FACTS.fingerprint
    store.plan([RunSpec(recipe, "attnres", 7, data, code_of("attnres"))], studies.FACTS)
    record = store.claim(range(99))
    assert record is not None
    store.fail(record.id, "the disk was full", record.versions)
    grown = ("ablate", "standard", "attnres", *SMALL, "--until", "decided", "--most", "8")

    code, _, said = attnres(*grown, "--in-process")
    assert (code, "failed runs: 1" in said) == (3, True)
    attnres.json(*grown, "--in-process", "--retry-failed")

    assert store.statuses([record.id]) == {record.id: Status.COMPLETE}
    assert seeds() == {"standard": 8, "attnres": 8}


def test_a_plan_may_grow_within_its_seeds_and_is_preregistered_once_decided(attnres: Attnres):
    Path("plan.yaml").write_text(
        "recipe: smoke\nset: [data.source=text, data.path=text.txt, train.tokens=4k]\n"
        "arms: [nothing]\nbaseline: standard\nseeds: [0, 1, 2, 3, 4, 5, 6, 7, 8]\n"
        "metric: val_loss\ntest: paired-t\nuntil: decided\n"
    )

    found = attnres.json("ablate", "--plan", "plan.yaml", "--plugin", "nothing.py", "--in-process")

    (word, n), label = words(found)["nothing"], found["registered"]
    assert word in CALLED
    assert label.startswith("preregistered")
    assert seeds() == {"standard": n, "nothing": n}
    assert n < 9


def test_what_does_not_go_with_it_is_refused(attnres: Attnres):
    alone = ("ablate", "standard", "attnres", *SMALL)
    for more, why in {
        ("--most", "9"): "--most is for --until decided",
        ("--until", "decided", "--seeds", "5"): "leave --seeds out",
        ("--until", "bored"): "decided",
    }.items():
        assert why in attnres.refuses(*alone, *more)


def test_studies_that_grow_to_different_seeds_are_not_merged(recipe: Recipe, here: Path):
    stores, table = [], (recipe, studies.FACTS, "standard")
    for name, most in (("a.db", 7), ("b.db", 9), ("c.db", 9)):
        stores.append(studies.fill(here / name, recipe, {"standard": (2.5,)}, code_of))
        assert stores[-1].keep_until_decided(*table, most) == most
    a, b, c = stores

    merge([c], b)
    with pytest.raises(StudyError, match=r"--most 7 in .*, 9 here: what is fixed stays"):
        merge([a], b)
    assert merge([a], Store.open("empty.db", create=True))
    assert Store.open("empty.db", create=True).keep_until_decided(*table, 9) == 7


def test_a_table_that_has_arms_keeps_the_looks_that_it_was_planned_with(recipe: Recipe, here: Path):
    store = studies.fill(here / "a.db", recipe, {"attnres": (2.5,)}, code_of)

    assert store.keep_until_decided(recipe, studies.FACTS, "standard", 9) is None
    store.remove([1])
    assert store.keep_until_decided(recipe, studies.FACTS, "standard", 9) is None
    assert store.keep_until_decided(recipe, studies.FACTS, "attnres", 9) == 9
