"""Frac-connections against a slow loop written from the paper, and their identities."""

from __future__ import annotations

import pytest
import torch
from attnres_variants.frac import FracConnections
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape


def slow_stream(model: Transformer, x: Tensor) -> Tensor:
    """What the output norm sees, one token and one fraction at a time."""
    design = model.residual
    assert isinstance(design, FracConnections)
    for l, f in enumerate(model.sublayers):
        h, kept = torch.zeros_like(x), torch.zeros_like(x)
        shares = {}
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                parts = list(x[b, t].split(design.d_model // design.n_streams))
                read, mix, shares[b, t] = slow_coefficients(design, parts, l)
                h[b, t], kept[b, t] = slow_sums(read, parts), slow_sums(mix, parts)
        y = f(h)
        x = torch.zeros_like(y)
        for (b, t), share in shares.items():
            parts = y[b, t].split(design.d_model // design.n_streams)
            x[b, t] = kept[b, t] + torch.cat([s * p for s, p in zip(share, parts, strict=True)])
    return x


def slow_sums(weights: list[list[Tensor]], parts: list[Tensor]) -> Tensor:
    """Part c is the sum over j of weights[j][c] part j."""
    m = len(parts)
    return torch.cat([sum(weights[j][c] * parts[j] for j in range(m)) for c in range(m)])


def slow_coefficients(
    design: FracConnections, parts: list[Tensor], l: int
) -> tuple[list[list[Tensor]], list[list[Tensor]], list[Tensor]]:
    """Y, A (rows from, columns to) and B of a token."""
    m, read, mix, share = design.n_streams, [], [], []
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


@pytest.mark.parametrize("spec", ["frac", "frac:fractions=1", "frac:dynamic=off,fractions=2"])
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    equals_slow_loop(perturbed(spec, tiny_shape), tokens_of(1, 2), slow_stream)


@pytest.mark.parametrize("dynamic", ["on", "off"])
def test_one_fraction_is_one_stream_of_hyper_connections(dynamic: str, tiny_shape: Shape):
    frac = perturbed(f"frac:dynamic={dynamic},fractions=1", tiny_shape)
    hc = build(f"hc:dynamic={dynamic},n_streams=1", tiny_shape).double()
    hc.residual.load_state_dict(frac.residual.state_dict())
    tokens = tokens_of()

    close(frac(tokens), hc(tokens))
    values = list(torch.randn(7, 1, 2, 16, dtype=torch.float64))
    ours, theirs = frac.residual.depth_mixing(values), hc.residual.depth_mixing(values)
    close(ours, theirs)


def test_fractions_that_exchange_have_no_weights_over_depth():
    assert "matrix" in FracConnections(16, 6).not_linear
    assert FracConnections(16, 6).depth_mixing([torch.zeros(1, 1, 16)] * 7) is None
    assert not FracConnections(16, 6, fractions=1).not_linear
