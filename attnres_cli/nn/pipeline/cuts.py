"""The state of a design wherever it may be cut: found by running the design alone on one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.pipeline.plan import Cut, Cuts, Plan, Planned
from attnres_cli.nn.residual import Residual
from attnres_cli.nn.variant import Variant


@dataclass(frozen=True)
class States:
    """What a design carries from sublayer to sublayer.

    Attributes:
        carried: for 0, 1, .. L sublayers done, the number of each tensor that `carry` gives.
        tokens: of each number one token (1, 1, ...), for its sizes and type.
    """

    carried: tuple[Cut, ...]
    tokens: Sequence[Tensor]

    @property
    def cuts(self) -> Cuts:
        """The same for a plan: each value once."""
        states = tuple(tuple(dict.fromkeys(state)) for state in self.carried)
        return Cuts(states, {i: x.numel() * x.itemsize for i, x in enumerate(self.tokens)})

    def like(self, value: int, batch: int, time: int) -> Tensor:
        """A value of so many tokens, without numbers."""
        token = self.tokens[value]
        return torch.empty(batch, time, *token.shape[2:], dtype=token.dtype, device="meta")


@torch.no_grad()
def states_of(design: Residual, x: Tensor, y: Tensor, v: Tensor) -> States:
    """The states between an embedding x and outputs y, both (1, 1, D), with values v (1, 1, heads,
    d_head) of attentions. States never change in place, so a tensor that two of them have is one
    value. Raises VariantError for a design that cannot be cut.
    """
    numbers: dict[int, int] = {}
    tokens: list[Tensor] = []  # they live on, so that no other tensor takes the place of one

    def numbered(tensors: Sequence[Tensor]) -> Cut:
        for tensor in tensors:
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(tokens)
                tokens.append(tensor)
        return tuple(numbers[id(tensor)] for tensor in tensors)

    with engines.use("reference"):
        state = design.start(x)
        carried = [numbered(design.carry(state, 0))]
        for l in range(1, design.n_sublayers + 1):
            _, state = design.read(state, l)
            if l % 2 and design.sees_values:
                _, state = design.values(state, l, v.clone())
            state = design.write(state, l, y.clone())
            carried.append(numbered(design.carry(state, l)))
    return States(tuple(carried), tokens)


def planned(typed: Variant, n_layers: int, d_model: int, stages: int, virtual: int) -> Planned:
    """A design of this size in a pipeline. Raises VariantError for a design that does not fit, or
    that cannot be cut; ValueError for a pipeline that the size has no room for.
    """
    with torch.device("meta"):
        design = typed.build(d_model, 2 * n_layers)
        token = torch.zeros(1, 1, d_model)
    cuts, paper = states_of(design, token, token, token.unsqueeze(2)).cuts, design.table_one()
    n_blocks = None
    if paper is not None and paper.scheme in ("Full", "Block"):
        n_blocks = design.n_sublayers
        if paper.scheme == "Block" and paper.groups is not None:
            n_blocks = paper.groups[1]
    return Planned(
        str(typed.at_depth(design.n_sublayers)),
        d_model,
        Plan(cuts, stages, virtual, "whole"),
        Plan(cuts, stages, virtual, "cached"),
        n_blocks,
        design.n_params(),
    )
