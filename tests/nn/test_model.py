"""The model: initial weights, counts of parameters and FLOPs, causality."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from attnres_variants.standard import Standard
from designs import BRIEF, TRUNKS, build, close
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer, init_weights, n_params, train_flops_per_token
from attnres_cli.nn.residual import Norms
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.grouped import FLOPS

every_trunk = pytest.mark.parametrize("changes", TRUNKS.values(), ids=TRUNKS)


@every_trunk
def test_the_formula_of_parameters_counts_those_of_the_module(changes: dict, tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, **changes)
    with torch.device("meta"):
        model = Transformer(shape, Standard(shape.d_model, shape.n_sublayers))

    counted = sum(parameter.numel() for parameter in model.parameters())

    assert shape.n_params() == n_params(shape, model.residual) == counted


@every_trunk
def test_the_formula_of_flops_gives_the_count_of_torch(changes: dict, tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, **changes)
    model = Transformer(shape, Standard(shape.d_model, shape.n_sublayers))
    tokens = torch.zeros(2, shape.seq_len, dtype=torch.int64)

    with sdpa_kernel(SDPBackend.MATH):  # torch's counter does not know the CPU's flash kernel
        with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
            logits = model(tokens)
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
            logits.sum().backward()
        backward = counter.get_total_flops()

    assert forward == tokens.numel() * shape.flops_per_token()
    assert forward + backward == tokens.numel() * train_flops_per_token(shape, model.residual)


def test_shared_weights_have_the_same_bits_in_every_design(
    tiny_shape: Shape, subtests: pytest.Subtests
):
    theirs = build("standard", tiny_shape, seed=7).shared_parameters()
    matrices = {name for name, p in theirs.items() if p.ndim == 2}
    for spec in BRIEF:
        with subtests.test(spec=spec):
            model = build(spec, tiny_shape, seed=7)
            model.residual.branch_scale = 1.0  # what a design is known to scale
            init_weights(model, seed=7)
            ours = model.shared_parameters()

            assert matrices == {name for name, p in ours.items() if p.ndim == 2}  # norms may differ
            assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs)


def test_no_two_seeds_and_no_two_matrices_start_alike(tiny_shape: Shape):
    one, other = build("standard", tiny_shape, seed=0), build("standard", tiny_shape, seed=1)
    matrices = [p for model in (one, other) for p in model.parameters() if p.ndim == 2]
    begun = [p.flatten()[:32] / p.std() for p in matrices]

    for a, b in itertools.combinations(begun, 2):
        assert torch.corrcoef(torch.stack([a, b]))[0, 1].abs() < 0.9


def test_logits_depend_on_earlier_tokens_only(tiny_shape: Shape):
    model, tokens = build("standard", tiny_shape).double(), torch.arange(8)[None]
    changed = tokens.clone()
    changed[:, 4] = 10

    before, after = model(tokens), model(changed)

    close(after[:, :4], before[:, :4], rtol=1e-12)
    assert ((after - before)[:, 4:].abs().amax(dim=-1) > 1e-6).all()


def test_initial_weights_have_the_documented_standard_deviations():
    shape = Shape(2, 128, 4, 4, 32, 256, 512, 8)
    model = build("standard", shape)

    spreads = {name: p.std().item() for name, p in model.named_parameters() if p.ndim == 2}

    assert spreads["embed.weight"] == pytest.approx(1, rel=0.02)
    assert spreads["head.weight"] == pytest.approx(0.02, rel=0.02)
    assert spreads["sublayers.0.1.qkv.weight"] == pytest.approx(1 / math.sqrt(128), rel=0.02)
    assert spreads["sublayers.0.1.out.weight"] == pytest.approx(1 / math.sqrt(128 * 4), rel=0.02)
    assert spreads["sublayers.1.1.out.weight"] == pytest.approx(1 / math.sqrt(256 * 4), rel=0.02)


@pytest.mark.parametrize("tie", [False, True])
def test_an_untrained_model_has_the_loss_of_a_random_guess(tie: bool):
    shape = Shape(2, 64, 4, 4, 16, 128, 256, 16, tie_embeddings=tie)
    model = build("standard", shape)
    tokens = torch.randint(0, 256, (8, 16), generator=torch.Generator().manual_seed(0))

    loss = next_token_loss(model(tokens), tokens.roll(-1, dims=1))

    assert loss.item() == pytest.approx(math.log(256), abs=0.2)


@pytest.mark.parametrize("norms", list(Norms))
def test_the_trunk_has_the_norms_that_a_design_asks_for(norms: Norms, tiny_shape: Shape):
    class Asks(Standard):
        pass

    Asks.norms = norms
    model = Transformer(tiny_shape, Asks(16, 6))
    init_weights(model, 0)

    logits = model(torch.zeros(1, 4, dtype=torch.int64))

    assert torch.isfinite(logits).all()
    assert n_params(tiny_shape, model.residual) == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_a_designs_scale_applies_to_initial_values_outputs_and_mlps_only(tiny_shape: Shape):
    class Halved(Standard):
        branch_scale = 0.5

    plain, halved = Transformer(tiny_shape, Standard(16, 6)), Transformer(tiny_shape, Halved(16, 6))
    for model in (plain, halved):
        init_weights(model, 0)
    scaled = {"qkv.weight": 32, "gate_up.weight": 0, "out.weight": 0}  # of qkv only the last rows

    for (name, a), b in zip(plain.named_parameters(), halved.parameters(), strict=True):
        first = next((row for end, row in scaled.items() if name.endswith(end)), len(a))
        assert torch.equal(a[:first], b[:first]), name
        assert torch.equal(0.5 * a[first:], b[first:]), name
