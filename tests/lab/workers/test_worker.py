"""What a worker goes on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from studies import SETTINGS, fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.lab.workers import worker
from attnres_cli.lab.workers.worker import Job, checkpoints_of, work_here
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.store.store import Store

GPU = replace(SETTINGS, device="cuda", device_name="Some GPU")
MADE = {"attnres": "0.1.0", "torch": "2.9", "host": "a", "git_revision": "b", "git_dirty": "no"}
MADE |= {"code_loop": "c", "cpu_capability": "AVX512"}
NEWER = {"attnres": "0.2.0", "host": "x", "git_revision": "y", "git_dirty": "yes"}


@pytest.mark.parametrize(
    ("on", "changed", "goes_on"),
    [
        (SETTINGS, NEWER, True),
        (SETTINGS, {"code_loop": "d"}, False),
        (SETTINGS, {"torch": "2.10"}, False),
        (SETTINGS, {"cpu_capability": "AVX2"}, False),
        (SETTINGS, {"threads": 2}, False),
        (GPU, {**NEWER, "cpu_capability": "AVX2", "threads": 2}, True),
        (GPU, {"code_loop": "d"}, False),
        (GPU, {"device_name": "Other GPU"}, False),
    ],
)
def test_a_checkpoint_is_bound_to_what_decides_numbers_and_not_to_a_release_or_a_gpus_host(
    on: Settings, changed: dict, goes_on: bool, tmp_path: Path, tiny_recipe: Recipe
):
    store = fill(tmp_path / "study.db", tiny_recipe, {"standard": [1.5]})
    (run,) = store.runs()
    checkpoints_of(store, run, on, MADE).save(3, {"step": 3}, {"x": torch.ones(2)})
    here = replace(on, **{name: changed[name] for name in changed.keys() & vars(on).keys()})
    found = checkpoints_of(store, run, here, {**MADE, **changed}).load()
    assert (found is not None) is goes_on


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
