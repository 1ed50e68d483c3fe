"""The trunk: initial weights, counts, attention, and independence from the design."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys

import pytest
import torch
from attnres_variants.standard import Standard
from designs import SPECS, build
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer, init_weights, n_params, train_flops_per_token
from attnres_cli.nn.residual import Norms
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.grouped import FLOPS

SHAPES = {
    "swiglu": {},
    "gelu": {"mlp": "gelu"},
    "tied": {"tie_embeddings": True},
    "grouped": {"n_kv_heads": 1},
    "wide heads": {"d_head": 12},
    "relu2": {"mlp": "relu2"},
    "no positions": {"positions": "none"},
    "normed and capped": {"qk_norm": True, "n_kv_heads": 1, "softcap": 15.0},
    "mla": {"attention": "mla", "positions": "none", "d_latent": 12},
    "moe": {"mlp": ("gelu", "moe"), "d_ff": 8, "n_experts": 6, "top_k": 2, "n_shared_experts": 1},
    "patterns": {
        "attention": ("softmax", "mla"),
        "positions": "none",
        "d_latent": 12,
        "mlp": ("relu2", "gelu", "swiglu"),
    },
}
every_shape = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)


@every_shape
def test_parameters_by_formula_equal_the_module_on_the_meta_device(
    changes: dict, tiny_shape: Shape
):
    shape = dataclasses.replace(tiny_shape, **changes)
    with torch.device("meta"):
        model = Transformer(shape, Standard(shape.d_model, shape.n_sublayers))

    counted = sum(parameter.numel() for parameter in model.parameters())

    assert shape.n_params() == n_params(shape, model.residual) == counted


@every_shape
def test_flops_by_formula_equal_those_that_torch_counts(changes: dict, tiny_shape: Shape):
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


def test_shared_weights_are_equal_bit_for_bit_whatever_the_design(
    tiny_shape: Shape, subtests: pytest.Subtests
):
    theirs = build("standard", tiny_shape, seed=7).shared_parameters()
    matrices = {name for name, p in theirs.items() if p.ndim == 2}
    for spec in SPECS:
        with subtests.test(spec=spec):
            model = build(spec, tiny_shape, seed=7)
            model.residual.branch_scale = 1.0  # what a design is known to scale
            init_weights(model, seed=7)
            ours = model.shared_parameters()

            assert matrices == {name for name, p in ours.items() if p.ndim == 2}  # norms may differ
            assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() & theirs)


def test_another_seed_draws_other_weights(tiny_shape: Shape):
    one, other = build("standard", tiny_shape, seed=0), build("standard", tiny_shape, seed=1)

    assert not torch.equal(one.embed.weight, other.embed.weight)
    assert not torch.equal(one.sublayers[0][1].out.weight, other.sublayers[0][1].out.weight)


def test_no_two_matrices_start_alike(tiny_shape: Shape):
    matrices = [p for p in build("standard", tiny_shape).parameters() if p.ndim == 2]
    begun = [p.flatten()[:32] / p.std() for p in matrices]

    for one, other in itertools.combinations(begun, 2):
        assert torch.corrcoef(torch.stack([one, other]))[0, 1].abs() < 0.9


def test_initial_spreads_are_those_of_the_table():
    shape = Shape(2, 128, 4, 4, 32, 256, 512, 8)
    model = build("standard", shape)

    spreads = {name: p.std().item() for name, p in model.named_parameters() if p.ndim == 2}

    assert spreads["embed.weight"] == pytest.approx(1, rel=0.02)
    assert spreads["head.weight"] == pytest.approx(0.02, rel=0.02)
    assert spreads["sublayers.0.1.qkv.weight"] == pytest.approx(1 / math.sqrt(128), rel=0.02)
    assert spreads["sublayers.0.1.out.weight"] == pytest.approx(1 / math.sqrt(128 * 4), rel=0.02)
    assert spreads["sublayers.1.1.out.weight"] == pytest.approx(1 / math.sqrt(256 * 4), rel=0.02)


@pytest.mark.parametrize("tie", [False, True])
def test_an_untrained_model_has_the_loss_of_a_blind_guess(tie: bool):
    shape = Shape(2, 64, 4, 4, 16, 128, 256, 16, tie_embeddings=tie)
    model = build("standard", shape)
    tokens = torch.randint(0, 256, (8, 16), generator=torch.Generator().manual_seed(0))

    loss = next_token_loss(model(tokens), tokens.roll(-1, dims=1))

    assert loss.item() == pytest.approx(math.log(256), abs=0.2)


@pytest.mark.parametrize("norms", list(Norms))
def test_the_trunk_puts_the_norms_that_a_design_asks_for(norms: Norms, tiny_shape: Shape):
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


def test_a_design_scales_the_initial_values_outputs_and_mlps_and_nothing_else(tiny_shape: Shape):
    class Halved(Standard):
        branch_scale = 0.5

    plain, halved = Transformer(tiny_shape, Standard(16, 6)), Transformer(tiny_shape, Halved(16, 6))
    for model in (plain, halved):
        init_weights(model, 0)
    scaled = {"qkv.weight": 32, "gate_up.weight": 0, "out.weight": 0}  # of qkv the last rows alone

    for (name, a), b in zip(plain.named_parameters(), halved.parameters(), strict=True):
        first = next((row for end, row in scaled.items() if name.endswith(end)), len(a))
        assert torch.equal(a[:first], b[:first]), name
        assert torch.equal(0.5 * a[first:], b[first:]), name


def test_the_model_and_the_variants_import_nothing_heavy_but_torch():
    program = (
        "import sys, attnres_cli.nn.model, attnres_variants.attnres\n"
        "heavy = {'pydantic', 'yaml', 'sqlalchemy', 'optuna', 'typer', 'rich', 'scipy'}\n"
        "print(*sorted(heavy & sys.modules.keys()))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == []
