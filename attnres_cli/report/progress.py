"""Progress of a grid on stderr: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.live import Live
from rich.table import Table

from attnres_cli.config.recipe import Recipe
from attnres_cli.console import say
from attnres_cli.records import device_flops
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import Event, RunRecord, Settings
from attnres_cli.report.terminal import console, own_text
from attnres_cli.verdict.format import duration

_LINE_EVERY_S = 10.0
_PACE = 0.05  # of the work, after which it tells how long the rest takes


class Tally:
    """Which runs are under way and how far all of them are.

    `predicted` is in seconds, None where that is not known. `lowest` is the lowest loss of the
    ended runs, with its run; None before there is one, and unless the tally `seeks` it.
    """

    def __init__(
        self, total: int, predicted: float | None, settings: Settings, *, seeks: bool = False
    ) -> None:
        self.total, self.predicted, self.settings = total, predicted, settings
        self.ended, self.seeks = 0, seeks
        self.lowest: tuple[float, str] | None = None
        self.runs: dict[int, _Run] = {}
        self.stepped: dict[int, tuple[float, int]] = {}  # by worker, when it told its first step
        self.running: dict[int, Event] = {}  # by worker
        self.begun: dict[int, float] = {}  # by worker, the time when its run was
        self.started = time.monotonic()

    def know(self, record: RunRecord, recipe: Recipe, base: Recipe, flops_per_token: int) -> None:
        """Take a run, of whose recipe only what `base` has not is shown."""
        name = f"{record.variant} {own_text(recipe, base)}".rstrip()
        per_step = recipe.tokens_per_step
        self.runs[record.id] = _Run(name, record.seed, recipe.steps, per_step, flops_per_token)

    def expect(self, n_left: int) -> None:
        """Take how many runs are left, where others train some of them, or one more is needed."""
        self.total = self.ended + n_left

    def take(self, event: Event | None) -> None:
        """Take an event; None: a moment has passed."""
        if event is None:
            return
        if event.done:
            self.ended += 1
            self.running.pop(event.worker, None)
            if self.seeks and event.loss is not None and event.loss < self.least:
                self.lowest = event.loss, self.runs[event.run_id].name
        else:
            if event.step == 0:
                self.begun[event.worker] = time.monotonic()
                self.stepped.pop(event.worker, None)
            else:
                self.stepped.setdefault(event.worker, (time.monotonic(), event.step))
            self.running[event.worker] = event

    @property
    def least(self) -> float:
        """The lowest loss, infinite before there is one."""
        return math.inf if self.lowest is None else self.lowest[0]

    @property
    def share(self) -> float:
        """Of the work, the part that is done, 0 to 1."""
        under_way = sum(
            event.step / self.runs[event.run_id].steps for event in self.running.values()
        )
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
        """`step 120/400`; `compiling for 7 s`, which is most of what comes before a first step."""
        if event.step == 0 and self.settings.compiled:
            return f"compiling for {duration(time.monotonic() - self.begun[event.worker])}"
        return f"step {event.step}/{self.runs[event.run_id].steps}"

    def speed(self, event: Event) -> str:
        """`51,200 tokens/s, MFU 41 %`, of a run since its first step, evaluations included; the
        share where the device's peak is known. Empty as long as there is none.
        """
        at, step = self.stepped.get(event.worker, (0.0, event.step))
        if event.step <= step:
            return ""
        run, on = self.runs[event.run_id], self.settings
        speed = (event.step - step) * run.per_step / max(1e-9, time.monotonic() - at)
        share = device_flops.mfu(speed, run.flops_per_token, on.device_name, on.precision)
        return f"{speed:,.0f} tokens/s" + ("" if share is None else f", MFU {share:.0%}")

    def line(self) -> str:
        """`3 of 15 runs, 22 %, about 4 min 1 s left; attnres seed 0 step 120/400 ...`."""
        now = [
            f"{run.name} seed {run.seed} {self.step(event)}"
            + (f" loss {event.loss:.3f}" if event.loss is not None else "")
            + (f", {speed}" if (speed := self.speed(event)) else "")
            for event in self.running.values()
            for run in [self.runs[event.run_id]]
        ]
        return "; ".join([self.head(), *now])

    def head(self) -> str:
        """`3 of 15 runs, 22%, about 4 min 1 s left`."""
        runs = "1 run" if self.total == 1 else f"{self.total} runs"
        text = f"{self.ended} of {runs}, {self.share:.0%}{self.left()}"
        return (
            text
            if self.lowest is None
            else f"{text}, lowest {self.lowest[0]:.4f}: {self.lowest[1]}"
        )


@dataclass(frozen=True)
class _Run:
    name: str
    seed: int
    steps: int
    per_step: int  # tokens
    flops_per_token: int


class _Lines:
    """A plain line every ten seconds, and one for each run that ends."""

    def __init__(self, tally: Tally) -> None:
        self.tally, self.last = tally, time.monotonic()

    def __call__(self, event: Event | None) -> None:
        self.tally.take(event)
        if event is not None and event.done:
            run = self.tally.runs[event.run_id]
            outcome = "failed" if event.loss is None else f"val loss {event.loss:.4f}"
            say(f"{run.name} seed {run.seed}: {outcome}")
        elif time.monotonic() - self.last > _LINE_EVERY_S:
            self.last = time.monotonic()
            say(self.tally.line())


def _table(tally: Tally) -> Table:
    """One row per worker."""
    table = Table(title=tally.head(), title_justify="left")
    for name in ("worker", "variant", "seed", "step", "train loss", "speed"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for worker, event in sorted(tally.running.items()):
        run = tally.runs[event.run_id]
        loss = f"{event.loss:.3f}" if event.loss is not None else "-"
        step = tally.step(event).removeprefix("step ")
        table.add_row(str(worker), run.name, str(run.seed), step, loss, tally.speed(event) or "-")
    return table


class Display:
    """Shows a tally, fed by calling it with every event."""

    def __init__(self, tally: Tally, show: Callable[[Event | None], None]) -> None:
        self.know, self.expect, self._show = tally.know, tally.expect, show

    def __call__(self, event: Event | None) -> None:
        """Take an event; None: a moment has passed."""
        self._show(event)


@contextmanager
def progress(plan: Plan, records: list[RunRecord]) -> Iterator[Display]:
    """A display of a grid, that fits where stderr goes."""
    own = {recipe.digest: recipe for recipe in map(plan.recipe_of, plan.arms)}
    flops = {arm.variant: arm.flops_per_token for arm in plan.arms}
    tally = Tally(len(plan.missing), plan.seconds, plan.settings)
    for record in records:
        recipe = own.get(record.recipe_digest, plan.recipe)
        tally.know(record, recipe, plan.recipe, flops.get(record.variant, 0))
    with _shown(tally) as display:
        yield display


@contextmanager
def seeking(
    total: int, predicted: float | None, settings: Settings, *, seeks: bool = True
) -> Iterator[Display]:
    """A display that gets to know its runs as they are asked for, and looks for the lowest loss."""
    with _shown(Tally(total, predicted, settings, seeks=seeks)) as display:
        yield display


@contextmanager
def _shown(tally: Tally) -> Iterator[Display]:
    stderr = console(sys.stderr)
    if not stderr.is_terminal:
        yield Display(tally, _Lines(tally))
        return
    with Live(_table(tally), console=stderr, refresh_per_second=4, transient=True) as live:

        def show(event: Event | None) -> None:
            tally.take(event)
            live.update(_table(tally))

        yield Display(tally, show)
