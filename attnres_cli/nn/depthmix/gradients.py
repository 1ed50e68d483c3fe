"""What a backward pass carries from the reads of sources to the sources."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor


class ScoredSource(NamedTuple):
    """A source v (N, D), and what its gradient is computed from.

    Attributes:
        first: its first reader.
        row: the first of all params that is its own.
        params: (R, D) queries with the gain folded in, or (R, H) scores of a table.
        z: (R, N, H) scores at its R readers; (R, 1, H) of a table.
        r: (N,) reciprocal rms, where keys are normalised; (N, 1) or (N, H) where reads bring their
            own queries.
    """

    number: int
    first: int
    row: int
    v: Tensor
    params: Tensor | None
    z: Tensor | None
    r: Tensor | None

    def scores(self, site: int, stop: int) -> Tensor:
        """(stop - site, N, H) scores at sites that follow each other; N is 1 of a table."""
        assert self.z is not None
        return self.z[site - self.first : stop - self.first]

    def scores_at(self, site: int) -> Tensor:
        """(N, H) scores at one site; (1, H) of a table."""
        assert self.z is not None
        return self.z[site - self.first]


class ReadGrad(NamedTuple):
    """What the read at a site sends back to one of its sources.

    Attributes:
        g: (N, D) gradient of the sum h.
        weight: (N, H) a_il of the source; (1, H) of a table. None where it is to be computed from
            the source's scores and the softmax.
        slope: the gradient s_il of its score; None of scores that are plain autograd's.
        delta: (N, H) g . h per head, for a softmax to be computed.
        constants: (2, N, H) of that softmax: largest score, and 1 / the sum of exponentials.
        along: (N, H) or (N, 1) weight of the source itself in its gradient, by its key's norm.
    """

    site: int
    g: Tensor
    weight: Tensor | None = None
    slope: Tensor | None = None
    delta: Tensor | None = None
    constants: Tensor | None = None
    along: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the score is plain autograd's."""
        return self.weight is not None and self.slope is None


class GradBuffer:
    """Gradients of later reads that wait for their source, kept apart by backward pass: one history
    may be read twice, branch, be recomputed by checkpointing, or be differentiated again, also in
    two threads at once.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[ReadGrad]] = {}

    def put(self, grad: ReadGrad) -> None:
        """Add the gradient of a read."""
        self._held.setdefault(_backward_pass(), []).append(grad)

    def take(self) -> list[ReadGrad]:
        """Remove and return what is there, by site."""
        return sorted(self._held.pop(_backward_pass(), ()), key=attrgetter("site"))


class ParamGrads:
    """The gradient of params, to which each source adds, kept apart by backward pass."""

    def __init__(self, params: Tensor) -> None:
        self._params = params.detach()
        self._held: dict[int, Tensor] = {}

    def add(self, row: int, drows: Tensor) -> None:
        """Add the gradient of some rows, from `row` on."""
        now = _backward_pass()
        if now not in self._held:
            self._held[now] = torch.zeros_like(self._params)
        self._held[now][row : row + len(drows)].add_(drows)

    def take(self) -> Tensor | None:
        """Remove and return what is there."""
        return self._held.pop(_backward_pass(), None)


def _backward_pass() -> int:
    """The number of the backward pass that is running.

    torch has no public name for it; its own checkpointing and multi-gradient hooks call this one.
    nn/private.py checks that it is there.
    """
    return torch._C._current_graph_task_id()  # noqa: SLF001
