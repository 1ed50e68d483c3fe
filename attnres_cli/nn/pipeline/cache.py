"""What a rank keeps of values that it has had, for its later chunks (cross-stage caching).

The chunk that first has a value deposits it. A later chunk of the rank withdraws it as a leaf that
shares its storage, and its backward, which comes first, leaves a gradient there. The backward of
the first chunk adds these to its own, so that the sum goes upstream once, by the hop that brought
the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class _Entry:
    value: Tensor
    leaves: list[Tensor] = field(default_factory=list)


@dataclass
class Cache:
    """Of one rank, for all its chunks: values by micro-batch and number. It is empty after every
    step. `micro_batch` is the one that a chunk is at.
    """

    micro_batch: int = 0
    entries: dict[tuple[int, int], _Entry] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Of all that is held."""
        return sum(entry.value.nbytes for entry in self.entries.values())

    def deposit(self, value: int, x: Tensor) -> Tensor:
        """x, kept until its backward; its gradient has those of all leaves in it."""
        key = self.micro_batch, value
        self.entries[key] = _Entry(x.detach())
        if torch.is_grad_enabled() and not x.requires_grad:  # a constant: its backward ends it too
            x = x.detach().requires_grad_()
        out: Tensor = _Deposit.apply(x, self, key)  # type: ignore[no-untyped-call]
        return out

    def withdraw(self, value: int, *, is_last: bool) -> Tensor:
        """A leaf with this value. Without gradients the last withdrawal ends it."""
        key = self.micro_batch, value
        entry = self.entries[key]
        if not torch.is_grad_enabled():
            if is_last:
                del self.entries[key]
            return entry.value
        leaf = entry.value.detach().requires_grad_()
        entry.leaves.append(leaf)
        return leaf

    def returned(self, key: tuple[int, int]) -> list[Tensor]:
        """The gradients that came to the leaves of a value, which ends here."""
        leaves = self.entries.pop(key).leaves
        return [leaf.grad for leaf in leaves if leaf.grad is not None]


class _Deposit(torch.autograd.Function):
    """x -> x; backward adds what later chunks of this rank found for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cache: Cache, key: tuple[int, int]) -> Tensor:
        ctx.cache, ctx.key = cache, key
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        for found in ctx.cache.returned(ctx.key):
            g = g + found
        return g, None, None


class _Tied(torch.autograd.Function):
    """(out, values) -> out; backward reaches the values too, with no gradient if they have none
    else: a chunk may hold what neither it nor the next one reads.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, *values: Tensor) -> Tensor:
        ctx.n_values = len(values)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, *([None] * ctx.n_values)


def tied(out: Tensor, values: Sequence[Tensor]) -> Tensor:
    """What a chunk puts out, whose backward goes through all that the chunk was given."""
    found: Tensor = _Tied.apply(out, *values)  # type: ignore[no-untyped-call]
    return found
