"""postnorm: h_{l+1} = N_l(h_l + F_l(h_l)), h_1 = x.

Symbols: x (B, T, D) the embedding; F_l sublayer l without a norm of its own; N_l the RMSNorm of
sum l, with a gain g_l (D), for l = 1..L.
Start: g_l = 1. Not `standard` at step 0: every sum is brought to unit size, so that an output
made k sublayers ago has been divided k times.
Parameters: L D, in place of the L D of the input norms that the sublayers do not have.
Cost: none beyond `standard`: as many norms, at another place, within the sum.
Depth mixing: M[l, i] = prod_{j = max(i, 1)}^{l - 1} g_j / rms_j, rms_j of sum j: of each token
through rms_j and of each channel through g_j.
Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.1; Xiong et al. 2020 (arXiv 2002.04745)
on why it needs warm-up and a smaller lr.
Differences: RMSNorm (eps 1e-6) and not LayerNorm. The trunk's output norm stays and sees what N_L
has already normalised. The output projections keep the trunk's initial values, which shrink with
depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Norms, Residual, register
from attnres_cli.nn.trunk.norm import RMSNorm


@register("postnorm")
class PostNorm(Residual):
    """The stream is normalised after each sum."""

    norms = Norms.NONE

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.after_sum = nn.ModuleList(RMSNorm(d_model, eps=1e-6) for _ in range(n_sublayers))

    def sum(self, h: Tensor, y: Tensor) -> Tensor:
        """What a norm sees, of the stream and of an output."""
        return h + y

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return self.after_sum[l - 1](self.sum(state, y))

    def extra_flops_per_token(self) -> int:
        return 0  # as many norms as there are without it

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor:
        sources = torch.eye(self.n_sublayers + 1).to(values[0])
        x, row = values[0], sources[0].expand(*values[0].shape, -1)  # (B, T, D, L + 1)
        rows = [row]
        for v, source, norm in zip(values[1:], sources[1:], self.after_sum, strict=True):
            assert isinstance(norm, RMSNorm)
            total = self.sum(x, v)
            rms = torch.sqrt(total.square().mean(dim=-1, keepdim=True) + 1e-6)
            row = (norm.weight / rms).unsqueeze(-1) * self.sum(row, source)
            x = norm(total)
            rows.append(row)
        return torch.stack(rows, dim=-2)
