"""What a design is at a given size: by its own formulas, and by running it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from attnres_cli.nn.counting import costs_of
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.design_page import Description
from attnres_cli.nn.model import n_params
from attnres_cli.nn.proofs.model import mixes_as_it_says
from attnres_cli.nn.proofs.prove import QUICK, prove
from attnres_cli.nn.proofs.subject import fitting_width, perturb, small
from attnres_cli.nn.residual import Inputs
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant

ITEMSIZE = 2
"""Bytes of a number that moves: bfloat16's."""


def describe(typed: Variant, n_layers: int, d_model: int) -> Description:
    """A design in a trunk of this size. Raises VariantError where the design does not fit it."""
    shape = _trunk(n_layers, d_model)
    with torch.device("meta"):
        design = typed.build(d_model, shape.n_sublayers)
    findings = tuple(prove(small(typed, n_layers=n_layers), QUICK))
    at_start: tuple[Tensor, ...] = ()
    sums = None
    (mixes,) = (f for f in findings if f.name == mixes_as_it_says.__name__)
    not_linear = design.not_linear or mixes.detail
    if mixes.outcome == "passed":
        at_start = _mixing(typed, shape.n_sublayers, noise=0.0)
        sums = joined(typed, shape.n_sublayers)
    return Description(
        spec=str(typed.at_depth(shape.n_sublayers)),
        n_layers=n_layers,
        d_model=d_model,
        n_params=n_params(shape, design) - shape.n_params(),
        trunk_params=shape.n_params() - 2 * shape.vocab_size * d_model,
        extra_flops=design.extra_flops_per_token(),
        trunk_flops=shape.flops_per_token(),
        extra_bytes=ITEMSIZE * costs_of(design).numbers,
        equals_standard=design.equals_standard_at_init,
        mixing=at_start[0].mean(dim=(0, 1, 2)).tolist() if at_start else None,
        joined=None if sums is None else sums.tolist(),
        not_linear=not_linear,
        findings=findings,
    )


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


@cache
def joined(typed: Variant, n_sublayers: int) -> Tensor | None:
    """(L+1, L+1): whether, at a site, a source has the weight of the one before it whatever the
    parameters are: then they are read as a sum. None for a design that is not linear.
    """
    found = _mixing(typed, n_sublayers, noise=0.5)
    if not found:
        return None
    rows = torch.cat([each.flatten(0, 2) for each in found])
    steps = rows.diff(dim=-1, prepend=torch.full_like(rows[..., :1], torch.inf))
    return (steps.abs() < 1e-12).all(dim=0) & (rows != 0).any(dim=0)


@torch.no_grad()
def _mixing(typed: Variant, n_sublayers: int, noise: float) -> tuple[Tensor, ...]:
    """(1, 4, H, L+1, L+1) of random values, of a narrow design with noise on its parameters; three
    of one with named inputs, none of one that has no M.
    """
    width = fitting_width(typed, n_sublayers)
    design = typed.build(width, n_sublayers).double()
    perturb(design, noise)
    generator = torch.Generator().manual_seed(0)
    size = (n_sublayers + 1, 1, 4, width)
    values = list(torch.randn(size, generator=generator, dtype=torch.float64))
    with engines.use("reference"):  # whatever a GPU nearby is computing with
        found = design.depth_mixing(values)
    if found is None:
        return ()
    return found if isinstance(found, Inputs) else (found,)
