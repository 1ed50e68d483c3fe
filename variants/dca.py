"""dca: X_b^c = sum_{j in J_b} (a_bcj + relu(w_bc . v_j)) * v_j, c = q, k, v, r; v_{b+1} of these.

Symbols: v_0 = x (B, T, D) the embedding, v_b what Transformer layer b = 1..n puts out, attention
and MLP together, without what they read: v_{b+1} = A + MLP(X_b^r + A), A = attention(X_b^q, X_b^k,
X_b^v). a_bcj (D) learned gains per channel, * by channel; w_bc (D) shared by a layer's sources. The
output norm sees X_n^r. J_b is all j <= b.
Options:
    nearest  J_b is the first so many and the newest so many; none: all.
Start: a = 1, w = 0: the sum of all, `standard` at step 0; with `nearest` where nothing is left out.
Parameters: 4 D (|J_b| + 1) for each b = 0..n-1, D (|J_n| + 1) at the end.
Cost: per layer and token 5 D FLOPs for each way and source.
Depth mixing: unknown to figures: the weights depend on the token, and differ by channel.
Refused: nearest below 1 or above n + 1; a kind of attention with one input (mla, kda).
Source: Heddes et al. 2025, DeepCrossAttention (arXiv 2502.06785), its third form; nearest is k-DCA.
Differences: the authors' code normalises what the gates see, and returns attention plus MLP with
another path; here it is as the paper's equations. At 0, where w begins, the gradient of relu is
taken as 1: with torch's, which is 0, no gate would ever open. The norm before attention has one
gain for queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.residual import Hidden, Inputs, Residual, Value, VariantError, register

WAYS = 4


class State(NamedTuple):
    """All v_j so far; of the current layer X^r, its attention's output, what attention reads."""

    sources: tuple[Hidden, ...]
    stream: Hidden
    output: Hidden | None = None
    inputs: Inputs | None = None


@register("dca")
class DCA(Residual):
    """Gains and gates of b are row b of `gain` and `gate`."""

    rate_falls = (("gain", 0, 2), ("gate", 1, 2))
    equals_standard_at_init = True
    named_inputs = True
    unbounded = "nothing bounds the gates, which multiply what they are made of"

    def __init__(self, d_model: int, n_sublayers: int, *, nearest: int | None = None) -> None:
        super().__init__(d_model, n_sublayers)
        n = self.n_layers
        if nearest is not None and not 1 <= nearest <= n + 1:
            raise VariantError(f"nearest must be in 1..{n + 1} (n_layers + 1), got {nearest}")
        few = n + 1 if nearest is None else nearest
        self.visible = [
            tuple(j for j in range(b + 1) if j < few or j > b - few) for b in range(n + 1)
        ]
        self.equals_standard_at_init = 2 * few > n
        ways = [1 if b == n else WAYS for b in range(n + 1)]
        self.gain = nn.ParameterList(
            torch.ones(len(seen), c, d_model) for seen, c in zip(self.visible, ways, strict=True)
        )
        self.gate = nn.ParameterList(torch.zeros(c, d_model) for c in ways)

    def start(self, x: Hidden) -> State:
        return self._mixed((x,))

    def _mixed(self, sources: tuple[Hidden, ...]) -> State:
        """The state in which the next layer begins, or the output norm reads."""
        b = len(sources) - 1
        seen = [sources[j] for j in self.visible[b]]
        at_once = seen[0].shape[1] == 1 and engines.decodes()
        total = self._at_once(seen, b) if at_once else self._one_by_one(seen, b)
        *inputs, r = total.to(sources[0].dtype).unbind(dim=-2)
        return State(sources, r, None, Inputs(*inputs) if inputs else None)

    def _one_by_one(self, seen: list[Hidden], b: int) -> Tensor:
        """The sums (B, T, C, D) for the ways of layer b + 1."""
        total: Tensor | None = None
        for gain, v in zip(self.gain[b], seen, strict=True):
            gates = F.linear(v, self.gate[b]).clamp(min=0).unsqueeze(-1)  # (B, T, C, 1)
            part = (gates + gain) * v.unsqueeze(-2)  # (B, T, C, D)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _at_once(self, seen: list[Hidden], b: int) -> Tensor:
        """The same in a third of the calls, which are what generation takes its time for."""
        v = torch.stack(seen, dim=-2)  # (B, T, J, D)
        gates = F.linear(v, self.gate[b]).clamp(min=0).unsqueeze(-1)
        return ((gates + self.gain[b]) * v.unsqueeze(-2)).sum(dim=-3)

    def read(self, state: State, l: int) -> tuple[Hidden | Inputs, State]:
        return state.inputs or state.stream, state

    def write(self, state: State, l: int, y: Hidden) -> State:
        if l % 2:
            return State(state.sources, state.stream + y, y)
        assert state.output is not None
        source = state.output.to(state.stream.dtype) + y  # autocast's outputs are in bfloat16
        return self._mixed((*state.sources, source))

    def finish(self, state: State) -> Hidden:
        return state.stream

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        if state.output is not None:
            return (*state.sources, state.stream, state.output)
        return (*state.sources, state.stream, *(state.inputs or ()))

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        sources, (stream, *rest) = tuple(tensors[: l // 2 + 1]), tensors[l // 2 + 1 :]
        if l % 2:
            return State(sources, stream, rest[0])
        return State(sources, stream, None, Inputs(*rest) if rest else None)

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """The first and the newest half are all."""
        nearest = options.get("nearest")
        is_all = isinstance(nearest, int) and 2 * nearest > n_sublayers // 2
        return {**options, "nearest": None} if is_all else options
