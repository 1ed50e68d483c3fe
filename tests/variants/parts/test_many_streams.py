"""Streams against plain loops, and what holds for every design that has several."""

from __future__ import annotations

import pytest
import torch
from attnres_variants.parts import many_streams as streams
from attnres_variants.parts.many_streams import Maps
from designs import build, close, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.proofs.subject import gradients, perturb
from attnres_cli.nn.shape import Shape

OF_MHC = ("n_streams=2", "residual=lite", "init=lite", "readout=sigmoid")
WITH_COPIES = ["hc", "hc:dynamic=off", "hc:n_streams=2", "mhc", *(f"mhc:{each}" for each in OF_MHC)]


def random(*size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def maps_of(k: int, n: int) -> Maps:
    return Maps(random(2, 3, k + n, n, seed=1), random(2, 3, n, 1, seed=3))


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 4), (3, 3)])
def test_a_read_and_a_write_are_weighted_sums_of_the_streams(k: int, n: int):
    x, y, maps = random(2, 3, n, 5), random(2, 3, 5 * k, seed=4), maps_of(k, n)

    h, after = streams.read(x, maps.read), streams.write(x, maps.mix, maps.write, y)

    assert h.shape == (2, 3, 5 * k)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(3)):
        for i in range(k):
            expected = sum(maps.read[b, t, i, j] * x[b, t, j] for j in range(n))
            torch.testing.assert_close(h[b, t, 5 * i : 5 * i + 5], expected)
        for i in range(n):
            mine = y[b, t, 5 * i : 5 * i + 5] if k == n else y[b, t]
            kept = sum(maps.mix[b, t, i, j] * x[b, t, j] for j in range(n))
            torch.testing.assert_close(after[b, t, i], kept + maps.write[b, t, i] * mine)


@pytest.mark.parametrize(
    "spec",
    [
        "hc:n_streams=2",
        "hc:dynamic=off,n_streams=1",
        "frac:fractions=2",
        "mhc:iterations=1,n_streams=2",
        "mhc:n_streams=2,residual=lite",
        pytest.param("mhc:n_streams=2", marks=pytest.mark.slow),
        pytest.param("mhc:n_streams=3,residual=lite", marks=pytest.mark.nightly),
    ],
)
def test_gradients_by_hand_are_those_of_a_sublayer_also_twice(spec: str):
    design = variant.parse(spec).build(4, 2).double()
    perturb(design, 0.5)
    assert isinstance(design, streams.ManyStreams)
    x, (weight, rest) = design.start(random(1, 2, 4)).x, design.each()[1]
    rest = rest if weight is None else (weight, *rest)

    def sublayer(x: Tensor, y: Tensor, *own: Tensor) -> Tensor:
        own = own if weight is not None else (None, *own)
        h, mixed, weights = streams._Read.apply(design, x, *own)
        return torch.cat((h.flatten(), streams._Write.apply(mixed, weights, y).flatten()))

    given = [x + random(*x.shape, seed=1), random(1, 2, 4, seed=2), *rest]
    given = [each.detach().clone().requires_grad_() for each in given]
    torch.autograd.gradcheck(sublayer, given)
    torch.autograd.gradgradcheck(sublayer, given)


@pytest.mark.parametrize("spec", [*WITH_COPIES, "frac", "frac:dynamic=off"])
def test_values_and_gradients_are_those_of_plain_autograd(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape), tokens_of()
    logits, found = model(tokens), gradients(model, tokens)

    with engines.use("reference"):
        close(model(tokens), logits)
        expected = gradients(model, tokens)

    for name, each in expected.items():
        close(found[name], each)


def test_bfloat16_streams_keep_their_type_and_are_summed_in_float32():
    x, y = torch.ones(1, 1, 4, 8).bfloat16(), torch.zeros(1, 1, 8).bfloat16()
    third = torch.full((5, 4), 1 / 3)

    h, after = streams.read(x, third[:1]), streams.write(x, third[1:], torch.ones(4, 1), y)

    assert h.dtype == after.dtype == torch.bfloat16
    assert torch.equal(h, torch.full((1, 1, 8), 4 / 3).bfloat16())
    assert torch.equal(after, torch.full((1, 1, 4, 8), 4 / 3).bfloat16())


def test_autocast_does_not_reach_the_projections():
    x, weight = random(2, 3, 8).float(), random(8, 4, seed=1).float()
    exact = streams.project(x, weight)

    with torch.autocast("cpu", torch.bfloat16):
        found = streams.project(x, weight)

    assert torch.equal(found, exact)


def spread(model: Transformer, tokens: Tensor) -> float:
    """How far the streams after the last sublayer are from their mean, by the size of it."""
    state = model.residual.start(model.embed(tokens))
    for l, f in enumerate(model.sublayers, 1):
        h, state = model.residual.read(state, l)
        state = model.residual.write(state, l, f(h))
    mean = state.x.mean(dim=-2, keepdim=True)
    return ((state.x - mean).norm() / mean.norm()).item()


@pytest.mark.parametrize("spec", WITH_COPIES)
def test_one_step_of_training_sets_the_streams_apart(spec: str, tiny_shape: Shape):
    model, tokens = build(spec, tiny_shape).double(), tokens_of()
    before = spread(model, tokens)

    next_token_loss(model(tokens), tokens.roll(-1, dims=1)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()

    assert "init=lite" in spec or before < 1e-14
    assert spread(model, tokens) > max(1e-6, 1.0001 * before)


def test_streams_that_are_read_alike_stay_equal(tiny_shape: Shape):
    model, tokens = build("mhc", tiny_shape).double(), tokens_of()
    torch.nn.init.zeros_(model.residual.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens.roll(-1, dims=1)).backward()
        optimizer.step()

    assert spread(model, tokens) < 1e-12
