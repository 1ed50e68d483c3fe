"""Who reads what of a design: its weights at step 0, and which outputs it reads as one sum."""

from __future__ import annotations

import contextlib
from functools import cache

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.residual import Residual, VariantError
from attnres_cli.nn.variant import Variant


def mixing_at_start(typed: Variant, n_sublayers: int) -> list[list[float]] | None:
    """M at step 0, site by source, a mean over random tokens and the width; None if not linear."""
    found = _mixing(typed, n_sublayers, noise=0.0)
    return None if found is None else found.mean(dim=(0, 1, 2)).tolist()


@cache
def joined(typed: Variant, n_sublayers: int) -> Tensor | None:
    """(L+1, L+1): whether, at a site, a source has the weight of the one before it whatever the
    parameters are: then they are read as a sum. None for a design that is not linear.
    """
    found = _mixing(typed, n_sublayers, noise=0.5)
    if found is None:
        return None
    steps = found.diff(dim=-1, prepend=torch.full_like(found[..., :1], torch.inf))
    return (steps.abs() < 1e-12).flatten(0, 2).all(dim=0) & (found != 0).flatten(0, 2).any(dim=0)


@torch.no_grad()
def _mixing(typed: Variant, n_sublayers: int, noise: float) -> Tensor | None:
    """(1, 4, H, L+1, L+1) of random values, of a narrow design with noise on its parameters."""
    width = fitting_width(typed, n_sublayers)
    design = typed.build(width, n_sublayers).double()
    perturb(design, noise)
    generator = torch.Generator().manual_seed(0)
    size = (n_sublayers + 1, 1, 4, width)
    values = list(torch.randn(size, generator=generator, dtype=torch.float64))
    with engines.use("reference"):  # whatever a GPU nearby is computing with
        return design.depth_mixing(values)


def fitting_width(typed: Variant, n_sublayers: int) -> int:
    """The smallest of some widths that a design can be built at; VariantError if there is none."""
    for width in (16, 64, 256):
        with contextlib.suppress(VariantError):
            typed.build(width, n_sublayers)
            return width
    typed.build(1024, n_sublayers)
    return 1024


def perturb(design: Residual, scale: float = 0.5) -> None:
    """Add noise of this size to a design's parameters, always the same."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in design.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
