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
    """Streams in which every token says where it stands."""
    every = bytes(range(256))
    return Streams("text", stream(every[:n_train]), stream(every[:n_val]), fingerprint="f" * 16)


def noise(n_bytes: int = 4096, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n_bytes)


def marked(sizes: list[int]) -> list[Document]:
    """Documents that hold nothing but their own number."""
    return [Document(f"{i:03d}.txt", bytes([i]) * size) for i, size in enumerate(sizes)]


def eval_windows(tokens: Tokens, n_tokens: int, batch_size: int, seq_len: int) -> np.ndarray:
    return np.concatenate(list(tokens.eval_batches(n_tokens, batch_size, seq_len)))


def test_batches_are_of_training_tokens_and_evaluation_is_of_validation_tokens():
    tokens = Streams("text", stream(b"t" * 99), stream(b"v" * 99), fingerprint="f" * 16)

    assert set(tokens.batch(0, 0, 4, 16).flatten()) == set(b"t")
    assert set(eval_windows(tokens, 64, 2, 16).flatten()) == set(b"v")


# Training batches


def test_the_same_seed_and_step_give_the_same_batch_bit_for_bit():
    first, second = (split("text", [Document("a", noise())], 0.1) for _ in range(2))

    np.testing.assert_array_equal(first.batch(3, 7, 4, 16), second.batch(3, 7, 4, 16))


def test_a_batch_does_not_depend_on_the_batches_drawn_before():
    tokens = counting()
    fresh = counting().batch(0, 2, 4, 16)

    for step in range(2):
        tokens.batch(0, step, 4, 16)

    np.testing.assert_array_equal(tokens.batch(0, 2, 4, 16), fresh)


@pytest.mark.parametrize(("seed", "step"), [(1, 0), (0, 1), (1, 1)])
def test_other_seeds_and_other_steps_give_other_batches(seed: int, step: int):
    tokens = counting()

    assert (tokens.batch(seed, step, 8, 16) != tokens.batch(0, 0, 8, 16)).any()


def test_seeds_and_steps_are_not_interchangeable():
    tokens = counting()

    assert (tokens.batch(1, 2, 8, 16) != tokens.batch(2, 1, 8, 16)).any()


def test_the_largest_seeds_still_differ():
    tokens = counting()

    assert (tokens.batch(2**63, 0, 8, 16) != tokens.batch(2**63 + 1, 0, 8, 16)).any()


def test_a_batch_holds_windows_of_consecutive_tokens_and_one_more_to_predict():
    batch = counting().batch(0, 0, 5, 16)

    assert batch.shape == (5, 17)
    assert batch.dtype == np.int64
    assert (np.diff(batch, axis=1) == 1).all()


def test_windows_start_anywhere_from_the_first_token_to_the_last_that_fits():
    tokens = counting(n_train=20)

    starts = {start for step in range(40) for start in tokens.batch(0, step, 4, 16)[:, 0].tolist()}

    assert starts == {0, 1, 2, 3}


def test_one_window_is_enough_to_train_on():
    tokens = counting(n_train=17)

    assert tokens.batch(0, 0, 2, 16).tolist() == [list(range(17))] * 2


# Evaluation batches


def test_evaluation_windows_are_the_same_every_time_and_whatever_was_trained_before():
    tokens = counting()
    before = eval_windows(tokens, 128, 3, 16)

    tokens.batch(5, 5, 4, 16)

    np.testing.assert_array_equal(eval_windows(tokens, 128, 3, 16), before)


def test_the_batch_size_does_not_change_what_is_evaluated():
    tokens = counting()

    by_three, by_eight = (eval_windows(tokens, 128, size, 16) for size in (3, 8))

    np.testing.assert_array_equal(by_three, by_eight)


@pytest.mark.parametrize(
    ("n_val", "n_tokens", "seq_len"),
    [(256, 240, 16), (256, 255, 5), (241, 240, 16), (200, 100, 7), (99, 98, 1), (17, 16, 16)],
)
def test_no_token_is_predicted_twice(n_val: int, n_tokens: int, seq_len: int):
    windows = eval_windows(counting(n_val=n_val), n_tokens, 4, seq_len)

    predicted = windows[:, 1:].ravel()
    assert len(predicted) == n_tokens // seq_len * seq_len
    assert len(set(predicted.tolist())) == len(predicted)
    assert (np.diff(windows, axis=1) == 1).all()


def test_evaluation_windows_spread_from_the_first_to_the_last_token():
    windows = eval_windows(counting(), 64, 4, 16)

    assert windows[0, 0] == 0
    assert windows[-1, -1] == 255
    gaps = np.diff(windows[:, 0])
    assert gaps.max() - gaps.min() <= 1


# Split


def test_the_two_streams_of_a_folder_share_no_file_and_lose_none():
    tokens = split("text", marked([100] * 60), val_fraction=0.2)

    train, val = set(tokens.train.tolist()), set(tokens.val.tolist())
    assert not train & val
    assert train | val == set(range(60))
    assert len(tokens.train) + len(tokens.val) == 6000
    assert len(tokens.val) == pytest.approx(1200, abs=100)


def test_the_end_of_a_single_file_is_kept_for_validation():
    content = noise(1000)

    tokens = split("text", [Document("a", content)], val_fraction=0.1)

    assert tokens.train.tobytes() == content[:900]
    assert tokens.val.tobytes() == content[900:]


def test_no_file_makes_up_more_than_a_tenth_of_validation_where_small_ones_do():
    sizes = [3000] * 5 + [100] * 60
    tokens = split("text", marked(sizes), val_fraction=0.2)

    largest = np.bincount(tokens.val).max()

    assert largest <= len(tokens.val) / 10
    assert len(tokens.val) == pytest.approx(0.2 * sum(sizes), abs=100)


