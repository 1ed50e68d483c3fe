"""The loss in chunks is the loss of all tokens at once, in less memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from designs import build, tokens_of
from torch import Tensor

from attnres_cli.nn import measure, model
from attnres_cli.nn.loss import chunked_loss, n_chunks, next_token_loss
from attnres_cli.nn.proofs.subject import agree_all
from attnres_cli.nn.proofs.subject import gradients as gradients_of
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
def test_loss_and_gradients_in_chunks_are_those_of_all_at_once(n_chunks: int, cap: float | None):
    hidden, weight, targets = drawn()
    logits = hidden @ weight.t()
    expected = next_token_loss(logits if cap is None else cap * torch.tanh(logits / cap), targets)

    loss = chunked_loss(hidden, weight, targets, n_chunks, cap)
    with torch.no_grad():
        assert torch.equal(chunked_loss(hidden, weight, targets, n_chunks, cap), loss)

    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    for mine, theirs in zip(
        gradients(loss, hidden, weight), gradients(expected, hidden, weight), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n_chunks", [1, 4])
def test_targets_of_minus_100_do_not_count(n_chunks: int):
    hidden, weight, targets = drawn()
    targets[0, ::3] = -100
    targets[1, -8:] = -100  # all of the last part
    expected = torch.nn.functional.cross_entropy(
        (hidden @ weight.t()).flatten(0, 1), targets.flatten()
    )

    loss = chunked_loss(hidden, weight, targets, n_chunks)
    with torch.no_grad():
        assert torch.equal(chunked_loss(hidden, weight, targets, n_chunks), loss)

    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    (per_token, per_word), theirs = (gradients(each, hidden, weight) for each in (loss, expected))
    torch.testing.assert_close((per_token, per_word), theirs, rtol=1e-12, atol=1e-14)
    assert not per_token[targets == -100].any()


@CAPS
def test_derivatives_in_chunks_are_those_of_finite_differences(cap: float | None):
    hidden, weight, targets = drawn()
    few = (hidden[:, :2].detach().requires_grad_(), weight[:7].detach().requires_grad_())

    def loss(h: Tensor, w: Tensor) -> Tensor:
        return chunked_loss(h, w, targets[:, :2] % 7, 2, cap)

    assert torch.autograd.gradcheck(loss, few)
    assert torch.autograd.gradgradcheck(loss, few)


def test_chunks_are_small_on_a_cpu_but_have_at_least_128_tokens():
    tokens = torch.empty(4, 512, dtype=torch.int64)

    assert [n_chunks(tokens, v) for v in (256, 512, 1024, 4096, 50257)] == [1, 1, 2, 8, 16]
    assert n_chunks(tokens.to("meta"), 50257) == 1
    assert n_chunks(tokens.to("meta"), 2**18) == 4


def test_in_bfloat16_chunks_are_as_near_to_float64_as_all_at_once():
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
def test_a_model_uses_chunks_where_the_logits_are_large(
    cap: float | None, tiny_shape: Shape, monkeypatch: pytest.MonkeyPatch
):
    trunk = build("attnres", dataclasses.replace(tiny_shape, softcap=cap)).double()
    tokens = tokens_of()
    whole, expected = trunk(tokens, tokens), gradients_of(trunk, tokens)
    used: list[int] = []

    def spy(h: Tensor, weight: Tensor, targets: Tensor, n_chunks: int, cap: float | None) -> Tensor:
        used.append(n_chunks)
        return chunked_loss(h, weight, targets, n_chunks, cap)

    monkeypatch.setattr(model, "n_chunks", lambda *_: 4)
    monkeypatch.setattr(model, "chunked_loss", spy)

    torch.testing.assert_close(trunk(tokens, tokens), whole)
    agree_all(gradients_of(trunk, tokens), expected, 1e-9, 1e-12)
    assert used == [4, 4]


def test_chunks_take_less_memory_than_all_at_once():
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


def test_a_model_with_a_loss_in_chunks_compiles_into_one_graph(
    tiny_shape: Shape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model, "n_chunks", lambda *_: 4)
    trunk, tokens = build("standard", tiny_shape), tokens_of()
    expected = gradients_of(trunk, tokens)

    compiled = torch.compile(trunk, backend="aot_eager", fullgraph=True, dynamic=False)

    agree_all(gradients_of(trunk, tokens, compiled), expected, 1e-5, 1e-6)
