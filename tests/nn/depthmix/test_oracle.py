"""Our engines against the authors' public operator (fla-core), with gradients."""

from __future__ import annotations

from typing import Any

import mixes
import pytest
import torch
from mixes import DEVICE, EVERY, Case, assert_near, draw_values
from oracles import public
from torch import Tensor

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

pytestmark = pytest.mark.oracle


def ours(engine: str, values: mixes.Values) -> Tensor:
    scoring = Scoring(
        (tuple(range(len(values.sources))),), "softmax", 1, values.query[-1:], values.gain[-1:]
    )
    with use(engine):
        history = History(scoring)
        for v in values.sources:
            history = history.append(v)
        return history.read(0)[0]


def compare(engine: str, operator: Any, eps: dict[str, float]) -> None:
    values = draw_values(Case(mixes.full(6), d_head=32, size=(2, 5)), torch.float32)
    inputs = [*values.sources, values.query, values.gain]

    outcomes = []
    for h in (
        ours(engine, values),
        operator(values.query[-1], values.sources, values.gain[-1], **eps),
    ):
        gradients = torch.autograd.grad((h * values.cotangents[0]).sum(), inputs)
        outcomes.append(dict(enumerate((h.detach(), *gradients))))

    assert_near(*outcomes, 2e-5, least=1e-1)


@EVERY
def test_reads_and_gradients_equal_those_of_the_authors_formula(engine: str):
    compare(engine, public("fla.ops.attnres.naive").naive_attnres, {"rms_eps": 1e-6})


@EVERY
@pytest.mark.skipif(DEVICE == "cpu", reason="their kernels need a GPU")
def test_reads_and_gradients_equal_those_of_the_authors_kernels(engine: str):
    compare(engine, public("fla.ops.attnres").fused_attnres, {"rms_eps": 1e-6})
