"""Searches under the oldest Optuna that is allowed, and then under the installed one."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from grids import PATIENCE_S

from attnres_cli.lab.search.studies import read
from attnres_cli.records.search_records import State

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow

SEARCH = ["search", "--recipe", "smoke", "--set", "train.tokens=2k", "--workers", "1"]
SEARCH += ["--set", "train.eval_tokens=512", "--set", "train.n_evals=1", "--confirm", "0"]
SEARCH += ["--budget", "params=40k", "--space", "n_layers=1..2,n_heads=1|2|4"]  # six points
ONE_GOAL = [*SEARCH, "standard", "attnres:block_size=2"]
TWO_GOALS = [*SEARCH, "standard", "--objective", "val_loss,flops", "--trials", "5"]
MAIN = """
import sys
from attnres_cli.cli.app import main
try:
    main()
finally:
    print(sys.modules["optuna"].__version__, file=sys.stderr)
"""


class Said(NamedTuple):
    out: str
    err: str
    optuna: str


class Old(NamedTuple):
    """The oldest Optuna that is allowed, installed into its own folder."""

    folder: Path
    version: str


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Old:
    folder = tmp_path_factory.mktemp("optuna")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [each for each in project["dependencies"] if each.startswith("optuna>=")]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--target", str(folder), bound.replace(">=", "==")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        pytest.skip(f"no package registry has {bound} for us: {done.stderr[-300:]}")
    (facts,) = folder.glob("optuna-*.dist-info")
    return Old(folder, facts.name.removeprefix("optuna-").removesuffix(".dist-info"))


def python(folder: Path, old: Old | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    if old is not None:
        environment["PYTHONPATH"] = str(old.folder)
    command, run = [sys.executable, *arguments], {"cwd": folder, "env": environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **run)


def attnres(folder: Path, old: Old | None, *arguments: str) -> Said:
    """What the command says, and which Optuna it had imported at its end."""
    done = python(folder, old, "-c", MAIN, *arguments)
    assert done.returncode == 0, done.stderr
    *lines, optuna = done.stderr.splitlines()
    return Said(done.stdout, "\n".join(lines), optuna)


def test_a_search_goes_on_under_another_optuna_and_both_read_it_alike(old: Old, tmp_path: Path):
    begun = attnres(tmp_path, old, *ONE_GOAL, "--sampler", "tpe", "--trials", "2")
    two = attnres(tmp_path, old, *TWO_GOALS)
    one_goal, two_goals = read(str(tmp_path / "attnres.db"))
    gone_on = attnres(tmp_path, None, *ONE_GOAL, "--sampler", "tpe", "--trials", "3")
    report = ["report", "--recipe", one_goal.name, "--format", "json"]
    read_by_old, read_by_new = attnres(tmp_path, old, *report), attnres(tmp_path, None, *report)

    assert [each.optuna for each in (begun, two, read_by_old)] == [old.version] * 3
    assert gone_on.optuna == read_by_new.optuna == version("optuna") != old.version
    for said in (begun, two, gone_on, read_by_old):
        heard = [
            line for line in said.err.lower().splitlines() if "512 evaluation tokens" not in line
        ]
        assert not [line for line in heard if "warning" in line or "optuna" in line]
    assert "tpe: as asked; 6 points, 2 trials at most" in begun.err
    assert "nsga2: 6 points, more than trials, and 2 objectives" in two.err
    families = [*one_goal.families, *two_goals.families]
    assert [len(family.trials) for family in families] == [2, 2, 5]
    assert {t.state for family in families for t in family.trials} == {State.COMPLETE}
    assert all(trial.values[1] == trial.flops for trial in two_goals.families[0].trials)
    (grown,) = [s for s in read(str(tmp_path / "attnres.db")) if s.name == one_goal.name]
    for before, after in zip(one_goal.families, grown.families, strict=True):
        assert after.trials[:2] == before.trials
        assert len({(t.recipe_digest, t.variant) for t in after.trials}) == 3
    assert json.loads(read_by_old.out)
    assert read_by_old.out == read_by_new.out
    with closing(sqlite3.connect(tmp_path / "attnres.db")) as held:  # which made the tables
        library = held.execute("SELECT library_version FROM version_info").fetchall()
    assert library == [(old.version,)]


def test_every_sampler_warns_of_nothing_under_the_oldest_optuna(old: Old):
    asked = "import optuna, sys; print(optuna.__version__); import pytest; sys.exit(pytest.main())"
    tests = ["tests/lab/search/test_proposals.py", "-m", "not slow"]
    done = python(ROOT, old, "-c", asked, "-q", "-p", "no:cacheprovider", *tests)
    assert done.stdout.startswith(old.version + "\n")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
