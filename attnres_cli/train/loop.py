"""The only training loop."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import ProofError
from attnres_cli.nn.model import n_params, train_flops_per_token
from attnres_cli.records.run import Point, RunResult, RunSpec, Settings, Status
from attnres_cli.train import probes
from attnres_cli.train.device import peak_bytes, reset_peak
from attnres_cli.train.keeper import Keeper, Progress, Stopped
from attnres_cli.train.optimizers import steady_steps
from attnres_cli.train.proving import prove, prove_start
from attnres_cli.train.trainer import Trainer

OnStep = Callable[[int, float | None], None]
"""Called with (steps done, training loss in nats per token) some hundred times in a run; the loss
is None where a run that goes on has not come to its first one.
"""

MARGIN = 1.0
"""Nats per token above ln(vocab), the guess that knows nothing: a model there is sure of what is
false, and spikes that training recovers from seldom come so high.
"""

LONG = 0.25  # share of the run's steps; a warm-up, or a spike and its recovery, takes less
SHORTEST = 20  # steps that are long in any run: a quarter of a very short one is a few noisy losses
_POINTS = 100  # of the training curve; each costs one wait for the device
_DUE, _STOP = 1, 2  # what one may want between steps: a checkpoint; that, and the end
ONE = "one device"


def train(
    spec: RunSpec,
    tokens: Tokens,
    settings: Settings,
    device: str,
    on_step: OnStep,
    keeper: Keeper | None = None,
) -> RunResult:
    """Train one run to its end, from where its keeper has it, or from the start.

    A loss that is not finite, or far too high for long (`has_diverged`), ends the run as diverged:
    that is a result. Raises Stopped where the keeper's `stop` was wanted; any other exception is a
    failed run, for the caller to record.
    """
    started = time.perf_counter()
    reset_peak(device)
    torch.manual_seed(spec.seed)  # for a design that draws on its own, whatever ran here before
    trainer = trainer_of(spec, tokens, settings, torch.device(device))
    session = _Session(trainer, on_step, keeper, started)
    session.begin()
    session.run()
    result = _result(session, settings)
    whole = trainer.whole()
    if keeper is None or trainer.rank:
        return result
    return replace(result, weights_sha256=keeper.keep_weights(whole))


def trainer_of(spec: RunSpec, tokens: Tokens, settings: Settings, device: torch.device) -> Trainer:
    """What trains a run by these settings: alone, or as one rank of several."""
    if not settings.shared:
        return Trainer(spec, tokens, settings, device)
    from attnres_cli.train.ranks import WAYS  # takes a second to import

    return WAYS[settings.parallel[0]](spec, tokens, settings, device)


def _result(session: _Session, settings: Settings) -> RunResult:
    progress, trainer = session.progress, session.trainer
    initial, last = progress.curve[0].val_loss, progress.curve[-1].val_loss
    val_loss = math.nan if last is None else last
    steps, per_step = progress.step, trainer.spec.recipe.tokens_per_step
    step_s = statistics.median(progress.times or progress.first_times)
    return RunResult(
        status=Status.COMPLETE if math.isfinite(val_loss) else Status.DIVERGED,
        val_loss=val_loss if math.isfinite(val_loss) else math.nan,
        initial_loss=math.nan if initial is None else initial,
        steps=steps,
        tokens=steps * per_step,
        step_s=step_s,
        tokens_per_second=per_step / step_s,
        train_s=session.train_s,
        peak_bytes=session.peak_bytes,
        n_params=n_params(trainer.model.shape, trainer.model.residual),
        flops_per_token=train_flops_per_token(trainer.model.shape, trainer.model.residual),
        settings=replace(settings, way=session.way),
        curve=tuple(progress.curve),
        probes=tuple(progress.probes),
        proofs=tuple(prove(trainer).items()) if math.isfinite(val_loss) else (),
    )


class _Session:
    """What one process does of a run: all of it, or the part from a checkpoint to the next stop."""

    def __init__(
        self, trainer: Trainer, on_step: OnStep, keeper: Keeper | None, started: float
    ) -> None:
        self.trainer, self.on_step, self.keeper = trainer, on_step, keeper
        self.progress = Progress(torch.zeros((), device=trainer.device))
        self.started = self.clock = started
        self.is_warm = False

    @property
    def train_s(self) -> float:
        """Wall seconds of the run so far, those of earlier processes included."""
        return self.progress.train_s + time.perf_counter() - self.started

    @property
    def peak_bytes(self) -> int:
        """Of all processes that have worked on the run."""
        return max(self.progress.peak_bytes, peak_bytes(str(self.trainer.device)))

    def begin(self) -> None:
        """Take the run up where its keeper has it, or evaluate it before its first step."""
        found = self.trainer.from_rank_0(self.keeper.load() if self.keeper else None)
        if found is None:
            if wrong := next(filter(None, prove_start(self.trainer).values()), None):
                spec = self.trainer.spec.variant
                raise ProofError(f"{wrong}: attnres check '{spec}' shows more")
            self.progress.ways = [self.trainer.settings.way]
            self.progress.curve.append(Point(0, None, self.trainer.evaluate(self.check)))
            self._probe(0)
            return
        state, tensors = found
        self.trainer.restore(tensors)
        self.progress = Progress.from_state(state, tensors["total"].to(self.trainer.device))
        self._go_on_by(self.trainer.settings.way)
        self.on_step(self.progress.step, self.progress.curve[-1].train_loss)

    def _go_on_by(self, way: str) -> None:
        """Keep by which ways the run is computed, and tell where it is by another one now."""
        before = self.progress.ways
        if before[-1] == way:
            return
        if self.keeper is not None:
            self.keeper.on_trouble(
                f"begun with {before[-1] or ONE}, goes on from step {self.progress.step} with "
                f"{way or ONE}: a run of its own rounding, which is paired with none of another"
            )
        before.append(way)

    @property
    def way(self) -> str:
        """By what the run was computed, see Settings; all of it, where that has changed."""
        ways = self.progress.ways
        return ", then ".join(way or ONE for way in ways) if len(ways) > 1 else ways[0]

    def run(self) -> None:
        """Train; add a point to the curve at every pause."""
        progress, last = self.progress, joint(self.trainer.spec.recipe)
        for pause, evaluates in pauses(self.trainer.spec.recipe):
            if pause <= progress.curve[-1].step:
                continue
            self._steps_to(pause)
            if not self._add_point(pause, evaluates):
                return
            if pause == last and self.keeper is not None:
                self.keeper.keep_for_longer(self._state(), self._tensors)

    def _steps_to(self, pause: int) -> None:
        progress, keeper = self.progress, self.keeper
        self.clock = time.perf_counter()
        for step in range(progress.step, pause):
            loss = self.trainer.step(step)
            progress.total += loss
            progress.step = step + 1
            if step == 0 and pause > 1:
                self.on_step(1, loss.item())  # it has been compiled: who waited for that is told
            if keeper is not None:
                keeper.step = progress.step
                if asked := self._most(_DUE if keeper.is_due() else 0):
                    self._save(keeper, asked)

    def _add_point(self, pause: int, evaluates: bool) -> bool:
        """Close the interval that ends here; whether the run goes on."""
        progress = self.progress
        n_steps = pause - progress.curve[-1].step
        train_loss = progress.total.item() / n_steps
        progress.seconds += time.perf_counter() - self.clock
        self.clock = time.perf_counter()
        self.on_step(pause, train_loss)
        steps, vocab_size = self.trainer.spec.recipe.steps, self.trainer.tokens.vocab_size
        goes_on = not has_diverged(progress.curve, pause, train_loss, steps, vocab_size)
        val_loss = self.trainer.evaluate(self.check) if goes_on and evaluates else None
        times = progress.times if self.is_warm else progress.first_times
        times.append(progress.seconds / n_steps)
        self.is_warm = True
        if goes_on:
            self._probe(pause)
        progress.curve.append(Point(pause, train_loss, val_loss))
        progress.seconds = 0.0
        progress.total.zero_()
        return goes_on

    def _probe(self, step: int) -> None:
        """Look into the model, at a few steps; never within what is timed."""
        if step in probes.steps_of(self.trainer.spec.recipe):
            self.progress.probes.append(self.trainer.probe(step))

    def check(self) -> None:
        """Between batches of an evaluation: stop if that is wanted."""
        keeper = self.keeper
        if keeper is not None and (asked := self._most(0)):
            self.clock = time.perf_counter()
            self._save(keeper, asked)

    def _most(self, wish: int) -> int:
        """What some rank wants, nothing, _DUE or _STOP: all ranks then do it."""
        assert self.keeper is not None
        stop = self.keeper.stop
        found = self.trainer.largest_over_ranks(_STOP if stop.wanted else wish)
        stop.wanted |= found == _STOP  # a signal to one rank meanwhile counts the next time
        return found

    def _save(self, keeper: Keeper, asked: int) -> None:
        """Write the run down, outside of its step time. Raises Stopped where all ranks have agreed
        on that: one that ended by a signal of its own would leave the others waiting.
        """
        progress = self.progress
        progress.total.item()  # waits for the device: what it still computes is step time
        progress.seconds += time.perf_counter() - self.clock
        keeper.save(self._state(), self._tensors)
        if asked == _STOP:
            raise Stopped
        self.clock = time.perf_counter()

    def _state(self) -> dict[str, Any]:
        return self.progress.state() | {"train_s": self.train_s, "peak_bytes": self.peak_bytes}

    def _tensors(self) -> dict[str, Tensor]:
        return self.trainer.tensors() | {"total": self.progress.total.cpu()}


def joint(recipe: Recipe) -> int:
    """The last point of a run's curve up to which longer runs are the same; 0 where none is."""
    steady = steady_steps(recipe.optim, recipe.steps)
    return max((step for step, _ in pauses(recipe) if step <= steady), default=0)


