"""A comparison: the same verdict whichever command gives it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
import studies
from commands import attnres, process
from optuna.storages import RDBStorage

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.records import machine
from attnres_cli.records.machine import Cores
from attnres_cli.stats.looks import first_rate, interval
from attnres_cli.store.store import Store

BASE = (1.50, 1.70, 1.60, 1.55, 1.65)
NEAR = (1.475, 1.665, 1.59, 1.535, 1.61)  # better alone, not separable among five arms


def verdicts(text: str) -> dict[str, tuple[str, float | None]]:
    """By variant the word and the rate of its look."""
    arms = json.loads(text)["arms"]
    return {a["variant"]: (a["verdict"], (a["look"] or {}).get("alpha")) for a in arms}


def test_ablate_and_report_judge_all_arms_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    recipe = load("smoke")
    monkeypatch.setattr(studies, "FACTS", sources.load(recipe).description)
    others = ("denseformer", "rezero", "laurel", "unet")
    noise = {name: [x + (-1) ** (i + k) * 0.01 * k for i, x in enumerate(BASE)]
             for k, name in enumerate(others, 1)}  # fmt: skip
    losses = {"standard": BASE, "attnres": NEAR, **noise}
    studies.fill(tmp_path / "attnres.db", recipe, losses, code_of)
    asked = ("ablate", "standard", "attnres", "--recipe", "smoke", "--seeds", "5")

    code, typed, _ = attnres(capsys, *asked, "--format", "json")
    _, told, _ = attnres(capsys, "report", "--format", "json")

    assert code == 0
    assert verdicts(typed) == verdicts(told)
    assert len(verdicts(told)) == 6
    assert verdicts(told)["attnres"] == ("not separable", pytest.approx(first_rate(5)))
    low, high = interval(np.array(NEAR), np.array(BASE), first_rate(1))
    assert low < high < 0  # in a family of its own it would be better


@pytest.mark.slow
def test_losses_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    asked = ("ablate", "standard", "attnres", "--recipe", "smoke", "--set", "train.tokens=60k")

    runs = {}
    for workers in (1, 2, 3):
        told = ("--workers", str(workers), "--study", f"{workers}.db")
        assert process(*asked, "--seeds", "2", *told)[0] == 0
        held = Store.open(f"{workers}.db", create=False).runs()
        runs[workers] = {(run.variant, run.seed): run.result for run in held}

    curves = [{key: run.curve for key, run in found.items()} for found in runs.values()]
    assert len(curves[0]) == 4
    assert curves[0] == curves[1] == curves[2]
    assert {run.settings.threads for found in runs.values() for run in found.values()} == {1}


@pytest.mark.parametrize("n_cores", [4, 1])
def test_later_commands_keep_the_threads_that_a_comparison_has(
    n_cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "cores", lambda: Cores(tuple(range(n_cores)), n_cores))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    recipe = load("smoke")
    monkeypatch.setattr(studies, "FACTS", sources.load(recipe).description)
    two = replace(studies.SETTINGS, threads=2)
    path, losses = tmp_path / "attnres.db", {"standard": BASE}
    studies.fill(path, recipe, losses, code_of, settings=two)

    asked = ("ablate", "standard", "rezero", "--recipe", "smoke", "--dry-run")
    _, kept, _ = attnres(capsys, *asked)
    _, typed, _ = attnres(capsys, *asked, "--workers", "3")
    _, fresh, _ = attnres(capsys, *asked, "--study", "fresh.db")

    threads = "2 threads" if n_cores == 4 else "1 thread,"  # a machine that has no more
    assert f"fp32 eager, {threads}" in kept
    assert f"fp32 eager, {threads}" in typed
    assert "3 workers" in typed
    assert ("2 workers" if n_cores == 4 else "1 worker,") in kept
    assert "fp32 eager, 1 thread," in fresh


@pytest.mark.parametrize("typed", [("--margin", "1.05x"), ("--set", "margin=1.05x")])
def test_a_margin_that_cannot_be_judged_by_is_refused_before_anything_is_trained(
    typed: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    small = ("--recipe", "smoke", "--set", "train.tokens=4k")  # of which no slope is known

    code, out, err = attnres(capsys, "ablate", "standard", "attnres", *small, *typed)

    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "give the margin in nats per token" in err
    assert not (tmp_path / "attnres.db").exists()


def test_what_a_dead_machine_left_of_runs_that_another_ended_goes_with_the_next_command_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    recipe = load("smoke")
    monkeypatch.setattr(studies, "FACTS", sources.load(recipe).description)
    store = studies.fill(
        tmp_path / "attnres.db", recipe, {"standard": [1.5], "attnres": [1.4]}, code_of
    )
    run, other = store.runs()
    for name in ("000000400.json", "000000400.safetensors", store.weights_of(run).name):
        (store.folder_of(run)).mkdir(parents=True, exist_ok=True)
        (store.folder_of(run) / name).write_bytes(b"left")
    store.folder_of(other).mkdir()
    (store.folder_of(other) / "000000400.json").write_bytes(b"left")
    theirs = store.folder / "17-01234567" / "000000400.json"  # of another study with this folder
    theirs.parent.mkdir()
    theirs.write_bytes(b"theirs")

    code, _, _ = attnres(capsys, "ablate", "--recipe", "smoke", "--seeds", "1")

    assert code == 0
    assert {path for path in store.folder.rglob("*") if path.is_file()} == {
        store.weights_of(run), theirs,
    }  # fmt: skip


HERE = ("ablate", "standard", "--recipe", "smoke", "--seeds", "1", "--in-process")


def test_a_pending_run_of_a_study_that_was_copied_alone_begins_again_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    short = (*HERE, "--set", "train.tokens=8k")
    attnres(capsys, *short)
    with closing(sqlite3.connect("attnres.db")) as held, held:
        held.execute("UPDATE attnres_runs SET status = 'pending', step = 7, val_loss = NULL")
        held.execute("DELETE FROM attnres_curve")
        held.execute("DELETE FROM attnres_gates")
        held.execute("DELETE FROM attnres_probes")
    shutil.rmtree("attnres.runs")

    code, _, said = attnres(capsys, *short)

    assert code == 0
    assert "attnres: warning: from the beginning again: standard seed 0 (step 7); the fol" in said


def test_a_study_without_a_search_is_an_empty_list_to_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert attnres(capsys, *HERE, "--set", "train.tokens=8k")[0] == 0

    url = f"sqlite:///{tmp_path / 'attnres.db'}"
    storage = RDBStorage(url, skip_table_creation=True)  # as its dashboard reads
    assert optuna.get_all_study_names(storage) == []
    storage.engine.dispose()
    assert attnres(capsys, "report")[0] == 0
