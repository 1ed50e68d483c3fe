"""What losses are to be seen beside: tables of tokens that training data fill, and compressors."""

from __future__ import annotations

import lzma
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnres_cli.records.doubts import LEAST_GAIN

Windows = NDArray[np.integer[Any]]  # (B, T + 1), tokens that follow each other in each row

MOST = 2**20  # bytes that are compressed, however long the text is: xz takes 0.5 s for them
TRAIN_TOKENS = 2**22  # that tables are fitted to, at most: a second, whatever the vocabulary
VAL_TOKENS = 2**20  # that they are held against, at most


def table_losses(train: Windows, val: Windows, vocab_size: int) -> tuple[float, float | None]:
    """Mean losses on `val`, nats per token, of two tables fitted to `train`: of token frequencies
    (unigram; ln vocab_size where it does not lie LEAST_GAIN below), and of next tokens given this
    one (bigram; None where it does not lie as much below the unigram line: the tokens are too few
    for it, or do not depend on each other).

    Both are smoothed by interpolation after Witten and Bell (1991; Chen and Goodman 1999, 2.4): of
    n counts with k different outcomes, k / (n + k) goes to the next simpler guess; that of the
    frequencies is 1 / vocab_size.
    """
    uniform = math.log(vocab_size)
    if not (train[:, 1:].size and val[:, 1:].size):
        return uniform, None
    before, token = (part.astype(np.int64).ravel() for part in (train[:, :-1], train[:, 1:]))
    counts = np.bincount(token, minlength=vocab_size)
    kinds = np.count_nonzero(counts)
    frequency = (counts + kinds / vocab_size) / (len(token) + kinds)

    pairs, times = np.unique(before * vocab_size + token, return_counts=True)
    n = np.bincount(before, minlength=vocab_size)
    k = np.maximum(1, np.bincount(pairs // vocab_size, minlength=vocab_size))  # 0 of 0 are 0 of 1
    before, token = (part.astype(np.int64).ravel() for part in (val[:, :-1], val[:, 1:]))
    wanted = before * vocab_size + token
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[at] == wanted, times[at], 0)
    given = (seen + k[before] * frequency[token]) / (n[before] + k[before])

    unigram, bigram = (float(-np.log(p).mean()) for p in (frequency[token], given))
    unigram = unigram if unigram <= uniform - LEAST_GAIN else uniform
    return unigram, bigram if bigram <= unigram - LEAST_GAIN else None


def bits_per_byte(text: bytes) -> tuple[float, float]:
    """Bits per byte of zlib and xz, each at its hardest, on the first MOST bytes of a text. A
    compressor sees a longer context than a model, and no training data.
    """
    head = text[:MOST]
    packed = zlib.compress(head, 9), lzma.compress(head, preset=9)
    zlib_bits, xz_bits = (8 * len(short) / max(1, len(head)) for short in packed)
    return zlib_bits, xz_bits
