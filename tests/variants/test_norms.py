"""Designs that differ by a norm or a constant: postnorm, deepnorm, sandwich, rescaled."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attnres_variants.deepnorm import DeepNorm
from designs import build, close, equals_slow_loop, tokens_of
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, init_weights, n_params
from attnres_cli.nn.shape import Shape


def shaken(spec: str, shape: Shape) -> Transformer:
    """A model in float64 whose gains, those of all norms, have left their initial values."""
    model = build(spec, shape).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter += 0.5 * noise
    return model


def slow_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm, one token and one channel at a time."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            size = torch.sqrt(sum(value**2 for value in x[b, t]) / x.shape[2] + eps)
            for d in range(x.shape[2]):
                out[b, t, d] = gain[d] * x[b, t, d] / size
    return out


def slow_postnorm(model: Transformer, h: Tensor, alpha: float = 1.0) -> Tensor:
    for f, norm in zip(model.sublayers, model.residual.after_sum, strict=True):
        h = slow_norm(alpha * h + f(h), norm.weight, 1e-6)
    return h


def slow_deepnorm(model: Transformer, h: Tensor) -> Tensor:
    return slow_postnorm(model, h, alpha=6**0.25)  # three layers


def slow_sandwich(model: Transformer, h: Tensor) -> Tensor:
    for before, raw, after in model.sublayers:
        y = raw(slow_norm(h, before.weight, 1e-12))
        h = h + slow_norm(y, after.weight, 1e-12)
    return h


def slow_rescaled(model: Transformer, x: Tensor) -> Tensor:
    sources = [x]
    for f in model.sublayers:
        sources.append(f(sum(sources) / len(sources)))
    return sum(sources) / len(sources)


@pytest.mark.parametrize("slow", [slow_postnorm, slow_deepnorm, slow_sandwich, slow_rescaled])
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(slow, tiny_shape: Shape):
    model = shaken(slow.__name__.removeprefix("slow_"), tiny_shape)
    equals_slow_loop(model, tokens_of(1, 3), slow)


@pytest.mark.parametrize("spec", ["postnorm", "deepnorm"])
def test_every_stream_after_a_norm_has_unit_size_at_step_0(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape).double()
    state = model.residual.start(model.embed(tokens_of()))

    for l, f in enumerate(model.sublayers, 1):
        h, state = model.residual.read(state, l)
        state = model.residual.write(state, l, f(h))

        size = state.square().mean(dim=-1).sqrt()
        torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-5, atol=1e-5)


def test_deepnorm_with_alpha_and_beta_of_one_is_postnorm_bit_for_bit(tiny_shape: Shape):
    postnorm, deepnorm = build("postnorm", tiny_shape), build("deepnorm", tiny_shape)
    deepnorm.residual.alpha = deepnorm.residual.branch_scale = 1.0
    init_weights(deepnorm, seed=0)

    assert torch.equal(deepnorm(tokens_of()), postnorm(tokens_of()))


def test_alpha_and_beta_count_transformer_layers():
    design = DeepNorm(16, n_sublayers=16)

    assert design.alpha == pytest.approx(2.0)  # (2 * 8)^(1/4)
    assert design.branch_scale == pytest.approx(64**-0.25)  # (8 * 8)^(-1/4)


def test_beta_scales_values_mlps_and_outputs_but_neither_queries_nor_keys(tiny_shape: Shape):
    plain, deep = build("postnorm", tiny_shape), build("deepnorm", tiny_shape)
    beta = 24**-0.25
    expected = dict(plain.sublayers.named_parameters())

    for name, found in deep.sublayers.named_parameters():
        scaled = beta * expected[name]
        if "qkv" in name:
            scaled[:32] = expected[name][:32]  # queries and keys: two heads of eight each
        torch.testing.assert_close(found, scaled)
    assert torch.equal(deep.embed.weight, plain.embed.weight)
    assert torch.equal(deep.head.weight, plain.head.weight)


def test_postnorm_has_as_many_parameters_as_standard(tiny_shape: Shape):
    counts = [
        n_params(tiny_shape, variant.parse(spec).build(16, 6))
        for spec in ("standard", "postnorm", "deepnorm", "sandwich")
    ]

    assert counts[1] == counts[2] == counts[0]
    assert counts[3] == counts[0] + 6 * 16


def test_the_size_of_output_projections_does_not_matter_to_sandwich(tiny_shape: Shape):
    model = shaken("sandwich", tiny_shape)
    before = model(tokens_of())

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("out.weight"):
                parameter *= 3

    close(model(tokens_of()), before, rtol=1e-6)


def test_rescaled_stays_standard_whatever_the_weights(tiny_shape: Shape):
    rescaled, standard = (shaken(spec, tiny_shape) for spec in ("rescaled", "standard"))
    assert rescaled.state_dict().keys() == standard.state_dict().keys()

    close(rescaled(tokens_of()), standard(tokens_of()), rtol=1e-8)


def test_rescaled_differs_from_standard_only_by_the_eps_of_the_norms(tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, norm_eps=1e-2)
    rescaled, standard = (shaken(spec, shape) for spec in ("rescaled", "standard"))

    assert not torch.allclose(rescaled(tokens_of()), standard(tokens_of()), atol=1e-6)


def test_every_site_of_rescaled_weighs_its_sources_equally(tiny_shape: Shape):
    design = build("rescaled", tiny_shape).residual

    mixing = design.depth_mixing([torch.zeros(1, 1, 16)] * 7)[0, 0, 0]

    for l, row in enumerate(mixing, 1):
        assert row.tolist() == pytest.approx([1 / l] * l + [0.0] * (7 - l))