@pytest.mark.parametrize("sizes", [[10_000] * 20 + [50], [30_000, 100_000], [500] * 3])
def test_where_one_file_would_be_most_of_validation_the_end_of_each_validates(sizes: list[int]):
    documents = marked(sizes)

    tokens = split("text", documents, val_fraction=0.05)

    assert len(tokens.val) == pytest.approx(0.05 * sum(sizes), rel=0.01)
    counts = np.bincount(tokens.val, minlength=len(sizes)).tolist()
    assert counts == [pytest.approx(0.05 * size, abs=1) for size in sizes]
    assert set(tokens.train.tolist()) == set(range(len(sizes)))


def test_the_end_of_a_file_that_holds_nearly_all_validates():
    documents = marked([10, 99_000, 10])

    tokens = split("text", documents, val_fraction=0.05)

    assert set(tokens.val.tolist()) == {1}
    assert tokens.train[:20].tolist() == [0] * 10 + [2] * 10  # it trains last


@pytest.mark.parametrize("val_fraction", [1e-9, 0.5, 0.999])
def test_of_several_files_neither_stream_is_empty(val_fraction: float):
    tokens = split("text", marked([10, 10, 10]), val_fraction)

    assert len(tokens.train)
    assert len(tokens.val)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([100] * 60, "whole files validate, by the hashes of their names, up to 5 % of the bytes: "
         "3 of 60"),
        ([1000], "the last 5 % of the one file validates"),
        ([10, 9000], "the end of 001.txt, 5 % of all bytes, validates: it is nearly all of 2 "
         "files"),
        ([900, 1000, 900], "the last 5 % of each of 3 files validates: of whole files one would "
         "be most of it"),
    ],
)  # fmt: skip
def test_the_rule_of_the_split_is_said(sizes: list[int], said: str):
    assert rule(*parts(marked(sizes), 0.05), 0.05, "file") == said


def test_which_files_validate_does_not_depend_on_the_order_they_are_found_in():
    documents = marked([100] * 30)

    forward, backward = split("text", documents, 0.2), split("text", documents[::-1], 0.2)

    assert forward.fingerprint == backward.fingerprint


def test_which_files_validate_follows_from_the_hashes_of_their_names():
    documents = marked([100] * 60)
    by_hash = sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest())

    tokens = split("text", documents, val_fraction=0.2)

    assert set(tokens.val.tolist()) == {d.content[0] for d in by_hash[:12]}


# Fingerprint


def test_the_fingerprint_of_equal_data_is_equal_and_known():
    tokens = split("text", [Document("a", b"0123456789")], val_fraction=0.2)

    assert (
        tokens.fingerprint == hashlib.sha256(bytes([0] * 7 + [8]) + b"0123456789").hexdigest()[:16]
    )


@pytest.mark.parametrize("position", [0, 899, 900, 999])
def test_the_fingerprint_sees_a_single_changed_byte_of_either_stream(position: int):
    content = bytes(1000)
    changed = content[:position] + b"\1" + content[position + 1 :]

    before, after = (split("text", [Document("a", c)], 0.1) for c in (content, changed))

    assert before.fingerprint != after.fingerprint


def test_the_fingerprint_sees_where_the_streams_are_cut():
    documents = [Document("a", noise(1000))]

    assert split("text", documents, 0.1).fingerprint != split("text", documents, 0.2).fingerprint


# Too short


def test_streams_that_are_just_long_enough_pass():
    counting(n_train=17, n_val=33).check(seq_len=16, eval_tokens=32)


def test_too_little_training_data_is_refused_with_both_sizes_and_a_remedy_that_helps():
    tokens = counting(n_train=100)

    with pytest.raises(DataError) as caught:
        tokens.check(seq_len=100, eval_tokens=32)

    message = str(caught.value)
    assert "100 tokens" in message
    assert "101" in message
    remedy = message.partition("--set model.seq_len=")[2]
    tokens.check(seq_len=int(remedy), eval_tokens=32)


def test_too_little_validation_data_is_refused_with_both_sizes_and_a_remedy():
    with pytest.raises(DataError) as caught:
        counting(n_val=32).check(seq_len=16, eval_tokens=32)

    message = str(caught.value)
    assert "validation" in message
    assert "32" in message
    assert "train.eval_tokens" in message
    assert "more data" in message


# What is told


def test_facts_say_what_the_streams_hold():
    tokens = split("text", [Document("a", b"ab" * 500)], val_fraction=0.1)

    facts = tokens.description

    assert (facts.train_tokens, facts.val_tokens, facts.n_bytes) == (900, 100, 1000)
    assert (facts.source, facts.fingerprint) == ("text", tokens.fingerprint)
    assert facts.vocab_size == 256
    assert facts.floor is None


def test_facts_say_how_far_the_validation_text_alone_can_be_packed():
    held = [Document("a", noise(90_000)), *(Document(f"b{i}", bytes(500)) for i in range(20))]

    facts = split("text", held, val_fraction=0.05).description

    assert facts.val_tokens < 90_000
    assert facts.zlib_bits is not None
    assert facts.xz_bits is not None
    assert 0 < facts.zlib_bits < 0.5
    assert 0 < facts.xz_bits < 0.5


def test_batches_and_the_split_are_those_that_studies_were_made_with():
    """Another seed, step or rule of what validates gives other tokens to runs of the same name."""
    texts = [Document(f"{i}.txt", bytes(range(i, i + 60)) * (1 + i % 7)) for i in range(60)]

    found = split("text", texts, val_fraction=0.2)

    assert found.fingerprint == "c6a02bcdb53b203e"
    assert found.batch(3, 5, 2, 4).tolist() == [[86, 87, 88, 89, 90], [52, 53, 54, 55, 56]]
