"""Every design keeps the contract on the paper's trunk as it does on the dense one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from designs import DEFAULTS

from attnres_cli.nn.proofs.prove import ALL, QUICK, prove
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


def failures(spec: str, proofs: tuple[Proof, ...]) -> list[str]:
    found = prove(Subject(parse(spec), KIMI), proofs)
    return [f"{f.name}: {f.detail}" for f in found if f.outcome in ("failed", "not run")]


@pytest.mark.parametrize("spec", ["attnres", "attnres:block_size=4"])
def test_a_design_keeps_the_contract_on_the_papers_trunk(spec: str):
    assert not failures(spec, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("spec", DEFAULTS)
def test_every_design_keeps_the_whole_contract_on_the_papers_trunk(spec: str):
    assert not failures(spec, ALL)
