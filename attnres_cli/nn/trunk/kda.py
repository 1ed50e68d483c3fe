"""Kimi Delta Attention: what a token recalls from a memory of fixed size, see delta_rule.py.

    q, k, v = silu(conv(qkv h)), per head;  q, k of unit length, q / sqrt(d_head)
    log alpha = -exp(A_log) softplus(decay h + dt_bias),  beta = sigmoid(beta h)
    y = out(norm(o) sigmoid(gate h)),  o the gated delta rule of q, k, v, alpha, beta

conv looks at a token and the three before it, channel by channel; decay and gate are matrices of
rank d_head. The order of tokens is in the memory: there are no positions.
Letters: B batch, T time, D width, H heads.
Source: Kimi Team 2025 (arXiv 2510.26692), section 4; initial values of A_log and dt_bias those of
its public code, which are Mamba's (Gu and Dao 2023, arXiv 2312.00752).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.delta_rule import DeltaRule
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.linear import Linear
from attnres_cli.nn.trunk.norm import RMSNorm

WINDOW = 4
"""Tokens that the convolution sees."""

_A, _DT = (1.0, 16.0), (1e-3, 0.1)
"""Between which exp(A_log) and softplus(dt_bias) begin, the latter drawn by its logarithm."""


class Memory:
    """What KDA keeps of the tokens so far: the state (B, H, d_head, d_head) and the last three
    inputs of the convolution (B, 3, 3 H d_head); None before the first token.
    """

    def __init__(self) -> None:
        self.state: Tensor | None = None
        self.inputs: Tensor | None = None


class KDA(Kind):
    """Kimi Delta Attention; as many heads for keys and values as for queries."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads, self.d_head = shape.n_heads, shape.d_head
        width = shape.n_heads * shape.d_head
        self.qkv = Linear(shape.d_model, 3 * width)
        self.conv = self._own("conv", 3 * width, 1, WINDOW)
        self.decay = _low_rank(shape.d_model, shape.d_head, width)
        self.A_log = self._own("A_log", shape.n_heads)
        self.dt_bias = self._own("dt_bias", width)
        self.beta = Linear(shape.d_model, shape.n_heads)
        self.rule = DeltaRule()
        self.norm = RMSNorm(shape.d_head, eps=shape.norm_eps)
        self.gate = _low_rank(shape.d_model, shape.d_head, width)
        self.out = Linear(width, shape.d_model)

    def forward(self, h: Hidden, cache: Memory | None = None) -> Hidden:
        """(B, T, D) -> (B, T, D); with a cache, h follows the tokens that the cache has seen."""
        x, memory = self.qkv(h), cache or Memory()
        if memory.inputs is None:
            x = F.pad(x, (0, 0, WINDOW - 1, 0))
        else:
            x = torch.cat((memory.inputs, x), dim=1)
        q, k, v = F.silu(_convolved(x, self.conv)).unflatten(-1, (3, -1, self.d_head)).unbind(2)
        decay = self.decay(h) + self.dt_bias
        wide = torch.promote_types(decay.dtype, torch.float32)
        # softplus of all side by side: its gradient's strides differ between eager and traced
        decay = F.softplus(decay.to(wide)).unflatten(-1, (-1, self.d_head))
        g = -self.A_log.to(wide).exp().unsqueeze(-1) * decay
        q, k = _unit(q) * self.d_head**-0.5, _unit(k)
        o, state = self.rule(q, k, v, g, self.beta(h).sigmoid(), memory.state)
        if cache is not None:
            cache.state, cache.inputs = state, x[:, 1 - WINDOW :].clone()
        y = self.norm(o) * self.gate(h).sigmoid().unflatten(-1, (-1, self.d_head))
        return self.out(y.flatten(-2))

    def _own(self, name: str, *size: int) -> nn.Parameter:
        """Not a matrix, and with initial values of its own."""
        return nn.Parameter(self.initial(name, torch.randn(size), 1))

    def cache(self, length: int) -> Memory:
        """Of one size, whatever the length."""
        return Memory()

    def initial(self, name: str, drawn: Tensor, n_sublayers: float) -> Tensor:
        """exp(A_log) uniform over 1..16, softplus(dt_bias) log-uniform over 0.001..0.1."""
        if name == "conv":
            return drawn / math.sqrt(WINDOW)
        if name not in ("A_log", "dt_bias"):
            return super().initial(name, drawn, n_sublayers)
        uniform = torch.special.ndtr(drawn)
        if name == "A_log":
            return (_A[0] + (_A[1] - _A[0]) * uniform).log()
        dt = (math.log(_DT[0]) + math.log(_DT[1] / _DT[0]) * uniform).exp()
        return dt + (-torch.expm1(-dt)).log()  # the inverse of softplus

    def values(self, name: str, weights: Tensor) -> Tensor:
        """Of matrices `out` alone: the norm takes away the size of v."""
        return weights if name == "out.weight" else weights[:0]


def _low_rank(n_in: int, rank: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(Linear(n_in, rank), Linear(rank, n_out))


def _unit(x: Tensor) -> Tensor:
    """Heads (..., d_head) of unit length."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    """(B, T, C) of inputs x (B, 3 + T, C): each channel by its own (C, 1, 4).

    As an image of height 1, in the order in which it lies: of 1024 tokens and 192 channels forward
    and backward 0.5 ms, 1 ms as a sequence or as four shifts.
    """
    image = x.mT.unsqueeze(2)
    return F.conv2d(image, weight.unsqueeze(2), groups=len(weight)).squeeze(2).mT
