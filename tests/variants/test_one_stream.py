"""Designs of one stream: its norms, scalars, gates, skips and averages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
from attnres_variants.deepnorm import DeepNorm
from attnres_variants.laurel import Laurel
from attnres_variants.x0 import X0
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, n_params
from attnres_cli.nn.proofs.subject import perturb
from attnres_cli.nn.shape import Shape


def shaken(spec: str, shape: Shape) -> Transformer:
    """A model in float64 whose design and norms have left their initial values."""
    model = perturbed(spec, shape)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter += 0.5 * noise
    return model


def slow_denseformer(model: Transformer, y: Tensor, dilation: int = 1, period: int = 1) -> Tensor:
    weights = iter(model.residual.weight.flatten())
    states = [y]
    for b in range(1, model.shape.n_layers + 1):
        for f in model.sublayers[2 * b - 2 : 2 * b]:
            y = y + f(y)
        states.append(y)
        if b % period == 0:
            mixed = torch.zeros_like(y)
            for j in range(b + 1):
                if j % dilation == b % dilation:
                    mixed = mixed + next(weights) * states[j]
            y = mixed
    assert next(weights, None) is None
    return y


def slow_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm, one token at a time."""
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, t] = gain * x[b, t] / torch.sqrt(sum(x[b, t] ** 2) / x.shape[2] + eps)
    return out


def slow_postnorm(model: Transformer, h: Tensor, alpha: float = 1.0) -> Tensor:
    for f, norm in zip(model.sublayers, model.residual.after_sum, strict=True):
        h = slow_norm(alpha * h + f(h), norm.weight, 1e-6)
    return h


def slow_sandwich(model: Transformer, h: Tensor) -> Tensor:
    for before, raw, after in model.sublayers:
        y = raw(slow_norm(h, before.weight, 1e-12))
        h = h + slow_norm(y, after.weight, 1e-12)
    return h


def slow_keel(model: Transformer, h: Tensor) -> Tensor:
    for f, norm in zip(model.sublayers, model.residual.after_sum, strict=True):
        h = slow_norm(len(model.sublayers) * h + f(h), norm.weight, 1e-6)
    return h


