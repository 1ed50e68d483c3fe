"""Weights: a_il of source i at site l, made of the scores s_il.

softmax             a_il = exp(s_il) / sum_j exp(s_jl)
sigmoid             a_il = sigmoid(s_il)
sigmoid_normalised  a_il = sigmoid(s_il) / sum_j sigmoid(s_jl)
none                a_il = s_il
"""

from __future__ import annotations

from typing import NamedTuple

from attnres_cli.nn.depthmix.scoring import Norm


class Weights(NamedTuple):
    """How the engine makes weights of scores.

    Attributes:
        norm: of the engine.
        squashed: scores go through log sigmoid before it: its softmax is then sigmoid_normalised.
        neutral: the score with which every source has the same weight.
    """

    norm: Norm
    squashed: bool = False
    neutral: float = 0.0

    @property
    def sum_to_one(self) -> bool:
        """A site of one source then has nothing to learn."""
        return self.norm == "softmax"


WEIGHTS = {
    "softmax": Weights("softmax"),
    "sigmoid": Weights("sigmoid"),
    "sigmoid_normalised": Weights("softmax", squashed=True),
    "none": Weights("none", neutral=1.0),
}
