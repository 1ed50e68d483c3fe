"""A mixture of experts equals its formulas token by token, counts its load and balances it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from designs import build
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from attnres_cli.nn.memory import counting
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk import grouped, linear
from attnres_cli.nn.trunk.grouped import rows as by_group
from attnres_cli.nn.trunk.moe import SPEED, MoE, balance

SHAPE = Shape(
    n_layers=1, d_model=12, n_heads=2, n_kv_heads=2, d_head=6, d_ff=5, vocab_size=11, seq_len=7,
    mlp="moe", n_experts=6, top_k=2, n_shared_experts=1,
)  # fmt: skip


def made(shape: Shape = SHAPE, dtype: torch.dtype = torch.float64) -> MoE:
    """A layer with weights of unit scale, and biases that change some choices."""
    torch.manual_seed(0)
    layer = MoE(shape).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) / math.sqrt(parameter.shape[1]))
        layer.bias.copy_(0.2 * torch.randn(shape.n_experts))
    return layer


def tokens(shape: Shape = SHAPE, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(2, shape.seq_len, shape.d_model, generator=generator, dtype=torch.float64)
    return h.to(dtype).requires_grad_()


def plain(layer: MoE, h: Tensor) -> Tensor:
    """The formulas, one token after the other."""

    def expert(x: Tensor, gate_up: Tensor, out: Tensor) -> Tensor:
        gate, up = (x @ gate_up).chunk(2)
        return (F.silu(gate) * up) @ out

    found = []
    for x in h.flatten(0, 1):
        scores = torch.sigmoid(layer.router.weight @ x)
        chosen = sorted(range(len(scores)), key=lambda e: -(scores[e] + layer.bias[e]).item())
        chosen, y = chosen[: layer.top_k], torch.zeros_like(x)
        for e in chosen:
            weight = math.sqrt(layer.top_k) * scores[e] / sum(scores[c] for c in chosen)
            y = y + weight * expert(x, layer.gate_up[e], layer.out[e])
        if layer.shared is not None:
            y = y + expert(x, layer.shared.gate_up.weight.T, layer.shared.out.weight.T)
        found.append(y)
    return torch.stack(found).view_as(h)


def gradients(y: Tensor, layer: nn.Module, h: Tensor, **options: bool) -> tuple[Tensor, ...]:
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.autograd.grad(y, (h, *layer.parameters()), slope.to(y.dtype), **options)


@pytest.mark.parametrize(
    "changes",
    [{}, {"top_k": 1}, {"top_k": 6}, {"n_shared_experts": 0}, {"n_shared_experts": 3}],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_formulas_token_by_token(changes: dict[str, int]):
    shape = dataclasses.replace(SHAPE, **changes)
    layer, h = made(shape), tokens(shape)

    y, wanted = layer(h), plain(layer, h)

    torch.testing.assert_close(y, wanted, rtol=1e-13, atol=1e-13)
    for mine, theirs in zip(gradients(y, layer, h), gradients(wanted, layer, h), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_products_of_groups_have_all_derivatives_empty_groups_included():
    torch.manual_seed(0)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor([0, 3, 3, 7], dtype=torch.int32)

    torch.testing.assert_close(by_group(x, w, ends), torch.cat([x[:3] @ w[1], x[3:] @ w[3]]))
    assert gradcheck(by_group, (x, w, ends))
    assert gradgradcheck(by_group, (x, w, ends))


@pytest.mark.parametrize("by_onednn", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_in_narrow_types_it_is_the_formulas_within_rounding(
    by_onednn: bool, autocast: bool, monkeypatch: pytest.MonkeyPatch
):
    if by_onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN here")
    monkeypatch.setattr(linear, "_BY_ONEDNN", by_onednn)
    monkeypatch.setattr(linear, "_LARGE", 0)
    layer, h = made(dtype=torch.float32), tokens(dtype=torch.float32)
    exact, h64 = made(), h.detach().double().requires_grad_()
    exact.load_state_dict(layer.state_dict())

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(h)
    wanted = plain(exact, h64)

    assert y.dtype is (torch.bfloat16 if autocast else torch.float32)
    bound = 2e-2 if autocast else 2e-6
    found, right = gradients(y, layer, h), gradients(wanted, exact, h64)
    for mine, theirs in zip((y, *found), (wanted, *right), strict=True):
        assert (mine.double() - theirs).norm() < bound * theirs.norm()


def test_under_autocast_the_router_decides_as_without():
    layer, h = made(dtype=torch.float32), tokens(dtype=torch.float32).flatten(0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        weights, chosen = layer.route(h)

    assert weights.dtype is torch.float32
    assert all(map(torch.equal, (weights, chosen), layer.route(h)))


def test_backward_may_be_repeated_and_may_recompute_the_forward_pass():
    layer, h = made(dtype=torch.float32), tokens(dtype=torch.float32)
    y = layer(h)

    once = gradients(y, layer, h, retain_graph=True)

    assert all(map(torch.equal, once, gradients(y, layer, h)))
    again = gradients(checkpoint(layer, h, use_reentrant=False), layer, h)
    assert all(map(torch.equal, once, again))


def test_the_load_counts_each_token_of_training_once():
    layer, h = made(), tokens()
    expected = torch.bincount(layer.route(h.flatten(0, 1))[1].flatten(), minlength=6)

    layer.eval()(h)
    with torch.no_grad():
        layer.train()(h)
    assert not layer.load.any()

    for part in h.split(1):  # micro-batches
        checkpoint(layer, part, use_reentrant=False).sum().backward()
    assert torch.equal(layer.load, expected)
    assert "load" not in layer.state_dict()


def test_biases_move_against_the_load_and_keep_their_mean():
    layer = made()
    layer.bias.zero_()
    layer.load += torch.tensor([4, 1, 1, 2, 0, 4])

    balance(nn.Sequential(layer), lambda loads: 2 * loads)

    signs = torch.tensor([-1, 1, 1, 0, 1, -1]).double()
    torch.testing.assert_close(layer.bias, SPEED * (signs - signs.mean()))
    assert not layer.load.any()


def test_biases_balance_the_experts_that_a_router_prefers():
    layer, h = made(), tokens(dataclasses.replace(SHAPE, seq_len=256)) + 0.5  # all alike somewhat
    layer.bias.zero_()
    with torch.no_grad():
        layer.router.weight.mul_(0.3)  # so that steps of 0.001 have not far to go
    before = layer.imbalance(h)

    for _ in range(200):
        layer(h)
        balance(layer, lambda loads: loads)

    assert before > 1.5 > 1.05 > layer.imbalance(h)


def test_active_parameters_are_those_of_the_chosen_experts():
    unused = (6 - 2) * 3 * 12 * 5  # tests/nn/test_model.py counts the others

    assert SHAPE.n_active_params() == SHAPE.n_params() - unused


def test_it_runs_on_the_meta_device_and_its_memory_is_counted():
    with torch.device("meta"):
        assert MoE(SHAPE)(torch.empty(2, 7, 12)).shape == (2, 7, 12)

    with counting() as held:
        layer = MoE(SHAPE)
        layer(torch.empty(2, 7, 12, requires_grad=True)).sum().backward()
    assert held.peak > 0


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has no grouped product")
def test_torchs_grouped_product_gives_the_same_and_takes_our_strides(
    monkeypatch: pytest.MonkeyPatch,
):
    shape = dataclasses.replace(SHAPE, d_model=16, d_ff=8)
    layer, h = made(shape, torch.bfloat16), tokens(shape, torch.bfloat16)
    y = layer(h)
    by_loop = gradients(y, layer, h)
    seen, grouped_mm = [], F.grouped_mm

    def watched(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        on_gpu = grouped_mm(a.to("meta"), b.to("meta"), offs=offs.to("meta"))  # checks strides
        seen.append(on_gpu.shape)
        return grouped_mm(a, b, offs=offs)

    monkeypatch.setattr(grouped, "_goes_at_once", lambda *_: True)
    monkeypatch.setattr(F, "grouped_mm", watched)
    again = layer(h)
    by_torch = gradients(again, layer, h)

    assert len(seen) == 6
    for mine, theirs in zip((again, *by_torch), (y, *by_loop), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_designs_share_every_weight_and_experts_have_the_documented_deviations(tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, mlp="moe", n_experts=6, top_k=2, n_shared_experts=1)
    standard, attnres = (build(spec, shape, seed=7) for spec in ("standard", "attnres"))

    for name, p in attnres.shared_parameters().items():
        assert torch.equal(p, standard.get_parameter(name)), name
    layer = standard.sublayers[1].kind
    assert layer.gate_up.std().item() == pytest.approx(16**-0.5, rel=0.05)
    assert layer.out.std().item() == pytest.approx((24 * 6) ** -0.5, rel=0.05)


@pytest.mark.slow
def test_it_compiles_into_one_graph_and_counts_the_same_load():
    eager, layer, h = *(made(dtype=torch.float32) for _ in range(2)), tokens(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True)

    with torch.autocast("cpu", torch.bfloat16):
        y, wanted = compiled(h), eager(h)

    found, right = gradients(y, layer, h), gradients(wanted, eager, h)
    for mine, theirs in zip((y, *found), (wanted, *right), strict=True):
        assert (mine.double() - theirs.double()).norm() < 2e-2 * theirs.double().norm()
    assert torch.equal(layer.load, eager.load)
    assert layer.load.any()
