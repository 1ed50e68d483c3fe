"""dlcl: Y_b = sum_{j <= b} a_bj N_j(X_j), X_b = layer_b(Y_{b-1}), X_0 = x, Y_0 = a_00 N_0(x).

Symbols: x (B, T, D) the embedding; X_b the stream after Transformer layer b = 1..n, which keeps its
own residual connections; N_j the RMSNorm of stream j, with a gain (D); a_bj learned scalars that do
not depend on the input. The output norm sees Y_n.
Options:
    start   average: a_bj = 1 / (b + 1). one: a_bj = 1. newest: a_bb = 1, all others 0.
    window  of the earlier X_j only the newest so many are seen; none: all.
Start: as `start` says. Not `standard`: every stream is normalised before it is mixed.
Parameters: (n + 1) D, and a scalar for each pair of a layer and a stream that it sees.
Cost: for each such scalar D multiply-adds and D numbers read; a norm per stream.
Depth mixing: none, as sources are normalised sums of outputs.
Refused: a window below 1 or above n + 1.
Source: Wang et al. 2019, "Learning Deep Transformer Models" (arXiv 1906.01787), its form for
PreNorm, and its code's initial values.
Differences: RMSNorm for LayerNorm. The scalars are never decayed. Its forms with a scalar for a
group of channels, or under a softmax, are not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.residual import Hidden, Residual, Value, VariantError, register
from attnres_cli.nn.trunk.norm import RMSNorm

State = tuple[History, Hidden]
"""All N_j(X_j) so far, and the stream inside the current layer."""


@register("dlcl")
class DLCL(Residual):
    """Site b mixes after layer b, site 0 before the first."""

    not_linear = "the streams that are mixed are normalised sums of outputs"

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        start: Literal["average", "one", "newest"] = "average",
        window: int | None = None,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        n = self.n_layers + 1
        if window is not None and not 1 <= window <= n:
            raise VariantError(f"window must be in 1..{n} (n_layers + 1), got {window}")
        self.visible = tuple(tuple(range(max(0, b + 1 - (window or n)), b + 1)) for b in range(n))
        weights = [
            {"average": 1 / len(seen), "one": 1.0, "newest": float(j == seen[-1])}[start]
            for seen in self.visible
            for j in seen
        ]
        self.weight = nn.Parameter(torch.tensor(weights).unsqueeze(-1))  # (pairs, 1)
        self.before = nn.ModuleList(RMSNorm(d_model, eps=1e-6) for _ in range(n))

    def start(self, x: Hidden) -> State:
        return self._mixed(History(self._scoring()), x, 0)

    def _scoring(self) -> Scoring:
        return Scoring(self.visible, norm="none", table=self.weight)

    def _mixed(self, history: History, stream: Hidden, b: int) -> State:
        normed = self.before[b](stream).to(stream.dtype)
        h, history = history.append(normed).read(b)
        return history, h

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        return state[1], state

    def write(self, state: State, l: int, y: Hidden) -> State:
        history, stream = state[0], state[1] + y
        return (history, stream) if l % 2 else self._mixed(history, stream, l // 2)

    def finish(self, state: State) -> Hidden:
        return state[1]

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        return (state[1], *state[0].carry(l // 2 + 1))

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        stream, *sources = tensors
        return History.resume(self._scoring(), sources, l // 2 + 1, l // 2 + 1), stream

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """A window over all streams is none."""
        is_all = options.get("window") == n_sublayers // 2 + 1
        return {**options, "window": None} if is_all else options

    def extra_flops_per_token(self) -> int:
        return self.d_model * (2 * sum(map(len, self.visible)) + 4 * (self.n_layers + 1))
