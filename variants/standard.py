"""standard: h_{l+1} = h_l + f_l(h_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm). One stream is
carried, no parameter is added. Every output counts the same for ever: M is all ones below the
diagonal. This is the baseline of every comparison, GPT-2's and Llama's residual connection.

Source: He et al. 2015 (arXiv 1512.03385); PreNorm: Xiong et al. 2020 (arXiv 2002.04745).
"""

from __future__ import annotations

from attnres_cli.residual import Hidden, Residual, register


@register("standard")
class Standard(Residual):
    """The state is the stream itself."""

    equals_standard_at_init = True

    def start(self, x: Hidden) -> Hidden:
        return x

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return state, state

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y

    def finish(self, state: Hidden) -> Hidden:
        return state
