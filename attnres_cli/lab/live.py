"""`--log`: runs in other tools while they train.

A thread of the command takes the events that the live display takes, and reads the rest in the
study: workers know nothing of it, and a tool that is slow or broken holds nothing up.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from attnres_cli.config.address import without_passwords
from attnres_cli.config.recipe import Recipe
from attnres_cli.console import warn
from attnres_cli.errors import UsageError, unknown
from attnres_cli.files import path_of, slug
from attnres_cli.lab import trackers
from attnres_cli.lab.trackers import Board, Scalars, Tool, Tracked
from attnres_cli.records.run import Event, Point, RunRecord, Status
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import newest_step
from attnres_cli.train.optimizers import lr_factor

OnEvent = Callable[[Event | None], None]
Timed = tuple[float, Event]
"""Seconds since 1970, and what was heard then."""

_TICK_S = 1.0  # between looks for new checkpoints
_LAST_WORDS_S = 60.0  # for what is still to be sent when all runs have ended
_IN_A_HURRY_S = 5.0  # the same, where somebody waits
_FORMS = "tensorboard:DIR, wandb[:PROJECT] or mlflow[:URI]"
_SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"


class Log:
    """The tools of one command, as typed. One that fails is told of once, and left out from then
    on. Raises UsageError for what is no tool, and where its package or its login is missing.
    """

    def __init__(self, typed: Sequence[str] = ()) -> None:
        self.tools = {each: _tool(each) for each in typed}

    @contextmanager
    def of(self, store: Store, on_event: OnEvent) -> Iterator[OnEvent]:
        """What to call with every event of runs that train: it logs them, and calls `on_event`.
        Leaving it takes as long as the tools need for what they have not sent, up to a minute.
        """
        if not self.tools:
            yield on_event
            return
        heard: SimpleQueue[Timed | None] = SimpleQueue()
        thread = Thread(target=_Follower(self, store).follow, args=(heard,), daemon=True)
        thread.start()
        patience_s = _IN_A_HURRY_S

        def told(event: Event | None) -> None:
            if event is not None:
                heard.put((time.time(), event))
            on_event(event)

        try:
            yield told
            patience_s = _LAST_WORDS_S
        finally:
            heard.put(None)
            thread.join(patience_s)
            for name in list(self.tools) if thread.is_alive() else ():
                self.fail(name, TimeoutError(f"no answer for {patience_s:.0f} s"))

    def fail(self, name: str, error: Exception) -> None:
        """Leave a tool out from now on, and say why."""
        if self.tools.pop(name, None) is None:
            return
        why = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))
        for secret in filter(None, map(os.environ.get, _SECRETS)):
            why = why.replace(secret, "...")
        warn(f"--log {name} stops, training goes on ({why[:300]})")


def _tool(typed: str) -> Tool:
    """`tensorboard:boards`, `wandb`, `mlflow:http://host:5000`. Raises UsageError."""
    name, colon, place = typed.partition(":")
    if name not in trackers.PACKAGES:
        raise UsageError(f"--log takes {_FORMS}: {unknown('tool', name, trackers.PACKAGES)}")
    if not place and (colon or name == "tensorboard"):
        raise UsageError(f"--log {name}: expected {_FORMS}")
    if _has_secret(place):
        raise UsageError(
            f"--log {name}: leave user and password out of the URI, and set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    os.environ.setdefault(_RETRIES, "3")  # a quarter of a minute, not four
    library = trackers.imported(name, f"--log {name}")
    if name == "tensorboard":
        return trackers.tensorboard(library, path_of(place, "--log tensorboard"))
    if name == "mlflow":
        try:
            return trackers.mlflow(library, place or None)
        except library.exceptions.MlflowException as error:
            raise UsageError(f"--log {typed}: {error}") from None
    _log_in(library)
    project = place or os.environ.get("WANDB_PROJECT")
    return trackers.wandb(library, **({"project": project} if project else {}))


def _has_secret(place: str) -> bool:
    """Whether a URI names a password, or a user of a web server, which may be a token."""
    is_web = re.match("https?://[^/?#]*@", place, re.IGNORECASE)
    return is_web is not None or without_passwords(place) != place


def _log_in(wandb: Any) -> None:
    """Let Weights & Biases ask for its key now, if at all. Raises UsageError where it has none; a
    server that is away is told of by the first run.
    """
    if wandb.setup().settings.mode in ("offline", "disabled", "dryrun"):
        return
    with suppress(wandb.errors.AuthenticationError, wandb.errors.CommError):
        try:
            is_known = wandb.login()
        except wandb.errors.UsageError:
            is_known = False
        if not is_known:
            raise UsageError("--log wandb: no API key: `wandb login`, or WANDB_MODE=offline")


@dataclass
class _Run:
    """A run under way. `last`: when this command last heard of it, and its step."""

    record: RunRecord
    recipe: Recipe
    folder: Path
    boards: dict[str, Board] = field(default_factory=dict)
    last: tuple[float, int] | None = None
    saved: int = 0  # step of the checkpoint that was read
    given: set[tuple[str, str, int]] = field(default_factory=set)  # to which tool, tag and step


class _Follower:
    """What the thread does: everything of the tools but their making."""

    def __init__(self, log: Log, store: Store) -> None:
        self._log, self._store = log, store
        self._runs: dict[int, _Run] = {}

    def follow(self, heard: SimpleQueue[Timed | None]) -> None:
        """Until None is heard. No error leaves it: the study's own are those of workers, too."""
        try:
            while self._log.tools:
                try:
                    item = heard.get(timeout=_TICK_S)
                except Empty:
                    self._catch_up(time.time())
                    continue
                if item is None:
                    break
                self._take(*item)
            for run in self._runs.values():
                self._end(run, Status.PENDING, time.time())
            for name, tool in list(self._log.tools.items()):
                self._try(name, tool.close)
        except Exception as error:
            for name in list(self._log.tools):
                self._log.fail(name, error)

    def _take(self, at: float, event: Event) -> None:
        """Log what an event tells. The first loss of a run that begins or goes on is no point of
        its curve: that of one step, or one that was told before.
        """
        run = self._runs.get(event.run_id) or self._begin(event.run_id, at)
        if run is None:
            return
        if event.done:
            self._end_of(run, at)
        elif event.step == 0:
            run.last = None  # another worker has it
        elif event.train_loss is not None and run.last is not None and event.step > run.last[1]:
            curve = [Point(event.step, event.train_loss, None)]
            self._add(run, trackers.of_curve(curve, run.recipe.tokens_per_step), at)
            self._add(run, [(event.step, _speeds(run, at, event.step))], at)
        run.last = (at, event.step) if event.step else None
        self._catch_up(at)

    def _begin(self, run_id: int, at: float) -> _Run | None:
        """A board of a run in every tool; None where it was removed."""
        for record in self._store.runs(ids=[run_id], curves=False, gates=False):
            recipe = self._store.recipe(record.recipe_digest)
            run = _Run(record, recipe, self._store.folder_of(record))
            for name in list(self._log.tools):
                self._try(name, partial(self._open, name, run, _tracked(record, recipe), at))
            self._runs[run_id] = run
            return run
        return None

    def _open(self, name: str, run: _Run, tracked: Tracked, at: float) -> None:
        board = run.boards[name] = self._log.tools[name].begin(tracked, at)
        run.given |= {(name, tag, step) for tag, step in board.known}

    def _catch_up(self, at: float) -> None:
        """Log what new checkpoints tell: losses on validation tokens, and of earlier commands."""
        for run in self._runs.values():
            if run.last is not None and newest_step(run.folder) != run.saved:
                run.saved = newest_step(run.folder)
                curve = _saved_curve(run.folder)
                self._add(run, trackers.of_curve(curve, run.recipe.tokens_per_step), at)

    def _end_of(self, run: _Run, at: float) -> None:
        """Log all that the study has of an ended run, and close it."""
        status = Status.FAILED
        for record in self._store.runs(ids=[run.record.id]):
            status = record.status
            if record.result is not None:
                probes = self._store.probes([record.id])[record.id]
                self._add(run, trackers.of_result(record, probes), at)
        self._end(run, status, at)
        del self._runs[run.record.id]

    def _end(self, run: _Run, status: Status, at: float) -> None:
        for name, board in run.boards.items():
            self._try(name, partial(board.end, status, at))

    def _add(self, run: _Run, rows: Iterable[Scalars], at: float) -> None:
        """Log what a tool has not had yet."""
        rows = list(rows)
        for name, board in run.boards.items():
            fresh: list[Scalars] = []
            for step, values in rows:
                new = {tag: v for tag, v in values.items() if (name, tag, step) not in run.given}
                run.given |= {(name, tag, step) for tag in new}
                fresh += [(step, new)] if new else []
            if fresh:
                self._try(name, partial(board.add, fresh, at))

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Do it, unless the tool has failed before."""
        if name in self._log.tools:
            try:
                call()
            except Exception as error:
                self._log.fail(name, error)


def _tracked(record: RunRecord, recipe: Recipe) -> Tracked:
    """A run under a name that no other has, in whatever study: its settings vary in a search."""
    run = Tracked("", record, trackers.hyperparameters(record, recipe) | {"run": record.id})
    name = f"{slug(record.recipe)}/{slug(record.variant)}/seed-{record.seed}-{run.key[:6]}"
    return Tracked(name, record, run.settings)


def _speeds(run: _Run, at: float, step: int) -> dict[str, float]:
    """The learning rate of the last step, and tokens per second since this run was last heard of,
    evaluations included.
    """
    assert run.last is not None
    optim, seconds = run.recipe.optim, max(1e-9, at - run.last[0])
    tokens = (step - run.last[1]) * run.recipe.tokens_per_step
    rate = optim.lr * lr_factor(optim, step - 1, run.recipe.steps)
    return {"learning_rate": rate, "tokens_per_second": tokens / seconds}


def _saved_curve(folder: Path) -> list[Point]:
    """The curve in a run's newest checkpoint; empty where it is being replaced just now."""
    try:
        note = max(folder.glob("[0-9]*.json"))
        body = json.loads(json.loads(note.read_text(encoding="utf-8"))["body"])
        return [Point(*point) for point in body["state"]["curve"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
