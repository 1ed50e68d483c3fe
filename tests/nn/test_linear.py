"""Linear layers give torch's numbers, and use oneDNN where it pays."""

import pytest
import torch
from torch import nn

from attnres_cli.nn.trunk import linear
from attnres_cli.nn.trunk.linear import Linear, product


@pytest.fixture(autouse=True)
def _by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_BY_ONEDNN", True)


def _layer() -> Linear:
    torch.manual_seed(0)
    return Linear(24, 40)


@pytest.mark.parametrize("shape", [(16, 64), (512,), (1, 528), (3, 7), (1, 1)])
def test_values_and_gradients_are_those_of_torchs_linear(shape: tuple[int, ...]):
    layer = _layer()
    x, g = torch.randn(*shape, 24, requires_grad=True), torch.randn(*shape, 40)
    wide, x64 = nn.Linear(24, 40, bias=False).double(), x.detach().double().requires_grad_()
    wide.weight.data.copy_(layer.weight)

    y, y64 = layer(x), wide(x64)

    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), y64, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(y, (x, layer.weight), g)
    wanted = torch.autograd.grad(y64, (x64, wide.weight), g.double())
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_layer_is_a_convolution_without_copies_where_that_pays():
    x = torch.randn(16, 64, 24)

    with torch.profiler.profile() as profile:
        without = _layer()(x)
        _layer()(x[:, :1])

    names = [event.name for event in profile.events()]
    assert names.count("aten::conv2d") == 1
    assert "aten::clone" not in names
    with torch.no_grad():
        assert torch.equal(_layer()(x), without)


def test_second_derivatives_are_those_of_torchs_linear():
    layer, x = _layer(), torch.randn(16, 64, 24, requires_grad=True)

    def curvature(function: nn.Module) -> torch.Tensor:
        (slope,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(slope.pow(2).sum(), layer.weight)
        return found

    plain = nn.Linear(24, 40, bias=False)
    plain.weight = layer.weight
    torch.testing.assert_close(curvature(layer), curvature(plain), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("autocast", [False, True])
def test_other_types_are_left_to_torch(autocast: bool):
    x = torch.randn(16, 64, 24) if autocast else torch.randn(16, 64, 24, dtype=torch.float64)
    layer = _layer() if autocast else _layer().double()

    with torch.profiler.profile() as profile, torch.autocast("cpu", enabled=autocast):
        y = layer(x)

    assert y.dtype is (torch.bfloat16 if autocast else torch.float64)
    assert "aten::conv2d" not in [event.name for event in profile.events()]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(24, 64, 1024), (1024, 24, 64), (1000, 17, 63), (3, 5, 7)])
def test_a_product_is_that_of_torch(size: tuple[int, int, int], turned: bool):
    rows, sums, columns = size
    a = torch.randn(sums, rows).t() if turned else torch.randn(rows, sums)
    b = torch.randn(columns, sums).t() if turned else torch.randn(sums, columns)

    found = product(a, b)

    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


def test_a_product_uses_onednn_where_that_pays():
    a, b = torch.randn(1024, 256), torch.randn(256, 24)

    with torch.profiler.profile() as profile:
        product(a, b)
        product(a[:, :128], b[:128])  # of a part of each row it would take a thousand times as long
        product(a[:8], b)
        product(a.double(), b.double())

    names = [event.name for event in profile.events()]
    assert names.count("mkldnn::_linear_pointwise") == 1
    assert names.count("aten::mm") == 3
