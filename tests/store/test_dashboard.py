"""Optuna's dashboard on a study of ours, run for real where it is installed."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import optuna
import pytest
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("optuna_dashboard") is None,
        reason="optuna-dashboard is not installed",
    ),
]
START = "from optuna_dashboard._cli import main; main()"


@contextmanager
def dashboard(path: Path) -> Iterator[str]:
    """What `optuna-dashboard sqlite:///PATH` serves: its address, as soon as it answers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", START, f"sqlite:///{path}", "--port", port]
    served = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while True:
            try:
                get(f"http://127.0.0.1:{port}/api/studies")
                break
            except URLError:
                assert served.poll() is None
                assert time.monotonic() < until
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        served.terminate()
        served.wait()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def searched(path: Path, n_trials: int) -> None:
    """An Optuna study with so many trials in that file."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    study = optuna.create_study(storage=storage, study_name="shape of standard")
    study.optimize(lambda trial: trial.suggest_int("n_layers", 2, 8) / 4, n_trials=n_trials)
    storage.remove_session()
    storage.engine.dispose()


def test_the_dashboard_shows_the_trials_of_a_study_and_leaves_its_runs(
    tmp_path: Path, tiny_recipe: Recipe
):
    path = tmp_path / "attnres.db"
    runs = fill(path, tiny_recipe, {"standard": [1.5, 1.6], "attnres": [1.4, 1.3]}).runs()
    searched(path, n_trials=3)

    with dashboard(path) as address:
        studies = json.loads(get(f"{address}/api/studies"))["study_summaries"]
        page = get(f"{address}/dashboard/studies/1")
        study: dict[str, Any] = json.loads(get(f"{address}/api/studies/1"))

    assert [(each["study_id"], each["study_name"]) for each in studies] == [
        (1, "shape of standard")
    ]
    assert "<title>Optuna Dashboard</title>" in page
    assert [trial["state"] for trial in study["trials"]] == ["Complete"] * 3
    depths = [int(trial["params"][0]["param_external_value"]) / 4 for trial in study["trials"]]
    assert [trial["values"] for trial in study["trials"]] == [[depth] for depth in depths]
    assert Store.open(str(path), create=True).runs() == runs
