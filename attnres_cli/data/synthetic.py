"""Sequences of a generated task: fixed ones to evaluate on, others without end to train on.

Training sequences are drawn anew at every step, and again where their instance (the table, the
permutations, the pairs) is one of the evaluation sequences'.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnres_cli.config.recipe import Data
from attnres_cli.data.reference import table_losses
from attnres_cli.data.tasks import Permutations, Pointers, Recall, Task
from attnres_cli.data.tokens import Tokens, Windows, generator
from attnres_cli.errors import DataError
from attnres_cli.records.run import DataDescription

_VALIDATION = (2**64 - 1,) * 2  # no seed and step are both so large
_ROOM = 1000  # instances there are for every one that is evaluated on, at least
_COUNTED = 2**18  # training tokens that tables are fitted to
_VERSION = 1  # of the sequences; another one has another fingerprint

TASKS: dict[str, type[Task]] = {
    "pointers": Pointers,
    "permutations": Permutations,
    "recall": Recall,
}


@dataclass(frozen=True)
class Episodes(Tokens):
    """Sequences of one task, all of one length; those in `val` are evaluated. `floor` is the loss
    on each of them, in nats per token, of a model that knows the task.
    """

    source: str
    task: Task
    seq_len: int
    val: Windows
    fingerprint: str
    vocab_size: int
    floor: float

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """New sequences, none of them of an evaluation instance."""
        assert seq_len == self.seq_len
        draw = generator(seed, step)
        found = self.task.draw(draw, batch_size, seq_len)
        while (held := np.isin(self._hashes(found), self._held)).any():
            found[held] = self.task.draw(draw, int(held.sum()), seq_len)
        return found

    def eval_batches(self, n_tokens: int, batch_size: int, seq_len: int) -> Iterable[Windows]:
        """The first of the evaluation sequences."""
        assert seq_len == self.seq_len
        count = n_tokens // seq_len
        assert count <= len(self.val)
        for first in range(0, count, batch_size):
            yield self.val[first : min(first + batch_size, count)]

    @cached_property
    def description(self) -> DataDescription:
        """Without bytes, or a number of training tokens."""
        train = self.batch(0, 0, max(1, _COUNTED // self.seq_len), self.seq_len)
        unigram, bigram = table_losses(train, self.val, self.vocab_size)
        return DataDescription(
            fingerprint=self.fingerprint,
            source=self.source,
            n_bytes=0,
            vocab_size=self.vocab_size,
            train_tokens=0,
            val_tokens=self.val[:, 1:].size,
            unigram_loss=unigram,
            bigram_loss=bigram,
            floor=self.floor,
        )

    @cached_property
    def _held(self) -> NDArray[np.uint64]:
        return self._hashes(self.val)

    def _hashes(self, sequences: Windows) -> NDArray[np.uint64]:
        """A number for every instance: equal ones have one, others in 2^50 cases or so."""
        instances = self.task.instance(sequences).astype(np.uint64)
        hashes: NDArray[np.uint64] = instances @ self._factors[: instances.shape[1]]
        return hashes

    @cached_property
    def _factors(self) -> NDArray[np.uint64]:
        draw = np.random.Generator(np.random.Philox(key=_VERSION))
        factors: NDArray[np.uint64] = draw.integers(0, 2**64, self.seq_len + 1, dtype=np.uint64)
        return factors | np.uint64(1)


def episodes(config: Data, seq_len: int, eval_tokens: int) -> Episodes:
    """The task of a recipe; DataError where sequences are too short, or instances too few."""
    kind = TASKS[config.source]
    keys = [field.name for field in fields(kind)]
    task = kind(**{key: getattr(config, key) for key in keys})
    sizes = ", ".join(f"{key} {getattr(config, key)}" for key in keys)
    if seq_len < task.shortest:
        raise DataError(
            f"data.source {config.source} with {sizes} takes sequences of {task.shortest} tokens "
            f"or more, got {seq_len}: --set model.seq_len={task.shortest}, or an easier task"
        )
    count = eval_tokens // seq_len
    if task.instances(seq_len) < math.log(_ROOM * count):
        raise DataError(
            f"data.source {config.source} with {sizes} has only "
            f"{round(math.exp(task.instances(seq_len)))} different instances, evaluation takes "
            f"{count}, and there must be {_ROOM} times as many: a harder task, or a lower "
            "train.eval_tokens"
        )
    val = task.draw(generator(*_VALIDATION), count, seq_len)
    fixed = json.dumps([_VERSION, config.source, sizes, seq_len]).encode()
    digest = hashlib.sha256(fixed + val.astype("<i8").tobytes()).hexdigest()
    return Episodes(
        config.source,
        task,
        seq_len,
        val,
        fingerprint=digest[:16],
        vocab_size=task.vocab_size,
        floor=task.entropy(seq_len) / seq_len,
    )
