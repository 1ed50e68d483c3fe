"""Progress of runs on stderr: a live view on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from attnres_cli.config.recipe import Recipe
from attnres_cli.console import detail, is_quiet, is_verbose, note, warn
from attnres_cli.records import device_flops
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import Event, RunRecord, Settings
from attnres_cli.report.plans import begins, doubts_of, going_on, line_of, own_text, plan_of
from attnres_cli.report.terminal import console, print_report
from attnres_cli.verdict.numbers import duration, plural

_LINE_EVERY_S = 30.0
_WIDE, _NARROW = 40, 20  # columns of bars
_MOST_ARMS = 12  # whose means are shown while they train
_MOST_DOUBTS = 2  # of a plan
_PACE = 0.05  # of the work, after which it tells how long the rest takes


@dataclass(frozen=True)
class _Run:
    name: str  # variant, what its recipe has of its own, seed
    variant: str
    seed: int
    recipe: Recipe
    flops_per_token: int


class ProgressDisplay:
    """Which runs are under way and how far all of them are; called with every event.

    `predicted` is in seconds, None where that is not known. `lowest` is the lowest loss of the
    ended runs, with its run; None before there is one, and unless the display `seeks` it. `part`
    is what its head begins with, where there are several displays in turn.
    """

    def __init__(
        self,
        total: int,
        predicted: float | None,
        settings: Settings,
        *,
        seeks: bool = False,
        part: str = "",
    ) -> None:
        self.total, self.predicted, self.settings = total, predicted, settings
        self.part = part
        self.ended, self.seeks = 0, seeks
        self.lowest: tuple[float, str] | None = None
        self.runs: dict[int, _Run] = {}
        self.planned: Counter[str] = Counter()  # runs by variant
        self.losses: dict[str, list[float]] = {}  # of those that have ended
        self.running: dict[int, Event] = {}  # by worker
        self.since: dict[int, tuple[float, int]] = {}  # by worker: its start, or its first step
        self.started = time.monotonic()
        self.show: Callable[[bool], None] = lambda _may_print: None

    def know(self, record: RunRecord, recipe: Recipe, base: Recipe, flops_per_token: int) -> None:
        """Take a run, of whose recipe only what `base` has not is shown."""
        variant = f"{record.variant} {own_text(recipe, base)}".rstrip()
        name = f"{variant} seed {record.seed}"
        self.planned[variant] += record.id not in self.runs
        if record.result is not None:
            self.losses.setdefault(variant, []).append(record.result.val_loss)
        self.runs[record.id] = _Run(name, variant, record.seed, recipe, flops_per_token)

    def expect(self, n_left: int) -> None:
        """Take how many runs are left, where others train some of them, or one more is needed."""
        self.total = self.ended + n_left

    def __call__(self, event: Event | None) -> None:
        """Take an event; None: a moment has passed."""
        if event is not None:
            (self._end if event.done else self._go_on)(event)
        self.show(event is None or not event.done)

    def _go_on(self, event: Event) -> None:
        """Take a step; the first of a run, or of one that goes on, is told if all is to be."""
        if event.step == 0 or self.since.get(event.worker, (0.0, 0))[1] == 0:
            self.since[event.worker] = time.monotonic(), event.step
        self.running[event.worker] = event
        if event.step != 1 and self.since[event.worker][1] == event.step:
            how = f"goes on from step {event.step}"
            how = how if event.step else f"taken by worker {event.worker}"
            detail(f"{self.runs[event.run_id].name} (run {event.run_id}): {how}")

    def _end(self, event: Event) -> None:
        """Take the end of a run; that it failed is told, its loss if all is to be."""
        run, loss = self.runs[event.run_id], event.val_loss
        self.ended += 1
        self.total = max(self.total, self.ended)  # its end is in the study before it is told
        self.running.pop(event.worker, None)
        if loss is None:
            note(f"{run.name}: failed")
            return
        detail(f"{run.name}: val loss {loss:.4f}")
        self.losses.setdefault(run.variant, []).append(loss)
        if self.seeks and loss < (math.inf if self.lowest is None else self.lowest[0]):
            self.lowest = loss, run.variant

    @property
    def share(self) -> float:
        """Of the work, the part that is done, 0 to 1."""
        now = self.running.values()
        under_way = sum(event.step / self.runs[event.run_id].recipe.steps for event in now)
        return min(1.0, (self.ended + under_way) / max(1, self.total))

    def left(self) -> str:
        """Time left: by the pace once there is one, before by the prediction; empty without."""
        passed = time.monotonic() - self.started
        if self.share > _PACE:
            return f", about {duration(passed * (1 - self.share) / self.share)} left"
        if self.predicted is None or passed > self.predicted:
            return ""
        return f", about {duration(self.predicted - passed)} left"

    def step(self, event: Event) -> str:
        """`120/400`; `compiling for 7 s`, which is most of what comes before a first step."""
        if event.step == 0 and self.settings.compiled:
            return f"compiling for {duration(time.monotonic() - self.since[event.worker][0])}"
        return f"{event.step}/{self.runs[event.run_id].recipe.steps}"

    def speed(self, event: Event) -> str:
        """`51,200 tokens/s, MFU 41 %` since its first step; empty as long as there is none."""
        at, step = self.since[event.worker]
        if event.step <= step:
            return ""
        run, on = self.runs[event.run_id], self.settings
        tokens = (event.step - step) * run.recipe.tokens_per_step
        speed = tokens / max(1e-9, time.monotonic() - at)
        share = device_flops.mfu(speed, run.flops_per_token, on.device_name, on.precision)
        return f"{speed:,.0f} tokens/s" + ("" if share is None else f", MFU {share:.0%}")

    def head(self) -> str:
        """`3 of 15 runs, 22%, about 4 min 1 s left`, and of a search the lowest loss."""
        part = self.part and f"{self.part}: "
        lowest = "" if self.lowest is None else ", lowest {:.4f}: {}".format(*self.lowest)
        counts = f"{part}{self.ended} of {plural(self.total, 'run')}, {self.share:.0%}"
        return f"{counts}{self.left()}{lowest}"

    def line(self) -> str:
        """The head; then, of every run under way, `attnres seed 0 step 120/400 loss 2.345`."""
        parts = [self.head()]
        for event in self.running.values():
            step, speed = self.step(event), self.speed(event)
            part = f"{self.runs[event.run_id].name} {'step ' if step[0].isdigit() else ''}{step}"
            part += f" loss {event.train_loss:.3f}" if event.train_loss is not None else ""
            parts.append(f"{part}, {speed}" if speed else part)
        return "; ".join(parts)

    def view(self) -> Group:
        """A bar of all, the arms with their mean losses so far, and a bar for each worker."""
        head = Table.grid(padding=(0, 2))
        head.add_row(ProgressBar(total=1.0, completed=self.share, width=_WIDE), self.head())
        arms = Table.grid(padding=(0, 3))
        for variant, total in self.planned.items():
            losses = self.losses.get(variant, [])
            mean = f"{fmean(losses):.4f}" if losses else "-"
            arms.add_row(variant, f"{len(losses)}/{total}", mean)
        workers = Table.grid(padding=(0, 2))
        for _, event in sorted(self.running.items()):
            run = self.runs[event.run_id]
            bar = ProgressBar(total=run.recipe.steps, completed=event.step, width=_NARROW)
            loss = f"loss {event.train_loss:.3f}" if event.train_loss is not None else ""
            workers.add_row(run.name, bar, self.step(event), loss, self.speed(event))
        return (
            Group(head, arms, workers) if len(self.planned) <= _MOST_ARMS else Group(head, workers)
        )


@contextmanager
def progress(
    total: int,
    predicted: float | None,
    settings: Settings,
    *,
    seeks: bool = False,
    is_live: bool = True,
    part: str = "",
) -> Iterator[ProgressDisplay]:
    """A display that fits stderr; one that is not live leaves the terminal to a debugger."""
    display = ProgressDisplay(total, predicted, settings, seeks=seeks, part=part)
    with live(display.view, display.line, _LINE_EVERY_S, is_live=is_live) as display.show:
        yield display


@contextmanager
def live(
    view: Callable[[], RenderableType],
    line: Callable[[], str],
    every_s: float,
    *,
    is_live: bool = True,
) -> Iterator[Callable[[bool], None]]:
    """What to call after a change: it redraws a view, or prints a line now and then if it may."""
    stderr, last = console(sys.stderr), time.monotonic()
    if stderr.is_terminal and is_live and not is_quiet():
        with Live(view(), console=stderr, refresh_per_second=4, transient=True) as drawn:
            yield lambda _may_print: drawn.update(view())
        return

    def show(may_print: bool) -> None:
        nonlocal last
        if may_print and time.monotonic() - last > every_s:
            last = time.monotonic()
            note(line())

    yield show


class OnStderr:
    """Tells on stderr how an experiment goes on, unless it is to be quiet: the lab's `Watcher`."""

    note = staticmethod(note)
    warn = staticmethod(warn)

    def __init__(self, *, is_live: bool = True, part: str = "") -> None:
        self.progress = partial(progress, is_live=is_live, part=part)
        self._doubted = set[str]()  # what one plan was doubted for is not said of the next again

    def plan(self, plan: Plan, title: str) -> None:
        """Print a plan that is about to be carried out, in a line with what to doubt of it."""
        if is_verbose():
            print_report(plan_of(plan, title), sys.stderr)
        if is_verbose() or is_quiet():
            return
        for line in (line_of(plan, title), *begins(plan), *going_on(plan)):
            note(line)
        doubts = doubts_of(plan)[:_MOST_DOUBTS]
        for doubt in [each for each in doubts if each not in self._doubted]:
            warn(doubt)
        self._doubted.update(doubts)

    def text(self, lines: Sequence[str]) -> None:
        """Print what is about to be searched."""
        if not is_quiet():
            sys.stderr.writelines(f"{line}\n" for line in lines)
