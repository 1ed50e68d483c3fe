"""What a design is at a given size: by its own formulas, and by running it."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnres_cli.nn.descriptions import Description
from attnres_cli.nn.model import n_params
from attnres_cli.nn.proofs.prove import QUICK, prove
from attnres_cli.nn.proofs.subject import SHAPE, Subject
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.source_groups import fitting_width, joined, mixing_at_start
from attnres_cli.nn.variant import Variant

ITEMSIZE = 2
"""Bytes of a number that moves: bfloat16's."""


def describe(typed: Variant, n_layers: int, d_model: int) -> Description:
    """A design in a trunk of this size. Raises VariantError where the design does not fit it."""
    shape = _trunk(n_layers, d_model)
    with torch.device("meta"):
        design = typed.build(d_model, shape.n_sublayers)
    sums = joined(typed, shape.n_sublayers)
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
        mixing=mixing_at_start(typed, shape.n_sublayers),
        joined=None if sums is None else sums.tolist(),
        not_linear=design.not_linear,
        findings=tuple(prove(small(typed), QUICK)),
    )


def small(typed: Variant) -> Subject:
    """A design on the proofs' small trunk, a little wider where it needs that."""
    width = fitting_width(typed, SHAPE.n_sublayers)
    return Subject(typed, replace(SHAPE, d_model=width, d_head=width // 2))


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
