"""The only training loop."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnres_cli import depthmix, variant
from attnres_cli.data import Tokens
from attnres_cli.model import (
    Transformer,
    init_weights,
    next_token_loss,
    train_flops_per_token,
)
from attnres_cli.recipe import Recipe
from attnres_cli.run import Point, RunResult, RunSpec, Settings, Status
from attnres_cli.train.memory import peak_bytes, reset_peak
from attnres_cli.train.optim import lr_factor, make_optimizer

OnStep = Callable[[int, float], None]
"""Called with (steps done, training loss in nats per token) some hundred times in a run."""

_MOST_ARMS = 1024
"""Arms that one process may compile. They share the code of one `forward`, and of the ninth form of
it on torch would compile none, by default: those arms would be computed unlike the others.
"""

_POINTS = 100  # of the training curve; each costs one wait for the device


@dataclass
class Trainer:
    """A model, its optimiser, and one step of training them on a recipe's batches."""

    spec: RunSpec
    tokens: Tokens
    settings: Settings
    device: torch.device
    model: Transformer = field(init=False)

    def __post_init__(self) -> None:
        recipe = self.spec.recipe
        shape = recipe.model.shape(self.tokens.vocab_size)
        design = variant.parse(self.spec.variant).build(shape.d_model, shape.n_sublayers)
        model = Transformer(shape, design)
        init_weights(model, self.spec.seed)
        self.model = model.to(self.device)
        self.optimizer = make_optimizer(self.model, recipe.optim)
        self.forward = self._compiled() if self.settings.compiled else self.model

    def step(self, step: int) -> Tensor:
        """Train on the batch of this step; its loss before the update, still on the device."""
        recipe = self.spec.recipe
        factor = lr_factor(recipe.optim, step, recipe.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.optim.lr * factor
        batch = self.tokens.batch(
            self.spec.seed, step, recipe.train.batch_size, recipe.model.seq_len
        )
        inputs, targets = self._on_device(torch.from_numpy(batch))
        loss = self._loss(self.forward, self.settings, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Validation loss in nats per token over the recipe's evaluation tokens.

        Never compiled: without gradients the model would be compiled once more, for little. The
        engine is then one that is fast without a compiler.
        """
        recipe, settings = self.spec.recipe, self.settings.uncompiled
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for batch in self.tokens.eval_batches(
            recipe.train.eval_tokens, recipe.train.batch_size, recipe.model.seq_len
        ):
            inputs, targets = self._on_device(torch.from_numpy(batch))
            loss = self._loss(self.model, settings, inputs, targets)
            total += loss.double() * len(batch)
            count += len(batch)
        return total.item() / count

    def _loss(
        self,
        forward: Callable[[Tensor], Tensor],
        settings: Settings,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """The one place where a model is run: by these settings' engine and precision."""
        with depthmix.use(settings.engine), self._autocast():
            return next_token_loss(forward(inputs), targets)

    def _on_device(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        windows = windows.to(self.device, non_blocking=True)
        return windows[:, :-1], windows[:, 1:]

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.settings.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _compiled(self) -> Callable[[Tensor], Tensor]:
        from torch._dynamo import config  # takes a second to import

        config.recompile_limit = _MOST_ARMS
        return torch.compile(self.model, dynamic=False)


def train(
    spec: RunSpec, tokens: Tokens, settings: Settings, device: str, on_step: OnStep
) -> RunResult:
    """Train one run from start to end.

    A loss that is not finite ends the run as diverged: that is a result. What raises here is a
    failed run, for the caller to record.
    """
    started = time.perf_counter()
    reset_peak(device)
    trainer = Trainer(spec, tokens, settings, torch.device(device))
    initial = trainer.evaluate()
    curve = [Point(0, None, initial)]
    intervals: list[float] = []
    for point, seconds_per_step in _curve(trainer, on_step):
        curve.append(point)
        intervals.append(seconds_per_step)
    last = curve[-1].val_loss
    val_loss = math.nan if last is None else last
    steps, per_step = curve[-1].step, spec.recipe.tokens_per_step
    step_s = statistics.median(intervals[1:] or intervals)  # the first one warms up
    return RunResult(
        status=Status.COMPLETE if math.isfinite(val_loss) else Status.DIVERGED,
        val_loss=val_loss if math.isfinite(val_loss) else math.nan,
        initial_loss=initial,
        steps=steps,
        tokens=steps * per_step,
        step_s=step_s,
        tokens_per_second=per_step / step_s,
        train_s=time.perf_counter() - started,
        peak_bytes=peak_bytes(device),
        n_params=sum(parameter.numel() for parameter in trainer.model.parameters()),
        flops_per_token=train_flops_per_token(trainer.model.shape, trainer.model.residual),
        settings=settings,
        curve=tuple(curve),
    )


def _curve(trainer: Trainer, on_step: OnStep) -> Iterator[tuple[Point, float]]:
    """Train; yield a point at every pause, with the seconds per step since the last one."""
    recipe, done = trainer.spec.recipe, 0
    for pause, evaluates in _pauses(recipe):
        started, total = time.perf_counter(), torch.zeros((), device=trainer.device)
        for step in range(done, pause):
            loss = trainer.step(step)
            total += loss
            if step == 0 and pause > 1:
                on_step(1, loss.item())  # it has been compiled: whoever waited for that is told
        train_loss = total.item() / (pause - done)
        seconds = (time.perf_counter() - started) / (pause - done)
        done = pause
        on_step(done, train_loss)
        finite = math.isfinite(train_loss)
        yield Point(done, train_loss, trainer.evaluate() if finite and evaluates else None), seconds
        if not finite:
            return


def _pauses(recipe: Recipe) -> list[tuple[int, bool]]:
    """The steps after which the loss is read, and whether the model is evaluated there."""
    steps = recipe.steps
    reads = {round(steps * i / _POINTS) for i in range(1, _POINTS + 1)}
    n_evals = min(recipe.train.n_evals, steps)
    evals = {round(steps * i / n_evals) for i in range(1, n_evals + 1)}
    return [(step, step in evals) for step in sorted((reads | evals) - {0})]


def seconds_per_step(
    spec: RunSpec, tokens: Tokens, settings: Settings, device: str, n_steps: int
) -> float:
    """Median seconds of n_steps training steps, after one to warm up; what a plan is made with."""
    trainer, times = Trainer(spec, tokens, settings, torch.device(device)), []
    for step in range(n_steps + 1):
        started = time.perf_counter()
        trainer.step(min(step, spec.recipe.steps - 1)).item()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
