"""Each design is what its page says that it contains, and `--tree` draws that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from commands import ended
from designs import build, close, perturbed, tokens_of
from torch import nn

from attnres_cli.nn import design_page
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.residual import registry
from attnres_cli.nn.shape import Shape

Pair = tuple[Transformer, Transformer]


def mudd_as_denseformer(shape: Shape) -> Pair:
    one, other = perturbed("mudd", shape), build("denseformer", shape).double()
    with torch.no_grad():
        for weights in one.residual.made.values():
            weights.zero_()
        for weights in one.residual.static.values():
            weights.copy_(weights[-1:].expand_as(weights))
        rows = [weights[0] for weights in one.residual.static.values()]
        other.residual.weight.copy_(torch.cat(rows)[:, None])
    return one, other


def deepnorm_as_postnorm(shape: Shape) -> Pair:
    deepnorm = build("deepnorm", shape)
    deepnorm.residual.alpha = deepnorm.residual.branch_scale = 1.0
    init_weights(deepnorm, seed=0)
    return deepnorm.double(), build("postnorm", shape).double()


def rezero_as_standard(shape: Shape) -> Pair:
    one = build("rezero:norm=on", shape).double()
    nn.init.ones_(one.residual.scale)
    return one, build("standard", shape).double()


def typed(spec: str, other: str) -> Callable[[Shape], Pair]:
    """The design with these options, and the other, untrained."""

    def pair(shape: Shape) -> Pair:
        exact = dataclasses.replace(shape, norm_eps=1e-14)
        return build(spec, exact).double(), build(other, exact).double()

    return pair


PROOFS: dict[tuple[str, str], Callable[[Shape], Pair]] = {
    ("attnres", "rescaled"): typed("attnres", "rescaled"),
    ("backout", "standard"): typed("backout:init=0.0", "standard"),
    ("deepnorm", "postnorm"): deepnorm_as_postnorm,
    ("layerscale", "standard"): typed("layerscale:scale=1.0", "standard"),
    ("mixln", "postnorm"): typed("mixln:share=1.0", "postnorm"),
    ("mixln", "standard"): typed("mixln:share=0.0", "standard"),
    ("mudd", "denseformer"): mudd_as_denseformer,
    ("rescaled", "standard"): typed("rescaled", "standard"),
    ("rezero", "standard"): rezero_as_standard,
    ("scaled", "standard"): typed("scaled:exponent=0.0", "standard"),
    ("unet", "standard"): typed("unet:init=0.0", "standard"),
    ("vres", "standard"): typed("vres:first=0.0,own=1.0", "standard"),
    ("x0", "standard"): typed("x0:init=neutral", "standard"),
}


def test_every_claim_has_a_proof():
    claims = {
        (name, other)
        for name, cls in registry().items()
        for other in design_page.page_of(cls).contains
    }
    assert claims == PROOFS.keys()


@pytest.mark.parametrize("claim", PROOFS, ids=" is ".join)
def test_a_design_is_what_it_contains(claim: tuple[str, str], tiny_shape: Shape):
    one, other = PROOFS[claim](tiny_shape)

    close(one(tokens_of()), other(tokens_of()), rtol=1e-6)


def test_the_tree_hangs_each_design_from_what_it_contains(capsys: pytest.CaptureFixture[str]):
    assert ended("variants", "--tree") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    at = next(n for n, line in enumerate(lines) if "├─ denseformer" in line)
    assert lines[at].split()[-4:] == ["nothing", "is", "learned", "yet"]
    assert "│  └─ mudd" in lines[at + 1]
    assert sum("─ mixln" in line for line in lines) == 2
    assert " sandwich" in lines[lines.index("contains none of these") :]
    assert ended("variants", "mudd", "--tree") == 2
