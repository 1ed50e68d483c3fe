"""delta: h_l = x_{l-1} + g_l sum_i a_il d_i, a_il = softmax_i(w_l . RMSNorm_l(d_i)).

Symbols: x_l = x_{l-1} + v_l (B, T, D) the ordinary stream, x_0 the embedding; v_l = f_l(h_l) the
output of sublayer l; d_i the sources, the embedding and the earlier outputs (or sums of blocks of
them); w_l (D) one query per site, g'_l (D) the gain of its keys' norm; g_l a gate. The first site
reads x_0 as it is.

Options:
    block_size  sublayers whose outputs are summed into one source.
    partial     off: the running block's own sum is no source until the block is finished.
    gate        none: g_l = 1; scalar: g_l = sigmoid(b_l); vector: g_l = sigmoid(W_l x_{l-1} + b_l).
    null        a zero vector is one more source, with score 0, so that less may be added.
    ways        qkv: an attention reads for its queries, keys and values by queries and gates of
                their own, as three sites that see the same sources; h: once for all.

Start: w = 0, g' = 1, W = 0, b = -2 (sigmoid 0.12). All weights of a site are equal and its sources
sum to x_{l-1}, so that h_l is a positive multiple of x_{l-1}: `standard` at step 0. It is not with
partial=off, where outputs of the running block count less. The output norm sees x_L.
Parameters: 2 D S for S = L - 1 sites, with ways=qkv 2 L - 3; S more for gate=scalar, (D^2 + D) S
for gate=vector.
Cost: per site but the first and source 4 D FLOPs, per source 2 D for its rms, 2 D a site to gate
and add, 2 D^2 more with gate=vector. A source is read where it is made and at each site that sees
it.
Depth mixing: 1 + g_l a_il, of what queries see; the same for all outputs of a block; 1 for those in
no source; of every channel with gate=vector.
Refused: partial=off with block_size=1, where every output is a finished block.

Source: Delta Attention Residuals (arXiv 2605.18855) and its public code.
Differences: d_i are outputs; the baselines that this line of work calls attention residuals mix
cumulative states instead. The public code lists no running block (partial=off) and from the second
block on subtracts an output instead of a state; here a block is the sum of its outputs. That the
first site reads the embedding, having no earlier output, is from the code. The gates' b_l is
learned for every site, of every channel with gate=vector; W_l sees x_{l-1} without a norm, as in
the code. ways=qkv is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.residual import Hidden, Inputs, Residual, Value, VariantError, register

from .parts.sources import Blocks

CLOSED = -2.0
"""What gates start at, before the sigmoid."""


class State(NamedTuple):
    """The stream, and the sources: d_0, then for each output the running sum of its block."""

    stream: Hidden
    history: History


@register("delta")
class Delta(Residual):
    """`sites[l - 2]` are the engine's sites of sublayer l; with null its source 0 is zero, and the
    others follow.
    """

    rate_falls = (("query", 1, 0), ("project", 1, 0))

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        block_size: int = 1,
        partial: bool = True,
        gate: Literal["none", "scalar", "vector"] = "none",
        null: bool = False,
        ways: Literal["h", "qkv"] = "h",
    ) -> None:
        super().__init__(d_model, n_sublayers)
        if block_size < 1:
            raise VariantError(f"block_size must be at least 1, got {block_size}")
        if block_size == 1 and not partial:
            raise VariantError("partial=off means nothing for blocks of one output: drop it")
        self.sources, self.null = Blocks(d_model, n_sublayers, block_size), null
        self.equals_standard_at_init, self.named_inputs = partial, ways == "qkv"
        self.seen = [
            tuple(j for j in sources if partial or self.sources.is_finished(j))
            for sources in self.sources.visible[1:-1]
        ]
        n_reads = [3 if self.named_inputs and l % 2 else 1 for l in range(2, n_sublayers + 1)]
        ends = list(accumulate(n_reads, initial=0))
        self.sites = [range(*pair) for pair in pairwise(ends)]
        self.visible = tuple(
            (0, *(j + 1 for j in sources)) if null else sources
            for sources, its in zip(self.seen, self.sites, strict=True)
            for _ in its
        )
        self.n_pairs, self.n_scored = sum(map(len, self.visible)), len({*chain(*self.visible)})
        sites = ends[-1]
        self.query = nn.Parameter(torch.zeros(sites, d_model))
        self.gain = nn.Parameter(torch.ones(sites, d_model))
        self.bias = self.project = None
        if gate == "scalar":
            self.bias = nn.Parameter(torch.full((sites, 1), CLOSED))
        if gate == "vector":
            self.bias = nn.Parameter(torch.full((sites, d_model), CLOSED))
            self.project = nn.Parameter(torch.zeros(sites, d_model, d_model))

    def start(self, x: Hidden) -> State:
        history = History(self._scoring())
        if self.null:
            history = history.append(torch.zeros_like(x))
        return State(x, history.append(x))

    def _scoring(self) -> Scoring:
        return Scoring(self.visible, "softmax", query=self.query, gain=self.gain)

    def read(self, state: State, l: int) -> tuple[Hidden | Inputs, State]:
        if l == 1:
            return state.stream, state
        found, history = [], state.history
        for site in self.sites[l - 2]:
            mix, history = history.read(site)
            gate = self._gate(state.stream, site)
            added = mix if gate is None else (gate * mix).to(mix.dtype)
            found.append(state.stream + added)
        state = state._replace(history=history)
        return found[0] if len(found) == 1 else Inputs(*found), state

    def _gate(self, stream: Hidden, site: int) -> Tensor | None:
        """(1), or (B, T, D) with gate=vector."""
        if self.bias is None:
            return None
        bias = self.bias[site].to(torch.promote_types(self.bias.dtype, torch.float32))
        if self.project is None:
            return torch.sigmoid(bias)
        return torch.sigmoid(F.linear(stream, self.project[site]) + bias)

    def write(self, state: State, l: int, y: Hidden) -> State:
        stream, history = state.stream + y, state.history
        if l < self.n_sublayers:  # nothing reads the last output but the stream
            starts_block = self.sources.place(l) == 1
            history = history.append(y) if starts_block else history.accumulate(y)
        return State(stream, history)

    def finish(self, state: State) -> Hidden:
        return state.stream

    def carry(self, state: State, l: int) -> tuple[Tensor, ...]:
        return (state.stream, *state.history.carry(self._next(l)))

    def _next(self, l: int) -> int:
        """The first of the engine's sites that is read after sublayer l."""
        return self.sites[l - 1].start if 1 <= l < self.n_sublayers else len(self.visible) * (l > 0)

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        stream, *sources = tensors
        n_sources = min(l, self.n_sublayers - 1) + 1 + self.null
        return State(stream, History.resume(self._scoring(), sources, self._next(l), n_sources))

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | Inputs:
        if self.named_inputs:
            return Inputs(*(self._mixing(values, k) for k in range(3)))
        return self._mixing(values)

    def _mixing(self, values: Sequence[Hidden], k: int = 0) -> Tensor:
        sites = self.n_sublayers + 1
        width = self.d_model if self.project is not None else 1
        batch, time = values[0].shape[:2]
        ones = torch.ones(sites, sites, dtype=values[0].dtype, device=values[0].device)
        mixing = ones.tril().expand(batch, time, width, sites, sites).clone()
        state = self.write(self.start(values[0]), 1, values[1])
        for l, sources in enumerate(self.seen, 2):
            site = self.sites[l - 2][min(k, len(self.sites[l - 2]) - 1)]
            weights, gate = state.history.weights(site), self._gate(state.stream, site)
            for j, a in zip(sources, weights.unbind(dim=-2)[self.null :], strict=True):
                added = a if gate is None else gate * a  # (B, T, 1 or D)
                for i in self.sources.outputs(j):
                    mixing[..., l - 1, i] += added
            state = self.write(state, l, values[l])
        return mixing

    def extra_flops_per_token(self) -> int:
        d, sites = self.d_model, len(self.visible)
        project = 0 if self.project is None else 2 * d * d
        return 4 * d * self.n_pairs + 2 * d * self.n_scored + (2 * d + project) * sites

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """One block over all sublayers is of size L."""
        block_size = options.get("block_size")
        if isinstance(block_size, int):
            return {**options, "block_size": min(block_size, n_sublayers)}
        return options

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        """What sites of one source have: its weight is 1."""
        dead = [site for site, seen in enumerate(self.visible) if len(seen) == 1]
        return {"query": dead, "gain": dead} if dead else {}
