"""`--log`: what other tools show of runs while they train, read back as their clients read."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from sqlite3 import OperationalError, connect
from typing import Any

import grids
import pytest
from commands import process
from grids import OFTEN, query, started
from wandb_files import records, rows_of

from attnres_cli.config.recipe import load
from attnres_cli.errors import installing
from attnres_cli.lab.live import Log
from attnres_cli.train.optimizers import lr_factor

ONE = ["ablate", "standard", "--recipe", "smoke", "--seeds", "1", "--workers", "1"]
ONE += ["--set", "train.eval_tokens=512"]
TWO = [*ONE, "--seeds", "2", "--workers", "2"]
LONG = ["--set", "train.tokens=60k", "--set", "train.n_evals=20"]

Values = dict[tuple[str, int], float]
"""By tag and step."""


def board(folder: Path) -> Values:
    """What TensorBoard shows of a run; asserts that it shows each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = found.Tags()["scalars"]
    return once((tag, each.step, each.value) for tag in tags for each in found.Scalars(tag))


def once(told: Iterable[tuple[str, int, float]]) -> Values:
    values = list(told)
    found = {(tag, step): value for tag, step, value in values}
    assert len(found) == len(values)
    return found


def boards(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("*tfevents*")})


def curve(folder: Path, run: int) -> Values:
    """The losses that the study holds of a run."""
    sql = f"SELECT step, train_loss, val_loss FROM attnres_curve WHERE run_id = {run}"
    points = query(folder, sql)
    assert points
    found = {("train_loss", step): train for step, train, _ in points if train is not None}
    return found | {("val_loss", step): val for step, _, val in points if val is not None}


def losses(values: Values) -> Values:
    return {key: value for key, value in values.items() if key[0] in ("train_loss", "val_loss")}


def test_runs_of_two_workers_are_shown_as_the_study_holds_them_and_train_the_same(
    here: Path, attnres
):
    attnres.prints(*TWO, "--log", "tensorboard:boards")
    attnres.prints(*TWO, "--study", "plain.db")

    assert [path.name[:7] for path in boards(here / "boards")] == ["seed-0-", "seed-1-"]
    for run, folder in enumerate(boards(here / "boards/smoke/standard"), 1):
        shown = board(folder)
        assert losses(shown) == pytest.approx(curve(here, run))
        recipe = load("smoke")
        rate = recipe.optim.lr * lr_factor(recipe.optim, 29, recipe.steps)
        assert shown["learning_rate", 30] == pytest.approx(rate)
        assert all(shown["tokens_per_second", step] > 0 for step in range(2, recipe.steps + 1))
        assert shown["final/tokens", recipe.steps] == 15_872
        assert shown["output_rms/00", recipe.steps] > 0
    logged = grids.numbers(here)
    (here / "attnres.db").unlink()
    (here / "plain.db").rename(here / "attnres.db")
    assert logged == grids.numbers(here)


def test_runs_that_had_ended_before_and_a_dry_run_are_not_shown(here: Path, attnres):
    attnres.prints(*ONE, "--in-process")
    attnres.prints(*TWO, "--log", "tensorboard:boards", "--dry-run")
    assert not boards(here)

    attnres.prints(*TWO, "--workers", "1", "--in-process", "--log", "tensorboard:boards")
    (folder,) = boards(here)
    assert folder.name.startswith("seed-1-")
    assert losses(board(folder)) == pytest.approx(curve(here, 2))


def test_a_killed_run_was_shown_so_far_and_goes_on_in_its_folder_without_a_step_twice(
    tmp_path: Path,
):
    typed = [*ONE, *LONG, "--log", "tensorboard:boards"]
    with started(tmp_path, *typed, **OFTEN) as command:
        command.wait_for(lambda: any(tag == "val_loss" and step for tag, step in shown(tmp_path)))
        command.die()
    before = losses(shown(tmp_path))
    assert not curve_or_none(tmp_path)
    assert {tag for tag, _ in before} == {"train_loss", "val_loss"}

    with started(tmp_path, *typed) as command:
        command.succeed()
    (folder,) = boards(tmp_path)
    assert len(list(folder.iterdir())) == 2
    assert losses(board(folder)) == pytest.approx(curve(tmp_path, 1))
    assert before == {key: losses(board(folder))[key] for key in before}


