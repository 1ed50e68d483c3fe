"""What a worker goes on from."""

from __future__ import annotations

from pathlib import Path

from studies import SETTINGS, fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.lab.workers import worker
from attnres_cli.lab.workers.worker import Job, checkpoints_of, work_here
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store


def test_a_commit_or_a_new_file_makes_no_other_checkpoint_and_other_code_does(
    tmp_path: Path, tiny_recipe: Recipe
):
    store = fill(tmp_path / "study.db", tiny_recipe, {"standard": [1.5]})
    (run,) = store.runs()

    def identity(**versions: str) -> dict[str, str]:
        return dict(checkpoints_of(store, run, SETTINGS, {"torch": "2.9", **versions}).identity)

    made = identity(git_dirty="no", git_revision="a", code_loop="b")
    assert identity(git_dirty="yes", git_revision="c", code_loop="b") == made
    assert identity(git_dirty="no", git_revision="a", code_loop="d") != made


def test_a_run_of_a_known_recipe_is_cut_as_this_command_asks(tmp_path: Path, monkeypatch):
    held, asked = load("smoke"), load("smoke", ["train.pipeline.virtual=2"])
    assert held.digest == asked.digest
    path, tokens, trained = str(tmp_path / "study.db"), sources.load(held), []
    store = Store.open(path, create=True)
    (run,) = store.plan([RunSpec(held, "standard", 0, tokens.fingerprint)], tokens.description)

    def together(spec: RunSpec, *_: object) -> None:
        trained.append(spec.recipe.train.pipeline)
        raise ValueError

    monkeypatch.setattr(worker, "together", together)
    job = Job(path, "cpu", SETTINGS, asked)
    work_here(store, job, lambda _n_free: [run.id], lambda _event: None)
    assert trained == [asked.train.pipeline]
