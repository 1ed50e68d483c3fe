"""What a backward pass carries from the reads of sources to the sources."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ScoredSource(NamedTuple):
    """A source v (N, D), and what its gradient is computed from; `first` is its first reader.

    Attributes:
        params: (R, D) queries with the gain folded in, or (R, H) scores of a table.
        z: (R, N, H) scores at its R readers; (R, 1, H) of a table.
        r: (N,) reciprocal rms, where keys are normalised.
    """

    number: int
    first: int
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
    """The gradient that reaches the read at a site, for the sources it has `seen`.

    Attributes:
        g: (N, D) gradient of the sum h.
        delta: (N, H) g . h per head, for a softmax.
        constants: (2, N, H) of the softmax: largest score, and 1 / the sum of exponentials.
        weights: (S, N, H), where scores are plain autograd's.
    """

    site: int
    seen: tuple[int, ...]
    g: Tensor
    delta: Tensor | None = None
    constants: Tensor | None = None
    weights: Tensor | None = None

    def own_share(self, source: int) -> Tensor:
        """(N, D) a_il g_l of a source, by the read's own weights."""
        assert self.weights is not None
        a = self.weights[self.seen.index(source)].unsqueeze(-1)  # (N, H, 1)
        return (a * self.g.view(len(a), a.shape[1], -1)).flatten(-2)


class GradBuffer:
    """Gradients of later reads that wait for a source, kept apart by backward pass: one history may
    be read twice, branch, be recomputed by checkpointing, or be differentiated again, also in two
    threads at once.
    """

    def __init__(self, before: GradBuffer | None) -> None:
        self.before = before
        self._held: dict[int, list[ReadGrad]] = {}

    def put(self, grads: list[ReadGrad]) -> None:
        """Add gradients of reads."""
        self._held.setdefault(_backward_pass(), []).extend(grads)

    def take(self) -> list[ReadGrad]:
        """Remove and return what is there, by site."""
        return sorted(self._held.pop(_backward_pass(), []), key=lambda grad: grad.site)


def _backward_pass() -> int:
    """The number of the backward pass that is running.

    torch has no public name for it; its own checkpointing and multi-gradient hooks call this one.
    The only private name of torch that the engine uses: pyproject.toml bounds torch for it.
    """
    return torch._C._current_graph_task_id()  # noqa: SLF001
