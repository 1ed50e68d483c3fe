"""CUDA graphs write each pass over the last one's results: nothing that is kept may lie there.

No GPU is here, so that a stand-in does to a run what replays do: losses and gradients of all passes
share their memory, and what the last pass left there is spoiled before the next.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training import COMPILED, SETTINGS, Lab, keeper_of, numbers

from attnres_cli.nn import measure
from attnres_cli.nn.model import Transformer
from attnres_cli.records.run import GRAPHS

REPLAYED = replace(COMPILED, engine="eager", way=GRAPHS)
HALVES = {"train": {"micro_batch_size": 2}}


class Replays:
    """A model's passes, all of whose results are in the same memory."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.parameters = model, list(model.parameters())
        self.loss = torch.zeros(())
        self.gradients = [torch.zeros_like(each) for each in self.parameters]

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor:
        for each in (self.loss, *self.gradients):
            each.fill_(torch.nan)
        return _Pass.apply(self, tokens, targets, *self.parameters)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Replays, tokens: Tensor, targets: Tensor, *of: Tensor) -> Tensor:
        ctx.graph, ctx.found = graph, [None] * len(of)
        learns = ctx.needs_input_grad[-1]
        with torch.set_grad_enabled(learns):
            loss = graph.model(tokens, targets)
        if learns:
            ctx.found = torch.autograd.grad(loss, of, allow_unused=True)
        return graph.loss.copy_(loss.detach()).detach()

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Any:
        pairs = zip(ctx.found, ctx.graph.gradients, strict=True)
        mine = [None if g is None else torch.mul(g, by, out=held).detach() for g, held in pairs]
        return None, None, None, *mine


@pytest.fixture(autouse=True)
def _replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "compiled", lambda model, *, graphs: Replays(model))


@pytest.mark.parametrize("sections", [{}, HALVES])
@pytest.mark.parametrize("variant", ["standard", "attnres", "mhc"])
def test_a_run_by_graphs_finds_what_an_eager_run_finds(variant: str, sections: dict, lab: Lab):
    plain = lab.run(variant, **sections)

    found = lab.run(variant, settings=REPLAYED, **sections)

    assert found.val_loss == pytest.approx(plain.val_loss, abs=1e-6)
    losses = [[point.train_loss for point in each.curve[1:]] for each in (found, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert found.settings.numerics == "cpu fp32 compiled, 1 thread, CUDA graphs"


def test_a_run_by_graphs_goes_on_from_its_checkpoint_in_the_same_memory(lab: Lab, tmp_path: Path):
    lab = lab.with_recipe(**HALVES)
    undisturbed = lab.run("attnres", settings=REPLAYED)
    lab.stop_at(3, keeper_of(tmp_path), "attnres", settings=REPLAYED)
    assert (
        numbers(lab.run("attnres", settings=REPLAYED, keeper=keeper_of(tmp_path)))[:4]
        == (numbers(undisturbed)[:4])
    )

    trainer = lab.trainer("attnres", settings=REPLAYED)
    trainer.step(0)
    places = [each.data_ptr() for each in trainer.model.parameters()]
    trainer.restore(trainer.tensors())
    assert places == [each.data_ptr() for each in trainer.model.parameters()]


def test_a_run_that_goes_on_by_graphs_says_so_and_is_paired_with_none_of_another_way(
    lab: Lab, tmp_path: Path
):
    told: list[str] = []
    lab.stop_at(3, keeper_of(tmp_path), settings=SETTINGS)

    found = lab.run(settings=REPLAYED, keeper=keeper_of(tmp_path, on_trouble=told.append))

    assert "begun with one device, goes on from step 3 with CUDA graphs" in told[0]
    assert found.settings.way == "one device, then CUDA graphs"
    assert found.settings.graphs
