"""Generation: the cache changes only speed, and draws follow their options."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from designs import DEFAULTS, SIMPLE, TRUNKS, build, close, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.generate import draw, generate
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape


def in_chunks(model: Transformer, tokens: Tensor, chunks: list[int]) -> Tensor:
    """Logits of all tokens, given piece by piece."""
    caches = model.caches(tokens.shape[1])
    parts = [model.hidden(part, caches) for part in tokens.split(chunks, dim=1)]
    return model.head(torch.cat(parts, dim=1))


@pytest.mark.parametrize(
    "spec",
    [
        *DEFAULTS,
        *(pytest.param(each, marks=pytest.mark.slow) for each in SIMPLE if each not in DEFAULTS),
    ],
)
@torch.no_grad()
def test_tokens_in_pieces_have_the_logits_of_one_forward(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape), tokens_of()
    whole = model(tokens)

    for chunks in ([1] * 8, [3, 1, 4], [2, 3, 3], [8]):
        close(in_chunks(model, tokens, chunks), whole, rtol=1e-9)


@pytest.mark.parametrize("trunk", [*TRUNKS, "kda"])
@torch.no_grad()
def test_tokens_in_pieces_have_the_logits_of_one_forward_in_every_trunk(
    trunk: str, tiny_shape: Shape
):
    changes = {"attention": ("kda", "softmax")} if trunk == "kda" else TRUNKS[trunk]
    model, tokens = perturbed("attnres", dataclasses.replace(tiny_shape, **changes)), tokens_of()

    close(in_chunks(model, tokens, [3, 2, 1, 1, 1]), model(tokens), rtol=1e-9)


@pytest.mark.parametrize("spec", DEFAULTS)
def test_greedy_tokens_are_the_likeliest_of_repeated_full_forwards(spec: str, tiny_shape: Shape):
    model, tokens = perturbed(spec, tiny_shape), tokens_of(time=3)
    expected = tokens
    for _ in range(5):
        likeliest = model(expected)[:, -1:].argmax(dim=-1)
        expected = torch.cat((expected, likeliest), dim=1)

    for chunk in (2, 512):
        assert torch.equal(generate(model, tokens, 5, temperature=0, chunk=chunk), expected)


@pytest.mark.slow
def test_compiled_steps_of_one_token_give_the_same_tokens(tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, n_layers=2)
    model, prompt = perturbed("attnres:block_size=2", shape).float(), tokens_of(time=3)

    compiled = generate(model, prompt, 5, temperature=0.0, compiled=True)

    assert torch.equal(compiled, generate(model, prompt, 5, temperature=0.0))


def test_the_seed_of_a_generator_decides_the_tokens(tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, seq_len=64)
    model, tokens = build("attnres:block_size=2", shape), tokens_of(time=3)

    first, again, other = (
        generate(model, tokens, 40, generator=torch.Generator().manual_seed(seed))
        for seed in (7, 7, 8)
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, :3], tokens)


def test_draws_follow_the_softmax_at_the_temperature_of_the_likeliest_k():
    rows, generator = torch.tensor([0.0, 1.0, 3.0]).expand(20_000, 3), torch.Generator()

    drawn = draw(rows, temperature=2.0, generator=generator.manual_seed(0))

    shares = torch.bincount(drawn, minlength=3) / len(rows)
    torch.testing.assert_close(shares, torch.softmax(rows[0] / 2, 0), rtol=0, atol=0.02)
    assert set(draw(rows, top_k=2, generator=generator).tolist()) == {1, 2}


def test_one_candidate_or_a_low_temperature_is_greedy():
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))

    assert torch.equal(draw(logits, top_k=1), logits.argmax(-1))
    assert torch.equal(draw(1e4 * logits, temperature=1e-30), logits.argmax(-1))
    assert draw(logits, top_k=99).shape == (50,)


def test_a_model_keeps_its_modes_and_can_be_trained_on_generated_tokens(tiny_shape: Shape):
    model = build("attnres", tiny_shape).train()
    model.sublayers[0].eval()
    modes = [module.training for module in model.modules()]
    seen = []
    hook = model.head.register_forward_hook(lambda module, *_: seen.append(module.training))

    tokens = generate(model, tokens_of(time=3), 2)

    hook.remove()
    assert seen == [False, False]
    assert [module.training for module in model.modules()] == modes
    model(tokens).sum().backward()
    assert tokens.dtype == torch.int64
    assert model.embed.weight.grad is not None


def test_all_positions_may_be_used_and_no_new_token_is_a_copy(tiny_shape: Shape):
    model, tokens = build("standard", tiny_shape), tokens_of()

    assert generate(model, tokens[:, :1], 7).shape == (2, 8)
    assert torch.equal(generate(model, tokens, 0), tokens)
    assert generate(model, tokens, 0).data_ptr() != tokens.data_ptr()


@pytest.mark.parametrize(
    ("time", "options", "message"),
    [
        (5, {"n_new": 4}, "5 tokens and 4 new ones are 9, but the model has 8 positions"),
        (0, {"n_new": 1}, r"tokens must be \(batch, at least one\), got \(2, 0\)"),
        (1, {"n_new": -1}, "n_new must be at least 0, got -1"),
        (1, {"n_new": 1, "temperature": -0.5}, "temperature must be at least 0"),
        (1, {"n_new": 1, "temperature": float("nan")}, "temperature must be at least 0"),
        (1, {"n_new": 1, "top_k": 0}, "top_k must be at least 1, got 0"),
        (1, {"n_new": 1, "chunk": 0}, "chunk must be at least 1 token, got 0"),
    ],
)
def test_impossible_options_are_refused(time: int, options: dict, message: str, tiny_shape: Shape):
    with pytest.raises(ValueError, match=message):
        generate(build("standard", tiny_shape), tokens_of(time=time), **options)
