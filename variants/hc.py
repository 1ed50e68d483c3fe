"""hc: h_l = A_m^T X, X' = A_r^T X + B^T f_l(h_l): n streams of full width, read, mixed, written.

Symbols: X (B, T, n, D) the streams before sublayer l, at first n copies of the embedding; f_l the
sublayer; per token A_m (n, 1) what it reads, A_r (n, n) how streams mix (row from, column to),
B (1, n) how much of its output each stream gets. With x_j stream j of a token, W (D, n + 1) and
w (D) learned, row j of (A_m, A_r) is s_a tanh(RMSNorm(x_j) W) plus a learned row, and B_j is
s_b tanh(RMSNorm(x_j) w) plus a learned number. The output norm sees the sum of the streams.

Options:
    n_streams  n; 1 is an ordinary residual with learned factors.
    dynamic    off: the learned rows and numbers alone, the same for every token.

Start: A_m is one at stream (l - 1) mod n and zero elsewhere, A_r = I, B = 1; W = w = 0, s_a =
s_b = 0.01, gain 1. All streams are then equal, each the standard stream: the model is `standard`
at step 0. Since streams are read at different depths, their B get different gradients at once.
Streams are equal at the first sublayer in any case, so what A_m is there hardly matters: the
sublayer's norm removes it.
Parameters: L n (n + 2); dynamic L (n (n + 2) + D (n + 3) + 2).
Cost: per sublayer 2 D n (n + 2) FLOPs for the sums, dynamic 2 D n (n + 4) more for the
coefficients and their norm, and n D at the output. Streams are read and written once more than
by `standard` for each of them: (3 n - 1) D numbers per sublayer, (n + 1) D at the output.
Depth mixing: M[l, i] = A_m(l)^T A_r(l-1)^T ... A_r(i+1)^T B(i)^T, per token if dynamic.

Source: Zhu et al. 2024, Hyper-Connections (arXiv 2409.19606), sections 2 and 3. Differences: the
norm before W is an RMSNorm with gain (their code: a LayerNorm), one per sublayer and shared by its
streams. A sublayer is a site, so an attention and its MLP start at different streams. Their
rescaling of the output projections at the start is left out: the trunk's weights are shared. The
form without tanh is not offered, it has no bound.
"""

from __future__ import annotations

import torch

from attnres_cli.nn.residual import VariantError, register

from .parts.learned_rows import LearnedRows


@register("hc")
class HyperConnections(LearnedRows):
    """Columns of the rows: A_m, the n of A_r, B."""

    equals_standard_at_init = True

    def __init__(
        self, d_model: int, n_sublayers: int, *, n_streams: int = 4, dynamic: bool = True
    ) -> None:
        super().__init__(d_model, n_sublayers)
        if n_streams < 1:
            raise VariantError(f"n_streams must be at least 1, got {n_streams}")
        self.n_streams = n_streams
        own = torch.eye(n_streams)[torch.arange(n_sublayers) % n_streams].unsqueeze(-1)
        keep = torch.eye(n_streams).expand(n_sublayers, -1, -1)
        rows = torch.cat((own, keep, torch.ones_like(own)), dim=-1)
        self.learn(rows, d_model, dynamic=dynamic)

    def extra_flops_per_token(self) -> int:
        per_sublayer = self.n_streams + 2 + (0 if self.weight is None else self.n_streams + 4)
        return self.d_model * self.n_streams * (2 * self.n_sublayers * per_sublayer + 1)