def pauses(recipe: Recipe) -> list[tuple[int, bool]]:
    """The steps after which the loss is read, and whether the model is evaluated there."""
    steps = recipe.steps
    reads = {round(steps * i / _POINTS) for i in range(1, _POINTS + 1)}
    n_evals = min(recipe.train.n_evals, steps)
    evals = {round(steps * i / n_evals) for i in range(1, n_evals + 1)}
    return [(step, step in evals) for step in sorted((reads | evals) - {0})]


def has_diverged(
    curve: Sequence[Point], step: int, train_loss: float, steps: int, vocab_size: int
) -> bool:
    """Whether a run of `steps` steps, now at `step`, counts as diverged: its loss is not finite, or
    all training losses of LONG were MARGIN nats above both ln(vocab) and the run's start (a design
    that begins far above ln(vocab) may come down). Only the curve counts, so that a continued run
    ends as one that was not stopped.
    """
    if not math.isfinite(train_loss):
        return True
    start = curve[0].val_loss
    known = start if start is not None and math.isfinite(start) else 0.0
    limit = max(math.log(vocab_size), known) + MARGIN
    if train_loss <= limit:
        return False
    below = [p.step for p in curve if p.train_loss is None or p.train_loss <= limit]
    return step - max(below, default=0) >= max(LONG * steps, SHORTEST)
