"""A mixture of experts: y = sum_{e in C} w_e E_e(h) + S(h), of which a token uses a few.

    s = sigmoid(R h)                                   the score of each of n experts, in float32
    C = the k experts with the largest s_e + b_e
    w_e = sqrt(k) s_e / sum_{c in C} s_c
    E(h) = out(silu(gate h) * up h)                    S: all shared experts, side by side

b only chooses. It keeps the experts' loads equal without a loss of its own: after each step of the
optimiser, with n_e the tokens of expert e in that step and v_e = sign(mean(n) - n_e),

    b_e += 0.001 (v_e - mean(v))

No token is dropped. sqrt(k) makes the sum as large as one expert's output where weights are equal;
it is 2.449 for k = 6 where Moonlight has 2.446, and 2.828 for k = 8 where Kimi K2 has 2.827, from
the mean of 1 / |w| for random scores. DeepSeek-V3 has 2.5 for k = 8. As the size of a sublayer's
output is what residual designs differ in, we do not leave it out.

Letters: B batch, T time, D width, N tokens, k experts per token.
Source: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2; the mean over v and the factor: Liu et
al. 2025 (arXiv 2502.16982), appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.grouped import rows as by_group
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.linear import Linear
from attnres_cli.nn.trunk.mlp import SwiGLU, gated

SPEED = 1e-3  # of a bias, per step: DeepSeek-V3's


class MoE(Kind):
    """The k of n experts that a token's scores choose, and the shared ones.

    `load` (n_experts) counts the tokens of each since `balance` was last called, while training.
    """

    bias: Tensor
    load: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        n, d_model, d_ff = shape.n_experts, shape.d_model, shape.d_ff
        self.top_k = shape.top_k
        self.router = Linear(d_model, n)
        self.gate_up = nn.Parameter(torch.empty(n, d_model, 2 * d_ff))
        self.out = nn.Parameter(torch.empty(n, d_ff, d_model))
        self.shared = SwiGLU(_shared(shape)) if shape.n_shared_experts else None
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("load", torch.zeros(n, dtype=torch.long), persistent=False)

    def forward(self, h: Hidden) -> Hidden:
        """(B, T, D) -> (B, T, D)."""
        x = h.flatten(0, -2)
        weights, chosen = self.route(x)
        experts, order = chosen.flatten().sort(stable=True)  # of all N k pairs, token by token
        back = torch.empty_like(order).scatter_(0, order, _count_up(order))
        ends = torch.searchsorted(experts, _count_up(self.load), right=True, out_int32=True)
        self._count(ends)
        dtype = _computed_in(h)
        spread = _spread(x.to(dtype), order, back, self.top_k)
        inner = gated(by_group(spread, self.gate_up.to(dtype), ends))
        inner = inner * weights.to(dtype).flatten().index_select(0, order).unsqueeze(-1)
        each = by_group(inner, self.out.to(dtype), ends)
        y = _collected(each, order, back, self.top_k).view(h.shape)
        return y if self.shared is None else y + self.shared(h)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers (N, k) of the experts that tokens x (N, D) use."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with _not_cast(x.device):
            scores = F.logsigmoid(F.linear(x.to(wide), self.router.weight.to(wide)))
        chosen = (scores.detach().exp() + self.bias).topk(self.top_k, dim=-1).indices
        # s_e / sum_c s_c by logarithms: all k scores may be so small that they round to 0
        return math.sqrt(self.top_k) * scores.gather(1, chosen).softmax(dim=-1), chosen

    def imbalance(self, h: Hidden) -> Tensor:
        """The tokens of the expert that has most, of those of h (B, T, D), as times the mean."""
        _, chosen = self.route(h.flatten(0, -2))
        n_tokens = torch.bincount(chosen.flatten(), minlength=len(self.bias))
        return n_tokens.max() / n_tokens.double().mean()

    def values(self, name: str, weights: Tensor) -> Tensor:
        """Not the router, which makes scores."""
        return weights[:0] if name.startswith("router") else weights

    def _count(self, ends: Tensor) -> None:
        """Add what is trained on to the load, once: not where the backward pass of a model that
        `checkpoints_activations` computes it again.
        """
        if not (self.training and torch.is_grad_enabled()):
            return
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:  # noqa: SLF001
            self.load.add_(ends.diff(prepend=ends.new_zeros(1)))


@torch.no_grad()
def balance(model: nn.Module, summed: Callable[[Tensor], Tensor]) -> None:
    """Move the biases of all routers of a model by the loads of a step, after it. `summed` adds up
    what ranks have seen of a batch, each of another part.
    """
    layers = [part for part in model.modules() if isinstance(part, MoE)]
    if not layers:
        return
    loads = summed(torch.stack([layer.load for layer in layers]))  # (layers, n_experts)
    signs = (loads.sum(dim=1, keepdim=True) - loads.shape[1] * loads).sign().double()
    moves = SPEED * (signs - signs.mean(dim=1, keepdim=True))
    for layer, move in zip(layers, moves, strict=True):
        layer.bias += move
        layer.load.zero_()


def _spread(x: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
    """Tokens (N, D) to a row for each of their experts, sorted by expert (N k, D)."""
    if torch.compiler.is_compiling():
        return x.unsqueeze(1).expand(-1, k, -1).flatten(0, 1).index_select(0, order)
    return _Spread.apply(x, order, back, k)  # type: ignore[no-untyped-call]


def _collected(y: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
    """Each token's sum over its experts (N, D), of their rows (N k, D)."""
    if torch.compiler.is_compiling():
        return y.index_select(0, back).unflatten(0, (-1, k)).sum(dim=1)
    return _Collected.apply(y, order, back, k)  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """The one's gradient is the other. Torch's own would be added up row by row, on a CPU in four
    times the time, on a GPU in an order that is left to chance.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(order, back)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order, back = ctx.saved_tensors
        return _collected(gradients[0], order, back, ctx.k), None, None, None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, back: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(order, back)
        ctx.k = k
        return y.index_select(0, back).unflatten(0, (-1, k)).sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        order, back = ctx.saved_tensors
        return _spread(gradients[0], order, back, ctx.k), None, None, None


def _shared(shape: Shape) -> Shape:
    """Of one MLP as wide as all shared experts."""
    d_ff = shape.n_shared_experts * shape.d_ff
    return replace(shape, mlp="swiglu", d_ff=d_ff, top_k=0, n_shared_experts=0)


def _count_up(like: Tensor) -> Tensor:
    """0, 1, 2..., as many."""
    return torch.arange(len(like), device=like.device)


def _computed_in(h: Tensor) -> torch.dtype:
    """The type of matrix products with h, which autocast narrows."""
    device = h.device.type
    narrow = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if narrow else h.dtype


def _not_cast(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast, which some devices do not have."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
