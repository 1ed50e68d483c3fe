"""mudd: X_b^c = sum_{j in J_b} (a_bcj + w_bcj) X_j for c = q, k, v, r; X_{b+1} from these four.

Symbols: X_0 = x (B, T, D) the embedding, X_b the stream after Transformer layer b = 1..n, which
keeps its own residual connections: x' = X_b^r + attention(X_b^q, X_b^k, X_b^v), X_{b+1} = x' +
MLP(x'), so X_b is cumulative. a_bcj learned scalars; w_b = U_b gelu(W_b rms(X_b)) made of the
newest stream for each token, W_b (H, D) and U_b (C |J_b|, H), H = C |J_b|; C = 4 ways, of the last
layer r alone, which the output norm sees. J_b is all j <= b. The first layer reads x for each way.
Options:
    layers   so many last layers' streams are mixed, after the others every way is X_b. none: all.
    window   J_b is 0 and the newest so many; none: all.
    dynamic  off: w = 0, one weight for all tokens.
Start: W ~ N(0, 1 / D), U = 0, a_bcb = 1 and all other a = 0: `standard` at step 0.
Contains: denseformer, where the four ways are equal and U = 0.
Parameters: per layer that mixes D H + H C |J| + C |J|, without dynamic C |J|.
Cost: per such layer and token 2 D C |J| for the sums and 2 (D + C |J|) H for their weights.
Depth mixing: of what queries see; the MLP's site sees X^r and its attention's output. The weights
act on cumulative streams, so that M[l, i] is a sum over the X_j that hold v_i.
Refused: layers or window below 1, or above n; a kind of attention with one input (mla, kda).
Source: Xiao et al. 2025, MUDDFormer (arXiv 2502.12170). layers and window are the trimmed form of
modded-nanogpt (its pull request 259).
Differences: the norm before the attention has one gain for queries, keys and values; separate
matrices follow it, which can take up three. H is not rounded up to 64. No wider MLPs in later
layers, and no norms before and after the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.scoring import no_autocast
from attnres_cli.nn.residual import (
    Hidden,
    Inputs,
    Residual,
    Value,
    VariantError,
    by_input,
    register,
)

WAYS = 4
EPS = 1e-6


class State(NamedTuple):
    """All X_j so far, the stream, and what an attention reads; None: the stream."""

    sources: tuple[Hidden, ...]
    stream: Hidden
    inputs: Inputs | None = None


@register("mudd")
class Mudd(Residual):
    """`visible[b]` are the streams mixed after layer b; a layer without any passes X_b on."""

    rate_falls = (("static", 0, 2), ("made_of", 1, 2), ("made", 0, 3))
    equals_standard_at_init = True
    named_inputs = True

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        layers: int | None = None,
        window: int | None = None,
        dynamic: bool = True,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        n = self.n_layers
        for name, value in (("layers", layers), ("window", window)):
            if value is not None and not 1 <= value <= n:
                raise VariantError(f"{name} must be in 1..{n} (n_layers), got {value}")
        first, seen = n + 1 - (layers or n), window or n + 1
        self.visible = {
            b: tuple(j for j in range(b + 1) if j == 0 or j > b - seen) for b in range(first, n + 1)
        }
        self.static, self.made_of, self.made = (nn.ParameterDict() for _ in range(3))
        generator = torch.Generator().manual_seed(0)
        for b, visible in self.visible.items():
            ways, width = self._ways(b), self._ways(b) * len(visible)
            newest = torch.zeros(ways, len(visible))
            newest[:, -1] = 1
            self.static[str(b)] = nn.Parameter(newest)
            if dynamic:
                drawn = torch.randn(width, d_model, generator=generator) / math.sqrt(d_model)
                self.made_of[str(b)] = nn.Parameter(drawn)
                self.made[str(b)] = nn.Parameter(torch.zeros(width, width))

    def _ways(self, b: int) -> int:
        return 1 if b == self.n_layers else WAYS

    def start(self, x: Hidden) -> State:
        return State((x,), x)

    def read(self, state: State, l: int) -> tuple[Hidden | Inputs, State]:
        return state.inputs or state.stream, state

    def write(self, state: State, l: int, y: Hidden) -> State:
        stream, b = state.stream + y, l // 2
        if l % 2:
            return State(state.sources, stream)
        sources = (*state.sources, stream)
        if b not in self.visible:
            return State(sources, stream)
        return self._mixed(sources, b, self._weights(stream, b))

    def _mixed(self, sources: tuple[Hidden, ...], b: int, weights: Tensor) -> State:
        """The state after layer b, by weights (..., C, J)."""
        visible = torch.stack([sources[j] for j in self.visible[b]], dim=-2)  # (B, T, J, D)
        with no_autocast(visible):  # else the stream goes on in bfloat16
            *inputs, r = torch.matmul(weights.to(visible.dtype), visible).unbind(dim=-2)
        return State(sources, r, Inputs(*inputs) if inputs else None)

    def _weights(self, newest: Hidden, b: int) -> Tensor:
        """(..., C, J) of a layer's ways and sources, from X_b."""
        static = self.static[str(b)]
        if str(b) not in self.made:
            return static.expand(*newest.shape[:-1], *static.shape)
        hidden = F.linear(F.rms_norm(newest, newest.shape[-1:], eps=EPS), self.made_of[str(b)])
        return F.linear(_gelu(hidden), self.made[str(b)]).unflatten(-1, static.shape) + static

    def finish(self, state: State) -> Hidden:
        return state.stream

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        return (*state.sources, state.stream, *(state.inputs or ()))

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        sources, (stream, *inputs) = tensors[: l // 2 + 1], tensors[l // 2 + 1 :]
        return State(tuple(sources), stream, Inputs(*inputs) if inputs else None)

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | Inputs:
        units = torch.eye(len(values)).to(values[0])
        state, rows = self.start(values[0]), list[Hidden | Inputs]()
        held = self.start(units[0].expand(*values[0].shape[:-1], -1))  # by weights of the values
        for l, y in enumerate(values[1:], 1):
            h, _ = self.read(held, l)
            rows.append(h)
            state, stream = self.write(state, l, y), held.stream + units[l]
            b = l // 2
            sources = held.sources if l % 2 else (*held.sources, stream)
            held = State(sources, stream)
            if l % 2 == 0 and b in self.visible:
                held = self._mixed(sources, b, self._weights(state.sources[-1], b))
        return by_input([*rows, held.stream], lambda each: torch.stack(each, dim=-2).unsqueeze(2))

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """As many last layers as there are are all of them, and so are as many streams."""
        all_of = ("layers", "window")
        given = {name for name in all_of if options.get(name) == n_sublayers // 2}
        return {**options, **dict.fromkeys(given)}


def _gelu(x: Tensor) -> Tensor:
    """GELU: of a single token in a third of the time, as torch's on a CPU asks oneDNN first."""
    if x.shape[1] == 1 and x.is_cpu and engines.decodes():
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return F.gelu(x)
