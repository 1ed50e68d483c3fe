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

from attnres_cli.errors import VariantError
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer, init_weights, n_params, train_flops_per_token
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.grouped import FLOPS


@pytest.mark.parametrize("changes", TRUNKS.values(), ids=TRUNKS)
def test_the_formulas_of_parameters_and_flops_give_the_counts_of_torch(
    changes: dict, tiny_shape: Shape
):
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

    counted = sum(parameter.numel() for parameter in model.parameters())
    assert shape.n_params() == n_params(shape, model.residual) == counted
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


@pytest.mark.parametrize("sizes", [(16, 4), (16, 8), (32, 6)])
def test_a_design_of_other_sizes_than_the_trunk_is_refused(
    sizes: tuple[int, int], tiny_shape: Shape
):
    with pytest.raises(VariantError, match=r"Standard is built for .* the shape has \(16, 6\)"):
        Transformer(tiny_shape, Standard(*sizes))


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


SCALED = {  # the first row that is scaled of the weights with these names: of qkv only the values
    "softmax": ({}, {"qkv.weight": 32, "gate_up.weight": 0, "out.weight": 0}),
    "mla": (TRUNKS["mla"], {"gate_up.weight": 0, "up.weight": 16, "out.weight": 0}),
    "kda": ({"attention": "kda"}, {"gate_up.weight": 0, "out.weight": 0}),
    "moe": (
        {"mlp": "moe", "n_experts": 6, "top_k": 2, "n_shared_experts": 1},
        {"qkv.weight": 32, "gate_up": 0, "gate_up.weight": 0, "out": 0, "out.weight": 0},
    ),
}


@pytest.mark.parametrize(("changes", "scaled"), SCALED.values(), ids=SCALED)
def test_a_designs_scale_applies_to_initial_values_outputs_and_mlps_only(
    changes: dict, scaled: dict[str, int], tiny_shape: Shape
):
    class Halved(Standard):
        branch_scale = 0.5

    shape = dataclasses.replace(tiny_shape, **changes)
    plain, halved = Transformer(shape, Standard(16, 6)), Transformer(shape, Halved(16, 6))
    for model in (plain, halved):
        init_weights(model, 0)

    for (name, a), b in zip(plain.named_parameters(), halved.parameters(), strict=True):
        first = next((row for end, row in scaled.items() if name.endswith(f".{end}")), len(a))
        assert torch.equal(a[:first], b[:first]), name
        assert torch.equal(0.5 * a[first:], b[first:]), name
