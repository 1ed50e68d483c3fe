"""Frac-connections against a slow loop written from the paper, and their identities."""

from __future__ import annotations

import pytest
import torch
from attnres_variants.frac import FracConnections
from designs import build
from torch import Tensor

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape


def shaken(spec: str, shape: Shape) -> Transformer:
    model = build(spec, shape).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.4 * noise
    return model


def slow_forward(model: Transformer, tokens: Tensor) -> Tensor:
    """The whole model, one token and one fraction at a time."""
    design = model.residual
    assert isinstance(design, FracConnections)
    x = model.embed(tokens)
    for l, f in enumerate(model.sublayers):
        h, kept = torch.zeros_like(x), torch.zeros_like(x)
        shares = {}
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                parts = list(x[b, t].split(design.d_model // design.fractions))
                read, mix, shares[b, t] = slow_coefficients(design, parts, l)
                h[b, t], kept[b, t] = slow_sums(read, parts), slow_sums(mix, parts)
        y = f(h)
        x = torch.zeros_like(y)
        for (b, t), share in shares.items():
            parts = y[b, t].split(design.d_model // design.fractions)
            x[b, t] = kept[b, t] + torch.cat([s * p for s, p in zip(share, parts, strict=True)])
    return model.head(model.norm(x))


def slow_sums(weights: list[list[Tensor]], parts: list[Tensor]) -> Tensor:
    """Part c is the sum over j of weights[j][c] part j."""
    m = len(parts)
    return torch.cat([sum(weights[j][c] * parts[j] for j in range(m)) for c in range(m)])


def slow_coefficients(
    design: FracConnections, parts: list[Tensor], l: int
) -> tuple[list[list[Tensor]], list[list[Tensor]], list[Tensor]]:
    """Y, A (rows from, columns to) and B of a token."""
    m, read, mix, share = design.fractions, [], [], []
    for j, x in enumerate(parts):
        row = [design.static[l, j, c] for c in range(2 * m + 1)]
        if design.weight is not None:
            key = design.gain[l] * x / torch.sqrt(x.square().sum() / len(x) + 1e-6)
            for c in range(2 * m + 1):
                s = design.scale[l, 1 if c == 2 * m else 0]
                row[c] = row[c] + s * torch.tanh(sum(key * design.weight[l, :, c]))
        read.append(row[:m])
        mix.append(row[m : 2 * m])
        share.append(row[2 * m])
    return read, mix, share


@pytest.mark.parametrize(
    "spec", ["frac", "frac:fractions=2", "frac:fractions=1", "frac:dynamic=off"]
)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    model = shaken(spec, tiny_shape)
    tokens = torch.randint(0, 11, (1, 3), generator=torch.Generator().manual_seed(0))
    weight = torch.randn(11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(model.parameters())

    fast, slow = model(tokens), slow_forward(model, tokens)
    ours = torch.autograd.grad((fast * weight).sum(), parameters)
    theirs = torch.autograd.grad((slow * weight).sum(), parameters)

    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dynamic", ["on", "off"])
def test_one_fraction_is_one_stream_of_hyper_connections(dynamic: str, tiny_shape: Shape):
    frac = shaken(f"frac:dynamic={dynamic},fractions=1", tiny_shape)
    hc = build(f"hc:dynamic={dynamic},n_streams=1", tiny_shape).double()
    hc.residual.load_state_dict(frac.residual.state_dict())
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(frac(tokens), hc(tokens), rtol=1e-12, atol=1e-12)
    values = list(torch.randn(7, 1, 2, 16, dtype=torch.float64))
    ours, theirs = frac.residual.depth_mixing(values), hc.residual.depth_mixing(values)
    torch.testing.assert_close(ours, theirs)


def test_the_untrained_model_is_standard_bit_for_bit_without_dynamic_coefficients(
    tiny_shape: Shape,
):
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    frac, standard = build("frac:dynamic=off", tiny_shape), build("standard", tiny_shape)

    assert torch.equal(frac(tokens), standard(tokens))


def test_fractions_that_exchange_have_no_weights_over_depth():
    assert "matrix" in FracConnections(16, 6).not_linear
    assert FracConnections(16, 6).depth_mixing([torch.zeros(1, 1, 16)] * 7) is None
    assert not FracConnections(16, 6, fractions=1).not_linear


@pytest.mark.parametrize(("dynamic", "per_sublayer"), [(False, 36), (True, 36 + 25 * 9 + 2 + 25)])
def test_parameters_are_those_of_the_paper_and_a_norm(dynamic: bool, per_sublayer: int):
    assert FracConnections(100, 8, dynamic=dynamic).n_params() == 8 * per_sublayer


@pytest.mark.parametrize("fractions", [0, 3, 32])
def test_fractions_that_do_not_divide_the_width_are_refused(fractions: int):
    with pytest.raises(VariantError, match=f"must divide d_model 16, got {fractions}"):
        variant.parse(f"frac:fractions={fractions}").build(16, 6)