def slow_lns(model: Transformer, h: Tensor, fixed: float = 0.5) -> Tensor:
    for l, (f, norm) in enumerate(zip(model.sublayers, model.residual.before, strict=True), 1):
        h = h + f(slow_norm(h, norm.weight, 1e-6) / ((l + 1) // 2) ** fixed)
    return h


def slow_mixln(model: Transformer, h: Tensor, n_after: int) -> Tensor:
    for l, (f, norm) in enumerate(zip(model.sublayers, model.residual.norm_of, strict=True), 1):
        if l <= n_after:
            h = slow_norm(h + f(h), norm.weight, 1e-6)
        else:
            h = h + f(slow_norm(h, norm.weight, 1e-6))
    return h


def slow_gtrxl(model: Transformer, h: Tensor) -> Tensor:
    ours, d = model.residual, model.shape.d_model
    for l, f in enumerate(model.sublayers):
        y, of_y, of_h = f(h), ours.of_output[l], ours.of_stream[l]
        r = 1 / (1 + torch.exp(-(y @ of_y[:d].T + h @ of_h[:d].T)))
        z = 1 / (1 + torch.exp(-(y @ of_y[d : 2 * d].T + h @ of_h[d:].T - ours.bias[l])))
        c = torch.tanh(y @ of_y[2 * d :].T + (r * h) @ ours.of_reset[l].T)
        h = (1 - z) * h + z * c
    return h


def slow_scaled(model: Transformer, h: Tensor, exponent: float = 0.5) -> Tensor:
    for f in model.sublayers:
        h = h + f(h) / len(model.sublayers) ** exponent
    return h


def slow_dlcl(model: Transformer, x: Tensor, window: int = 99) -> Tensor:
    weights, norms = iter(model.residual.weight.flatten()), model.residual.before
    sources, y = [], x
    for b in range(model.shape.n_layers + 1):
        if b:
            for f in model.sublayers[2 * b - 2 : 2 * b]:
                y = y + f(y)
        sources.append(slow_norm(y, norms[b].weight, 1e-6))
        y = sum(next(weights) * source for source in sources[-window:])
    assert next(weights, None) is None
    return y


def slow_rescaled(model: Transformer, x: Tensor) -> Tensor:
    sources = [x]
    for f in model.sublayers:
        sources.append(f(sum(sources) / len(sources)))
    return sum(sources) / len(sources)


def slow_rezero(model: Transformer, x: Tensor) -> Tensor:
    scale, per_layer = model.residual.scale, len(model.residual.scale) == 3
    for i, f in enumerate(model.sublayers):
        x = x + f(x) * scale[i // 2 if per_layer else i, 0]
    return x


def slow_layerscale(model: Transformer, x: Tensor) -> Tensor:
    for i, f in enumerate(model.sublayers):
        y = f(x)
        x = torch.stack([x[..., d] + model.residual.gain[i, d] * y[..., d] for d in range(16)], -1)
    return x


def slow_highway(model: Transformer, x: Tensor) -> Tensor:
    weight, bias = model.residual.weight, model.residual.bias
    for i, f in enumerate(model.sublayers):
        y, new = f(x), torch.zeros_like(x)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                for d in range(x.shape[2]):
                    row = d if weight.shape[1] > 1 else 0
                    logit = bias[i, row] + sum(weight[i, row] * x[b, t])
                    transform = 1 / (1 + torch.exp(-logit))
                    new[b, t, d] = transform * y[b, t, d] + (1 - transform) * x[b, t, d]
        x = new
    return x


def slow_laurel(model: Transformer, x: Tensor) -> Tensor:
    """All kinds in the combined form, with the parts that a kind lacks left at a = b = c = 1."""
    design, streams, pair = model.residual, [x], 0
    for i, f in enumerate(model.sublayers):
        h = streams[-1]
        a = b = 1.0
        if design.logits is not None:
            p, q = torch.exp(design.logits[i, 0]), torch.exp(design.logits[i, 1])
            a, b = design.total * p / (p + q), design.total * q / (p + q)
        extra = torch.zeros_like(h)
        if design.down is not None:
            matrix = design.up[i] @ design.down[i]  # (D, D)
            for j in range(min(design.kept, len(streams))):
                c = 1.0
                if design.past is not None:
                    c, pair = design.past[pair, 0], pair + 1
                extra = extra + c * torch.einsum("de,bte->btd", matrix, streams[-1 - j])
        streams.append(a * f(h) + b * (h + extra))
    return streams[-1]


def slow_x0(model: Transformer, x: Tensor) -> Tensor:
    stream = x
    for b in range(3):
        stream = model.residual.kept[b, 0] * stream + model.residual.added[b, 0] * x
        for f in model.sublayers[2 * b : 2 * b + 2]:
            stream = stream + f(stream)
    return stream


def slow_unet(model: Transformer, x: Tensor) -> Tensor:
    """The published loop: an encoder that pushes, a decoder that pops."""
    n, skips, stack = model.shape.n_layers, list(model.residual.skip), []
    for b in range(n):
        if b >= n - n // 2:
            x = x + skips.pop(0) * stack.pop()
        for f in model.sublayers[2 * b : 2 * b + 2]:
            x = x + f(x)
        if b < n // 2:
            stack.append(x)
    assert not stack
    assert not skips
    return x


def slow_backout(model: Transformer, x: Tensor) -> Tensor:
    """nanochat's loop: the stream after block n_layer // 2, counted from 0, is kept."""
    n = model.shape.n_layers
    for i in range(n):
        for f in model.sublayers[2 * i : 2 * i + 2]:
            x = x + f(x)
        if i == n // 2:
            kept = x
    return x - model.residual.weight * kept


@pytest.mark.parametrize(
    ("spec", "slow", "n_layers"),
    [
        ("denseformer", slow_denseformer, 3),
        ("denseformer:dilation=2", partial(slow_denseformer, dilation=2), 3),
        ("denseformer:period=2", partial(slow_denseformer, period=2), 3),
        ("denseformer:dilation=3,period=2", partial(slow_denseformer, dilation=3, period=2), 3),
        ("postnorm", slow_postnorm, 3),
        ("deepnorm", partial(slow_postnorm, alpha=6**0.25), 3),
        ("sandwich", slow_sandwich, 3),
        ("rescaled", slow_rescaled, 3),
        ("rezero", slow_rezero, 3),
        ("rezero:norm=on", slow_rezero, 3),
        ("rezero:shared=off", slow_rezero, 3),
        ("layerscale", slow_layerscale, 3),
        ("highway", slow_highway, 3),
        ("highway:gate=scalar", slow_highway, 3),
        ("laurel", slow_laurel, 3),
        ("laurel:total=1.0", slow_laurel, 3),
        ("laurel:kind=lr", slow_laurel, 3),
        ("laurel:kind=pa", slow_laurel, 3),
        ("laurel:kind=rw+lr,rank=3", slow_laurel, 3),
        ("laurel:kind=rw+pa,previous=2,rank=5", slow_laurel, 3),
        ("laurel:kind=pa,previous=9", slow_laurel, 3),
        ("x0", slow_x0, 3),
        ("keel", slow_keel, 3),
        ("lns", slow_lns, 3),
        ("lns:mode=initial", partial(slow_lns, fixed=0), 3),
        ("mixln", partial(slow_mixln, n_after=2), 4),
        ("mixln:share=0.5", partial(slow_mixln, n_after=4), 4),
        ("gtrxl", slow_gtrxl, 2),
        ("scaled", slow_scaled, 3),
        ("scaled:exponent=1.0", partial(slow_scaled, exponent=1.0), 2),
        ("dlcl", slow_dlcl, 3),
        ("dlcl:window=2", partial(slow_dlcl, window=2), 4),
        ("unet", slow_unet, 2),
        ("unet", slow_unet, 3),
        ("unet", slow_unet, 4),
        ("backout", slow_backout, 2),
        ("backout", slow_backout, 3),
        ("backout", slow_backout, 4),
    ],
)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(
    spec: str, slow: Callable[[Transformer, Tensor], Tensor], n_layers: int, tiny_shape: Shape
):
    model = shaken(spec, dataclasses.replace(tiny_shape, n_layers=n_layers))
    equals_slow_loop(model, tokens_of(1, 2), slow)


def test_gpas_scales_the_stream_after_each_sum_forward_and_not_its_gradient(tiny_shape: Shape):
    model, tokens = perturbed("gpas", tiny_shape), tokens_of(1, 2)
    x = model.embedded(tokens).detach().requires_grad_()
    h, state = x, model.residual.start(x)
    for l, f in enumerate(model.sublayers, 1):
        read, state = model.residual.read(state, l)
        close(read, h)
        state = model.residual.write(state, l, f(read))
        h = h + f(h)
        a = model.residual.gate[(l - 1) // 2]
        h = h - a * torch.sigmoid(a) * h.detach()
    close(model.residual.finish(state), h)
    one = torch.autograd.grad(model.residual.finish(state).sum(), x, retain_graph=True)[0]
    close(one, torch.autograd.grad(h.sum(), x)[0])


def test_standard_is_the_plain_prenorm_loop_bit_for_bit(tiny_shape: Shape):
    model = build("standard", tiny_shape)

    h = model.embed(tokens_of())
    for f in model.sublayers:
        h = h + f(h)

    assert torch.equal(model(tokens_of()), model.head(model.norm(h)))


@pytest.mark.parametrize("spec", ["postnorm", "deepnorm"])
def test_every_stream_after_a_norm_has_unit_size_at_step_0(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape).double()
    state = model.residual.start(model.embed(tokens_of()))

    for l, f in enumerate(model.sublayers, 1):
        h, state = model.residual.read(state, l)
        state = model.residual.write(state, l, f(h))

        size = state.square().mean(dim=-1).sqrt()
        torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-5, atol=1e-5)


def test_alpha_and_beta_count_transformer_layers():
    design = DeepNorm(16, n_sublayers=16)

    assert design.alpha == pytest.approx(2.0)  # (2 * 8)^(1/4)
    assert design.branch_scale == pytest.approx(64**-0.25)  # (8 * 8)^(-1/4)


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


def test_rescaled_is_standard_but_for_the_eps_of_the_norms(tiny_shape: Shape):
    for eps, is_same in ((1e-12, True), (1e-2, False)):
        shape = dataclasses.replace(tiny_shape, norm_eps=eps)
        rescaled, standard = (shaken(spec, shape) for spec in ("rescaled", "standard"))
        found, expected = rescaled(tokens_of()), standard(tokens_of())

        assert rescaled.state_dict().keys() == standard.state_dict().keys()
        assert ((found - expected).norm() <= 1e-8 * expected.norm()).item() == is_same
        assert torch.allclose(found, expected, atol=1e-6) == is_same


@pytest.mark.parametrize("spec", ["rezero", "rezero:norm=on", "rezero:shared=off"])
def test_the_output_norm_of_untrained_rezero_sees_the_embedding(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    assert torch.equal(model(tokens_of()), model.head(model.norm(model.embed(tokens_of()))))


def test_one_scalar_for_each_layer_is_two_equal_ones_for_its_sublayers(tiny_shape: Shape):
    shared, apart = build("rezero", tiny_shape), build("rezero:shared=off", tiny_shape)
    with torch.no_grad():
        shared.residual.scale.copy_(torch.tensor([[0.5], [-1.0], [2.0]]))
        apart.residual.scale.copy_(shared.residual.scale.repeat_interleave(2, dim=0))

    assert torch.equal(shared(tokens_of()), apart(tokens_of()))


@pytest.mark.parametrize("n_layers", [1, 3, 16])
@pytest.mark.parametrize("gate", ["scalar", "vector"])
def test_the_embedding_keeps_a_third_of_the_readout_at_any_depth(gate: str, n_layers: int):
    n = 2 * n_layers
    design = variant.parse(f"highway:gate={gate}").build(16, n).double()

    mixing = design.depth_mixing([torch.zeros(1, 1, 16, dtype=torch.float64)] * (n + 1))

    assert mixing[0, 0, 0, -1, 0].item() == pytest.approx((n / (n + 1)) ** n)
    assert mixing[0, 0, 0, -1, 0].item() > 1 / 2.72
    torch.testing.assert_close(mixing.sum(dim=-1), torch.ones_like(mixing[..., 0]))


def test_scalar_gates_are_vector_gates_with_equal_rows(tiny_shape: Shape):
    scalar = build("highway:gate=scalar", tiny_shape).double()
    vector = build("highway", tiny_shape).double()
    perturb(scalar.residual)
    with torch.no_grad():
        vector.residual.weight.copy_(scalar.residual.weight.expand(-1, 16, -1))
        vector.residual.bias.copy_(scalar.residual.bias.expand(-1, 16))

    close(scalar(tokens_of()), vector(tokens_of()))


def test_closed_gates_pass_the_embedding_and_open_gates_pass_the_last_output(tiny_shape: Shape):
    closed = build("highway:bias=-100.0", tiny_shape).double()
    opened = build("highway:bias=100.0", tiny_shape).double()
    h = opened.embed(tokens_of())
    for f in opened.sublayers:
        h = f(h)

    assert torch.equal(closed.hidden(tokens_of()), closed.norm(closed.embed(tokens_of())))
    torch.testing.assert_close(opened.hidden(tokens_of()), opened.norm(h), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 16])
def test_the_low_rank_map_starts_with_orthonormal_rows_and_puts_out_nothing(rank: int):
    design = Laurel(16, 6, kind="lr", rank=rank)

    for down in design.down:
        torch.testing.assert_close(down @ down.T, torch.eye(rank))
    assert torch.count_nonzero(design.up) == 0


def test_more_previous_streams_than_sublayers_are_as_many_as_sublayers():
    spec = variant.parse("laurel:kind=pa,previous=99")

    assert str(spec.at_depth(6)) == "laurel:kind=pa,previous=6"


@pytest.mark.parametrize(
    ("n_sublayers", "kept", "added"),
    [
        (10, [1.15, 1.125, 1.1, 1.075, 1.05], [0.2, 0.1625, 0.125, 0.0875, 0.05]),
        (2, [1.15], [0.2]),  # a single layer is a first one
    ],
)
def test_nanochats_schedule_falls_in_equal_steps_from_the_first_layer_to_the_last(
    n_sublayers: int, kept: list[float], added: list[float]
):
    design = X0(16, n_sublayers)

    assert design.kept.flatten().tolist() == pytest.approx(kept)
    assert design.added.flatten().tolist() == pytest.approx(added)
