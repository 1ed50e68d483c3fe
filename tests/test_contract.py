"""What every registered design must do, with any of its options. Nothing to add for a new one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from designs import SIMPLE, SPECS, build
from torch import Tensor

from attnres_cli import residual, variant
from attnres_cli.model import Transformer, n_params, next_token_loss
from attnres_cli.recipe import Optim
from attnres_cli.residual import Norms
from attnres_cli.shape import Shape
from attnres_cli.train.optim import make_optimizer

every_design = pytest.mark.parametrize("spec", SPECS)


def tokens_for(shape: Shape, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (2, shape.seq_len)
    return torch.randint(0, shape.vocab_size, size, generator=generator)


def perturbed(spec: str, shape: Shape, scale: float = 0.5) -> Transformer:
    """A model whose design has left its initial values."""
    model = build(spec, shape)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model


def loss_of(model: Transformer, tokens: Tensor) -> Tensor:
    return next_token_loss(model(tokens), tokens.roll(-1, dims=1))


def gradients(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(
        model(tokens).flatten(0, -2), tokens.roll(-1, dims=1).flatten()
    )
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_designs_of_this_release_are_registered():
    assert {"standard", "denseformer", "attnres"} <= residual.registry().keys()
    assert len(SPECS) > 20


@every_design
def test_logits_have_their_shape_and_a_second_run_gives_the_same(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape), tokens_for(tiny_shape)

    first, second = model(tokens), model(tokens)

    assert first.shape == (2, tiny_shape.seq_len, tiny_shape.vocab_size)
    assert torch.equal(first, second)


@every_design
def test_a_token_changes_nothing_before_it(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape).double(), tokens_for(tiny_shape)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % tiny_shape.vocab_size

    before, after = model(tokens), model(changed)

    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@every_design
def test_every_parameter_learns_by_the_second_step_but_those_documented_as_dead(
    spec: str, tiny_shape: Shape
):
    model, tokens = build(spec, tiny_shape).double(), tokens_for(tiny_shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients(model, tokens)
    optimizer.step()

    found = gradients(model, tokens)

    dead = model.residual.dead_params()
    for name, parameter in model.named_parameters():
        rows = found[name].flatten(1).abs().sum(dim=1) if parameter.ndim > 1 else found[name].abs()
        is_dead = torch.zeros(len(rows), dtype=torch.bool)
        is_dead[list(dead.get(name.removeprefix("residual."), ()))] = True
        unseen = name.startswith("embed")  # tokens that do not occur have no gradient
        assert torch.all(rows[is_dead] == 0), name
        assert unseen or torch.all(rows[~is_dead] > 0), name


@every_design
def test_parameters_equal_their_formula(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    counted = sum(parameter.numel() for parameter in model.residual.parameters())

    assert model.residual.n_params() == counted
    assert n_params(model.shape, model.residual) == sum(
        parameter.numel() for parameter in model.parameters()
    )


@every_design
def test_the_untrained_model_is_standard_where_the_design_says_so(spec: str, tiny_shape: Shape):
    standard, model = build("standard", tiny_shape).double(), build(spec, tiny_shape).double()
    tokens = tokens_for(tiny_shape)
    expected, found = gradients(standard, tokens), gradients(model, tokens)

    same_logits = torch.allclose(model(tokens), standard(tokens), rtol=1e-9, atol=1e-9)
    same_gradients = all(
        torch.allclose(found[name], expected[name], rtol=1e-6, atol=1e-10) for name in expected
    )

    assert same_logits == model.residual.equals_standard_at_init
    assert same_gradients == model.residual.equals_standard_at_init


@every_design
def test_huge_parameters_of_a_design_leave_the_logits_finite(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)
    with torch.no_grad():
        for sign, parameter in enumerate(model.residual.parameters()):
            parameter.fill_(1e4 if sign % 2 else -1e4)

    logits = model(tokens_for(tiny_shape))

    assert torch.isfinite(logits).all()


@every_design
def test_bfloat16_autocast_stays_close_to_float32(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape, scale=0.1), tokens_for(tiny_shape)

    with torch.autocast("cpu", torch.bfloat16):
        mixed = loss_of(model, tokens)
    mixed.backward()

    # bfloat16 keeps 8 bits: 0.4 % per product, which the head's small weights shrink further
    assert mixed.item() == pytest.approx(loss_of(model, tokens).item(), abs=2e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@every_design
def test_bfloat16_weights_stay_close_to_float32(spec: str, tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, norm_eps=1e-6)
    model, tokens = perturbed(spec, shape, scale=0.1), tokens_for(shape)

    loss = loss_of(model, tokens).item()

    assert loss_of(model.bfloat16(), tokens).item() == pytest.approx(loss, abs=5e-2)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SIMPLE)
def test_a_training_step_compiles_into_one_graph(spec: str, tiny_shape: Shape):
    torch.compiler.reset()
    model, tokens = perturbed(spec, tiny_shape), tokens_for(tiny_shape)
    expected = gradients(model, tokens)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    model.zero_grad()
    loss_of(compiled, tokens).backward()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)


@every_design
def test_m_applied_to_the_outputs_gives_what_every_sublayer_saw(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape).double(), tokens_for(tiny_shape)
    seen, values = [], [model.embed(tokens)]
    state = model.residual.start(values[0])
    for l, f in enumerate(model.sublayers, 1):
        h, state = model.residual.read(state, l)
        seen.append(h)
        values.append(f(h))
        state = model.residual.write(state, l, values[-1])
    seen.append(model.residual.finish(state))

    mixing = model.residual.depth_mixing(values)

    if mixing is None:
        pytest.skip("the design states that it is not linear in the sublayers' outputs")
    v = torch.stack(values).unflatten(-1, (mixing.shape[2], -1))  # (S, B, T, H, D/H)
    batch = mixing.expand(v.shape[1], v.shape[2], -1, -1, -1)
    replayed = torch.einsum("bthls,sbthd->lbthd", batch, v).flatten(-2)
    torch.testing.assert_close(replayed, torch.stack(seen), rtol=1e-9, atol=1e-9)


@every_design
def test_nothing_that_a_design_adds_is_decayed(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    decayed, rest = make_optimizer(model, Optim(lr=1e-3)).param_groups

    added = {id(parameter) for parameter in model.residual.parameters()}
    assert decayed["weight_decay"] > 0
    assert rest["weight_decay"] == 0
    assert added <= {id(parameter) for parameter in rest["params"]}
    assert len(decayed["params"]) + len(rest["params"]) == len(list(model.parameters()))


@every_design
def test_costs_beyond_standard_are_numbers_that_scale_with_the_type(spec: str, tiny_shape: Shape):
    design = build(spec, tiny_shape).residual

    assert design.extra_flops_per_token() >= 0
    assert design.extra_bytes_per_token(4) == 2 * design.extra_bytes_per_token(2)


@every_design
def test_a_canonical_spec_reads_back_as_itself(spec: str):
    assert str(variant.parse(spec)) == spec


@every_design
def test_the_trunk_learns_which_norms_a_design_wants(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    lengths = {Norms.NONE: 1, Norms.PRE: 2, Norms.PRE_AND_POST: 3}

    assert {len(f) for f in model.sublayers} == {lengths[model.residual.norms]}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["standard", "attnres", "attnres:block_size=4,heads=2"])
def test_inductor_compiles_a_training_step_to_the_same_loss(spec: str, tiny_shape: Shape):
    torch.compiler.reset()
    model, tokens = perturbed(spec, tiny_shape), tokens_for(tiny_shape)

    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    loss = loss_of(compiled, tokens)
    loss.backward()

    assert loss.item() == pytest.approx(loss_of(model, tokens).item(), rel=1e-5)
