"""Documents that share a row are isolated: each has the logits that it has alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.proofs.subject import Subject
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.documents import mask, numbered
from attnres_cli.nn.variant import parse

SEPARATOR, T = 0, 24
NO_POSITIONS = {"positions": "none"}
TRUNKS: dict[str, dict[str, Any]] = {
    "rope": {},
    "norms of queries and keys": {"qk_norm": True},
    "no positions": NO_POSITIONS,
    "fewer keys": {"n_kv_heads": 1, **NO_POSITIONS},
    "mla": {"attention": "mla", "d_latent": 8, **NO_POSITIONS},
    "experts": {"mlp": "moe", "n_experts": 4, "top_k": 2, "n_shared_experts": 1, **NO_POSITIONS},
}


def model_of(shape: Shape, design: str = "standard", **changes: Any) -> Transformer:
    """In float64, away from its start, with room for T tokens and rotary angles to match."""
    shape = replace(shape, seq_len=T, **changes)
    model = Subject(parse(design), shape).perturbed().double()
    for part in model.modules():
        if hasattr(part, "cos"):
            half = shape.d_head // 2
            frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
            angle = torch.arange(T, dtype=torch.float64)[:, None] * frequency
            part.cos, part.sin = angle.cos(), angle.sin()
    return model


@pytest.fixture
def tokens() -> Tensor:
    """Two rows of T tokens: documents of 6, 1, 9 and 8, and of 1, 20 and 3 tokens."""
    generator = torch.Generator().manual_seed(0)
    found = torch.randint(1, 11, (2, T), generator=generator)
    found[0, [5, 6, 15]] = found[1, [0, 20]] = SEPARATOR
    return found


def test_a_separator_belongs_to_the_document_that_it_ends():
    tokens = torch.tensor([[3, 0, 0, 4, 5], [0, 1, 2, 3, 0]])

    assert numbered(tokens, 0).tolist() == [[0, 0, 1, 2, 2], [0, 1, 1, 1, 1]]


def test_a_token_sees_itself_and_earlier_tokens_of_its_document():
    seen = mask(torch.tensor([[0, 0, 1, 1]]), torch.zeros(1)).exp()

    assert seen[0, 0].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("changes", TRUNKS.values(), ids=TRUNKS)
@pytest.mark.parametrize("design", ["standard", "attnres"])
def test_logits_of_a_document_in_a_row_are_those_of_it_alone(
    design: str, changes: dict[str, Any], tokens: Tensor, tiny_shape: Shape
):
    model, documents = model_of(tiny_shape, design, **changes), numbered(tokens, SEPARATOR)

    found, joined = model(tokens, documents=documents), model(tokens)

    for row, numbers in enumerate(documents):
        for number in numbers.unique():
            mine = numbers == number
            alone = model(tokens[row : row + 1, mine])[0]
            torch.testing.assert_close(found[row, mine], alone, rtol=1e-11, atol=1e-11)
    assert (found - joined)[1, 1:].abs().max() > 1e-3


@pytest.mark.parametrize("design", ["attnres+vres", "dca", "mudd"])
def test_designs_that_change_values_or_inputs_of_attention_keep_documents_apart(
    design: str, tokens: Tensor, tiny_shape: Shape
):
    model, documents = model_of(tiny_shape, design), numbered(tokens, SEPARATOR)
    changed = torch.where(documents == 1, (tokens + 1) % 11, tokens)  # one of each row

    before, after = (model(each, documents=documents) for each in (tokens, changed))

    others = documents != 1
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[~others], after[~others])


def test_a_row_of_one_document_is_that_of_a_model_called_without(tokens: Tensor, tiny_shape: Shape):
    model = model_of(tiny_shape)

    torch.testing.assert_close(
        model(tokens, documents=torch.zeros_like(tokens)), model(tokens), rtol=1e-12, atol=1e-12
    )


def test_a_probe_sees_what_the_model_computes(tokens: Tensor, tiny_shape: Shape):
    model, documents = model_of(tiny_shape, "attnres"), numbered(tokens, SEPARATOR)

    _, seen = model.trace(tokens, documents)

    assert isinstance(seen[-1], Tensor)
    assert torch.equal(model.norm(seen[-1]), model.hidden(tokens, documents=documents))


def test_gradients_are_the_same_bits_where_activations_are_computed_again(
    tokens: Tensor, tiny_shape: Shape
):
    model, documents = model_of(tiny_shape, "attnres"), numbered(tokens, SEPARATOR)
    found = []
    for model.checkpoints_activations in (False, True):
        loss = model(tokens, tokens.roll(-1, 1), documents)
        found.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_compiled_model_isolates_without_a_break(
    dtype: torch.dtype, tokens: Tensor, tiny_shape: Shape
):
    model, documents = model_of(tiny_shape, "attnres").float(), numbered(tokens, SEPARATOR)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        found = compiled(tokens, tokens.roll(-1, 1), documents)
        expected = model(tokens, tokens.roll(-1, 1), documents)

    near = {"rtol": 1e-3 if dtype is torch.bfloat16 else 1e-6, "atol": 0}
    torch.testing.assert_close(found, expected, **near)
