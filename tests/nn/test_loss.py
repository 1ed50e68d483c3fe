"""The loss in parts is the loss of all at once, in less memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from designs import build
from torch import Tensor

from attnres_cli.nn import measure, model
from attnres_cli.nn.loss import chunked_loss, n_chunks, next_token_loss
from attnres_cli.nn.model import init_weights
from attnres_cli.nn.shape import Shape

TOKENS, WIDTH, VOCABULARY = 30, 16, 50


def drawn(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, TOKENS // 2, WIDTH, generator=g, dtype=dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=g, dtype=dtype)
    targets = torch.randint(VOCABULARY, (2, TOKENS // 2), generator=g)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def gradients(loss: Tensor, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(3 * loss, (hidden, weight))


CAPS = pytest.mark.parametrize("cap", [None, 3.0])


@CAPS
@pytest.mark.parametrize("n_chunks", [1, 3, 4, 30])  # 30 tokens: the last of 4 parts is smaller
def test_loss_and_gradients_in_parts_are_those_of_all_at_once(n_chunks: int, cap: float | None):
    hidden, weight, targets = drawn()
    logits = hidden @ weight.t()
    expected = next_token_loss(logits if cap is None else cap * torch.tanh(logits / cap), targets)

    loss = chunked_loss(hidden, weight, targets, n_chunks, cap)

    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    for mine, theirs in zip(
        gradients(loss, hidden, weight), gradients(expected, hidden, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@CAPS
def test_gradients_in_parts_are_those_of_finite_differences(cap: float | None):
    hidden, weight, targets = drawn()

    assert torch.autograd.gradcheck(
        lambda h, w: chunked_loss(h, w, targets, 4, cap), (hidden, weight)
    )


@CAPS
def test_without_gradients_the_loss_is_the_same(cap: float | None):
    hidden, weight, targets = drawn()
    expected = chunked_loss(hidden, weight, targets, 4, cap)

    with torch.no_grad():
        assert torch.equal(chunked_loss(hidden, weight, targets, 4, cap), expected)


@CAPS
def test_second_derivatives_in_parts_are_those_of_finite_differences(cap: float | None):
    hidden, weight, targets = drawn()
    few = (hidden[:, :2].detach().requires_grad_(), weight[:7].detach().requires_grad_())

    assert torch.autograd.gradgradcheck(
        lambda h, w: chunked_loss(h, w, targets[:, :2] % 7, 2, cap), few
    )


def test_parts_are_small_on_a_cpu_and_none_is_of_less_than_128_tokens():
    tokens = torch.empty(4, 512, dtype=torch.int64)

    assert [n_chunks(tokens, v) for v in (256, 512, 1024, 4096, 50257)] == [1, 1, 2, 8, 16]
    assert n_chunks(tokens.to("meta"), 50257) == 1
    assert n_chunks(tokens.to("meta"), 2**18) == 4


def test_in_bfloat16_it_is_as_near_to_float64_as_all_at_once():
    exact = drawn()
    hidden, weight, targets = drawn(torch.float32)
    expected = gradients(chunked_loss(*exact, 3), *exact[:2])

    def off(loss: Tensor) -> list[float]:
        found = gradients(loss, hidden, weight)
        return [float((f - e).norm() / e.norm()) for f, e in zip(found, expected, strict=True)]

    with torch.autocast("cpu", torch.bfloat16):
        parts = chunked_loss(hidden, weight, targets, 3)
        whole = next_token_loss(torch.nn.functional.linear(hidden, weight), targets)

    assert parts.dtype is torch.float32
    for mine, theirs in zip(off(parts), off(whole), strict=True):
        assert mine < max(1.5 * theirs, 5e-3)


@CAPS
def test_the_model_takes_it_where_the_logits_are_large(
    cap: float | None, tiny_shape: Shape, monkeypatch: pytest.MonkeyPatch
):
    trunk = build("attnres", dataclasses.replace(tiny_shape, softcap=cap)).double()
    init_weights(trunk, seed=0)
    tokens = torch.randint(tiny_shape.vocab_size, (2, tiny_shape.seq_len))
    targets = tokens.roll(-1, dims=1)
    whole = trunk(tokens, targets)
    whole.backward()
    expected = {name: p.grad.clone() for name, p in trunk.named_parameters() if p.grad is not None}
    trunk.zero_grad()
    parts: list[int] = []

    def spy(h: Tensor, weight: Tensor, targets: Tensor, n_chunks: int, cap: float | None) -> Tensor:
        parts.append(n_chunks)
        return chunked_loss(h, weight, targets, n_chunks, cap)

    monkeypatch.setattr(model, "n_chunks", lambda *_: 4)  # five tokens, and one
    monkeypatch.setattr(model, "chunked_loss", spy)

    trunk(tokens, targets).backward()

    assert parts == [4]
    found = {name: p.grad for name, p in trunk.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_parts_take_less_memory_than_all_at_once():
    hidden = torch.randn(1, 512, 32, requires_grad=True)
    weight, targets = torch.randn(4096, 32, requires_grad=True), torch.randint(4096, (1, 512))
    logits = 4 * 512 * 4096

    def peak(n_chunks: int) -> int:
        def once() -> None:
            if n_chunks == 1:
                loss = next_token_loss(hidden @ weight.t(), targets)
            else:
                loss = chunked_loss(hidden, weight, targets, n_chunks)
            torch.autograd.grad(loss, (hidden, weight))

        return measure.peak_bytes(once, torch.device("cpu"))

    assert peak(1) > 2 * logits
    assert peak(16) < logits / 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch
def test_in_parts_it_is_still_one_graph(tiny_shape: Shape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "n_chunks", lambda *_: 4)
    trunk = build("standard", tiny_shape)
    init_weights(trunk, seed=0)
    tokens = torch.randint(tiny_shape.vocab_size, (2, tiny_shape.seq_len))
    expected = trunk(tokens, tokens)
    expected.backward()
    gradient = trunk.head.weight.grad.clone()
    trunk.zero_grad()

    compiled = torch.compile(trunk, backend="aot_eager", fullgraph=True, dynamic=False)
    loss = compiled(tokens, tokens)
    loss.backward()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(trunk.head.weight.grad, gradient)
