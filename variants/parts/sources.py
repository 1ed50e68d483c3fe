"""Sources: what a site sees of the embedding v_0 and the outputs v_1, v_2, .. before it.

Blocks      v_0, b_n = sum_{i in block n} v_i, and the current block's sum so far (eq. 5, 6);
            blocks of one output are Full: v_0 and every v_i
Means       b_n = the mean of the block's v_i so far
UnitSums    b_n = sum_i v_i / rms(v_i) once block n is finished, before that the plain sum
Window      v_0 and the newest outputs; older ones are dropped

Source j is that of the block of output j, up to j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import wide
from attnres_cli.nn.residual import Hidden, VariantError


class State(NamedTuple):
    """The sources; of `UnitSums` the normalised outputs of the current block, summed; for a query
    made of the stream the sum of all outputs. For queries of the input each site's q and P.
    """

    history: History
    units: Hidden | None = None
    stream: Hidden | None = None
    queries: Sequence[tuple[Tensor, Tensor]] = ()


class Blocks:
    """Sums of `size` outputs each; the last block may be shorter."""

    standard_with: tuple[str, ...] = ("none", "recency")
    """Priors with which equal scores weigh every output the same."""

    def __init__(self, d_model: int, n_sublayers: int, size: int = 1) -> None:
        self.d_model, self.n_sublayers, self.size = d_model, n_sublayers, size
        self.visible = tuple(self._seen(l) for l in range(1, n_sublayers + 2))

    def _seen(self, l: int) -> tuple[int, ...]:
        """The sources of site l: embedding, last output of each finished block, newest output."""
        return tuple(sorted({0, *range(self.size, l, self.size), l - 1}))

    def append(self, state: State, l: int, y: Hidden) -> State:
        """The state with output l in it."""
        starts_block = (l - 1) % self.size == 0
        history = state.history.append(y) if starts_block else state.history.accumulate(y)
        return State(history, *state[1:])

    def place(self, l: int) -> int:
        """1, 2, ...: of an output in its block."""
        return (l - 1) % self.size + 1

    def is_finished(self, j: int) -> bool:
        """Whether source j holds all outputs of its block."""
        return self.place(j) == self.size or j == self.n_sublayers

    def has_units(self, j: int) -> bool:
        """Whether normalised outputs are being summed when output j is in."""
        return False

    def outputs(self, j: int) -> range:
        """The outputs that source j holds."""
        return range(j - self.place(j) + 1 if j else 0, j + 1)

    def share(self, v: Hidden, j: int) -> Tensor | float:
        """What an output v is multiplied by in source j: a number, or (B, T, 1)."""
        return 1.0

    @property
    def n_pairs(self) -> int:
        """Sites times the sources that they see."""
        return sum(map(len, self.visible))

    def flops(self) -> int:
        """Per token: 2 D for each source of a site."""
        return 2 * self.d_model * self.n_pairs


class Means(Blocks):
    """With the log of their counts as prior, a mean counts every output the same."""

    standard_with = ("count",)

    def append(self, state: State, l: int, y: Hidden) -> State:
        n = self.place(l)
        if n == 1:
            return super().append(state, l, y)
        newest = state.history.newest
        change = (y - newest.to(wide(newest))) / n
        return state._replace(history=state.history.accumulate(change))

    def share(self, v: Hidden, j: int) -> float:
        return 1 / len(self.outputs(j))

    def flops(self) -> int:
        return super().flops() + 2 * self.d_model * self.n_sublayers


class UnitSums(Blocks):
    """The embedding stays as it is."""

    standard_with = ()

    def append(self, state: State, l: int, y: Hidden) -> State:
        n = self.place(l)
        units = unit(y) if n == 1 or state.units is None else state.units + unit(y)
        if self.is_finished(l):
            return state._replace(history=state.history.append(units), units=None)
        return super().append(state._replace(units=units), l, y)

    def has_units(self, j: int) -> bool:
        return j > 0 and not self.is_finished(j)

    def share(self, v: Hidden, j: int) -> Tensor | float:
        return inverse_rms(v) if j > 0 and self.is_finished(j) else 1.0

    def flops(self) -> int:
        return super().flops() + 4 * self.d_model * self.n_sublayers


class Window(Blocks):
    """The newest `window` outputs, each by itself."""

    def __init__(self, d_model: int, n_sublayers: int, window: int) -> None:
        self.window = window
        if window < n_sublayers:
            self.standard_with = ()
        super().__init__(d_model, n_sublayers)

    def _seen(self, l: int) -> tuple[int, ...]:
        return (0, *range(max(1, l - self.window), l))


def sources_of(d_model: int, n_sublayers: int, size: int, window: int | None, agg: str) -> Blocks:
    """The sources that options name: sums of kind `agg` of `size` outputs, or a window."""
    alone = "where every source is one output: set block_size or drop it"
    exclude = "exclude each other: a window of outputs or of blocks? Drop one"
    refuse((size < 1, f"block_size must be at least 1 (1 is Full), got {size}"))
    if window is not None:
        refuse(
            (window < 1, f"window must be at least 1 output, got {window}"),
            (size > 1, f"window and block_size {exclude}"),
            (agg != "sum", f"window and agg={agg} {exclude}"),
        )
        return Window(d_model, n_sublayers, window)
    refuse((size == 1 and agg == "mean", f"agg=mean is agg=sum {alone}"))
    return {"sum": Blocks, "mean": Means, "rmssum": UnitSums}[agg](d_model, n_sublayers, size)


def refuse(*cases: tuple[bool, str]) -> None:
    """Raise VariantError with the first reason that holds."""
    for refused, reason in cases:
        if refused:
            raise VariantError(reason)


def inverse_rms(v: Tensor) -> Tensor:
    """1 / rms(v) (B, T, 1), in float32 at least."""
    return torch.rsqrt(v.to(wide(v)).square().mean(dim=-1, keepdim=True) + 1e-6)


def unit(v: Tensor) -> Tensor:
    """The same of unit size, v / rms(v), in float32 at least."""
    return v * inverse_rms(v)
