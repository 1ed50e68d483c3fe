"""What several parts share: refusals, and unit size."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres_cli.nn.residual import VariantError

EPS = 1e-6


def refuse(*cases: tuple[bool, str]) -> None:
    """Raise VariantError with the first reason that holds."""
    for refused, reason in cases:
        if refused:
            raise VariantError(reason)


def wide(v: Tensor) -> Tensor:
    """In float32 at least."""
    return v.to(torch.promote_types(v.dtype, torch.float32))


def inverse_rms(v: Tensor) -> Tensor:
    """1 / rms(v) (B, T, 1), in float32 at least."""
    return torch.rsqrt(wide(v).square().mean(dim=-1, keepdim=True) + EPS)


def unit(v: Tensor) -> Tensor:
    """V / rms(v), in float32 at least."""
    return v * inverse_rms(v)
