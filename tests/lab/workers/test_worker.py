"""What a worker goes on from."""

from __future__ import annotations

from pathlib import Path

from studies import SETTINGS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.lab.workers.worker import checkpoints_of


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
