"""What a run holds in memory, before it is run: one training step of the model itself, counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from attnres_cli.data.tokens import Tokens
from attnres_cli.nn.memory import Held, counting
from attnres_cli.records.plan import Memory
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.train.trainer import Batches, Trainer

_MOST_LAYERS = 48
"""Of models that are counted as they are, in some seconds. The sites of a history grow with the
square of the depth: 64 layers of `attnres` took 20 s.
"""

_PARTS = (12, 24, 36)
"""Layers of models that tell what a deeper one holds: multiples of most blocks."""

_LONGEST = 128
"""Tokens of a sequence that is counted: of a longer one no kind of attention holds more per token,
but a mask of documents does, with which sequences are counted whole.
KDA makes operations for every 16 tokens of a sequence, in every layer.
"""

_ROWS = (503, 509, 521, 523, 541)
"""Sequences that tell what more of them hold. Prime, so that a tensor of so many numbers is known
from all that does not grow with them. The loss makes operations for every 128 tokens.
"""

_WORKSPACES = 2 * 2**25
"""Bytes that cuBLAS takes once on a GPU of Hopper or later, for the thread of the forward pass and
that of the backward pass (torch's ATen/cuda/CublasHandlePool.cpp). Older GPUs take a quarter.
"""

_IN_A_MOMENT = 2e10
"""FLOPs of a step that a core makes faster than Python follows it without numbers, which takes
some 0.7 ms per operation: 0.3 s in place of 2 s for `attnres` of quick, on an AMD EPYC.
"""


def of_step(spec: RunSpec, tokens: Tokens, settings: Settings) -> Memory | None:
    """What a training step of a run holds, not compiled: within 1 % of what PyTorch allocates on a
    CPU, whatever the design, optimiser, precision, micro-batches and checkpointing. A compiled step
    holds the same or less, replayed by graphs too; only while it compiles a small model it may hold
    50 MB more, with which the compiler times choices (docs/results/2026-11-28-counted.md).

    The work does not grow with the tokens: long sequences are cut, and 503 tell what more of them
    hold; operations are those of what was counted. Of more than 48 layers it is extrapolated from
    12, 24 and 36 by a parabola, which is what weights, activations and a history's scores grow by.
    None where the design cannot be run without numbers.
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
    train, seq_len = spec.recipe.train.of_rank(settings.ranks), spec.recipe.model.seq_len
    n_parts = math.ceil(seq_len / _LONGEST) if tokens.separator is None else 1
    rows, length = n_parts * train.rows, math.ceil(seq_len / n_parts)
    with _counting(spec, tokens, settings, rows * length) as held:
        trainer = Trainer(spec, tokens, settings.uncompiled, torch.device("cpu"))
        weights, parameters = held.now, list(trainer.model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        gradients = held.now - weights
        for optimizer in trainer.optimizers:  # makes its state
            optimizer.step()
            if train.rows == train.batch_size:  # else gradients of earlier micro-batches are there
                optimizer.zero_grad()
        optimiser = held.now - weights - (gradients if train.rows < train.batch_size else 0)
        few = next(n for n in _ROWS if all(x.numel() % n for x in parameters))
        held.restart((few, max(few, rows)))
        trainer.rows = min(few, rows)
        trainer.batches = _Blank(trainer.rows, length)
        trainer.step(0)
        beside = _WORKSPACES if settings.device == "cuda" else 0
        done = held.made, held.n_operations, held.n_fused
        return Memory(weights, optimiser, held.peak + beside, *done)


@contextmanager
def _counting(spec: RunSpec, tokens: Tokens, settings: Settings, n_tokens: int) -> Iterator[Held]:
    """Follow a step of so many tokens: one that a CPU makes in a moment is made."""
    shape = spec.recipe.model.shape(tokens.vocab_size)
    is_short = 3.0 * shape.flops_per_token() * n_tokens <= _IN_A_MOMENT
    is_here = settings.device == "cpu" and settings.engine != "triton"  # its interpreter is slow
    if is_short and is_here:
        with torch.random.fork_rng(devices=[]), Held() as held:
            yield held
    else:
        with counting() as held:
            yield held


class _Blank(Batches):
    """Windows without numbers, for which no data are read."""

    def __init__(self, rows: int, length: int) -> None:
        self._size = rows, length + 1

    def take(self, step: int) -> Tensor:
        return torch.zeros(self._size, dtype=torch.long)


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
