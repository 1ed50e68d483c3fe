"""attnres: h_l = sum_i a_il v_i, a_il = softmax_i(w_l . RMSNorm_l(v_i)), v_0 = x, v_i = f_i(h_i).

Symbols: x (B, T, D) the embedding; v_i the output of sublayer i; i runs over the sources that
site l sees, for Full all i < l; w_l (D) one learned query per site, and g_l (D) the gain of its
keys' norm, for the L sublayers and for the site before the output norm. Values are not
normalised; there is no 1/sqrt(D).

Options:
    block_size  sublayers (not layers) whose outputs are summed into one source; 1 is Full. The
                embedding is a source of its own, the last block may be shorter. Sources are the
                finished blocks and the running sum of the current one (eq. 5 and 6).
    heads       slices of the width with weights of their own; keys are normalised over the full
                width before they are split (the paper does not say).
    key_norm    off: s_il = w_l . v_i. Scores then grow with the sources.
    norm        sigmoid: a_il = sigmoid(s_il), not renormalised (the paper does not say).
    score       static: a_il = softmax_i(b_il) with one learned scalar per site and source, no
                query and no key (whether the paper normalises it, it does not say).
    window      a site sees the embedding and the newest `window` outputs, older ones are dropped.

Start: w = 0 (mandatory), g = 1, b = 0. All weights of a site are then equal, h_l is a positive
multiple of the standard stream, and the sublayers' norms remove the multiple: the model is
`standard` at step 0, but for `window`, which drops sources. The first site has one source: under
softmax its w, g and b never receive a gradient (kept, so that counts match the paper's).
Parameters: 2 D (L + 1); D (L + 1) without key norm; `heads` per site and source for static scores.

Source: Kimi Team 2026 (arXiv 2603.15031), sections 3 and 5.3, Table 4, Fig. 6. Differences: the
output site reads the embedding too, as in the authors' public code; the paper's sentence names
the blocks alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from attnres_cli.depthmix import History, Scoring
from attnres_cli.residual import Hidden, Residual, Value, VariantError, register


@register("attnres")
class AttnRes(Residual):
    """Source j is the running sum of the block of sublayer j, up to j; for Full, v_j itself."""

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        block_size: int = 1,
        heads: int = 1,
        key_norm: bool = True,
        norm: Literal["softmax", "sigmoid"] = "softmax",
        score: Literal["query", "static"] = "query",
        window: int | None = None,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        _refuse(d_model, block_size, heads, key_norm, score, window)
        self.block_size, self.heads, self.norm = block_size, heads, norm
        self.equals_standard_at_init = window is None or window >= n_sublayers
        self.visible = tuple(_sources(l, block_size, window) for l in range(1, n_sublayers + 2))
        self.query = self.gain = self.table = None
        if score == "static":
            self.table = nn.Parameter(torch.zeros(sum(map(len, self.visible)), heads))
        else:
            self.query = nn.Parameter(torch.zeros(n_sublayers + 1, d_model))
            self.gain = nn.Parameter(torch.ones(n_sublayers + 1, d_model)) if key_norm else None

    def start(self, x: Hidden) -> History:
        scoring = Scoring(self.visible, self.norm, self.heads, self.query, self.gain, self.table)
        return History(scoring).append(x)

    def read(self, state: History, l: int) -> tuple[Hidden, History]:
        return state.read(l - 1)

    def write(self, state: History, l: int, y: Hidden) -> History:
        starts_block = (l - 1) % self.block_size == 0
        return state.append(y) if starts_block else state.accumulate(y)

    def finish(self, state: History) -> Hidden:
        return state.read(self.n_sublayers)[0]

    def n_params(self) -> int:
        if self.table is not None:
            return self.heads * self._n_pairs()
        return self.d_model * (self.n_sublayers + 1) * (1 if self.gain is None else 2)

    def extra_flops_per_token(self) -> int:
        scores = 0 if self.table is not None else 2 * self.d_model * self._n_pairs()
        rms = 0 if self.gain is None else 2 * self.d_model * (self.n_sublayers + 1)
        return scores + rms + 2 * self.d_model * self._n_pairs()

    def extra_bytes_per_token(self, itemsize: int) -> int:
        made = 0 if self.table is not None else self.n_sublayers + 1
        moved = self._n_pairs() + made + (self.n_sublayers + 1) - 3 * self.n_sublayers
        in_block = self.n_sublayers - len(range(0, self.n_sublayers, self.block_size))
        return itemsize * self.d_model * (moved + 3 * in_block)

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        if self.norm == "sigmoid":
            return {}
        return {name: (0,) for name, _ in self.named_parameters()}

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor:
        history = self.start(values[0])
        for l, v in enumerate(values[1:], 1):
            history = self.write(history, l, v)
        batch, time, sites = *values[0].shape[:2], self.n_sublayers + 1
        mixing = values[0].new_zeros(batch, time, self.heads, sites, sites)
        for site, sources in enumerate(self.visible):
            for a, j in zip(history.weights(site).unbind(dim=-2), sources, strict=True):
                first = j if j == 0 else j - (j - 1) % self.block_size
                mixing[..., site, first : j + 1] = a.unsqueeze(-1)
        return mixing

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """A window over all sources is none; one block over all sublayers is of size L."""
        simple = dict(options)
        window, block_size = simple.get("window"), simple.get("block_size")
        if isinstance(window, int) and window >= n_sublayers:
            del simple["window"]
        if isinstance(block_size, int):
            simple["block_size"] = min(block_size, n_sublayers)
        return simple

    def _n_pairs(self) -> int:
        return sum(map(len, self.visible))


def _sources(l: int, block_size: int, window: int | None) -> tuple[int, ...]:
    """The sources that site l sees: embedding, last sublayer of each finished block, newest."""
    finished = range(block_size, l, block_size)
    if window is not None:
        finished = range(max(1, l - window), l)
    return tuple(sorted({0, *finished, l - 1}))


def _refuse(
    d_model: int, block_size: int, heads: int, key_norm: bool, score: str, window: int | None
) -> None:
    if block_size < 1:
        raise VariantError(f"block_size must be at least 1 (1 is Full), got {block_size}")
    if heads < 1 or d_model % heads:
        raise VariantError(f"heads must divide d_model {d_model}, got {heads}")
    if window is not None and window < 1:
        raise VariantError(f"window must be at least 1 output, got {window}")
    if window is not None and block_size > 1:
        raise VariantError(
            "window and block_size exclude each other: a window of outputs or of blocks? Drop one"
        )
    if score == "static" and not key_norm:
        raise VariantError("score=static has no keys, so key_norm=off means nothing: drop it")
