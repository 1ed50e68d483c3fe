"""Tokens: one training and one validation stream, and how windows are cut from them.

Training windows depend on (seed, step) alone: all arms of a seed see the same batches in the same
order, and a run can be continued at any step. Evaluation windows depend on no seed.
"""

from __future__ import annotations

import bisect
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnres_cli.data import reference
from attnres_cli.data.documents import Document
from attnres_cli.errors import DataError
from attnres_cli.records.run import DataDescription

Array = NDArray[np.integer[Any]]
Windows = NDArray[np.int64]  # (B, T + 1)
_BLOCK = 2**12  # tokens in a row, where a stream is too long to be counted whole


class Stream(Protocol):
    """Tokens in a row: an array, or several of them that need not be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Array: ...


class Chain:
    """Arrays read as one stream: shards on a disk, say. A slice copies what it spans, no more."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(part) for part in parts]).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, wanted: slice) -> Array:
        start, stop, step = wanted.indices(len(self))
        assert step == 1
        found = []
        while start < stop:
            shard = bisect.bisect_right(self.ends, start)
            first = self.ends[shard] - len(self.parts[shard])
            end = min(stop, self.ends[shard])
            found.append(self.parts[shard][start - first : end - first])
            start = end
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def cut(self, at: int) -> tuple[Chain, Chain]:
        """The first `at` tokens, and the others; nothing is copied."""
        parts = list(zip(self.parts, self.ends, strict=True))
        before = [part[: at - end + len(part)] for part, end in parts if end - len(part) < at]
        after = [part[max(0, at - end + len(part)) :] for part, end in parts if end > at]
        return Chain(before), Chain(after)


class Tokens(ABC):
    """What a model is trained and evaluated on."""

    source: str  # what the recipe calls it
    fingerprint: str  # 16 hex digits; equal data, equal digits
    vocab_size: int
    floor: float | None = None  # least mean loss on evaluation windows, nats per token, if known
    separator: int | None = None  # ends a document, beyond which no token attends; None: all do

    @abstractmethod
    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """(B, T + 1) training tokens of one step, drawn from (seed, step) alone."""

    @abstractmethod
    def eval_batches(self, n_tokens: int, batch_size: int, seq_len: int) -> Iterable[Windows]:
        """Validation windows that predict n_tokens in all, the same for every seed."""

    @property
    @abstractmethod
    def description(self) -> DataDescription:
        """What the study keeps of these tokens, with their reference lines."""


@dataclass(frozen=True)
class Streams(Tokens):
    """Two streams of tokens that share no file, or no range of the one file there is."""

    source: str
    train: Stream
    val: Stream
    fingerprint: str
    vocab_size: int = 256
    n_bytes: int | None = None  # of the text, or of the files; None: one per token
    val_text: bytes | None = None  # as much as compressors are shown; None: unknown
    split: str | None = None  # in words, what trains and what validates
    separator: int | None = None

    def isolated(self, separator: int) -> Streams:
        """The same, in documents that end with this token. Raises DataError where training tokens
        have none, as far as they are looked at for reference lines.
        """
        if not (_spread(self.train, reference.TRAIN_TOKENS) == separator).any():
            raise DataError(
                f"data.documents isolated: no token {separator} ends a document of the training "
                "data; --set data.documents=joined"
            )
        return replace(self, separator=separator)

    def batch(self, seed: int, step: int, batch_size: int, seq_len: int) -> Windows:
        """Random windows. Raises DataError where a token is beyond the vocabulary."""
        starts = generator(seed, step).integers(0, len(self.train) - seq_len, size=batch_size)
        return self._windows(self.train, starts, seq_len)

    def eval_batches(self, n_tokens: int, batch_size: int, seq_len: int) -> Iterable[Windows]:
        """Evenly spread windows, without overlap."""
        count = n_tokens // seq_len
        starts = np.linspace(0, len(self.val) - seq_len - 1, count).astype(np.int64)
        for first in range(0, count, batch_size):
            yield self._windows(self.val, starts[first : first + batch_size], seq_len)

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
    def description(self) -> DataDescription:
        """With reference lines: tables fitted to training tokens, a compressor of the text."""
        train = _spread(self.train, reference.TRAIN_TOKENS)
        val = _spread(self.val, reference.VAL_TOKENS)
        for each in (train, val):
            refuse_beyond(each, self.vocab_size)
        unigram, bigram = reference.table_losses(train, val, self.vocab_size)
        bits = (None, None) if self.val_text is None else reference.bits_per_byte(self.val_text)
        n_tokens = len(self.train) + len(self.val)
        return DataDescription(
            fingerprint=self.fingerprint,
            source=self.source,
            n_bytes=n_tokens if self.n_bytes is None else self.n_bytes,
            vocab_size=self.vocab_size,
            train_tokens=len(self.train),
            val_tokens=len(self.val),
            unigram_loss=unigram,
            bigram_loss=bigram,
            zlib_bits=bits[0],
            xz_bits=bits[1],
            split=self.split,
        )

    def _windows(self, stream: Stream, starts: NDArray[np.int64], seq_len: int) -> Windows:
        found = np.stack([stream[start : start + seq_len + 1] for start in starts.tolist()])
        refuse_beyond(found, self.vocab_size)  # of a huge file, only samples were read before
        return found.astype(np.int64)


