"""Tasks that are generated: what they ask is known, and so is the least loss there can be.

A sequence is a start token (0) and one instance of the task, then 0 where it does not fill the
sequence. What cannot be known (a table, a question) is drawn uniformly, so that every sequence of
a task has the same probability, and a model that knows the rules has the same loss on each: minus
its logarithm, the floor. All that a model loses above it is lost on answers and layout.

    pointers      1 f(1) 2 f(2) ... n f(n), then questions: j s f^j(s), j from 1 to `hops`
    permutations  #1 g p, #2 g g p, ... up to `length`, again and again: p is the product of the
                  permutations g of `degree` things, the first one applied first
    recall        k v k v ..., `pairs` of them with different keys, then questions: k v

`shortest` is the least seq_len with room for a question of every kind, `entropy` the nats of a
sequence that cannot be predicted, `instances` the logarithm of how many instances there are,
`instance` the tokens of sequences that make up theirs, `answers` where in a sequence answers stand.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnres_cli.data.tokens import Windows


@dataclass(frozen=True)
class Pointers:
    """k-hop pointer chasing in a function drawn from all functions of `nodes` nodes to themselves.

    Tokens: nodes from 1, then `hops` tokens that say how many hops are asked.
    """

    nodes: int
    hops: int

    @property
    def vocab_size(self) -> int:
        """The start, the nodes, the numbers of hops."""
        return 1 + self.nodes + self.hops

    @property
    def shortest(self) -> int:
        """The table and one question."""
        return 2 * self.nodes + 3

    def draw(self, generator: np.random.Generator, count: int, seq_len: int) -> Windows:
        """(count, seq_len + 1) tokens: the table, then as many questions as fit."""
        n_questions = self._questions(seq_len)
        table = generator.integers(0, self.nodes, (count, self.nodes))
        starts = generator.integers(0, self.nodes, (count, n_questions))
        hops = generator.integers(1, self.hops + 1, (count, n_questions))
        reached, answers = starts, starts
        for hop in range(1, self.hops + 1):
            reached = np.take_along_axis(table, reached, axis=1)
            answers = np.where(hops == hop, reached, answers)
        found = np.zeros((count, seq_len + 1), dtype=np.int64)
        found[:, 1 : 2 * self.nodes : 2] = np.arange(1, self.nodes + 1)
        found[:, 2 : 2 * self.nodes + 1 : 2] = table + 1
        at = self.answers(seq_len)
        found[:, at - 2], found[:, at - 1] = self.nodes + hops, starts + 1
        found[:, at] = answers + 1
        return found

    def entropy(self, seq_len: int) -> float:
        """Of the table, and of the questions' hops and starts."""
        asked = self._questions(seq_len) * (math.log(self.hops) + math.log(self.nodes))
        return self.instances(seq_len) + asked

    def instances(self, seq_len: int) -> float:
        """Logarithm of nodes ** nodes."""
        return self.nodes * math.log(self.nodes)

    def instance(self, sequences: Windows) -> Windows:
        """The values of the table."""
        return sequences[:, 2 : 2 * self.nodes + 1 : 2]

    def answers(self, seq_len: int) -> NDArray[np.int64]:
        """The last of every three tokens after the table."""
        return 2 * self.nodes + 3 * np.arange(1, self._questions(seq_len) + 1)

    def _questions(self, seq_len: int) -> int:
        return (seq_len - 2 * self.nodes) // 3


