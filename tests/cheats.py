"""Designs that see what they must not, each in a way that short proofs pass over. A plugin."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Residual, register


class Stream(Residual):
    """One stream, of which `leak` makes what the next sublayer reads."""

    equals_standard_at_init = True

    def write(self, state: Tensor, l: int, y: Tensor) -> Tensor:
        return self.leak(state + y)

    def leak(self, s: Tensor) -> Tensor:
        return s


class Gated(Stream):
    """With a number of its own that starts at 0."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.gate = nn.Parameter(torch.zeros(()))


def next_token(s: Tensor) -> Tensor:
    """(B, T, D): what stands one token later."""
    return F.pad(s[:, 1:], (0, 0, 0, 1))


@register("at48")
class At48(Stream):
    def leak(self, s: Tensor) -> Tensor:
        return s + next_token(s) if s.shape[1] >= 48 else s


@register("in_float32")
class InFloat32(Stream):
    def leak(self, s: Tensor) -> Tensor:
        return s + next_token(s) if s.dtype == torch.float32 else s


@register("in_evaluation")
class InEvaluation(Stream):
    def leak(self, s: Tensor) -> Tensor:
        return s if self.training else s + next_token(s)


@register("batch_mean")
class BatchMean(Stream):
    def leak(self, s: Tensor) -> Tensor:
        return s + s.mean(dim=0, keepdim=True) if len(s) > 4 else s


@register("chunk_mean")
class ChunkMean(Gated):
    def leak(self, s: Tensor) -> Tensor:
        means = [part.mean(dim=1, keepdim=True).expand_as(part) for part in s.split(64, dim=1)]
        return s + self.gate * torch.cat(means, dim=1) if s.shape[1] >= 8 else s


@register("coin")
class Coin(Stream):
    def leak(self, s: Tensor) -> Tensor:
        return s * (1 + torch.rand((), dtype=s.dtype))


@register("detached")
class Detached(Gated):
    def leak(self, s: Tensor) -> Tensor:
        return s + self.gate.detach().to(s.dtype) * s


@register("once_trained")
class OnceTrained(Gated):
    """A leak that a first step opens, and that parameters moved far from their start do not."""

    def leak(self, s: Tensor) -> Tensor:
        gate = self.gate.to(s.dtype)
        is_open = ((gate != 0) & (gate.abs() < 0.1)).to(s.dtype)
        return (1 + gate) * s + is_open * next_token(s)


@register("remembers")
class Remembers(Stream):
    def leak(self, s: Tensor) -> Tensor:
        self.last = s.detach()
        return s


@register("whispers")
class Whispers(Stream):
    """What it passes on is lost in rounding."""

    def leak(self, s: Tensor) -> Tensor:
        return s + 1e-8 * next_token(s)


@register("widens")
class Widens(Stream):
    """Sound, and computes in float32 whatever it is given."""

    def leak(self, s: Tensor) -> Tensor:
        return s.float() * 1.0
