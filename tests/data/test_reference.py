"""Reference lines: tables fitted to training tokens, and compressors."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from inputs import split

from attnres_cli.data.documents import Document
from attnres_cli.data.reference import TRAIN_TOKENS, bits_per_byte, table_losses
from attnres_cli.data.tokens import Streams
from attnres_cli.errors import DataError


def losses(train: bytes | np.ndarray, val: bytes | np.ndarray, vocab_size: int = 256):
    """Of the tables of one stream on another."""
    streams = (np.frombuffer(s, np.uint8) if isinstance(s, bytes) else s for s in (train, val))
    return table_losses(*(stream[None] for stream in streams), vocab_size)


def uniform(vocab_size: int, n_tokens: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, n_tokens)


def test_uniform_tokens_score_the_logarithm_of_the_vocabulary_and_have_no_bigram_line():
    for size, n_tokens in (2, 2000), (256, 200_000), (1024, 2000), (50_257, 200_000):
        found = losses(uniform(size, n_tokens), uniform(size, 20_000, 1), size)
        assert found == (math.log(size), None)


def test_lines_are_those_of_counting_by_hand():
    train, val = b"aabab" * 40, b"abaab" * 8
    after = Counter(train[1:])
    n, k, v = len(train) - 1, len(after), 256
    frequency = {c: (after[c] + k / v) / (n + k) for c in b"ab"}
    pairs, before = Counter(pairwise(train)), Counter(train[:-1])
    kinds = Counter(a for a, _ in pairs)
    wanted = list(pairwise(val))

    one = [-math.log(frequency[b]) for _, b in wanted]
    two = [
        -math.log((pairs[a, b] + kinds[a] * frequency[b]) / (before[a] + kinds[a]))
        for a, b in wanted
    ]

    mean = math.fsum(one) / len(one), math.fsum(two) / len(two)
    assert losses(train, val) == pytest.approx(mean, rel=1e-12)


def test_lines_of_streams_whose_loss_is_known():
    in_turn = losses(bytes(range(256)) * 99, bytes(range(256)) * 4)
    assert in_turn[0] == pytest.approx(math.log(256), abs=1e-4)
    assert in_turn[1] == pytest.approx(0, abs=0.1)
    unseen_context = losses(b"ab" * 500, b"xaxbxaxb")
    assert math.isfinite(unseen_context[0])
    assert unseen_context[1] is None
    for content in (b"", b"a"):  # without a pair
        assert losses(content, b"ab") == losses(b"ab", content) == (math.log(256), None)


def test_tables_are_fitted_to_training_tokens_and_judged_on_validation_tokens():
    """On tokens that it never saw, a table is as bad as a model that never saw them."""
    documents = [Document("a", b"ab" * 4500 + b"cd" * 500)]
    facts = split("text", documents, val_fraction=0.1).description
    assert facts.unigram_loss == pytest.approx(math.log(256))
    assert facts.bigram_loss is None


def test_tokens_are_counted_evenly_over_a_long_stream():
    train = np.repeat(np.array([0, 1, 2], np.uint8), TRAIN_TOKENS)
    facts = Streams("npy", train, train[::97], fingerprint="f" * 16, vocab_size=3).description
    assert facts.unigram_loss == pytest.approx(math.log(3), abs=1e-3)
    assert facts.bigram_loss < 0.01


def test_a_token_beyond_the_vocabulary_is_refused_where_it_is_counted():
    streams = Streams("npy", np.array([0, 1, 9] * 9), np.array([0, 1] * 9), "f" * 16, vocab_size=3)
    with pytest.raises(DataError, match="token 9 is beyond the vocabulary of 3"):
        _ = streams.description


def test_compressors_give_the_bits_that_a_text_takes(monkeypatch: pytest.MonkeyPatch):
    noise = np.random.default_rng(0).bytes(100_000)

    assert bits_per_byte(noise) == pytest.approx((8, 8), abs=0.01)
    assert all(bits < 0.02 for bits in bits_per_byte(bytes(100_000)))
    zlib_bits, xz_bits = bits_per_byte(4 * noise)  # repeated too far back for zlib
    assert zlib_bits > 7.9
    assert xz_bits < 2.1
    monkeypatch.setattr("attnres_cli.data.reference.MOST", 50_000)
    assert bits_per_byte(bytes(50_000) + noise)[1] < 0.05  # only the beginning is compressed
