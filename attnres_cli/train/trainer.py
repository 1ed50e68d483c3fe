"""A model, its batches, its optimisers with their schedule, and one step of training them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attnres_cli.data.tokens import Tokens
from attnres_cli.nn import measure, variant
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.trunk.documents import numbered
from attnres_cli.nn.trunk.moe import balance
from attnres_cli.records.run import Probe, RunSpec, Settings
from attnres_cli.train import movement, probes
from attnres_cli.train.device import fix_numerics
from attnres_cli.train.keeper import restore, tensors_of
from attnres_cli.train.optimizers import (
    by_name,
    lr_factor,
    make_optimizers,
    order_before,
    set_rate,
    transfer_of,
)

Forward = Callable[..., Tensor]
"""Tokens and targets (B, T), and where documents are isolated their numbers (B, T), to the mean
loss in nats per token.
"""

Kept = tuple[dict[str, Any], dict[str, Tensor]]
"""State and tensors of a checkpoint."""


class Batches:
    """The batches of a run, fast where taken in order: a thread makes the next one while one is
    trained on. It ends with this object.
    """

    def __init__(
        self, spec: RunSpec, tokens: Tokens, device: torch.device, rank: int = 0, ranks: int = 1
    ) -> None:
        self._spec, self._tokens = spec, tokens
        size = spec.recipe.train.batch_size // ranks
        self._mine = slice(rank * size, (rank + 1) * size)
        self._is_pinned = device.type == "cuda"  # so that it is copied there without a wait
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: tuple[int, Future[Tensor]] | None = None

    def take(self, step: int) -> Tensor:
        """Tokens (B, T + 1) of a step, this rank's of them, on the CPU; a thread then makes the
        next step's.
        """
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead and ahead[0] == step else self._make(step)
        if step + 1 < self._spec.recipe.steps:
            self._ahead = step + 1, self._pool.submit(self._make, step + 1)
        return found

    def _make(self, step: int) -> Tensor:
        recipe = self._spec.recipe
        size, seq_len = recipe.train.batch_size, recipe.model.seq_len
        drawn = self._tokens.batch(self._spec.seed, step, size, seq_len)
        windows = torch.from_numpy(drawn[self._mine])
        return windows.pin_memory() if self._is_pinned else windows


@dataclass
class Trainer:
    """A model, its optimisers, and steps of training, none of which waits for the device.

    Of a run that several ranks share, each has one of a subclass (train/ranks.py, `trainer_of`),
    and all make the same calls. What this class has only for these does nothing on one device.
    `ranks` are those that take a part of each batch.
    """

    rank = 0
    ranks = 1

    spec: RunSpec
    tokens: Tokens
    settings: Settings
    device: torch.device
    model: Transformer = field(init=False)
    forward: Forward = field(init=False)

    def __post_init__(self) -> None:
        fix_numerics(self.device)
        recipe = self.spec.recipe
        shape = recipe.model.shape(self.tokens.vocab_size)
        design = variant.parse(self.spec.variant).build(shape.d_model, shape.n_sublayers)
        model = Transformer(shape, design)
        model.checkpoints_activations = recipe.train.checkpoint_activations
        transfer = transfer_of(recipe)
        init_weights(model, self.spec.seed, transfer)
        self._began = movement.starts(model.residual)
        self._order_before = order_before(model, recipe.optim)
        self.model = self._placed(model)
        self.optimizers = make_optimizers(self.model, recipe.optim, transfer)
        part = self.rank % self.ranks, self.ranks
        self.batches = Batches(self.spec, self.tokens, self.device, *part)
        self.rows = recipe.train.of_rank(self.ranks).rows
        self._compiled = self._by_compiler()
        self.forward = self._forward()
        self._parameters = list(self.model.parameters())

    def step(self, step: int) -> Tensor:
        """Train on the batch of this step; its loss before the update, still on the device."""
        recipe = self.spec.recipe
        set_rate(self.optimizers, recipe.optim.lr * lr_factor(recipe.optim, step, recipe.steps))
        loss = self._backward(self._on_device(self.batches.take(step)))
        self._clip(recipe.optim.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        balance(self.model, self._summed)
        return loss

    @torch.no_grad()
    def evaluate(self, between: Callable[[], None] = lambda: None) -> float:
        """Validation loss, nats per token, compiled where the settings say so. `between` is called
        before each batch.
        """
        self.model.eval()
        try:
            return self._evaluated(between)
        finally:
            self.model.train()

    @torch.no_grad()
    def judge(self, windows: Tensor) -> Tensor:
        """The mean loss of windows (B, T + 1), on the CPU, as an evaluation computes that is not
        compiled.
        """
        return self._loss(self.model, self.settings.uncompiled, self._on_device(windows))

    def _evaluated(self, between: Callable[[], None]) -> float:
        recipe = self.spec.recipe
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        batches = iter(
            self.tokens.eval_batches(recipe.train.eval_tokens, self.rows, recipe.model.seq_len)
        )
        while each := list(islice(batches, self.ranks)):  # one for each rank, in their order
            between()
            mine = torch.from_numpy(each[min(self.rank, len(each) - 1)])
            losses = self._gathered(self._evaluate(mine)[None])
            for loss, batch in zip(losses, each, strict=False):  # at the end some have none
                total += loss.double() * len(batch)
                count += len(batch)
        return total.item() / count

    def _evaluate(self, windows: Tensor) -> Tensor:
        """The mean loss of one batch. A last one that is smaller would be compiled for its size."""
        if not self.settings.compiled_as or len(windows) < self.rows:
            return self.judge(windows)
        return self._loss(self._compiled, self.settings, self._on_device(windows))

    def probe(self, step: int) -> Probe:
        """What is inside the model after that many steps; nothing of the trainer changes."""
        windows = self._on_device(
            torch.from_numpy(probes.windows_of(self.tokens, self.spec.recipe))
        )
        design = variant.parse(self.spec.variant)
        model, recipe = self.whole(), self.spec.recipe
        with engines.use(self.settings.uncompiled.engine):
            found = probes.measure(
                *(model, design, windows[:, :-1], windows[:, 1:], step, self._autocast()),
                *self._documents(windows),
            )
        moved = movement.movement(
            self._began,
            model.residual,
            self.optimizers[-1],
            recipe.optim,
            step,
            recipe.steps,
            self._joined,
        )
        return replace(found, **moved)

    def _backward(self, windows: Tensor) -> Tensor:
        """Add the gradients of the mean loss of a batch, micro-batch by micro-batch; that loss."""
        parts = windows.split(self.rows)
        losses = []
        for number, part in enumerate(parts, 1):
            with self._sends(is_last=number == len(parts)):
                loss = self._loss(self.forward, self.settings, part) / len(parts)
                loss.backward()
            losses.append(loss.detach())
            if self.settings.graphs and number == 1 < len(parts):
                self._keep_gradients()
        if self.ranks > 1:
            losses = list(self._gathered(torch.stack(losses)) / self.ranks)
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def _keep_gradients(self) -> None:
        """Let gradients have memory of their own: what a graph has made, its next replay writes."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def _loss(self, forward: Forward, settings: Settings, windows: Tensor) -> Tensor:
        """The one place where a model is run: by these settings' engine and precision."""
        if settings.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with engines.use(settings.engine), self._autocast():
            loss = forward(windows[:, :-1], windows[:, 1:], *self._documents(windows))
        return loss.clone() if settings.graphs else loss  # the next replay writes it again

    def _documents(self, windows: Tensor) -> tuple[Tensor, ...]:
        """(B, T) of windows (B, T + 1), where no token attends to another document; else none."""
        separator = self.tokens.separator
        return () if separator is None else (numbered(windows[:, :-1], separator),)

    def _on_device(self, windows: Tensor) -> Tensor:
        if self.device.type == "cuda":
            windows = windows.pin_memory()  # of a batch it is that already
        return windows.to(self.device, non_blocking=True)

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.settings.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def whole(self) -> Transformer:
        """The model with all its weights, on this device: to be looked into, and kept."""
        return self.model

    def here(self) -> Transformer:
        """The model, of its weights the part that this rank keeps."""
        return self.model

    def tensors(self) -> dict[str, Tensor]:
        """All that the run's continuation needs, whole, on the CPU."""
        return tensors_of(self.model, self.optimizers, self.device)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state saved in `tensors`."""
        restore(self._named(tensors), self.model, self.optimizers, self.device)

    def from_rank_0(self, found: Kept | None) -> Kept | None:
        """What rank 0 has found of a run that goes on."""
        return found

    def largest_over_ranks(self, wish: int) -> int:
        """The largest of what the ranks wish."""
        return wish

    def _named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of a checkpoint, by names where an older one has numbers."""
        return by_name(tensors, self._order_before)

    def _joined(self, tensor: Tensor) -> Tensor:
        """A tensor of the optimiser's, whole."""
        return tensor

    def _placed(self, model: Transformer) -> Transformer:
        """The model where it is trained, or this rank's part of it."""
        is_there = self.device.type == "cpu"  # nn.Module.to takes no tensors without numbers
        return model if is_there else model.to(self.device)

    def _clip(self, most: float) -> None:
        """Scale the gradients so that their norm is at most this."""
        torch.nn.utils.clip_grad_norm_(self._parameters, most)

    def _by_compiler(self) -> Forward:
        """The model, compiled if it is to be."""
        if not self.settings.compiled:
            return self.model
        return measure.compiled(self.model, graphs=self.settings.graphs)

    def _forward(self) -> Forward:
        """What trains."""
        return self._compiled

    def _sends(self, *, is_last: bool) -> contextlib.AbstractContextManager[object]:
        """Around a micro-batch: after the last one, all ranks have all gradients."""
        return contextlib.nullcontext()

    def _summed(self, counts: Tensor) -> Tensor:
        """What every rank has counted of its part of a batch, in one."""
        return counts

    def _gathered(self, losses: Tensor) -> Tensor:
        """(N,) of every rank in one, in their order."""
        return losses