def shown(folder: Path) -> Values:
    return board(boards(folder)[0]) if boards(folder) else {}


def curve_or_none(folder: Path) -> list[tuple[object, ...]]:
    return query(folder, "SELECT step FROM attnres_curve")


def test_a_tool_that_fails_is_told_of_once_and_the_others_go_on(here: Path, attnres):
    (here / "file").write_text("no folder")

    code, _, err = attnres(*TWO, "--log", "tensorboard:file", "--log", "tensorboard:boards")

    assert code == 0
    assert err.count("--log tensorboard:file stops, training goes on (") == 1
    assert "Traceback" not in err
    for run, folder in enumerate(boards(here / "boards"), 1):
        assert losses(board(folder)) == pytest.approx(curve(here, run))


def test_a_tool_that_does_not_answer_holds_up_the_end_for_so_long_and_no_longer(
    here: Path, attnres, monkeypatch
):
    def begin(*_: object) -> None:
        time.sleep(60)

    monkeypatch.setattr("attnres_cli.lab.live._LAST_WORDS_S", 0.5)
    monkeypatch.setattr("attnres_cli.lab.trackers._Events", begin)

    code, _, err = attnres(*ONE, "--in-process", "--log", "tensorboard:boards")

    assert code == 0
    assert "--log tensorboard:boards stops, training goes on (TimeoutError: no answer for" in err


