"""Training batches, each made by a thread while the one before it is trained on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from attnres_cli.data.tokens import Tokens
from attnres_cli.records.run import RunSpec


class Batches:
    """The batches of a run, fast where taken in order. The thread ends with this object."""

    def __init__(self, spec: RunSpec, tokens: Tokens, device: torch.device) -> None:
        self._spec, self._tokens = spec, tokens
        self._is_pinned = device.type == "cuda"  # so that it is copied there without a wait
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: tuple[int, Future[Tensor]] | None = None

    def take(self, step: int) -> Tensor:
        """Tokens (B, T + 1) of a step, on the CPU; a thread then makes the next step's."""
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead and ahead[0] == step else self._make(step)
        if step + 1 < self._spec.recipe.steps:
            self._ahead = step + 1, self._pool.submit(self._make, step + 1)
        return found

    def _make(self, step: int) -> Tensor:
        recipe = self._spec.recipe
        size, seq_len = recipe.train.batch_size, recipe.model.seq_len
        windows = torch.from_numpy(self._tokens.batch(self._spec.seed, step, size, seq_len))
        return windows.pin_memory() if self._is_pinned else windows
