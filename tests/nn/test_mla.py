"""Latent attention equals a slow loop over heads and tokens, and its cache holds only latents."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from designs import build, tokens_of
from torch import Tensor

from attnres_cli.nn.generate import generate
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.mla import MLA


@pytest.fixture
def shape(tiny_shape: Shape) -> Shape:
    return dataclasses.replace(
        tiny_shape, attention="mla", positions="none", d_latent=12, norm_eps=1e-3
    )


@pytest.fixture
def mla(shape: Shape) -> MLA:
    torch.manual_seed(0)
    made = MLA(shape).double()
    torch.nn.init.normal_(made.norm.weight)
    return made


def drawn() -> Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(2, 8, 16, generator=g, dtype=torch.float64, requires_grad=True)


def slow(mla: MLA, h: Tensor) -> Tensor:
    """One head of one token after the other, as the equations read."""
    c = h @ mla.down.weight.T
    c = mla.norm.weight * c / (c.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    queries = mla.query.weight.split(mla.d_head)
    keys, values = (w.split(mla.d_head) for w in mla.up.weight.chunk(2))
    rows = []
    for t in range(h.shape[1]):
        heads = []
        for u_q, u_k, u_v in zip(queries, keys, values, strict=True):
            q, k, v = h[:, t] @ u_q.T, c[:, : t + 1] @ u_k.T, c[:, : t + 1] @ u_v.T
            p = torch.softmax((k @ q[:, :, None])[..., 0] / mla.d_head**0.5, dim=-1)
            heads.append((p[:, :, None] * v).sum(1))
        rows.append(torch.cat(heads, dim=-1) @ mla.out.weight.T)
    return torch.stack(rows, dim=1)


def test_values_and_gradients_are_those_of_a_slow_loop(mla: MLA):
    h = drawn()
    inputs = [h, *mla.parameters()]
    slope = torch.randn(2, 8, 16, dtype=torch.float64)

    fast, expected = mla(h), slow(mla, h)

    torch.testing.assert_close(fast, expected, rtol=1e-12, atol=1e-13)
    for mine, theirs in zip(
        torch.autograd.grad(fast, inputs, slope),
        torch.autograd.grad(expected, inputs, slope),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("sizes", [[1] * 8, [3, 4, 1]])
@torch.no_grad()
def test_a_cache_of_latents_gives_the_same_as_keys_and_values(mla: MLA, sizes: list[int]):
    h, cache = drawn(), mla.cache(8)

    pieces = [mla(part, cache) for part in h.split(sizes, dim=1)]

    torch.testing.assert_close(torch.cat(pieces, dim=1), mla(h), rtol=1e-10, atol=1e-12)
    kept = [x for x in vars(cache).values() if isinstance(x, Tensor)]
    assert [x.shape for x in kept] == [(2, 8, 12)]


def test_it_compiles_whole_and_keeps_its_numbers_with_checkpoints_and_in_bfloat16(shape: Shape):
    model, tokens = build("standard", dataclasses.replace(shape, n_layers=1)), tokens_of()
    loss = model(tokens, tokens)

    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(tokens, tokens), loss)
    model.checkpoints_activations = True
    torch.testing.assert_close(model(tokens, tokens), loss)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(tokens, tokens), loss, rtol=0.05, atol=0.05)
        generate(model, tokens[:, :3], 2)
