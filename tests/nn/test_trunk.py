"""Parts of the trunk equal plain formulas, those with a custom backward included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.attention import Attention, Rotary, turned
from attnres_cli.nn.trunk.mlp import ReLU2, gated
from attnres_cli.nn.trunk.norm import RMSNorm, rms_norm

B, T, H, K, D = 2, 5, 4, 2, 6
SHAPE = Shape(1, H * D, H, K, D, 8, 11, T + 3)
ROTARY = Rotary(SHAPE).double()


def plain_norm(x: Tensor, gain: Tensor) -> Tensor:
    return gain * x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + 1e-3)


def plain_gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def plain_turned(qkv: Tensor) -> Tensor:
    q, k, v = qkv.transpose(1, 2).split((H, K, K), dim=1)
    cos, sin = (table[3:].to(qkv.dtype) for table in (ROTARY.cos, ROTARY.sin))
    return torch.cat((turned(q, cos, sin), turned(k, cos, sin), v), dim=1)


class Operation(NamedTuple):
    of: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    sizes: tuple[tuple[int, ...], ...]


OPERATIONS = {
    "norm": Operation(lambda x, gain: rms_norm(x, gain, 1e-3), plain_norm, ((B, T, D), (D,))),
    "gated": Operation(gated, plain_gated, ((B, T, 2 * D),)),
    "turned": Operation(
        lambda qkv: torch.cat(ROTARY(qkv, H, K, start=3), dim=1),
        plain_turned,
        ((B, T, H + 2 * K, D),),
    ),
}
each = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def drawn(operation: Operation, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = [
        torch.randn(size, generator=generator, dtype=torch.float64) for size in operation.sizes
    ]
    return [x.to(dtype).requires_grad_() for x in found]


def gradients(of: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    y = of(*inputs)
    generator = torch.Generator().manual_seed(1)
    slope = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return torch.autograd.grad(y, inputs, slope)


@each
def test_values_and_derivatives_are_those_of_the_plain_formula(operation: Operation):
    inputs = drawn(operation)

    found, expected = operation.of(*inputs), operation.plain(*inputs)

    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
    for mine, theirs in zip(
        gradients(operation.of, inputs), gradients(operation.plain, inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)
    assert gradgradcheck(operation.of, inputs)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_narrow_types_it_is_as_near_to_float64_as_the_plain_formula(
    operation: Operation, dtype: torch.dtype
):
    narrow = drawn(operation, dtype)
    exact = [x.detach().double().requires_grad_() for x in narrow]

    right = (operation.plain(*exact), *gradients(operation.plain, exact))
    mine = (operation.of(*narrow), *gradients(operation.of, narrow))
    theirs = (operation.plain(*narrow), *gradients(operation.plain, narrow))

    for found, other, expected in zip(mine, theirs, right, strict=True):
        assert found.dtype is dtype
        error, plain_error = ((x.double() - expected).norm() for x in (found, other))
        assert error <= 1.2 * plain_error + torch.finfo(dtype).eps * expected.norm()


@each
def test_any_order_in_memory_no_gradients_and_a_second_backward_change_nothing(
    operation: Operation,
):
    inputs = drawn(operation)
    y = operation.of(*inputs)
    strided = [x.detach().flip(0).mT.contiguous().mT.flip(0) if x.ndim > 1 else x for x in inputs]
    strided = [x.detach().requires_grad_() for x in strided]

    assert not strided[0].is_contiguous()
    torch.testing.assert_close(
        gradients(operation.of, strided), gradients(operation.of, inputs), rtol=1e-12, atol=1e-13
    )
    with torch.no_grad():
        assert torch.equal(operation.of(*inputs), y)
    once = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(y.sum(), inputs)))


def test_a_norm_has_the_wider_type_of_its_input_and_its_gain():
    x = torch.randn(2, 3, 8).bfloat16()
    norm = RMSNorm(8, eps=1e-6)

    assert norm(x).dtype is torch.float32
    torch.testing.assert_close(norm(x), F.rms_norm(x.float(), (8,), norm.weight, 1e-6))
    assert norm.bfloat16()(x).dtype is torch.bfloat16


def test_grouped_keys_give_the_attention_of_repeated_keys(tiny_shape: Shape):
    grouped = dataclasses.replace(tiny_shape, n_kv_heads=1)
    few = Attention(grouped, Rotary(grouped))
    many = Attention(tiny_shape, Rotary(tiny_shape))
    q, k, v = few.qkv.weight.split([16, 8, 8])
    with torch.no_grad():
        many.qkv.weight.copy_(torch.cat([q, k, k, v, v]))
        many.out.weight.copy_(few.out.weight)
    h = torch.randn(2, 8, 16)

    torch.testing.assert_close(few(h), many(h))


def test_attention_with_normed_queries_and_keys_is_the_plain_formula(tiny_shape: Shape):
    torch.manual_seed(0)
    shape = dataclasses.replace(tiny_shape, qk_norm=True, positions="none", n_kv_heads=1)
    attention = Attention(shape, None).double()
    for norm in attention.norms:
        torch.nn.init.normal_(norm.weight)
    h = torch.randn(2, 8, 16, dtype=torch.float64)
    q, k, v = attention.qkv(h).unflatten(-1, (4, 8)).split((2, 1, 1), dim=-2)
    q, k = (
        norm.weight * x / x.square().mean(-1, keepdim=True).sqrt()
        for norm, x in zip(attention.norms, (q, k), strict=True)
    )
    p = torch.einsum("bthd,bsd->bhts", q, k[:, :, 0]) / 8**0.5
    p = p.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)

    expected = attention.out(torch.einsum("bhts,bsd->bthd", p, v[:, :, 0]).flatten(-2))

    torch.testing.assert_close(attention(h), expected, rtol=1e-9, atol=1e-12)


def test_squared_relu_is_the_plain_formula(tiny_shape: Shape):
    mlp = ReLU2(tiny_shape).double()
    h = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)

    torch.testing.assert_close(mlp(h), (h @ mlp.up.weight.T).clamp(min=0) ** 2 @ mlp.out.weight.T)
    assert gradcheck(mlp, [h])


def test_scores_depend_only_on_the_distance(tiny_shape: Shape):
    rotary = Rotary(tiny_shape)
    same = torch.randn(3, 8).expand(1, 8, 3, 8)  # a query, a key and a value, at every position

    q, k, _ = rotary(same, 1, 1)
    scores = (q @ k.transpose(-1, -2))[0, 0]

    for distance in range(8):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
