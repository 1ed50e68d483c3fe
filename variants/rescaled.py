"""rescaled: h_l = (1 / l) sum_{i<l} v_i, v_0 = x, v_i = f_i(h_i).

Symbols: x (B, T, D) the embedding; v_i the output of sublayer i, f_i with its norm inside
(PreNorm); l = 1..L the sublayers and L + 1 the output norm. Each sees the mean of all sources.
Start: nothing is learned here. The model is `standard` at step 0, and stays so at every step: all
that reads h_l begins with an RMSNorm, which does not see the factor 1 / l. Only the eps of the
norms, which weighs more against a smaller h, and rounding set the two apart.
Contains: standard, where norms undo the mean, but for their eps.
Parameters: 0.
Cost: one division per channel and site, D (L + 1) FLOPs; the sum read and the mean written at each
site, 2 D (L + 1) numbers.
Depth mixing: M[l, i] = 1 / l for i < l. Rows sum to one.
Source: what Attention Residuals (Kimi Team 2026, arXiv 2603.15031) are with queries held at zero.
It is the null design: what `attnres` gains over this one is owed to learned weights, not to
averaging, and what this one gains or loses over `standard` is noise.
"""

from __future__ import annotations

from attnres_cli.nn.residual import Hidden, Residual, register


@register("rescaled")
class Rescaled(Residual):
    """The state is the running sum of all sources."""

    equals_standard_at_init = True

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return state / l, state

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y

    def finish(self, state: Hidden) -> Hidden:
        return state / (self.n_sublayers + 1)

    def extra_flops_per_token(self) -> int:
        return self.d_model * (self.n_sublayers + 1)
