"""standard: h_{l+1} = h_l + f_l(h_l), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm). This is the
baseline of every comparison, the residual connection of GPT-2 and Llama.

Start: the sublayers' own weights alone decide.
Parameters: none.
Cost: the 3 D numbers per sublayer that all other counts are beyond: the stream and the output are
read, the stream is written.
Depth mixing: every output counts the same for ever; M is all ones below the diagonal.
Source: He et al. 2015 (arXiv 1512.03385); PreNorm: Xiong et al. 2020 (arXiv 2002.04745).
"""

from __future__ import annotations

from attnres_cli.nn.cost import TableOne
from attnres_cli.nn.residual import Hidden, Residual, register


@register("standard")
class Standard(Residual):
    """The state is the stream itself."""

    equals_standard_at_init = True

    def write(self, state: Hidden, l: int, y: Hidden) -> Hidden:
        return state + y

    def extra_flops_per_token(self) -> int:
        return 0

    def table_one(self) -> TableOne:
        """Stream and output in, stream out."""
        return TableOne("standard", 3.0, None, 3.0)
