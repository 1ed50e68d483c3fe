"""Hyper-connections against a slow loop written from the paper, and their identities."""

from __future__ import annotations

import warnings

import pytest
import torch
from attnres_variants.hc import HyperConnections
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

SPECS = ["hc:n_streams=3", "hc:n_streams=1", "hc:dynamic=off,n_streams=2"]


def slow_stream(model: Transformer, x: Tensor) -> Tensor:
    """What the output norm sees, one token and one stream at a time."""
    design, (batch, time) = model.residual, x.shape[:2]
    assert isinstance(design, HyperConnections)
    n = design.n_streams
    held = {(b, t): [x[b, t]] * n for b in range(batch) for t in range(time)}
    for l, f in enumerate(model.sublayers):
        h, found = torch.zeros_like(x), {}
        for token, streams in held.items():
            found[token] = slow_coefficients(design, streams, l)
            h[token] = sum(found[token][0][j] * streams[j] for j in range(n))
        y = f(h)
        for token, streams in held.items():
            _, a_r, b = found[token]
            held[token] = [
                sum(a_r[j][i] * streams[j] for j in range(n)) + b[i] * y[token] for i in range(n)
            ]
    out = torch.zeros_like(x)
    for token, streams in held.items():
        out[token] = sum(streams)
    return out


def slow_coefficients(
    design: HyperConnections, streams: list[Tensor], l: int
) -> tuple[list[Tensor], list[list[Tensor]], list[Tensor]]:
    """A_m, A_r (row from, column to) and B of a token."""
    n, a_m, a_r, b = design.n_streams, [], [], []
    for j, x in enumerate(streams):
        row = [design.static[l, j, c] for c in range(n + 2)]
        if design.weight is not None:
            key = design.gain[l] * x / torch.sqrt(x.square().sum() / len(x) + 1e-6)
            for c in range(n + 2):
                s = design.scale[l, 1 if c == n + 1 else 0]
                row[c] = row[c] + s * torch.tanh(sum(key * design.weight[l, :, c]))
        a_m.append(row[0])
        a_r.append(row[1 : n + 1])
        b.append(row[n + 1])
    return a_m, a_r, b


@pytest.mark.parametrize("spec", SPECS)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    equals_slow_loop(perturbed(spec, tiny_shape), tokens_of(1, 2), slow_stream)


def test_the_start_reads_the_streams_in_turn_and_keeps_them():
    design = HyperConnections(16, 6, n_streams=4)
    x = torch.randn(1, 2, 4, 16)

    for l, own in ((1, 0), (2, 1), (4, 3), (5, 0)):
        maps = design.maps(x, design.each()[l - 1])
        assert torch.equal(maps.read, torch.eye(4)[own].expand(1, 2, 1, 4))
        assert torch.equal(maps.mix, torch.eye(4).expand(1, 2, 4, 4))
        assert torch.equal(maps.write, torch.ones(1, 2, 4, 1))


def test_one_static_stream_is_a_residual_with_learned_factors(tiny_shape: Shape):
    model = perturbed("hc:dynamic=off,n_streams=1", tiny_shape)
    tokens = tokens_of()
    x = model.embed(tokens)
    for f, (a, r, b) in zip(model.sublayers, model.residual.static[:, 0], strict=True):
        x = r * x + b * f(a * x)

    close(model(tokens), model.head(model.norm(x)))


def test_permuting_the_streams_with_their_parameters_changes_nothing(tiny_shape: Shape):
    model = perturbed("hc", tiny_shape)
    tokens = tokens_of()
    expected, order = model(tokens), torch.tensor([2, 0, 3, 1])
    columns = torch.cat((torch.tensor([0]), 1 + order, torch.tensor([5])))

    with torch.no_grad():
        model.residual.static.copy_(model.residual.static[:, order][:, :, columns])
        model.residual.weight.copy_(model.residual.weight[:, :, columns])

    close(model(tokens), expected)


def test_a_dynamic_design_without_its_scales_is_the_static_one(tiny_shape: Shape):
    dynamic, static = perturbed("hc", tiny_shape), build("hc:dynamic=off", tiny_shape).double()
    static.residual.load_state_dict({"static": dynamic.residual.static})
    torch.nn.init.zeros_(dynamic.residual.scale)
    tokens = tokens_of()

    close(dynamic(tokens), static(tokens))


@pytest.mark.oracle
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_sublayer_equals_that_of_a_public_implementation(dynamic: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        public = pytest.importorskip(
            "hyper_connections.hyper_connections", reason="needs hyper-connections"
        )
    n, width, l = 4, 32, 3
    generator = torch.Generator().manual_seed(0)
    design = HyperConnections(width, 6, n_streams=n, dynamic=dynamic)
    theirs = public.HyperConnections(n, dim=width, layer_index=l - 1)
    torch.testing.assert_close(theirs.static_alpha, design.static[l - 1, :, :-1])
    with torch.no_grad():
        for parameter in design.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        theirs.static_alpha.copy_(design.static[l - 1, :, :-1])
        theirs.static_beta.copy_(design.static[l - 1, :, -1])
        if design.weight is not None:
            theirs.dynamic_alpha_fn.copy_(design.weight[l - 1, :, :-1])
            theirs.dynamic_beta_fn.copy_(design.weight[l - 1, :, -1])
            theirs.dynamic_alpha_scale.copy_(design.scale[l - 1, 0])
            theirs.dynamic_beta_scale.copy_(design.scale[l - 1, 1])
            theirs.norm.gamma.copy_(design.gain[l - 1] - 1)
    x = torch.randn(2, 5, n, width, generator=generator)
    y = torch.randn(2, 5, width, generator=generator)

    h, state = design.read(design.start(x[:, :, 0])._replace(x=x), l)
    after = design.write(state, l, y).x
    their_h, add = theirs(x.movedim(2, 1).flatten(0, 1))  # theirs are (batch streams) time width

    torch.testing.assert_close(h, their_h, rtol=1e-5, atol=1e-5)
    their_after = add(y).unflatten(0, (2, n)).movedim(1, 2)
    torch.testing.assert_close(after, their_after, rtol=1e-5, atol=1e-5)
