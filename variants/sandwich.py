"""sandwich: h_{l+1} = h_l + N'_l(F_l(N_l(h_l))), h_1 = x.

Symbols: x (B, T, D) the embedding; F_l sublayer l; N_l and N'_l the RMSNorms of its input and of
its output, each with a gain (D), for l = 1..L. The trunk puts both around the sublayer.
Start: all gains are 1. Not `standard` at step 0: every output has unit size, whatever its weights,
and the output projections' initial scale has no effect.
Parameters: L D, the gains of the second norms; they belong to the trunk's sublayers, not to this
module.
Cost: one norm more per sublayer: 4 D L FLOPs (mean square, division, gain), and 2 D L numbers to
read the raw output and to write the normalised one.
Depth mixing: M[l, i] = 1 for i < l, with v_i the output of sublayer i after its second norm.
Source: Kim et al. 2025, "Peri-LN" (arXiv 2502.02732); before it, as "sandwich LayerNorm",
Ding et al. 2021, CogView (arXiv 2105.13290); Gemma 2.
Differences: RMSNorm; no norm on the embedding, which Peri-LN has as an option. The second norms
have the trunk's eps.
"""

from __future__ import annotations

from attnres_cli.nn.residual import Hidden, Norms, Residual, register


@register("sandwich")
class Sandwich(Residual):
    """The state is the stream itself: the trunk does the rest."""

    norms = Norms.PRE_AND_POST

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y

    def extra_flops_per_token(self) -> int:
        return 4 * self.d_model * self.n_sublayers