@dataclass(frozen=True)
class Permutations:
    """Products of random permutations: the word problem of the symmetric group.

    Tokens: permutations from 1 in lexicographic order, then `length` tokens that count them.
    """

    degree: int
    length: int

    @property
    def vocab_size(self) -> int:
        """The start, the permutations, the numbers of factors."""
        return 1 + math.factorial(self.degree) + self.length

    @property
    def shortest(self) -> int:
        """One product of every length."""
        return sum(j + 2 for j in range(1, self.length + 1))

    def draw(self, generator: np.random.Generator, count: int, seq_len: int) -> Windows:
        """(count, seq_len + 1) tokens: products of 1 to `length` factors, while they fit."""
        words, size = self._words(seq_len), len(self._times)
        found = np.zeros((count, seq_len + 1), dtype=np.int64)
        for number in range(1, self.length + 1):
            at = np.array([answer for n, answer in words if n == number], dtype=np.int64)
            factors = generator.integers(0, size, (count, len(at), number))
            product = factors[..., 0]
            for place in range(1, number):
                product = self._times[factors[..., place], product]
            found[:, at - number - 1] = size + number
            found[:, at[:, None] - number + np.arange(number)] = factors + 1
            found[:, at] = product + 1
        return found

    def entropy(self, seq_len: int) -> float:
        """Of the factors; the products follow from them."""
        return self.instances(seq_len)

    def instances(self, seq_len: int) -> float:
        """Logarithm of degree! ** factors."""
        n_factors = sum(number for number, _ in self._words(seq_len))
        return n_factors * math.log(math.factorial(self.degree))

    def instance(self, sequences: Windows) -> Windows:
        """All of a sequence."""
        return sequences

    def answers(self, seq_len: int) -> NDArray[np.int64]:
        """The last token of every product."""
        return np.array([answer for _, answer in self._words(seq_len)], dtype=np.int64)

    def _words(self, seq_len: int) -> list[tuple[int, int]]:
        """(number of factors, where the product stands) of every product in a sequence."""
        words: list[tuple[int, int]] = []
        end = 0
        for number in itertools.cycle(range(1, self.length + 1)):
            end += number + 2
            if end > seq_len:
                return words
            words.append((number, end))
        raise AssertionError  # a cycle has no end

    @cached_property
    def _times(self) -> NDArray[np.int64]:
        """The number of the permutation that applies the second one, then the first one."""
        group = np.array(list(itertools.permutations(range(self.degree))), dtype=np.int64)
        digits = self.degree ** np.arange(self.degree, dtype=np.int64)
        place = np.zeros(self.degree**self.degree, dtype=np.int64)
        place[group @ digits] = np.arange(len(group))
        found: NDArray[np.int64] = place[group[:, group] @ digits]
        return found


@dataclass(frozen=True)
class Recall:
    """Multi-query associative recall. Tokens: keys from 1, then values."""

    pairs: int
    keys: int
    values: int

    @property
    def vocab_size(self) -> int:
        """The start, the keys, the values."""
        return 1 + self.keys + self.values

    @property
    def shortest(self) -> int:
        """The pairs and one question."""
        return 2 * self.pairs + 2

    def draw(self, generator: np.random.Generator, count: int, seq_len: int) -> Windows:
        """(count, seq_len + 1) tokens: the pairs, then as many questions as fit."""
        at = self.answers(seq_len)
        order = generator.permuted(np.tile(np.arange(self.keys), (count, 1)), axis=1)
        keys = order[:, : self.pairs] + 1
        values = generator.integers(1, self.values + 1, (count, self.pairs)) + self.keys
        asked = generator.integers(0, self.pairs, (count, len(at)))
        found = np.zeros((count, seq_len + 1), dtype=np.int64)
        found[:, 1 : 2 * self.pairs : 2] = keys
        found[:, 2 : 2 * self.pairs + 1 : 2] = values
        found[:, at - 1] = np.take_along_axis(keys, asked, axis=1)
        found[:, at] = np.take_along_axis(values, asked, axis=1)
        return found

    def entropy(self, seq_len: int) -> float:
        """Of the pairs, and of which one is asked for."""
        return self.instances(seq_len) + len(self.answers(seq_len)) * math.log(self.pairs)

    def instances(self, seq_len: int) -> float:
        """Logarithm of the ways to draw different keys in order, and a value for each."""
        ordered = math.lgamma(self.keys + 1) - math.lgamma(self.keys - self.pairs + 1)
        return ordered + self.pairs * math.log(self.values)

    def instance(self, sequences: Windows) -> Windows:
        """The pairs."""
        return sequences[:, 1 : 2 * self.pairs + 1]

    def answers(self, seq_len: int) -> NDArray[np.int64]:
        """Every second token after the pairs."""
        n_questions = (seq_len - 2 * self.pairs) // 2
        return 2 * self.pairs + 2 * np.arange(1, n_questions + 1)


Task = Pointers | Permutations | Recall
