"""The dense MLPs: out(silu(gate h) * up h) (Shazeer 2020, arXiv 2002.05202), out(gelu(up h)), and
out(relu(up h)^2) (So et al. 2021, arXiv 2109.08668).

Letters: B batch, T time, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres_cli.nn.residual import Hidden
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.linear import Linear


class SwiGLU(Kind):
    """out(silu(gate h) * up h)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = Linear(shape.d_model, 2 * shape.d_dense)
        self.out = Linear(shape.d_dense, shape.d_model)

    def forward(self, h: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        return self.out(gated(self.gate_up(h)))


class Ungated(Kind):
    """out(act(up h))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.d_model, shape.d_dense)
        self.out = Linear(shape.d_dense, shape.d_model)


class GELU(Ungated):
    """out(gelu(up h))."""

    def forward(self, h: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        return self.out(F.gelu(self.up(h)))


class ReLU2(Ungated):
    """out(relu(up h)^2)."""

    def forward(self, h: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        return self.out(F.relu(self.up(h)).square())


def gated(gate_up: Tensor) -> Tensor:
    """(..., F): silu(gate) * up, from both side by side (..., 2 F)."""
    if torch.compiler.is_compiling():
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    return _Gated.apply(gate_up)  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """Its gradient is written where the product before it wants it: no vector is copied there."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, opened = ctx.saved_tensors
        (dy,) = gradients
        gate, up = gate_up.chunk(2, dim=-1)
        if torch.is_grad_enabled():  # create_graph=True
            (found,) = torch.autograd.grad(F.silu(gate) * up, gate_up, dy, create_graph=True)
            return found
        found = torch.empty_like(gate_up)
        dgate, dup = found.chunk(2, dim=-1)
        torch.mul(dy, opened, out=dup)
        torch.mul(dy, up, out=dgate)
        torch.ops.aten.silu_backward.grad_input(dgate, gate, grad_input=dgate)
        return found
