"""Streams and windows, on streams short enough to see through."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from inputs import split

from attnres_cli.data.documents import Document, parts, rule
from attnres_cli.data.tokens import Stream, Streams, Tokens
from attnres_cli.errors import DataError


def stream(content: bytes) -> Stream:
    return np.frombuffer(content, dtype=np.uint8)


def counting(n_train: int = 256, n_val: int = 256) -> Tokens:
    """Streams in which every token is its own position."""
    every = bytes(range(256))
    return Streams("text", stream(every[:n_train]), stream(every[:n_val]), fingerprint="f" * 16)


def noise(n_bytes: int = 4096, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n_bytes)


def marked(sizes: list[int]) -> list[Document]:
    """Documents that hold nothing but their own number."""
    return [Document(f"{i:03d}.txt", bytes([i]) * size) for i, size in enumerate(sizes)]


def eval_windows(tokens: Tokens, n_tokens: int, batch_size: int, seq_len: int) -> np.ndarray:
    return np.concatenate(list(tokens.eval_batches(n_tokens, batch_size, seq_len)))


def test_a_batch_depends_only_on_the_data_the_seed_and_the_step():
    first, second = (split("text", [Document("a", noise())], 0.1) for _ in range(2))
    for step in range(2):
        second.batch(0, step, 4, 16)  # drawn before, and without effect

    np.testing.assert_array_equal(first.batch(3, 7, 4, 16), second.batch(3, 7, 4, 16))
    large = 2**63
    drawn = [(0, 0), (1, 0), (0, 1), (1, 2), (2, 1), (large, 0), (large + 1, 0)]
    batches = {first.batch(*seed_and_step, 8, 16).tobytes() for seed_and_step in drawn}
    assert len(batches) == len(drawn)


def test_a_batch_holds_windows_of_training_tokens_that_start_anywhere():
    tokens = counting(n_train=20, n_val=0)
    batches = [tokens.batch(0, step, 4, 16) for step in range(40)]

    for batch in batches:
        assert (batch.shape, batch.dtype) == ((4, 17), np.int64)  # one more to predict
        assert (np.diff(batch, axis=1) == 1).all()
    assert {start for batch in batches for start in batch[:, 0].tolist()} == {0, 1, 2, 3}
    assert counting(n_train=17).batch(0, 0, 2, 16).tolist() == [list(range(17))] * 2


def test_evaluation_windows_spread_over_the_validation_tokens_and_never_change():
    tokens = counting(n_train=20)
    windows = eval_windows(tokens, 64, 4, 16)
    tokens.batch(5, 5, 4, 16)

    np.testing.assert_array_equal(eval_windows(tokens, 64, 4, 16), windows)
    np.testing.assert_array_equal(eval_windows(tokens, 64, 3, 16), windows)  # in any batch size
    assert (windows[0, 0], windows[-1, -1]) == (0, 255)
    gaps = np.diff(windows[:, 0])
    assert gaps.max() - gaps.min() <= 1


def test_no_token_is_predicted_twice():
    sizes = [(256, 240, 16), (256, 255, 5), (241, 240, 16), (200, 100, 7), (99, 98, 1)]
    for n_val, n_tokens, seq_len in (*sizes, (17, 16, 16)):
        windows = eval_windows(counting(n_val=n_val), n_tokens, 4, seq_len)

        predicted = windows[:, 1:].ravel()
        assert len(predicted) == n_tokens // seq_len * seq_len
        assert len(set(predicted.tolist())) == len(predicted)
        assert (np.diff(windows, axis=1) == 1).all()


def test_the_two_streams_of_a_folder_share_no_file_and_lose_none():
    documents = marked([100] * 60)
    by_hash = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())

    tokens = split("text", documents, val_fraction=0.2)

    train, val = set(tokens.train.tolist()), set(tokens.val.tolist())
    assert val == {d.content[0] for d in by_hash[:12]}  # by the hashes of their names
    assert train == set(range(60)) - val
    assert len(tokens.train) + len(tokens.val) == 6000
    assert split("text", documents[::-1], 0.2).fingerprint == tokens.fingerprint  # in any order


def test_the_end_validates_of_a_single_file_or_one_that_holds_nearly_all():
    content = noise(1000)
    single = split("text", [Document("a", content)], val_fraction=0.1)
    nearly = split("text", marked([10, 99_000, 10]), val_fraction=0.05)
    assert (single.train.tobytes(), single.val.tobytes()) == (content[:900], content[900:])
    assert set(nearly.val.tolist()) == {1}
    assert nearly.train[:20].tolist() == [0] * 10 + [2] * 10  # it trains last


def test_no_file_makes_up_more_than_a_tenth_of_validation_where_small_ones_do():
    sizes = [3000] * 5 + [100] * 60
    tokens = split("text", marked(sizes), val_fraction=0.2)
    assert np.bincount(tokens.val).max() <= len(tokens.val) / 10
    assert len(tokens.val) == pytest.approx(0.2 * sum(sizes), abs=100)


def test_the_end_of_each_file_validates_where_one_would_be_most_of_validation():
    for sizes in [10_000] * 20 + [50], [30_000, 100_000], [500] * 3:
        tokens = split("text", marked(sizes), val_fraction=0.05)

        assert len(tokens.val) == pytest.approx(0.05 * sum(sizes), rel=0.01)
        counts = np.bincount(tokens.val, minlength=len(sizes)).tolist()
        assert counts == [pytest.approx(0.05 * size, abs=1) for size in sizes]
        assert set(tokens.train.tolist()) == set(range(len(sizes)))
    for val_fraction in (1e-9, 0.5, 0.999):  # neither stream is empty
        tokens = split("text", marked([10, 10, 10]), val_fraction)
        assert min(len(tokens.train), len(tokens.val)) > 0


def test_the_rule_of_the_split_is_said():
    hashed = "whole files validate, by the hashes of their names, up to 5 % of the bytes: 3 of 60"
    end = "the end of 001.txt, 5 % of all bytes, validates: it is nearly all of 2 files"
    each = "the last 5 % of each of 3 files validates: of whole files one would be most of it"
    for sizes, said in (
        ([100] * 60, hashed),
        ([1000], "the last 5 % of the one file validates"),
        ([10, 9000], end),
        ([900, 1000, 900], each),
    ):
        assert rule(*parts(marked(sizes), 0.05), 0.05, "file") == said


def test_the_fingerprint_is_known_and_sees_every_byte_and_where_the_streams_are_cut():
    content = bytes(1000)
    changes = [content[:at] + b"\1" + content[at + 1 :] for at in (0, 899, 900, 999)]
    tenths = [split("text", [Document("a", each)], 0.1) for each in (content, *changes)]
    fifth = split("text", [Document("a", b"0123456789")], 0.2)

    wanted = hashlib.sha256(bytes([0] * 7 + [8]) + b"0123456789").hexdigest()[:16]
    assert fifth.fingerprint == wanted
    assert split("text", [Document("a", b"0123456789")], 0.1).fingerprint != wanted
    assert len({tokens.fingerprint for tokens in tenths}) == 5


def test_batches_and_the_split_stay_those_that_old_studies_were_made_with():
    """Otherwise runs of the same name would see other tokens."""
    texts = [Document(f"{i}.txt", bytes(range(i, i + 60)) * (1 + i % 7)) for i in range(60)]
    found = split("text", texts, val_fraction=0.2)
    assert found.fingerprint == "c6a02bcdb53b203e"
    assert found.batch(3, 5, 2, 4).tolist() == [[86, 87, 88, 89, 90], [52, 53, 54, 55, 56]]


def test_too_little_data_are_refused_with_both_sizes_and_a_remedy_that_helps():
    tokens = counting(n_train=100)
    with pytest.raises(DataError, match=r"100 tokens.*101") as caught:
        tokens.check(seq_len=100, eval_tokens=32)
    remedy = str(caught.value).partition("--set model.seq_len=")[2]
    tokens.check(seq_len=int(remedy), eval_tokens=32)
    counting(n_train=17, n_val=33).check(seq_len=16, eval_tokens=32)  # just enough
    with pytest.raises(DataError) as caught:
        counting(n_val=32).check(seq_len=16, eval_tokens=32)
    for words in ("validation", "32", "train.eval_tokens", "more data"):
        assert words in str(caught.value)


def test_the_description_says_what_the_streams_hold():
    tokens = split("text", [Document("a", b"ab" * 500)], val_fraction=0.1)
    held = [Document("a", noise(90_000)), *(Document(f"b{i}", bytes(500)) for i in range(20))]

    facts, packed = tokens.description, split("text", held, val_fraction=0.05).description

    assert (facts.train_tokens, facts.val_tokens, facts.n_bytes) == (900, 100, 1000)
    assert (facts.source, facts.fingerprint) == ("text", tokens.fingerprint)
    assert (facts.vocab_size, facts.floor) == (256, None)
    assert packed.val_tokens < 90_000  # without the file of noise, so it can be compressed
    assert 0 < packed.zlib_bits < 0.5
    assert 0 < packed.xz_bits < 0.5
