"""Every registered design keeps the contract, with any of its options. A new design needs no test
of its own here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch
from designs import (
    BRIEF,
    DEFAULTS,
    SIMPLE,
    build,
    every_pair,
    every_pair_together,
    every_value_together,
    tokens_of,
)
from torch import Tensor

from attnres_cli.config.recipe import Optim
from attnres_cli.nn import variant
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.prove import QUICK, prove
from attnres_cli.nn.proofs.subject import SHAPE, NotApplicableError, Proof, Subject
from attnres_cli.nn.residual import Inputs, Norms, presets, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.train.optimizers import make_optimizers

OF_PAIRS: tuple[Proof, ...] = (
    design.is_token_wise,
    model.learns,
    model.counts_parameters,
    design.counts_costs,
    model.starts_as_standard,
    model.mixes_as_it_says,
    design.reads_back,
)
"""What two options can break together although neither breaks it by itself."""

STATES = ["attnres:block_size=2", "mhc"]
"""A design whose state is sources, and one whose state is many streams."""
MORE_STATES = ["standard", "delta:gate=scalar", "laurel:kind=pa"]
"""One stream; sources and a stream; the newest streams."""


def assert_keeps(proofs: Sequence[Proof], specs: Iterable[str], subtests: pytest.Subtests) -> None:
    for spec in specs:
        for proof in proofs:
            with subtests.test(spec=spec, proof=proof.__name__):
                try:
                    proof(Subject(variant.parse(spec)))
                except NotApplicableError:
                    continue


def test_the_designs_of_this_release_are_registered():
    assert {"standard", "denseformer", "attnres"} <= registry().keys()
    assert len(SIMPLE) > 60


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_design_keeps_the_contract(name: str, subtests: pytest.Subtests):
    assert_keeps(QUICK, [name, *every_value_together(name)], subtests)


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_together_keep_what_they_could_break(name: str, subtests: pytest.Subtests):
    assert_keeps(OF_PAIRS, every_pair_together(name), subtests)


KIMI = replace(
    SHAPE,
    n_layers=4,
    attention=("kda", "kda", "kda", "mla"),
    positions="none",
    mlp=("swiglu", "moe", "moe", "moe"),
    d_latent=12,
    n_experts=4,
    top_k=2,
    n_shared_experts=1,
)
"""A dense first layer, then mixtures, as in Kimi Linear; three KDA to one MLA."""

ON_ANY = [
    name
    for name in DEFAULTS
    if not ((d := variant.parse(name).build(16, 6)).named_inputs or d.sees_values)
]
"""Designs that ask of attention nothing that KDA and MLA do not do."""


@pytest.mark.parametrize(
    ("spec", "proofs"),
    [
        ("attnres:block_size=4", QUICK),
        pytest.param("attnres:block_size=4", (model.compiles,), marks=pytest.mark.slow),
        *(pytest.param(spec, QUICK, marks=pytest.mark.slow) for spec in ON_ANY),
        *(pytest.param(spec, (model.compiles,), marks=pytest.mark.nightly) for spec in ON_ANY),
    ],
)
def test_a_design_keeps_the_contract_on_the_papers_trunk(spec: str, proofs: tuple[Proof, ...]):
    found = prove(Subject(variant.parse(spec), KIMI), proofs)

    assert not [each for each in found if each.outcome in ("failed", "not run")]


def test_what_passes_between_sublayers_stays_in_float32_under_autocast(
    tiny_shape: Shape, subtests: pytest.Subtests
):
    for spec in (*BRIEF, *presets()):
        with subtests.test(spec=spec), torch.autocast("cpu", torch.bfloat16):
            model, of_sublayers, held = build(spec, tiny_shape), [], []
            design, write, values = model.residual, model.residual.write, model.residual.values

            def kept(state, l, y, design=design, write=write, y_s=of_sublayers, held=held):
                y_s.append(y)
                held.extend(design.carry(written := write(state, l, y), l))
                return written

            def given(state, l, v, values=values, v_s=of_sublayers):
                v_s.append(v)
                return values(state, l, v)

            design.write, design.values = kept, given
            held.extend(h for row in model.trace(tokens_of())[1] for h in inputs_of(row))
            made = [x for x in held if not any(x is each for each in of_sublayers)]
            assert {x.dtype for x in made} == {torch.float32}


def inputs_of(h: Tensor | Inputs) -> tuple[Tensor, ...]:
    return h if isinstance(h, Inputs) else (h,)


@pytest.mark.nightly
@pytest.mark.parametrize("name", DEFAULTS)
def test_each_option_and_each_pair_keeps_the_contract(name: str, subtests: pytest.Subtests):
    simple = [spec for spec in SIMPLE if spec.partition(":")[0] == name]
    assert_keeps(QUICK, simple, subtests)
    assert_keeps(OF_PAIRS, every_pair(name), subtests)


@pytest.mark.parametrize(
    "spec",
    [
        *STATES,
        *(pytest.param(spec, marks=pytest.mark.slow) for spec in MORE_STATES),
        *(
            pytest.param(spec, marks=pytest.mark.nightly)
            for spec in BRIEF
            if spec not in STATES + MORE_STATES
        ),
    ],
)
def test_a_training_step_compiles_into_one_graph(spec: str):
    model.compiles(Subject(variant.parse(spec), replace(SHAPE, n_layers=2)))


def test_a_designs_parameters_have_axes_and_no_decay_and_its_norms_are_in_the_trunk(
    tiny_shape: Shape, subtests: pytest.Subtests
):
    lengths = {Norms.NONE: 1, Norms.PRE: 2, Norms.PRE_AND_POST: 3}
    for spec in BRIEF:
        with subtests.test(spec=spec):
            built = build(spec, tiny_shape)
            (adamw,) = make_optimizers(built, Optim(lr=1e-3))
            decayed, rest = adamw.param_groups

            added = {id(parameter) for parameter in built.residual.parameters()}
            assert decayed["weight_decay"] > 0
            assert rest["weight_decay"] == 0
            assert all(parameter.ndim for parameter in built.residual.parameters())
            assert added <= {id(parameter) for parameter in rest["params"]}
            assert len(decayed["params"]) + len(rest["params"]) == len(list(built.parameters()))
            assert {len(f) for f in built.sublayers} == {lengths[built.residual.norms]}
