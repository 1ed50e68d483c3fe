"""The kernels of `mhc`: its maps and their gradients as torch computes them."""

from __future__ import annotations

import pytest
import torch
from attnres_variants.mhc import ManifoldHyperConnections
from attnres_variants.parts.many_streams import Maps
from designs import close, perturbed, tokens_of
from mixes import DEVICE, NEEDS_TRITON
from torch import Tensor

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.proofs.subject import gradients
from attnres_cli.nn.shape import Shape

pytestmark = NEEDS_TRITON


def random(*size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=dtype).to(DEVICE)


@pytest.mark.parametrize("n_tokens", [1, 300])
@pytest.mark.parametrize("deviation", [0.3, 10.0])
@pytest.mark.parametrize(("n", "iterations"), [(1, 2), (2, 1), (3, 5), (4, 20)])
def test_maps_and_gradients_are_those_of_torch(
    n: int, iterations: int, deviation: float, n_tokens: int
):
    design = ManifoldHyperConnections(16, 4, n_streams=n, iterations=iterations)
    z = deviation * random(n * (n + 2), n_tokens, seed=0)
    bias = random(n * (n + 2), seed=1)
    g = Maps(random(n_tokens, n + 1, n, seed=2), random(n_tokens, n, 1, seed=3))
    found = {}

    for engine, of_backward in (("eager", "triton"), ("triton", "eager")):
        with torch.no_grad(), use(engine):
            maps, kept = design.made(z, bias)
        with torch.no_grad(), use(of_backward):  # autograd's own thread was asked for no engine
            found[engine] = (*maps, *design.slopes(g, z, kept, bias))

    for ours, expected in zip(found["triton"], found["eager"], strict=True):
        assert ours.shape == expected.shape
        close(ours, expected)


def test_huge_scores_give_finite_maps_and_gradients():
    design = ManifoldHyperConnections(16, 4)
    z = 1e4 * random(24, 200, seed=0, dtype=torch.float32)
    g = Maps(random(200, 5, 4, seed=2).float(), random(200, 4, 1, seed=3).float())

    with torch.no_grad(), use("triton"):
        maps, kept = design.made(z, torch.zeros(24, device=DEVICE))
        slopes, bias = design.slopes(g, z, kept, torch.zeros(24, device=DEVICE))

    assert torch.isfinite(torch.cat((maps.sums.flatten(), slopes.flatten(), bias))).all()
    torch.testing.assert_close(maps.mix.sum(dim=2), torch.ones(200, 4, device=DEVICE))


@pytest.mark.parametrize("spec", ["mhc:n_streams=2,iterations=3", "mhc:n_streams=3,iterations=2"])
def test_a_model_has_the_logits_and_the_gradients_of_the_formula(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape).to(DEVICE), tokens_of().to(DEVICE)
    found = {}

    for engine in ("reference", "triton"):
        with use(engine):
            found[engine] = (model(tokens).detach(), *gradients(model, tokens).values())

    for ours, expected in zip(found["triton"], found["reference"], strict=True):
        close(ours, expected)
