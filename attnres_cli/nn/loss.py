"""The loss of a large vocabulary, whose logits are never all there at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_LOGITS = 2**29
"""Bytes of logits, in float32, that a loss may have in memory at once."""

MOST_ON_CPU = 2**22
"""As many as its cache holds beside the rest."""


IGNORED = -100
"""A target that does not count, as `torch.nn.functional.cross_entropy` has it."""


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token that counts, in float32 or wider."""
    logits = logits.flatten(0, -2)
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED)


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Logits as cap tanh(logits / cap), in float32 or wider (Gemma 2, arXiv 2408.00118)."""
    return logits if cap is None else cap * torch.tanh(logits.to(_wide(logits)) / cap)


def n_chunks(tokens: Tensor, vocab_size: int) -> int:
    """Parts that the logits of these tokens are made in, in float32: of MOST_LOGITS bytes each, or
    on a CPU, where they are not fused with what is around them, of MOST_ON_CPU and 128 tokens or
    more. With 2,048 tokens, width 256 and a vocabulary of 4,096, loss and gradients take 143 ms of
    one core in parts of 2 to 8 MB and 194 ms whole, of which the matrix products are 140.
    """
    is_small = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    most = max(MOST_ON_CPU, 4 * 128 * vocab_size) if is_small else MOST_LOGITS
    return -(-4 * tokens.numel() * vocab_size // most)


def chunked_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, n_chunks: int, cap: float | None = None
) -> Tensor:
    """Mean cross-entropy of the logits `hidden @ weight.T`, `capped`, a part of the tokens at a
    time, from hidden (B, T, D), weight (V, D) and targets (B, T), some of which may be IGNORED.

    Where autograd is recording, a part's gradients are made while its logits are there, and not
    computed again: the same arithmetic as of all at once, in the memory of one part.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    size = -(-len(targets) // n_chunks)
    if torch.is_grad_enabled():
        return _ChunkedLoss.apply(hidden, weight, targets, size, cap)  # type: ignore[no-untyped-call]
    total = torch.zeros((), dtype=_wide(weight), device=hidden.device)
    for h, t in zip(hidden.split(size), targets.split(size), strict=True):
        logits = F.linear(h, weight).to(total.dtype)
        log_p = capped(logits, cap).log_softmax(dim=-1)
        counts, at = _counted(t)
        total -= log_p.gather(1, at).where(counts, 0).sum()
    return total / (targets != IGNORED).sum()


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, size: int, cap: float | None
    ) -> Tensor:
        wide = _wide(weight)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        to_weight = torch.zeros_like(weight, dtype=wide)
        to_hidden, narrow = [], weight
        for h, t in zip(hidden.split(size), targets.split(size), strict=True):
            logits = F.linear(h, weight)  # in autocast's type, where there is one
            log_p = capped(logits.to(wide), cap).log_softmax(dim=-1)
            counts, at = _counted(t)
            total -= log_p.gather(1, at).where(counts, 0).sum()
            slope = log_p.exp_().scatter_add_(1, at, torch.full_like(at, -1, dtype=wide))
            if cap is not None:
                slope *= 1 - torch.tanh(logits.to(wide) / cap).square()
            slope, narrow = slope.to(logits.dtype), narrow.to(logits.dtype)
            to_hidden.append((slope @ narrow).to(hidden.dtype).where(counts, 0))
            h = h.where(counts, 0)  # here and not in `slope`, which is as wide as the vocabulary
            if slope.dtype is wide:
                to_weight.addmm_(slope.t(), h)
            else:
                to_weight += slope.t() @ h.to(slope.dtype)
        ctx.cap, n = cap, (targets != IGNORED).sum()
        ctx.save_for_backward(
            hidden, weight, targets, torch.cat(to_hidden), to_weight.to(weight.dtype), n
        )
        return total / n

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, to_hidden, to_weight, n = ctx.saved_tensors
        (slope,) = gradients
        if torch.is_grad_enabled():  # create_graph=True: these gradients have gradients
            loss = next_token_loss(capped(F.linear(hidden, weight), ctx.cap), targets)
            found = torch.autograd.grad(loss, (hidden, weight), slope, create_graph=True)
            return *found, None, None, None
        slope = slope / n
        return to_hidden * slope, to_weight * slope, None, None, None


def _counted(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which of targets (n,) count, and tokens in their places, both (n, 1)."""
    counts = (targets != IGNORED)[:, None]
    return counts, targets[:, None].where(counts, 0)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
