"""denseformer: Y_b = sum_{j in J_b} a_bj X_j, X_b = layer_b(Y_{b-1}), J_b = {j <= b: j = b mod k}.

Symbols: X_0 = Y_0 = x the embedding; X_b (B, T, D) the stream after Transformer layer b =
1..n_layers, which keeps its own residual connections, so X_b is cumulative; a_bj learned scalars
that do not depend on the input. The output norm sees Y of the last layer.

Options:
    dilation    k: of the earlier X_j only every k-th is seen, X_b itself always.
    period      only layers with b mod period = 0 mix; the others pass X_b on.

Start: a_bb = 1, all others 0, so the model is exactly `standard` at step 0.
Parameters: floor(b / dilation) + 1 for each layer b that mixes.
Cost: for each such scalar D multiply-adds and D numbers read; D numbers written per layer that
mixes.
Depth mixing: the scalars act on cumulative states, so M[l, i] is a sum over the X_j that hold v_i;
v_i that enter the same states share one weight.
Refused: a dilation or period above the number of layers.

Source: Pagliardini et al. 2024 (arXiv 2402.02622), depth-weighted averaging; dilation and period
as in their code.
Differences: the scalars are never decayed (their optimiser decays them, which
pulls the identity weight to 0). Table 4 of the Attention Residuals paper does not say which
dilation and period it ran: 1 and 1 are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.residual import Hidden, Residual, VariantError, register


class State(NamedTuple):
    """All X_j so far, and the stream inside the current layer."""

    history: History
    stream: Hidden


@register("denseformer")
class DenseFormer(Residual):
    """Site b (counted from 0) mixes after layer b + 1."""

    rate_falls = (("weight", 0, 2),)
    equals_standard_at_init = True

    def __init__(
        self, d_model: int, n_sublayers: int, *, dilation: int = 1, period: int = 1
    ) -> None:
        super().__init__(d_model, n_sublayers)
        for name, value in (("dilation", dilation), ("period", period)):
            if not 1 <= value <= self.n_layers:
                raise VariantError(f"{name} must be in 1..{self.n_layers} (n_layers), got {value}")
        self.visible = tuple(
            tuple(range(b % dilation, b + 1, dilation)) if b % period == 0 else ()
            for b in range(1, self.n_layers + 1)
        )
        identity = [float(j == seen[-1]) for seen in self.visible for j in seen]
        self.weight = nn.Parameter(torch.tensor(identity).unsqueeze(-1))  # (pairs, 1)

    def start(self, x: Hidden) -> State:
        return State(History(self._scoring()).append(x), x)

    def _scoring(self) -> Scoring:
        return Scoring(self.visible, norm="none", table=self.weight)

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        return state.stream, state

    def write(self, state: State, l: int, y: Hidden) -> State:
        stream = state.stream + y
        if l % 2 == 1:  # the attention: its layer is not over yet
            return State(state.history, stream)
        history, site = state.history.append(stream), l // 2 - 1
        if self.visible[site]:
            stream, history = history.read(site)
        return State(history, stream)

    def finish(self, state: State) -> Hidden:
        return state.stream

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        return (state.stream, *state.history.carry(l // 2))

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        stream, *sources = tensors
        return State(History.resume(self._scoring(), sources, l // 2, l // 2 + 1), stream)

    def extra_flops_per_token(self) -> int:
        return 2 * self.d_model * sum(map(len, self.visible))
