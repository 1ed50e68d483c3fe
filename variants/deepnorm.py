"""deepnorm: h_{l+1} = N_l(alpha h_l + F_l(h_l)), h_1 = x, alpha = (2 n_layers)^(1/4).

Symbols: x (B, T, D) the embedding; F_l sublayer l without a norm of its own; N_l the RMSNorm of
sum l, with a gain g_l (D), for l = 1..L; alpha a constant; beta = (8 n_layers)^(-1/4) the factor
on initial weights. n_layers counts Transformer layers, each with an attention and an MLP: L / 2.
Start: g_l = 1; the initial weights of values, MLPs and output projections are multiplied by beta,
those of queries and keys are not. Not `standard` at step 0.
Contains: postnorm, where alpha and beta are 1.
Parameters: L D, in place of the L D of the input norms that the sublayers do not have.
Cost: one multiplication by alpha per channel and sublayer, D L FLOPs; no bytes.
Depth mixing: M[l, i] = alpha^(l - 1 - i) prod_{j = i}^{l - 1} g_j / rms_j for an output i >= 1 and
M[l, 0] = prod_{j = 1}^{l - 1} alpha g_j / rms_j: of each token through rms_j, the size of sum j,
and of each channel through g_j.
Source: Wang et al. 2022 (arXiv 2203.00555), the decoder-only case of its table of alpha and beta.
Differences: RMSNorm (eps 1e-6) and not LayerNorm. beta multiplies the trunk's own initial weights,
whose output projections are already smaller by 1 / sqrt(2 n_layers); the paper starts from Xavier
without it. A gated MLP has its gate scaled like the rest of the MLP. The trunk's output norm stays
and sees what N_L has already normalised.
"""

from __future__ import annotations

from torch import Tensor

from attnres_cli.nn.residual import register

from .postnorm import PostNorm


@register("deepnorm")
class DeepNorm(PostNorm):
    """Post-norm of another sum, with smaller initial weights."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.alpha = (2 * self.n_layers) ** (1 / 4)
        self.branch_scale = (8 * self.n_layers) ** (-1 / 4)

    def sum(self, h: Tensor, y: Tensor) -> Tensor:
        return self.alpha * h + y

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model
