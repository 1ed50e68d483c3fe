"""The loss of a large vocabulary, whose logits are never all there at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token, in float32 or wider."""
    logits = logits.flatten(0, -2)
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(wide, targets.flatten())


def chunked_loss(hidden: Tensor, weight: Tensor, targets: Tensor, n_chunks: int) -> Tensor:
    """Mean cross-entropy of the logits `hidden @ weight.T`, a part of the tokens at a time, from
    hidden (B, T, D), weight (V, D) and targets (B, T).

    Where autograd is recording, a part's gradients are made while its logits are there, and not
    computed again: the same arithmetic as of all at once, in the memory of one part.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    size = -(-len(targets) // n_chunks)
    if torch.is_grad_enabled():
        return _ChunkedLoss.apply(hidden, weight, targets, size)  # type: ignore[no-untyped-call]
    losses = [
        next_token_loss(F.linear(h, weight), t) * len(t)
        for h, t in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return torch.stack(losses).sum() / len(targets)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, size: int) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        to_weight = torch.zeros_like(weight, dtype=wide)
        to_hidden = []
        for h, t in zip(hidden.split(size), targets.split(size), strict=True):
            logits = F.linear(h, weight)  # in autocast's type, where there is one
            log_p = logits.to(wide).log_softmax(dim=-1)
            at = t[:, None]
            total = total - log_p.gather(1, at).sum()
            slope = log_p.exp()
            slope = slope.scatter_add(1, at, torch.full_like(at, -1, dtype=wide)) / len(targets)
            slope = slope.to(logits.dtype)
            to_hidden.append((slope @ weight.to(slope.dtype)).to(hidden.dtype))
            to_weight = to_weight + slope.t() @ h.to(slope.dtype)
        ctx.save_for_backward(torch.cat(to_hidden), to_weight.to(weight.dtype))
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * gradients[0], to_weight * gradients[0], None, None