def _spread(stream: Stream, most: int) -> Array:
    """(1, T) of all its tokens, or where there are more than `most`, (B, T + 1) of so many, evenly
    spread.
    """
    if len(stream) <= most:
        return stream[0 : len(stream)][None]
    starts = np.linspace(0, len(stream) - _BLOCK - 1, most // _BLOCK).astype(np.int64)
    return np.stack([stream[start : start + _BLOCK + 1] for start in starts.tolist()])


def generator(seed: int, step: int) -> np.random.Generator:
    """What draws the batch of one step, whatever was drawn before."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, step], dtype=np.uint64)))


def refuse_beyond(tokens: Array, vocab_size: int, where: str = "the data") -> None:
    """Raise DataError where a token is negative or not below vocab_size."""
    if tokens.dtype.kind == "u" and np.iinfo(tokens.dtype).max < vocab_size:
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0:
        raise DataError(f"{where}: token {low} is negative: are these token numbers?")
    if high >= vocab_size:
        raise DataError(
            f"{where}: token {high} is beyond the vocabulary of {vocab_size}: are these the files "
            f"of another tokenizer? else --set data.vocab_size={high + 1} or more"
        )


def of_bytes(source: str, train: list[Document], val: list[Document]) -> Streams:
    """The bytes of these documents as tokens."""
    n_train = sum(len(document.content) for document in train)
    digest = hashlib.sha256(n_train.to_bytes(8, "big"))
    for document in (*train, *val):
        digest.update(document.content)
    streams = _bytes(train), _bytes(val)
    return Streams(source, *streams, digest.hexdigest()[:16], val_text=beginning(val))


def digest_of(halves: tuple[Stream, Stream]) -> str:
    """The fingerprint that `of_bytes` gives these bytes."""
    digest = hashlib.sha256(len(halves[0]).to_bytes(8, "big"))
    for half in halves:
        for start in range(0, len(half), 2**26):
            digest.update(np.ascontiguousarray(half[start : start + 2**26]).data)
    return digest.hexdigest()[:16]


def _bytes(documents: list[Document]) -> Stream:
    """In one piece, but those that lie on a disk stay there."""
    contents = [document.content for document in documents]
    if any(isinstance(content, memoryview) for content in contents):
        return Chain([np.frombuffer(content, dtype=np.uint8) for content in contents])
    return np.frombuffer(b"".join(contents), dtype=np.uint8)


def beginning(documents: list[Document]) -> bytes:
    """As much of their text as compressors are shown."""
    found = bytearray()
    for document in documents:
        found += document.content[: reference.MOST - len(found)]
        if len(found) == reference.MOST:
            break
    return bytes(found)
