"""DenseFormer against a slow loop written from its paper, and its identities."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from designs import equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape


def slow_stream(model: Transformer, y: Tensor, dilation: int, period: int) -> Tensor:
    weights = iter(model.residual.weight.flatten())
    states = [y]
    for b in range(1, model.shape.n_layers + 1):
        for f in model.sublayers[2 * b - 2 : 2 * b]:
            y = y + f(y)
        states.append(y)
        if b % period == 0:
            mixed = torch.zeros_like(y)
            for j in range(b + 1):
                if j % dilation == b % dilation:
                    mixed = mixed + next(weights) * states[j]
            y = mixed
    assert next(weights, None) is None
    return y


@pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(
    dilation: int, period: int, tiny_shape: Shape
):
    model = perturbed(f"denseformer:dilation={dilation},period={period}", tiny_shape)
    slow = partial(slow_stream, dilation=dilation, period=period)
    equals_slow_loop(model, tokens_of(), slow)
