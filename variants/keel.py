"""keel: h_{l+1} = N_l(L h_l + f_l(h_l)), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l = 1..L with its norm inside (PreNorm); N_l the
RMSNorm of sum l, with a gain g_l (D).
Start: g_l = 1. Not `standard`: every sum is brought to unit size, in which an output is one part in
L + 1.
Parameters: L D, beside the norms that sublayers keep.
Cost: a norm and a multiplication more per sublayer, 5 D L FLOPs.
Depth mixing: M[l, i] = prod_{j = max(i, 1)}^{l - 1} g_j a_ij / rms_j, a_ij = L for i < j and 1 for
i = j: of each token through rms_j and of each channel through g_j.
Source: "Keel" (arXiv 2601.19895), as Table 5 of the Attention Residuals paper writes it.
Differences: the factor L counts sublayers. A newsletter describes a gated form by the same name,
which is not here.
"""

from __future__ import annotations

from torch import Tensor

from attnres_cli.nn.residual import Norms, register

from .postnorm import PostNorm


@register("keel")
class Keel(PostNorm):
    """Post-norm of a sum that is nearly the stream, around sublayers with norms of their own."""

    norms = Norms.PRE

    def sum(self, h: Tensor, y: Tensor) -> Tensor:
        return self.n_sublayers * h + y

    def extra_flops_per_token(self) -> int:
        return 5 * self.n_sublayers * self.d_model
