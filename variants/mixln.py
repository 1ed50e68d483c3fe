"""mixln: h_{l+1} = N_l(h_l + F_l(h_l)) in the first layers, h_l + F_l(N_l(h_l)) in the others.

Symbols: x = h_1 (B, T, D) the embedding; F_l sublayer l without a norm of its own; N_l its RMSNorm,
with a gain g_l (D).
Options:
    share  of the n layers, rounded, those that have the norm after the sum: 0 is `standard` but for
           the eps of the norms, 1 `postnorm`.
Start: g_l = 1.
Contains: postnorm, where share=1; standard, where share=0, but for the eps of the norms.
Parameters: L D, the input norms that the sublayers do not have.
Cost: none beyond `standard`: as many norms, at other places.
Depth mixing: none: later sublayers are given what a norm has made of the stream.
Refused: a share outside 0..1.
Source: Li et al. 2024, Mix-LN (arXiv 2412.13795), with a quarter of the layers.
Differences: RMSNorm (eps 1e-6) for LayerNorm.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from attnres_cli.nn.residual import Hidden, Norms, Residual, Value, VariantError, register
from attnres_cli.nn.trunk.norm import RMSNorm

SHARE = 0.25


@register("mixln")
class MixLN(Residual):
    """The first `n_after` sublayers have their norm after the sum."""

    norms = Norms.NONE
    not_linear = "later sublayers are given what a norm has made of the stream"

    def __init__(self, d_model: int, n_sublayers: int, *, share: float = SHARE) -> None:
        super().__init__(d_model, n_sublayers)
        if not 0 <= share <= 1:
            raise VariantError(f"share must be in 0..1, got {share}")
        self.n_after = 2 * round(share * self.n_layers)
        self.norm_of = nn.ModuleList(RMSNorm(d_model, eps=1e-6) for _ in range(n_sublayers))

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return (state if l <= self.n_after else self.norm_of[l - 1](state)), state

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return self.norm_of[l - 1](state + y) if l <= self.n_after else state + y

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """The default, or else the shortest share, of as many layers."""
        share, n = options.get("share"), n_sublayers // 2
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            return options
        layers = round(share * n)
        shares = (SHARE, *(round(layers / n, digits) for digits in range(1, 17)), share)
        return {**options, "share": next(each for each in shares if round(each * n) == layers)}

    def extra_flops_per_token(self) -> int:
        return 0  # as many norms as there are without it
