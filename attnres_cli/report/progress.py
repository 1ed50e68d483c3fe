"""Progress of a grid on stderr: a live table on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table

from attnres_cli import peaks
from attnres_cli.plan import Plan
from attnres_cli.report.terminal import console, duration, own_text
from attnres_cli.run import Event, RunRecord
from attnres_cli.stdio import say

_LINE_EVERY_S = 10.0


class _Tally:
    """Which runs are under way and how far all of them are."""

    def __init__(self, plan: Plan, records: list[RunRecord]) -> None:
        self.predicted = plan.seconds
        own = {recipe.digest: recipe for recipe in map(plan.recipe_of, plan.arms)}
        recipes = {record.id: own.get(record.recipe_digest, plan.recipe) for record in records}
        self.steps = {run_id: recipe.steps for run_id, recipe in recipes.items()}
        self.names = {
            r.id: (f"{r.variant} {own_text(recipes[r.id], plan.recipe)}".rstrip(), r.seed)
            for r in records
        }
        self.total, self.ended = len(plan.missing), 0
        self.compiles = plan.settings.compiled
        self.settings = plan.settings
        self.flops = {arm.variant: arm.flops_per_token for arm in plan.arms}
        self.per_step = plan.recipe.tokens_per_step
        self.stepped: dict[int, tuple[float, int]] = {}  # by worker, when it told its first step
        self.running: dict[int, Event] = {}  # by worker
        self.begun: dict[int, float] = {}  # by worker, the time when its run was
        self.started = time.monotonic()

    def take(self, event: Event | None) -> None:
        if event is None:
            return
        if event.done:
            self.ended += 1
            self.running.pop(event.worker, None)
        else:
            if event.step == 0:
                self.begun[event.worker] = time.monotonic()
                self.stepped.pop(event.worker, None)
            else:
                self.stepped.setdefault(event.worker, (time.monotonic(), event.step))
            self.running[event.worker] = event

    @property
    def share(self) -> float:
        """Of the work, the part that is done, 0 to 1."""
        under_way = sum(event.step / self.steps[event.run_id] for event in self.running.values())
        return min(1.0, (self.ended + under_way) / max(1, self.total))

    def left(self) -> str:
        """Time left: from the plan at first, from the pace once there is one."""
        passed = time.monotonic() - self.started
        if self.share > 0.05:
            return duration(passed * (1 - self.share) / self.share)
        return duration(max(0.0, (self.predicted or 0) - passed))

    def step(self, event: Event) -> str:
        """`step 120/400`; `compiling for 7 s`, which is most of what comes before a first step."""
        if event.step == 0 and self.compiles:
            return f"compiling for {duration(time.monotonic() - self.begun[event.worker])}"
        return f"step {event.step}/{self.steps[event.run_id]}"

    def speed(self, event: Event) -> str:
        """`51,200 tokens/s, MFU 41 %`, of a run since its first step, evaluations included; the
        share where the device's peak is known. Empty as long as there is none.
        """
        at, step = self.stepped.get(event.worker, (0.0, event.step))
        if event.step <= step:
            return ""
        speed = (event.step - step) * self.per_step / max(1e-9, time.monotonic() - at)
        variant, _ = self.names[event.run_id]
        on = self.settings
        share = peaks.mfu(speed, self.flops.get(variant, 0), on.device_name, on.precision)
        return f"{speed:,.0f} tokens/s" + ("" if share is None else f", MFU {share:.0%}")

    def line(self) -> str:
        """`3 of 15 runs, 22 %, about 4 min 1 s left; attnres seed 0 step 120/400 ...`."""
        now = [
            f"{variant} seed {seed} {self.step(event)}"
            + (f" loss {event.loss:.3f}" if event.loss is not None else "")
            + (f", {speed}" if (speed := self.speed(event)) else "")
            for event in self.running.values()
            for variant, seed in [self.names[event.run_id]]
        ]
        return "; ".join([self.head(), *now])

    def head(self) -> str:
        """`3 of 15 runs, 22%, about 4 min 1 s left`."""
        return f"{self.ended} of {self.total} runs, {self.share:.0%}, about {self.left()} left"


class _Lines:
    """A plain line every ten seconds, and one for each run that ends."""

    def __init__(self, tally: _Tally) -> None:
        self.tally, self.last = tally, time.monotonic()

    def __call__(self, event: Event | None) -> None:
        self.tally.take(event)
        if event is not None and event.done:
            variant, seed = self.tally.names[event.run_id]
            loss = f"val loss {event.loss:.4f}" if event.loss is not None else "failed"
            say(f"{variant} seed {seed}: {loss}")
        elif time.monotonic() - self.last > _LINE_EVERY_S:
            self.last = time.monotonic()
            say(self.tally.line())


def _table(tally: _Tally) -> Table:
    """One row per worker."""
    table = Table(title=tally.head(), title_justify="left")
    for name in ("worker", "variant", "seed", "step", "train loss", "speed"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for worker, event in sorted(tally.running.items()):
        variant, seed = tally.names[event.run_id]
        loss = f"{event.loss:.3f}" if event.loss is not None else "-"
        step = tally.step(event).removeprefix("step ")
        table.add_row(str(worker), variant, str(seed), step, loss, tally.speed(event) or "-")
    return table


@contextmanager
def progress(plan: Plan, records: list[RunRecord]) -> Iterator[Callable[[Event | None], None]]:
    """A display that fits where stderr goes, fed by calling it with every event."""
    tally, stderr = _Tally(plan, records), console(sys.stderr)
    if not stderr.is_terminal:
        yield _Lines(tally)
        return
    with Live(_table(tally), console=stderr, refresh_per_second=4, transient=True) as live:

        def show(event: Event | None) -> None:
            tally.take(event)
            live.update(_table(tally))

        yield show
