"""What the trunk asks of a sublayer's attention or MLP, whichever kind it is."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn


class Heads(NamedTuple):
    """Queries and keys (B, T, H + K, d_head), values (B, T, K, d_head), before norms, positions."""

    qk: Tensor
    v: Tensor


def is_out(name: str) -> bool:
    """Whether a sublayer's parameter of this name is what makes its output."""
    return name.removesuffix(".weight").endswith("out")


class Kind(nn.Module):
    """(B, T, D) -> (B, T, D). One that looks back takes a cache beside, which it makes itself."""

    def cache(self, length: int) -> object:
        """What it keeps of up to `length` tokens while a model generates, in attributes that are
        tensors (B, ...), or tuples of them; None: it keeps nothing, and is called without.
        """
        return None

    def initial(self, name: str, drawn: Tensor, n_sublayers: float) -> Tensor:
        """Its parameter of this name before training, from as many standard normal numbers: gains
        are 1, weights are N(0, 1 / fan_in), those of `out` N(0, 1 / (fan_in n_sublayers)). fan_in
        is the second size: of (out, in), as of a stack of experts (n_experts, in, out).
        """
        if drawn.ndim == 1:
            return drawn.new_ones(drawn.shape)
        return drawn * (1 / math.sqrt(drawn.shape[1] * (n_sublayers if is_out(name) else 1)))

    def values(self, name: str, weights: Tensor) -> Tensor:
        """The part of these weights, which are its parameter of this name, that its output is
        proportional to: a design's `branch_scale` multiplies it. By default all.
        """
        return weights
