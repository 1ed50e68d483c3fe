"""Tokens: one training and one validation stream, and how windows are cut from them.

Which window comes when depends on (seed, step) alone: all arms of a seed see the same batches in
the same order, and a run can be continued at any step. Evaluation windows depend on no seed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnres_cli.errors import DataError
from attnres_cli.run import DataFacts

Stream = NDArray[np.uint8]
Windows = NDArray[np.int64]  # (B, T + 1)


@dataclass(frozen=True)
class Document:
    """A file's name within its source, and its bytes."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Tokens:
    """Two streams of byte tokens that share no file, or no range of the one file there is.

    Attributes:
        source: what the recipe calls it.
        fingerprint: 16 hex digits of SHA-256 over both streams; equal data, equal digits.

    """

    source: str
    train: Stream
    val: Stream
    fingerprint: str
    vocab_size: int = 256

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """(B, T + 1) training tokens of one step: random windows, drawn from (seed, step)."""
        draw = np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))
        starts = draw.integers(0, len(self.train) - seq_len, size=batch_size)
        return _windows(self.train, starts, seq_len)

    def eval_batches(self, n_tokens: int, batch_size: int, seq_len: int) -> Iterable[Windows]:
        """Validation windows of n_tokens in all, evenly spread, without overlap."""
        count = n_tokens // seq_len
        starts = np.linspace(0, len(self.val) - seq_len - 1, count).astype(np.int64)
        for first in range(0, count, batch_size):
            yield _windows(self.val, starts[first : first + batch_size], seq_len)

    def check(self, seq_len: int, eval_tokens: int) -> None:
        """Raise DataError where the streams are too short for a recipe."""
        if len(self.train) <= seq_len:
            raise DataError(
                f"training data hold {len(self.train)} tokens, a sequence takes "
                f"{seq_len + 1} (seq_len + 1): more data, or --set model.seq_len="
                f"{max(2, len(self.train) // 2)}"
            )
        if len(self.val) <= eval_tokens:
            raise DataError(
                f"validation data hold {len(self.val)} tokens, train.eval_tokens asks for "
                f"{eval_tokens} and one more: more data, a larger --set data.val_fraction=, or "
                f"--set train.eval_tokens={seq_len} or more"
            )

    @cached_property
    def facts(self) -> DataFacts:
        """What the study keeps of these tokens, with the entropies of the validation stream."""
        unigram, bigram = entropies(self.val)
        return DataFacts(
            fingerprint=self.fingerprint,
            source=self.source,
            n_bytes=len(self.train) + len(self.val),
            vocab_size=self.vocab_size,
            train_tokens=len(self.train),
            val_tokens=len(self.val),
            unigram_entropy=unigram,
            bigram_entropy=bigram,
        )


def split(source: str, documents: list[Document], val_fraction: float) -> Tokens:
    """Tokens from documents: whole files go to validation, in the order of their names' hashes,
    until they hold val_fraction of the bytes. Files that would make up more than a tenth of the
    validation stream stay in training, so that none dominates it; where the others do not hold
    enough, the smallest files go first; where one file holds nearly all, its end does.
    """
    ordered = sorted(documents, key=lambda document: document.name)
    wanted = val_fraction * sum(len(document.content) for document in ordered)
    chosen = _validation_names(ordered, wanted)
    val = b"".join(d.content for d in ordered if d.name in chosen)
    train = b"".join(d.content for d in ordered if d.name not in chosen)
    if len(val) < wanted / 2:  # one file, or one that holds nearly all
        largest = max(ordered, key=lambda document: len(document.content))
        cut = max(0, len(largest.content) - round(wanted))
        train = b"".join(d.content for d in ordered if d is not largest) + largest.content[:cut]
        val = largest.content[cut:]
    digest = hashlib.sha256(len(train).to_bytes(8, "big") + train + val).hexdigest()
    streams = [np.frombuffer(part, dtype=np.uint8) for part in (train, val)]
    return Tokens(source, streams[0], streams[1], fingerprint=digest[:16])


def entropies(stream: Stream) -> tuple[float, float]:
    """Unigram and bigram entropy of a stream, in nats per token.

    They are the losses of the best fixed distribution and of the best table of next token given
    this one, found in hindsight on the very stream: no such table does better on it.
    """
    pairs = stream[:-1].astype(np.int64) * 256 + stream[1:]
    joint = np.bincount(pairs, minlength=256 * 256).reshape(256, 256)
    if joint.sum() == 0:
        return 0.0, 0.0
    unigram = _entropy(joint.sum(axis=0))
    return unigram, _entropy(joint.ravel()) - _entropy(joint.sum(axis=1))


def _entropy(counts: NDArray[np.int64]) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def _windows(stream: Stream, starts: NDArray[np.int64], seq_len: int) -> Windows:
    return stream[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)


def _name_hash(document: Document) -> bytes:
    return hashlib.sha256(os.fsencode(document.name)).digest()


def _validation_names(ordered: list[Document], wanted: float) -> set[str]:
    chosen: set[str] = set()
    held = 0
    small = [d for d in ordered if len(d.content) <= wanted / 10]
    by_hash = sorted(small, key=_name_hash)
    if sum(len(d.content) for d in small) < wanted:
        by_hash = sorted(ordered, key=lambda d: (len(d.content), _name_hash(d)))
    for document in by_hash:
        if held >= wanted or len(chosen) == len(ordered) - 1:  # one file stays for training
            break
        chosen.add(document.name)
        held += len(document.content)
    return chosen
