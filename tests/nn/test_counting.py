"""FLOPs and memory traffic of a design are those counted by hand."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
from attnres_cli.nn.counting import Costs, costs_of
from attnres_cli.nn.residual import Norms, Residual

D, L = 64, 6


def counted(spec: str, d_model: int = D, n_sublayers: int = L) -> Costs:
    with torch.device("meta"):
        return costs_of(variant.parse(spec).build(d_model, n_sublayers))


class Plain(Residual):
    def write(self, state: Tensor, l: int, y: Tensor) -> Tensor:
        return state + y


class WithMatrix(Plain):
    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.w = nn.Parameter(torch.ones(d_model, d_model))

    def write(self, state: Tensor, l: int, y: Tensor) -> Tensor:
        return state + y @ (self.w * 2).sin().t()


class TwoNorms(Plain):
    norms = Norms.PRE_AND_POST


class KeepsTwo(Plain):
    """Every sublayer sees the sum of the stream and of the output before."""

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def read(self, state: tuple[Tensor, Tensor], l: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return state[0] + state[1], state

    def write(self, state: tuple[Tensor, Tensor], l: int, y: Tensor) -> tuple[Tensor, Tensor]:
        return state[0] + y, y

    def finish(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return state[0]


class Asks(Plain):
    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.w = nn.Parameter(torch.ones(d_model))

    def write(self, state: Tensor, l: int, y: Tensor) -> Tensor:
        return state + (y if (y * self.w).sum().item() > 0 else -y)


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        (Plain, Costs(0, 0)),
        (WithMatrix, Costs(2 * D * D * L, 0)),  # what is done to the weights is of no token
        (TwoNorms, Costs(4 * D * L, 2 * D * L)),
        (KeepsTwo, Costs(D * L, D * (3 * L - 1))),  # two in, one out; at first both are one
    ],
)
def test_costs_are_those_counted_by_hand(design: type[Residual], expected: Costs):
    assert costs_of(design(D, L)) == expected
    with torch.device("meta"):
        assert costs_of(design(D, L)) == expected


@pytest.mark.parametrize(
    ("spec", "numbers"),
    [
        ("standard", 0),
        ("layerscale", 0),
        ("rescaled", 2 * (L + 1)),  # at each site the sum in, the mean out
        ("attnres:score=static", sum(range(2, L + 2)) + L - 3 * L),  # sources in, h out
        ("hc:dynamic=off,n_streams=4", 11 * L + 5 - 2 * 3),  # at first four streams are one
    ],
)
def test_tensors_are_read_and_written_once_per_call(spec: str, numbers: int):
    assert counted(spec).numbers == numbers * D


def test_billions_of_parameters_are_counted_without_them():
    with torch.device("meta"):
        design = WithMatrix(16384, 4)

    started = time.process_time()
    assert costs_of(design).flops == 4 * 2 * 16384**2
    assert costs_of(design) is costs_of(design)
    assert time.process_time() - started < 5


def test_code_that_needs_numbers_to_be_counted_is_named_with_its_line():
    with torch.device("meta"):
        design = Asks(D, L)

    with pytest.raises(VariantError, match=r"test_counting\.py, line \d+, in write: .* may state"):
        design.extra_flops_per_token()
