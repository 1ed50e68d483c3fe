"""What every registered design must do, with any of its options. Nothing to add for a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from designs import BRIEF, SIMPLE, SPECS, build

from attnres_cli.config.recipe import Optim
from attnres_cli.nn import proofs, residual, variant
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.proofs import SHAPE, NotApplicableError, Proof, Subject
from attnres_cli.nn.residual import Norms
from attnres_cli.nn.shape import Shape
from attnres_cli.train.optim import make_optimizers

MEETING: tuple[Proof, ...] = (
    proofs.is_token_wise,
    proofs.learns,
    proofs.counts_parameters,
    proofs.counts_costs,
    proofs.starts_as_standard,
    proofs.mixes_as_it_says,
    proofs.reads_back,
)
"""What two options can break that neither does alone."""

every_design = pytest.mark.parametrize("spec", SPECS)


def keeps(spec: str, proof: Proof, shape: Shape = SHAPE) -> None:
    try:
        proof(Subject(variant.parse(spec), shape))
    except NotApplicableError as reason:
        pytest.skip(str(reason))


def test_the_designs_of_this_release_are_registered():
    assert {"standard", "denseformer", "attnres"} <= residual.registry().keys()
    assert len(SPECS) > 20


@pytest.mark.parametrize("spec", SIMPLE)
@pytest.mark.parametrize("proof", proofs.QUICK, ids=lambda proof: proof.__name__)
def test_a_design_keeps_the_contract(spec: str, proof: Proof):
    keeps(spec, proof)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in SIMPLE])
@pytest.mark.parametrize("proof", MEETING, ids=lambda proof: proof.__name__)
def test_two_options_together_keep_what_they_could_break(spec: str, proof: Proof):
    keeps(spec, proof)


@pytest.mark.slow
@pytest.mark.parametrize("spec", BRIEF)
def test_a_training_step_compiles_into_one_graph(spec: str):
    keeps(spec, proofs.compiles, replace(SHAPE, n_layers=2))


@every_design
def test_nothing_that_a_design_adds_is_decayed(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    (adamw,) = make_optimizers(model, Optim(lr=1e-3))
    decayed, rest = adamw.param_groups

    added = {id(parameter) for parameter in model.residual.parameters()}
    assert decayed["weight_decay"] > 0
    assert rest["weight_decay"] == 0
    assert added <= {id(parameter) for parameter in rest["params"]}
    assert len(decayed["params"]) + len(rest["params"]) == len(list(model.parameters()))


@every_design
def test_the_trunk_learns_which_norms_a_design_wants(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)

    lengths = {Norms.NONE: 1, Norms.PRE: 2, Norms.PRE_AND_POST: 3}

    assert {len(f) for f in model.sublayers} == {lengths[model.residual.norms]}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["standard", "attnres", "attnres:block_size=4,heads=2"])
def test_inductor_compiles_a_training_step_to_the_same_loss(spec: str):
    torch.compiler.reset()
    subject = Subject(variant.parse(spec))
    model, tokens = subject.moved(), subject.tokens()

    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    loss = next_token_loss(compiled(tokens), tokens.roll(-1, dims=1))
    loss.backward()

    expected = next_token_loss(model(tokens), tokens.roll(-1, dims=1))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
