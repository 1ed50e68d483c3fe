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


@pytest.mark.parametrize("vocab_size", [2, 256, 1024, 50_257])
@pytest.mark.parametrize("n_tokens", [2000, 200_000])
def test_uniform_tokens_are_at_the_logarithm_of_the_vocabulary_and_have_no_bigram_line(
    vocab_size: int, n_tokens: int
):
    found = losses(uniform(vocab_size, n_tokens), uniform(vocab_size, 20_000, 1), vocab_size)

    assert found == (math.log(vocab_size), None)


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


def test_a_context_that_was_never_seen_is_guessed_by_frequencies():
    unigram, bigram = losses(b"ab" * 500, b"xaxbxaxb")

    assert math.isfinite(unigram)
    assert bigram is None


def test_all_bytes_in_turn_are_uniform_and_known_from_the_byte_before():
    unigram, bigram = losses(bytes(range(256)) * 99, bytes(range(256)) * 4)

    assert unigram == pytest.approx(math.log(256), abs=1e-4)
    assert bigram == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("content", [b"", b"a"])
def test_a_stream_without_a_pair_says_nothing(content: bytes):
    assert losses(content, b"ab") == losses(b"ab", content) == (math.log(256), None)


def test_lines_are_of_training_tokens_and_held_against_validation_tokens():
    """On tokens that it never saw, a table is as bad as a model that never saw them."""
    documents = [Document("a", b"ab" * 4500 + b"cd" * 500)]

    facts = split("text", documents, val_fraction=0.1).description

    assert facts.unigram_loss == pytest.approx(math.log(256))
    assert facts.bigram_loss is None


def test_of_long_streams_so_many_tokens_are_counted_evenly_spread():
    n_tokens = 3 * TRAIN_TOKENS
    train = np.repeat(np.array([0, 1, 2], np.uint8), TRAIN_TOKENS)
    assert len(train) == n_tokens

    facts = Streams("npy", train, train[::97], fingerprint="f" * 16, vocab_size=3).description

    assert facts.unigram_loss == pytest.approx(math.log(3), abs=1e-3)
    assert facts.bigram_loss < 0.01


def test_a_token_beyond_the_vocabulary_is_refused_where_it_is_counted():
    streams = Streams("npy", np.array([0, 1, 9] * 9), np.array([0, 1] * 9), "f" * 16, vocab_size=3)

    with pytest.raises(DataError, match="token 9 is beyond the vocabulary of 3"):
        _ = streams.description


NOISE = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()


def test_noise_takes_eight_bits_and_no_less():
    assert bits_per_byte(NOISE) == pytest.approx((8, 8), abs=0.01)


def test_a_constant_takes_next_to_nothing():
    assert all(bits < 0.02 for bits in bits_per_byte(bytes(100_000)))


def test_xz_sees_what_lies_too_far_back_for_zlib():
    zlib_bits, xz_bits = bits_per_byte(4 * NOISE)

    assert zlib_bits > 7.9
    assert xz_bits < 2.1


def test_only_the_beginning_of_a_long_text_is_compressed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("attnres_cli.data.reference.MOST", 50_000)

    assert bits_per_byte(bytes(50_000) + NOISE)[1] < 0.05
