"""What a run holds in memory, before it is run: one training step of the model itself, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from attnres_cli.data.tokens import Tokens
from attnres_cli.nn.memory import counting
from attnres_cli.records.plan import Memory
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.train.trainer import Trainer

_MOST_LAYERS = 48
"""Of models that are counted as they are, in some seconds. The sites of a history grow with the
square of the depth: 64 layers of `attnres` took 20 s.
"""

_PARTS = (12, 24, 36)
"""Layers of models that tell what a deeper one holds: multiples of most blocks."""


def of_step(spec: RunSpec, tokens: Tokens, settings: Settings) -> Memory | None:
    """What a training step of a run holds, not compiled: within 1 % of what PyTorch allocates on a
    CPU, whatever the design, optimiser, precision, micro-batches and checkpointing. A compiled step
    holds the same or less. Of more than 48 layers it is extrapolated from 12, 24 and 36 by a
    parabola, which is what weights, activations and a history's scores grow by. None where the
    design cannot be run without numbers.
    """
    n_layers = spec.recipe.model.n_layers
    try:
        if n_layers <= _MOST_LAYERS:
            return _counted(spec, tokens, settings)
        found = [_counted(_at_depth(spec, n), tokens, settings) for n in _PARTS]
    except Exception:  # a design may raise anything; the worker that runs it writes it down
        return None
    columns = zip(*(vars(each).values() for each in found), strict=True)
    return Memory(*(round(_parabola(column, n_layers)) for column in columns))


def _counted(spec: RunSpec, tokens: Tokens, settings: Settings) -> Memory:
    train = spec.recipe.train.of_rank(settings.ranks)
    part = train.model_copy(update={"batch_size": train.rows, "micro_batch_size": None})
    spec = replace(spec, recipe=spec.recipe.model_copy(update={"train": part}))
    with counting() as held:
        trainer = Trainer(spec, tokens, settings.uncompiled, torch.device("cpu"))
        weights = held.now
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        gradients = held.now - weights
        for optimizer in trainer.optimizers:  # makes its state
            optimizer.step()
            if train.rows == train.batch_size:  # else gradients of earlier micro-batches are there
                optimizer.zero_grad()
        optimiser = held.now - weights - (gradients if train.rows < train.batch_size else 0)
        held.restart()
        trainer.step(0)
        return Memory(weights, optimiser, held.peak, held.made, held.n_operations)


def _at_depth(spec: RunSpec, n_layers: int) -> RunSpec:
    recipe = spec.recipe
    model = recipe.model.model_copy(update={"n_layers": n_layers})
    return replace(spec, recipe=recipe.model_copy(update={"model": model}))


def _parabola(values: Sequence[float], n_layers: int) -> float:
    """At a depth, that of three values at _PARTS (Lagrange's form)."""
    total = 0.0
    for a, value in zip(_PARTS, values, strict=True):
        b, c = (n for n in _PARTS if n != a)
        total += value * (n_layers - b) * (n_layers - c) / ((a - b) * (a - c))
    return total
