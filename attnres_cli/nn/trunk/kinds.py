"""Every kind of attention and MLP by its name in a recipe; nn/shape.py has their counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.attention import Attention, Rotary
from attnres_cli.nn.trunk.kda import KDA
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.mla import MLA
from attnres_cli.nn.trunk.mlp import GELU, ReLU2, SwiGLU
from attnres_cli.nn.trunk.moe import MoE

MLPS: dict[str, Callable[[Shape], Kind]] = {
    "swiglu": SwiGLU,
    "gelu": GELU,
    "relu2": ReLU2,
    "moe": MoE,
}

ATTENTIONS: dict[str, Callable[[Shape, Rotary | None], Kind]] = {
    "softmax": Attention,
    "mla": lambda shape, _: MLA(shape),
    "kda": lambda shape, _: KDA(shape),
}
"""The rotary positions are those of all layers; None: there are no positions."""

OPEN = frozenset({"softmax"})
"""Attentions that take `Inputs`, and whose values a design may change. Latent attention makes keys
and values of one vector, and in generation makes no values; KDA's gates and decay are made of what
it reads too, and its values by a convolution over time.
"""


def sublayers(shape: Shape) -> Iterator[Kind]:
    """The attention and the MLP of every layer, in turn."""
    rotary = Rotary(shape) if shape.positions == "rope" else None
    for attention, mlp in zip(shape.attentions, shape.mlps, strict=True):
        yield ATTENTIONS[attention](shape, rotary)
        yield MLPS[mlp](shape)
