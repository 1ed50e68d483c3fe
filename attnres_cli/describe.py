"""What a design is at a given size: by its own formulas, and by running it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Tensor

from attnres_cli import proofs
from attnres_cli.facts import Description
from attnres_cli.model import n_params
from attnres_cli.proofs import Subject
from attnres_cli.residual import VariantError
from attnres_cli.shape import Shape
from attnres_cli.variant import Variant

ITEMSIZE = 2
"""Bytes of a number that moves: bfloat16's."""


def describe(typed: Variant, n_layers: int, d_model: int) -> Description:
    """A design in a trunk of so many layers and such a width.

    Raises:
        VariantError: the design does not fit these sizes.

    """
    shape = _trunk(n_layers, d_model)
    with torch.device("meta"):
        design = typed.build(d_model, shape.n_sublayers)
    mixing, joined = (None, None) if design.not_linear else who_reads_what(typed, 2 * n_layers)
    return Description(
        spec=str(typed.at_depth(shape.n_sublayers)),
        n_layers=n_layers,
        d_model=d_model,
        n_params=n_params(shape, design) - shape.n_params(),
        trunk_params=shape.n_params() - 2 * shape.vocab_size * d_model,
        extra_flops=design.extra_flops_per_token(),
        trunk_flops=shape.flops_per_token(),
        extra_bytes=design.extra_bytes_per_token(ITEMSIZE),
        equals_standard=design.equals_standard_at_init,
        mixing=mixing,
        joined=joined,
        not_linear=design.not_linear,
        findings=tuple(proofs.prove(small(typed), proofs.QUICK)),
    )


def who_reads_what(typed: Variant, n_sublayers: int) -> tuple[list[list[float]], list[list[bool]]]:
    """M at step 0, site by source, a mean over random tokens and the width; and whether a source
    has the weight of the one before it whatever the parameters are: then they are read as a sum.
    """
    width = fitting_width(typed, n_sublayers)
    design = typed.build(width, n_sublayers).double()
    generator = torch.Generator().manual_seed(0)
    size = (n_sublayers + 1, 1, 4, width)
    values = list(torch.randn(size, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        start = design.depth_mixing(values)
        proofs.move(design, 0.5)
        moved = design.depth_mixing(values)
    assert isinstance(start, Tensor)
    assert isinstance(moved, Tensor)
    steps = moved.diff(dim=-1, prepend=torch.full_like(moved[..., :1], torch.inf))
    joined = (steps.abs() < 1e-12).flatten(0, 2).all(dim=0) & (moved != 0).flatten(0, 2).any(dim=0)
    return start.mean(dim=(0, 1, 2)).tolist(), joined.tolist()


def fitting_width(typed: Variant, n_sublayers: int) -> int:
    """The smallest of some widths that a design can be built at.

    Raises:
        VariantError: none of them.

    """
    for width in (16, 64, 256):
        with contextlib.suppress(VariantError):
            typed.build(width, n_sublayers)
            return width
    typed.build(1024, n_sublayers)
    return 1024


def small(typed: Variant) -> Subject:
    """A design on the proofs' small trunk, a little wider where it needs that."""
    width = fitting_width(typed, proofs.SHAPE.n_sublayers)
    return Subject(typed, replace(proofs.SHAPE, d_model=width, d_head=width // 2))


def _trunk(n_layers: int, d_model: int) -> Shape:
    """A trunk for counting: SwiGLU of 8/3 of the width, two thousand positions, heads of one."""
    return Shape(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=1,
        n_kv_heads=1,
        d_head=d_model + d_model % 2,
        d_ff=8 * -(-d_model // 3),
        vocab_size=256,
        seq_len=2048,
    )
