"""Workers that last: one process trains run after run, of a list that grows, and lets go of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.errors import DataError
from attnres_cli.lab import grid as ablate
from attnres_cli.lab.workers.pool import run_all
from attnres_cli.nn import variant
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import Event, RunSpec, Settings, Status
from attnres_cli.store.store import Store

pytestmark = pytest.mark.slow

SETTINGS = Settings("cpu", "A CPU", "fp32", compiled=False, threads=1, engine="eager")


class Grid:
    """A study with a run per seed, and what its launcher hears."""

    def __init__(self, folder: Path, n_seeds: int, recipe: Recipe) -> None:
        self.path = str(folder / "attnres.db")
        self.store = Store.open(self.path, create=True)
        tokens = sources.load(recipe)
        spec = str(variant.parse("standard"))
        specs = [RunSpec(recipe, spec, seed, tokens.fingerprint) for seed in range(n_seeds)]
        self.ids = [record.id for record in self.store.plan(specs, tokens.description)]
        self.plan = Plan(recipe, (), (0,), ("cpu",), SETTINGS, tokens.fingerprint)
        self.events: list[Event] = []
        self.owners: dict[int, str] = {}

    def hear(self, event: Event | None) -> None:
        if event is not None:
            self.events.append(event)
            self.owners |= self.store.owners([event.run_id])

    def ended(self) -> list[int]:
        statuses = self.store.statuses(self.ids)
        return [n for n in self.ids if statuses.get(n) is Status.COMPLETE]


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path, 3, load("smoke"))


def test_what_is_wanted_may_follow_from_what_has_ended_and_one_process_trains_it_all(grid: Grid):
    def wanted(n_free: int) -> list[int]:
        assert n_free in (0, 1)
        return grid.ids[: len(grid.ended()) + 1]

    run_all(grid.store, ablate.jobs(grid.plan, grid.path), wanted, grid.hear)

    assert grid.ended() == grid.ids
    assert [event.run_id for event in grid.events if event.done] == grid.ids
    assert len(set(grid.owners.values())) == 1


def test_a_run_that_is_let_go_waits_again_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "0")
    grid = Grid(
        tmp_path, 2, load("smoke", ["train.tokens=200k"])
    )  # so that no order comes too late
    first, let_go = grid.ids[0], []

    def goes_on(event: Event) -> bool:
        if event.run_id == first and event.step >= 10:
            let_go.append(event.step)
        return not let_go or event.run_id != first

    def wanted(_n_free: int) -> list[int]:
        return grid.ids[1:] if let_go else grid.ids

    run_all(grid.store, ablate.jobs(grid.plan, grid.path), wanted, grid.hear, goes_on)

    assert grid.ended() == grid.ids[1:]
    (record,) = grid.store.runs(ids=[first])
    standing = grid.store.standings([first])[first]
    assert (record.status, standing.step, standing.owner) == (Status.PENDING, 0, None)
    assert not list(grid.store.folder_of(record).glob("*"))
    (halted,) = [event for event in grid.events if event.halted]
    assert (halted.run_id, halted.loss, halted.done) == (first, None, True)
    assert 10 <= halted.step < grid.plan.recipe.steps


def test_where_the_data_are_gone_the_command_ends_and_no_run_is_to_blame(tmp_path: Path, capfd):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
    recipe = load("smoke", ["data.source=text", f"data.path={text}"])
    grid = Grid(tmp_path, 2, recipe)
    text.unlink()

    with pytest.raises(DataError, match=r"could not load the data \(above\); the same command"):
        run_all(grid.store, ablate.jobs(grid.plan, grid.path), lambda _: grid.ids, grid.hear)

    assert str(text) in capfd.readouterr().err
    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)
    assert grid.events == []


def test_a_run_that_another_command_removes_meanwhile_is_no_trouble(grid: Grid):
    def wanted(_n_free: int) -> list[int]:
        if grid.ended() and len(grid.store.statuses(grid.ids)) == 3:
            grid.store.remove(grid.ids[2:])
        return grid.ids

    run_all(grid.store, ablate.jobs(grid.plan, grid.path), wanted, grid.hear)

    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids[:2], Status.COMPLETE)
