"""DenseFormer against a slow loop written from its paper, and its identities."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attnres_variants.denseformer import DenseFormer
from designs import build, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
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


def test_the_untrained_model_is_standard_bit_for_bit(tiny_shape: Shape):
    tokens = tokens_of()

    dense, standard = build("denseformer", tiny_shape), build("standard", tiny_shape)

    assert torch.equal(dense(tokens), standard(tokens))


@pytest.mark.parametrize(
    ("dilation", "period", "expected"), [(1, 1, 65), (2, 1, 35), (4, 1, 20), (4, 5, 5)]
)
def test_ten_layers_have_as_many_scalars_as_the_official_code(
    dilation: int, period: int, expected: int
):
    assert DenseFormer(8, 20, dilation=dilation, period=period).n_params() == expected


@pytest.mark.parametrize("option", ["dilation=0", "dilation=4", "period=0", "period=4"])
def test_options_that_fit_no_layer_are_refused(option: str):
    with pytest.raises(VariantError, match=r"in 1\.\.3"):
        variant.parse(f"denseformer:{option}").build(16, 6)
