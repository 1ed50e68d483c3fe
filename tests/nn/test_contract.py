"""What every registered design must do, with any of its options. Nothing to add for a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from designs import ALL_PAIRS, BRIEF, COVERING, SIMPLE, SPECS, build

from attnres_cli.config.recipe import Optim
from attnres_cli.nn import variant
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.prove import QUICK
from attnres_cli.nn.proofs.subject import SHAPE, NotApplicableError, Proof, Subject
from attnres_cli.nn.residual import Norms, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.train.trainer import make_optimizers

MEETING: tuple[Proof, ...] = (
    design.is_token_wise,
    model.learns,
    model.counts_parameters,
    design.counts_costs,
    model.starts_as_standard,
    model.mixes_as_it_says,
    design.reads_back,
)
"""What two options can break that neither does alone."""

STATES = ["standard", "attnres:block_size=2", "delta:gate=scalar", "mhc", "laurel:kind=pa"]
"""A design per kind of state: a stream, sources, both, many streams, the newest streams."""


def keeps(spec: str, proofs: Sequence[Proof], subtests: pytest.Subtests) -> None:
    for proof in proofs:
        with subtests.test(proof=proof.__name__):
            try:
                proof(Subject(variant.parse(spec)))
            except NotApplicableError:
                continue


def compiles(spec: str) -> None:
    model.compiles(Subject(variant.parse(spec), replace(SHAPE, n_layers=2)))


def test_the_designs_of_this_release_are_registered():
    assert {"standard", "denseformer", "attnres"} <= registry().keys()
    assert len(SPECS) > 80


@pytest.mark.parametrize("spec", SIMPLE)
def test_a_design_keeps_the_contract(spec: str, subtests: pytest.Subtests):
    keeps(spec, QUICK, subtests)


@pytest.mark.parametrize("spec", COVERING)
def test_options_together_keep_what_they_could_break(spec: str, subtests: pytest.Subtests):
    keeps(spec, MEETING, subtests)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ALL_PAIRS)
def test_two_options_together_keep_what_they_could_break(spec: str, subtests: pytest.Subtests):
    keeps(spec, MEETING, subtests)


@pytest.mark.parametrize("spec", STATES)
def test_a_training_step_compiles_into_one_graph(spec: str):
    compiles(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec in BRIEF if spec not in STATES])
def test_a_training_step_of_any_design_compiles_into_one_graph(spec: str):
    compiles(spec)


def test_nothing_that_a_design_adds_is_decayed(tiny_shape: Shape, subtests: pytest.Subtests):
    for spec in SPECS:
        with subtests.test(spec=spec):
            built = build(spec, tiny_shape)
            (adamw,) = make_optimizers(built, Optim(lr=1e-3))
            decayed, rest = adamw.param_groups

            added = {id(parameter) for parameter in built.residual.parameters()}
            assert decayed["weight_decay"] > 0
            assert rest["weight_decay"] == 0
            assert added <= {id(parameter) for parameter in rest["params"]}
            assert len(decayed["params"]) + len(rest["params"]) == len(list(built.parameters()))


def test_the_trunk_learns_which_norms_a_design_wants(tiny_shape: Shape, subtests: pytest.Subtests):
    lengths = {Norms.NONE: 1, Norms.PRE: 2, Norms.PRE_AND_POST: 3}
    for spec in SPECS:
        with subtests.test(spec=spec):
            built = build(spec, tiny_shape)

            assert {len(f) for f in built.sublayers} == {lengths[built.residual.norms]}


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["standard", "attnres", "attnres:block_size=4,heads=2"])
def test_inductor_compiles_a_training_step_to_the_same_loss(spec: str):
    torch.compiler.reset()
    subject = Subject(variant.parse(spec))
    trunk, tokens = subject.perturbed(), subject.tokens()

    compiled = torch.compile(trunk, fullgraph=True, dynamic=False)
    loss = next_token_loss(compiled(tokens), tokens.roll(-1, dims=1))
    loss.backward()

    expected = next_token_loss(trunk(tokens), tokens.roll(-1, dims=1))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
