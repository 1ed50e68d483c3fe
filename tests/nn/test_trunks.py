"""Every design keeps the contract on the paper's trunk too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from designs import DEFAULTS

from attnres_cli.nn.proofs.model import compiles
from attnres_cli.nn.proofs.prove import QUICK, prove
from attnres_cli.nn.proofs.subject import SHAPE, Proof, Subject
from attnres_cli.nn.variant import parse

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


@pytest.mark.parametrize(
    ("spec", "proofs"),
    [
        ("attnres:block_size=4", QUICK),
        pytest.param("attnres:block_size=4", (compiles,), marks=pytest.mark.slow),
        *(pytest.param(spec, QUICK, marks=pytest.mark.slow) for spec in DEFAULTS),
        *(pytest.param(spec, (compiles,), marks=pytest.mark.nightly) for spec in DEFAULTS),
    ],
)
def test_a_design_keeps_the_contract_on_the_papers_trunk(spec: str, proofs: tuple[Proof, ...]):
    found = prove(Subject(parse(spec), KIMI), proofs)

    assert not [each for each in found if each.outcome in ("failed", "not run")]
