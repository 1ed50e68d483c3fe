"""deepnorm: h_{l+1} = N_l(alpha h_l + F_l(h_l)), h_1 = x, alpha = (2 n_layers)^(1/4).

Symbols: x (B, T, D) the embedding; F_l sublayer l without a norm of its own; N_l the RMSNorm of
sum l, with a gain g_l (D), for l = 1..L; alpha a constant; beta = (8 n_layers)^(-1/4) the factor
on initial weights. n_layers counts Transformer layers, each with an attention and an MLP: L / 2.
Start: g_l = 1; the initial weights of values, MLPs and output projections are multiplied by beta,
those of queries and keys are not. Not `standard` at step 0.
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

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Norms, Residual, register


@register("deepnorm")
class DeepNorm(Residual):
    """The state is the normalised stream."""

    norms = Norms.NONE

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.alpha = (2 * self.n_layers) ** (1 / 4)
        self.branch_scale = (8 * self.n_layers) ** (-1 / 4)
        self.after_sum = nn.ModuleList(nn.RMSNorm(d_model, eps=1e-6) for _ in range(n_sublayers))

    def start(self, x: Hidden) -> Hidden:
        return x

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return state, state

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return self.after_sum[l - 1](self.alpha * state + y)

    def finish(self, state: Hidden) -> Hidden:
        return state

    def n_params(self) -> int:
        return self.n_sublayers * self.d_model

    def extra_flops_per_token(self) -> int:
        return self.n_sublayers * self.d_model

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor:
        sources = torch.eye(self.n_sublayers + 1).to(values[0])
        x, row = values[0], sources[0].expand(*values[0].shape, -1)  # (B, T, D, L + 1)
        rows = [row]
        for v, source, norm in zip(values[1:], sources[1:], self.after_sum, strict=True):
            assert isinstance(norm, nn.RMSNorm)
            total = self.alpha * x + v
            rms = torch.sqrt(total.square().mean(dim=-1, keepdim=True) + 1e-6)
            row = (norm.weight / rms).unsqueeze(-1) * (self.alpha * row + source)
            x = norm(total)
            rows.append(row)
        return torch.stack(rows, dim=-2)
