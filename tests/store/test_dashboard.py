"""Optuna's dashboard on a real study, where it is installed."""

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
from subprocess import DEVNULL
from typing import Any
from urllib.error import URLError

import optuna
import pytest
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        importlib.util.find_spec("optuna_dashboard") is None,
        reason="optuna-dashboard is not installed",
    ),
]
START = "from optuna_dashboard._cli import main; main()"


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


@contextmanager
def dashboard(path: Path) -> Iterator[str]:
    """The address at which `optuna-dashboard sqlite:///PATH` serves, once it answers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", START, f"sqlite:///{path}", "--port", port]
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
    with subprocess.Popen(command, stdout=DEVNULL, stderr=DEVNULL) as served:
        try:
            while True:
                try:
                    get(f"{address}/api/studies")
                    break
                except URLError:
                    assert served.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.2)
            yield address
        finally:
            served.terminate()


def test_the_dashboard_shows_the_trials_of_a_study_and_leaves_its_runs(
    tmp_path: Path, tiny_recipe: Recipe
):
    path = tmp_path / "attnres.db"
    runs = fill(path, tiny_recipe, {"standard": [1.5, 1.6], "attnres": [1.4, 1.3]}).runs()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with optuna_storage(str(path)) as storage:
        search = optuna.create_study(storage=storage, study_name="shape of standard")
        search.optimize(lambda trial: trial.suggest_int("n_layers", 2, 8) / 4, n_trials=3)

    with dashboard(path) as address:
        studies = json.loads(get(f"{address}/api/studies"))["study_summaries"]
        page = get(f"{address}/dashboard/studies/1")
        study: dict[str, Any] = json.loads(get(f"{address}/api/studies/1"))

    (listed,) = studies
    assert (listed["study_id"], listed["study_name"]) == (1, "shape of standard")
    assert "<title>Optuna Dashboard</title>" in page
    assert [trial["state"] for trial in study["trials"]] == ["Complete"] * 3
    depths = [int(trial["params"][0]["param_external_value"]) / 4 for trial in study["trials"]]
    assert [trial["values"] for trial in study["trials"]] == [[depth] for depth in depths]
    assert Store.open(str(path), create=True).runs() == runs
