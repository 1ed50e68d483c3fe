"""The page on Hugging Face's transformers: a design drives the layers of a stock model."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_cli.nn.residual import registry

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parent.parent / "docs" / "huggingface.md"
SIZES = {
    "vocab_size": 97, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def drive() -> Callable[..., Any]:
    """The function of the page, after its code has run."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[-1:]
    names: dict[str, Any] = {}
    exec(code, names)
    return names["drive"]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(97, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask(tokens: Tensor) -> Tensor:
    """The mask of a batch in which the first row lacks five tokens on the left."""
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    return mask


def stock(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def rows(model: Any, tokens: Tensor, mask: Tensor, **given: object) -> Tensor:
    given |= {"max_new_tokens": 6, "do_sample": False}
    return model.generate(tokens, attention_mask=mask, **given)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_standard_is_the_stock_model(drive, family: str, tokens: Tensor, mask: Tensor):
    original = stock(family).double()
    driven = drive(copy.deepcopy(original), "standard")
    with torch.no_grad():
        expected = original(tokens, attention_mask=mask, labels=tokens)
        found = driven(tokens, attention_mask=mask, labels=tokens)
    assert (found.logits - expected.logits).abs().max() <= 1e-12
    assert found.loss == pytest.approx(expected.loss.item(), abs=1e-12)
    assert torch.equal(rows(driven, tokens, mask), rows(original, tokens, mask))


OPEN = {"dca", "mudd", "resv", "vres"}


@pytest.mark.parametrize("name", sorted(OPEN))
def test_designs_that_need_more_than_one_input_are_refused(drive, name: str):
    with pytest.raises(ValueError, match=f"{name} needs an attention with named inputs"):
        drive(stock("Llama"), name)


@pytest.mark.parametrize("name", sorted(registry().keys() - OPEN))
def test_every_design_learns_and_generates_with_the_cache(drive, name: str, tokens, mask):
    model = drive(stock("Llama"), name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        losses.append(model(tokens, labels=tokens).loss)
        losses[-1].backward()
        optimizer.step()

    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < losses[0] - 0.5
    model.eval()
    assert torch.equal(rows(model, tokens, mask), rows(model, tokens, mask, use_cache=False))
    with torch.no_grad():
        padded = model(tokens, attention_mask=mask).logits[0, 5:]
        alone = model(tokens[:1, 5:]).logits[0]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-4)


def test_features_that_the_page_says_are_lost_are_lost(drive: Callable[..., Any], tokens: Tensor):
    model = drive(stock("Llama"), "attnres").train()
    calls = []
    model.model.layers[0].layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # version 6 has another name for it
        model.gradient_checkpointing_enable()
    found = model(tokens, labels=tokens, output_hidden_states=True)
    found.loss.backward()

    assert len(found.hidden_states or ()) < 2  # the last at most, by version
    assert len(calls) == 1
    assert "model.layers.0.layers.2.mlp.up_proj.weight" in model.state_dict()
