"""How much of the validation data stands in the training data word for word."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnres_cli.console import Progress
from attnres_cli.data import cache
from attnres_cli.data.documents import Document
from attnres_cli.data.duplicates import Hashes, distinct, hashes, joined, mixed
from attnres_cli.data.tokens import Stream
from attnres_cli.records.doubts import STANDS_IN_TRAINING

LENGTHS = (64, 128)  # tokens; a byte is a token where there is no tokenizer
WARN = 0.05  # share of validation in stretches of 128 from which a loss says little of new text
_MOST_TRAIN = 2**30  # tokens that are looked at; of more, evenly spread pieces
_MOST_VAL = 2**24
_PIECE = 2**22  # tokens at a time: 32 MB of hashes, and as much again while they are made
_TABLE = 2**24
_WORD = 8  # bytes
_RUN = LENGTHS[0] // _WORD - 1  # whole words in any 64 bytes in a row


@dataclass(frozen=True)
class Overlap:
    """Shares of validation tokens in stretches of 64 and 128 or more tokens that training has."""

    short: float
    long: float
    sampled: bool = False  # whether only a part of a long stream was compared

    def words(self, unit: str, remedy: str) -> str:
        """The shares as a sentence without its period, with a remedy if they are large."""
        of = " (sampled)" if self.sampled else ""
        return (
            f"{100 * self.short:.1f} % of validation {unit}s lie in stretches of 64 or more that "
            f"training has, {100 * self.long:.1f} % of 128 or more{of}"
            + (STANDS_IN_TRAINING + remedy if self.long > WARN else "")
        )


def measure(train: Stream, val: Stream, fingerprint: str) -> Overlap:
    """The overlap of two streams, from the cache if it is known."""
    key = hashlib.sha256(f"overlap 1 {fingerprint} {len(train)} {len(val)}".encode())
    short, long = cache.remembered(key.hexdigest()[:32], lambda: shares(train, val))
    return Overlap(short, long, len(train) > _MOST_TRAIN or len(val) > _MOST_VAL)


def shares(train: Stream, val: Stream) -> list[float]:
    """Share of validation tokens in stretches of each of LENGTHS or more that training has."""
    mine = np.concatenate(list(_pieces(val, _MOST_VAL, 0)))
    wanted = _by_length(mine)
    known = [distinct(each) for each in wanted]
    seen = [np.zeros(len(each), bool) for each in known]
    tables = [np.zeros(_TABLE, bool) for _ in known]
    for table, each in zip(tables, known, strict=True):
        table[each & np.uint64(_TABLE - 1)] = True  # sorts out nearly all that is not there
    words, progress = _words(mine), Progress("looking for validation text in training text")
    for piece in _pieces(train, _MOST_TRAIN, LENGTHS[-1] - 1):
        progress.add(piece.nbytes)
        part, number = _likely(piece.astype(mine.dtype, copy=False), words)
        if not len(part):
            continue
        whole = [number[: max(0, len(part) - n + 1)] == number[n - 1 :] for n in LENGTHS]
        for there, is_whole, table, each, flags in zip(
            _by_length(part), whole, tables, known, seen, strict=True
        ):
            # In order: 4 million among 16 million are found in 2 s, not in 19
            maybe = distinct(there[is_whole & table[there & np.uint64(_TABLE - 1)]])
            if len(each) and len(maybe):
                at = np.minimum(np.searchsorted(each, maybe), len(each) - 1)
                flags[at[each[at] == maybe]] = True
    found = []
    for n, each, flags, all_of_them in zip(LENGTHS, known, seen, wanted, strict=True):
        starts = flags[np.searchsorted(each, all_of_them)]
        found.append(float(_covered(starts, n, len(mine)).mean()) if len(mine) else 0.0)
    return found


def _words(val: NDArray[np.integer]) -> NDArray[np.bool_]:
    """A table of the hashes of all eight bytes in a row that begin with a validation token, at most
    a quarter full: in a full one everything is likely, and compared.
    """
    table = np.zeros(max(_TABLE, 1 << (4 * len(val) - 1).bit_length()), bool)
    raw, size = val.view(np.uint8), val.itemsize
    for shift in range(0, _WORD, size):
        table[_slots(raw[shift:], len(table))] = True
    return table


def _slots(raw: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    """Where in a table of n, a power of two, each eight bytes stand, one after the other."""
    words = np.frombuffer(raw[: len(raw) // _WORD * _WORD].tobytes(), np.uint64)
    return (mixed(words.copy()) & np.uint64(n - 1)).astype(np.int64)


def _likely(
    piece: NDArray[np.integer], words: NDArray[np.bool_]
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """The parts of a training piece that may share a stretch of 64 tokens with validation, one
    after the other, and the number of each token's part: each holds seven whole words in a row
    that validation has, counted from the piece's start.
    """
    known = words[_slots(piece.view(np.uint8), len(words))]
    so_far = np.concatenate(([0], np.cumsum(known)))
    runs = np.flatnonzero(so_far[_RUN:] - so_far[:-_RUN] == _RUN)
    breaks, per_word = np.diff(runs) > _RUN + 2, _WORD // piece.itemsize
    starts = np.maximum(runs[np.append(True, breaks)[: len(runs)]] - 1, 0) * per_word
    ends = (runs[np.append(breaks, True)[: len(runs)]] + _RUN + 1) * per_word
    edges = np.zeros(len(piece) + 1, np.int8)  # parts do not touch: more than a word is between
    edges[starts], edges[np.minimum(ends, len(piece))] = 1, -1
    inside = np.cumsum(edges[:-1], dtype=np.int8) > 0
    number: NDArray[np.int64] = np.cumsum(edges[:-1] > 0, dtype=np.int64)
    return piece[inside], number[inside]


def _by_length(tokens: NDArray[np.integer]) -> list[Hashes]:
    short = hashes(tokens, LENGTHS[0])
    return [short, joined(short.copy(), *LENGTHS)]


def _pieces(stream: Stream, most: int, more: int) -> Iterator[NDArray[np.integer]]:
    """All of a stream, or pieces of `most` tokens in all, evenly spread. Each goes on for `more`
    tokens, so that no stretch is cut.
    """
    count = max(1, -(-min(len(stream), most) // _PIECE))
    whole = len(stream) <= most
    last = max(0, len(stream) - _PIECE)
    spread = np.linspace(0, last, count).astype(np.int64).tolist()
    for start in range(0, max(1, len(stream)), _PIECE) if whole else spread:
        yield stream[start : min(len(stream), start + _PIECE + more)]


def _covered(starts: NDArray[np.bool_], n: int, length: int) -> NDArray[np.bool_]:
    """Which of `length` tokens lie in a stretch of n that starts where `starts` says."""
    edges = np.zeros(length + 1, np.int64)
    edges[: len(starts)] += starts
    edges[n : n + len(starts)] -= starts
    return np.cumsum(edges)[:-1] > 0


def copies(documents: Sequence[Document]) -> int:
    """Number of documents that are exact copies of an earlier one."""
    found = (int.from_bytes(hashlib.sha256(d.content).digest()[:8], "big") for d in documents)
    return len(documents) - len(distinct(np.fromiter(found, np.uint64, len(documents))))
