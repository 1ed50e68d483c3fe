"""Generated tasks: right answers, exact floors, and nothing evaluated that was trained on."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from attnres_cli.config.recipe import Data
from attnres_cli.data import synthetic
from attnres_cli.data.synthetic import Episodes, episodes
from attnres_cli.data.tasks import Permutations, Pointers, Recall, Task
from attnres_cli.errors import DataError

LENGTHS = {"pointers": 64, "permutations": 40, "recall": 61}


def of(source: str, seq_len: int | None = None, eval_tokens: int = 4096, **keys: int) -> Episodes:
    config = Data.model_validate({"source": source} | keys)
    return episodes(config, seq_len or LENGTHS[source], eval_tokens)


def drawn(task: Task, seq_len: int, count: int = 200) -> list[list[int]]:
    return task.draw(np.random.default_rng(0), count, seq_len).tolist()


def test_a_question_about_pointers_is_answered_by_following_them():
    for start, *rest in drawn(Pointers(nodes=6, hops=5), seq_len=40):
        table, questions = rest[:12], rest[12:]
        assert start == 0
        assert table[::2] == [1, 2, 3, 4, 5, 6]
        pointer = dict(zip(table[::2], table[1::2], strict=True))
        for at in range(0, 27, 3):
            n_hops, here, answer = questions[at] - 6, questions[at + 1], questions[at + 2]
            assert 1 <= n_hops <= 5
            for _ in range(n_hops):
                here = pointer[here]
            assert answer == here
        assert questions[27:] == [0]


def test_a_product_of_permutations_applies_one_after_the_other():
    group, found = list(itertools.permutations(range(4))), {}

    for start, *rest in drawn(Permutations(degree=4, length=3), seq_len=16):
        assert start == 0
        assert rest[12:15] == [25, rest[13], rest[13]]  # the fourth product has one factor again
        assert rest[15:] == [0]
        for number, first in ((1, 0), (2, 3), (3, 7)):
            announced, *factors, answer = rest[first : first + number + 2]
            assert announced == 24 + number
            things = list(range(4))
            for factor in factors:
                things = [group[factor - 1][thing] for thing in things]
            assert group[answer - 1] == tuple(things)
            found[tuple(factors)] = answer
    assert any(found.get(factors[::-1], answer) != answer for factors, answer in found.items())


def test_a_key_is_answered_with_its_value():
    for start, *rest in drawn(Recall(pairs=4, keys=6, values=5), seq_len=21):
        pairs = dict(zip(rest[:8:2], rest[1:8:2], strict=True))
        assert start == 0
        assert len(pairs) == 4
        assert set(pairs) <= set(range(1, 7))
        assert set(pairs.values()) <= set(range(7, 12))
        assert all(pairs[k] == v for k, v in zip(rest[8:20:2], rest[9:20:2], strict=True))
        assert rest[20:] == [0]


def test_answers_are_where_the_task_says():
    for task, seq_len, answers in (
        (Pointers(nodes=6, hops=5), 40, range(15, 40, 3)),
        (Permutations(degree=4, length=3), 16, (3, 7, 12, 15)),
        (Recall(pairs=4, keys=6, values=5), 21, range(10, 21, 2)),
    ):
        assert task.answers(seq_len).tolist() == list(answers)


@pytest.mark.parametrize(
    ("task", "seq_len", "n_sequences"),
    [
        (Pointers(nodes=2, hops=2), 7, 2**2 * 2 * 2),
        (Pointers(nodes=3, hops=1), 10, 3**3 * 3),
        (Permutations(degree=2, length=2), 7, 2**3),
        (Permutations(degree=3, length=1), 8, 6**2),
        (Recall(pairs=2, keys=3, values=2), 6, 3 * 2 * 2**2 * 2),
    ],
)
def test_all_sequences_are_equally_likely_and_the_floor_is_the_logarithm_of_their_number(
    task: Task, seq_len: int, n_sequences: int
):
    seen = Counter(map(tuple, drawn(task, seq_len, 400 * n_sequences)))
    assert len(seen) == n_sequences
    assert all(300 < times < 500 for times in seen.values())  # five standard deviations
    assert task.entropy(seq_len) == pytest.approx(math.log(n_sequences), abs=1e-12)


@pytest.mark.parametrize("source", LENGTHS)
def test_no_table_of_the_next_token_is_below_the_floor_per_token_of_a_sequence(source: str):
    tokens = of(source, eval_tokens=2**19)

    assert 0 < tokens.floor < tokens.description.bigram_loss < tokens.description.unigram_loss
    assert tokens.description.unigram_loss <= math.log(tokens.vocab_size)
    assert tokens.description.floor == tokens.floor
    assert tokens.description.zlib_bits is None
    length = LENGTHS[source]
    assert tokens.floor * length == pytest.approx(tokens.task.entropy(length))
    if source == "pointers":  # 8 values of 8, 16 questions of 4 hops and 8 nodes, in 64 tokens
        assert tokens.floor == pytest.approx((8 * math.log(8) + 16 * math.log(32)) / 64)


@pytest.mark.parametrize("source", LENGTHS)
def test_a_batch_depends_only_on_seed_and_step_and_evaluation_on_neither(source: str):
    seq_len = LENGTHS[source]
    tokens, again = of(source), of(source)
    tokens.batch(0, 0, 4, seq_len)

    batch = tokens.batch(3, 7, 4, seq_len)

    assert (batch.shape, batch.dtype) == ((4, seq_len + 1), np.int64)
    assert 0 <= batch.min() <= batch.max() < tokens.vocab_size
    np.testing.assert_array_equal(batch, again.batch(3, 7, 4, seq_len))
    for other in ((3, 8), (4, 7), (7, 3)):
        assert (batch != tokens.batch(*other, 4, seq_len)).any()
    threes, eights = (
        np.concatenate(list(each.eval_batches(2000, size, seq_len)))
        for each, size in ((tokens, 3), (again, 8))
    )
    assert len(threes) == 2000 // seq_len
    np.testing.assert_array_equal(threes, eights)


@pytest.mark.parametrize(
    ("source", "seq_len", "room", "keys"),
    [
        ("pointers", 9, 27, {"nodes": 3, "hops": 2}),
        ("permutations", 7, 216, {"degree": 3, "length": 2}),
        ("recall", 6, 270, {"pairs": 2, "keys": 6, "values": 3}),
    ],
)
def test_no_evaluated_instance_is_trained_on(
    source: str, seq_len: int, room: int, keys: dict, monkeypatch: pytest.MonkeyPatch
):
    """In tasks so small that about a third of all instances are evaluated."""
    monkeypatch.setattr(synthetic, "_ROOM", 1)
    tokens = of(source, seq_len, eval_tokens=room // 3 * seq_len, **keys)
    evaluated = set(map(tuple, tokens.task.instance(tokens.val).tolist()))

    trained = {
        tuple(instance)
        for step in range(20)
        for instance in tokens.task.instance(tokens.batch(0, step, 128, seq_len)).tolist()
    }

    assert len(evaluated) > room // 5
    assert not trained & evaluated
    assert len(trained) == room - len(evaluated)


def test_equal_tasks_have_equal_fingerprints_and_any_other_task_has_another():
    others = [of("pointers", hops=5), of("pointers", nodes=9), of("pointers", seq_len=67)]
    others += [of("recall", values=33), *map(of, LENGTHS)]
    for source in LENGTHS:
        assert of(source).description.fingerprint == of(source).fingerprint
    assert len({tokens.fingerprint for tokens in others}) == len(others)


def test_too_short_sequences_and_too_few_instances_are_refused_with_what_would_do():
    for source, shortest in (("pointers", 19), ("permutations", 18), ("recall", 18)):
        with pytest.raises(DataError, match=f"--set model.seq_len={shortest}, or an easier"):
            of(source, seq_len=shortest - 1)
        assert of(source, seq_len=shortest).task.answers(shortest).max() == shortest
    with pytest.raises(DataError, match="only 27 different instances, evaluation takes 64"):
        of("pointers", nodes=3, hops=2)