def test_a_run_that_diverges_is_shown_to_its_end(here: Path, attnres):
    attnres.prints(*ONE, "--in-process", "--set", "optim.lr=1e30", "--log", "tensorboard:boards")
    (folder,) = boards(here)
    assert [isnan(v) for (tag, _), v in board(folder).items() if tag == "final/val_loss"] == [True]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("foo", "--log takes tensorboard:DIR, wandb[:PROJECT] or mlflow[:URI]: unknown tool 'foo'"),
        ("wanbd:lab", "did you mean 'wandb'?"),
        ("tensorboard", "--log tensorboard: expected tensorboard:DIR"),
        ("wandb:", "--log wandb: expected tensorboard:DIR, wandb[:PROJECT]"),
        ("mlflow:https://me:secret@host", "MLFLOW_TRACKING_PASSWORD"),
        ("mlflow:https://secret@host", "MLFLOW_TRACKING_PASSWORD"),
        ("mlflow:postgresql://me:secret@host/lab", "leave user and password out"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_to_type(here: Path, attnres, spec: str, words: str):
    said = attnres.refuses(*ONE, "--log", spec)
    assert words in said
    assert "secret" not in said
    assert not list(here.iterdir())


@pytest.mark.parametrize("tool", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_refused_before_anything_trains(
    here: Path, tool: str, monkeypatch, attnres
):
    for name in list(sys.modules):
        if name.startswith((tool, f"torch.utils.{tool}")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    assert installing(tool) in attnres.refuses(*ONE, "--log", f"{tool}:boards")
    assert not list(here.iterdir())


def test_what_a_tool_says_when_it_fails_is_shown_without_secrets(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    log = Log(["tensorboard:boards"])

    log.fail("tensorboard:boards", OSError("t0ken at http://me:pass@host/api\nis no good"))
    log.fail("tensorboard:boards", OSError("again"))

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "(OSError: ... at http://me@host/api is no good)" in said


@pytest.mark.slow
def test_two_commands_on_one_study_show_each_run_once(tmp_path: Path):
    typed = [*TWO, "--seeds", "4", "--workers", "1", *LONG, "--log", "tensorboard:boards"]
    with started(tmp_path, *typed) as one, started(tmp_path, *typed) as other:
        one.succeed()
        other.succeed()

    found = boards(tmp_path)
    assert [len(list(folder.iterdir())) for folder in found] == [1, 1, 1, 1]
    writers = Counter(next(folder.iterdir()).name.split(".")[-3] for folder in found)
    assert len(writers) == 2
    for run, folder in enumerate(found, 1):
        assert losses(board(folder)) == pytest.approx(curve(tmp_path, run))


@pytest.mark.slow
def test_a_search_shows_its_trials(here: Path, attnres):
    words = ["--recipe", "smoke", "--set", "train.tokens=2k", "--seeds", "1", "--trials", "2"]
    words += ["--confirm", "1", "--budget", "params=60k", "--log", "tensorboard:boards"]
    attnres.prints("search", "standard", *words)
    assert len(boards(here / "boards")) == len(query(here, "SELECT id FROM attnres_runs"))


@pytest.fixture
def wandb_is_here(monkeypatch) -> None:
    pytest.importorskip("wandb", reason="needs pip install -e '.[wandb]', 62 MB")
    monkeypatch.setenv("WANDB_MODE", "offline")


def offline(folder: Path) -> Iterator[tuple[str, Values]]:
    """Key and history of every offline run, the oldest first; asserts that no step is twice."""
    for path in sorted(folder.rglob("offline-run-*/*.wandb")):
        held = list(records(path))
        rows = [(row.pop("step"), row) for row in rows_of(held)]
        key = path.parent.name.rpartition("-")[2]
        yield key, once((tag, s, v) for s, row in rows for tag, v in row.items() if tag[0] != "_")


@pytest.mark.slow
@pytest.mark.usefixtures("wandb_is_here")
def test_a_killed_run_goes_on_in_wandb_as_one_that_replaces_it_when_both_are_uploaded(
    tmp_path: Path,
):
    typed = [*ONE, *LONG, "--log", "wandb:lab"]
    with started(tmp_path, *typed, **OFTEN) as command:
        command.wait_for(lambda: list(tmp_path.rglob("*.wandb")))
        command.wait_for(lambda: grids.some_have_begun(tmp_path))
        command.die()
    with started(tmp_path, *typed) as command:
        command.succeed()

    (first, _), (second, values) = offline(tmp_path)
    assert first == second
    assert losses(values) == pytest.approx(curve(tmp_path, 1))
    assert {"learning_rate", "tokens_per_second", "final/val_loss"} <= {tag for tag, _ in values}


@pytest.mark.slow
@pytest.mark.usefixtures("wandb_is_here")
def test_without_a_key_wandb_is_refused_before_anything_trains(here: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)

    code, out, err = process(*ONE, "--log", "wandb", folder=here)

    assert (code, out) == (2, "")
    assert "--log wandb: no API key: `wandb login`, or WANDB_MODE=offline" in err
    assert not (here / "attnres.db").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own use of SQLAlchemy
def test_a_killed_run_goes_on_in_the_same_run_of_mlflow(tmp_path: Path):
    if find_spec("mlflow") is None:
        pytest.skip("needs pip install -e '.[mlflow]', 40 MB")
    command = [*ONE, *LONG, "--log", f"mlflow:sqlite:///{tmp_path / 'mlflow.db'}"]
    with started(tmp_path, *command, **OFTEN) as killed:
        killed.wait_for(lambda: len(in_mlflow(tmp_path, "val_loss")) > 1)
        killed.die()
    before = in_mlflow(tmp_path, "tokens_per_second")
    with started(tmp_path, *command) as again:
        again.succeed()

    told = [(tag, *point) for tag in TAGS for point in in_mlflow(tmp_path, tag)]
    assert losses(once(told)) == pytest.approx(curve(tmp_path, 1))
    assert before < in_mlflow(tmp_path, "tokens_per_second")
    assert sqlite(tmp_path, "SELECT status FROM runs") == [("FINISHED",)]


TAGS = ("train_loss", "val_loss", "learning_rate", "tokens_per_second")


def in_mlflow(folder: Path, tag: str) -> set[tuple[int, float]]:
    """Steps and values of a metric in all runs of its database, whose format is documented."""
    rows = sqlite(folder, f"SELECT step, value FROM metrics WHERE key = '{tag}'")
    assert len(set(rows)) == len(rows)
    return set(rows)


def sqlite(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with suppress(OperationalError), closing(connect(folder / "mlflow.db")) as held:
        return held.execute(sql).fetchall()
    return []
