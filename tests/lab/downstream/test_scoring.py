"""Likelihoods and continuations of batches are those of one text at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnres_cli.lab.downstream import scoring
from attnres_cli.lab.downstream.scoring import Prompt, Score, Span, generate, score, windows
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

KIMI = {"attention": ("kda", "kda", "mla"), "mlp": ("swiglu", "moe", "moe"), "n_experts": 4}
KIMI |= {"top_k": 2, "d_latent": 8, "positions": "none"}


@pytest.fixture(params=["attnres:block_size=2", "attnres on kimi"])
def model(request: pytest.FixtureRequest, tiny_shape: Shape) -> Transformer:
    design, _, trunk = request.param.partition(" on ")
    shape = replace(tiny_shape, seq_len=12, **(KIMI if trunk else {}))
    found = Transformer(shape, parse(design).build(shape.d_model, shape.n_sublayers))
    init_weights(found, 0)
    torch.manual_seed(0)
    for parameter in found.head.parameters() if trunk else found.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return found.double().eval()


def tokens(n: int, seed: int = 0) -> list[int]:
    return torch.randint(11, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def one_at_a_time(model: Transformer, span: Span) -> Score:
    """The score of a span, from the full logits of every window."""
    nats, greedy = 0.0, True
    for start, first, end in windows(len(span.tokens), span.first, model.shape.seq_len):
        part = torch.tensor([list(span.tokens[start:end])])
        log_p = model(part[:, :-1])[0].log_softmax(-1)
        for at in range(first, end):
            row = log_p[at - start - 1]
            nats += row[span.tokens[at]].item()
            greedy &= int(row.argmax()) == span.tokens[at]
    return Score(nats, greedy)


def test_every_token_is_scored_once_and_the_last_window_is_full():
    for n in range(2, 40):
        for first in range(1, n):
            found = windows(n, first, 8)
            assert [t for _, a, b in found for t in range(a, b)] == list(range(first, n))
            assert all(0 <= start < a and end - 1 - start <= 8 for start, a, end in found)
            assert found[-1][2] - 1 - found[-1][0] == min(8, n - 1)
    assert windows(5, 5, 8) == []


def test_rolling_windows_are_those_of_the_harness():
    utils = pytest.importorskip("lm_eval.utils", exc_type=ImportError)
    for n in range(1, 30):
        text = list(range(100, 100 + n))
        pairs = map(utils.make_disjoint_window, utils.get_rolling_token_windows(text, 7, 8, 1))
        theirs = [([*before, *asked[:-1]], asked) for before, asked in pairs]
        whole = [7, *text]
        ours = [(whole[a : end - 1], whole[first:end]) for a, first, end in windows(n + 1, 1, 8)]
        assert ours == theirs


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batches_score_as_one_text_at_a_time(model: Transformer, batch_size: int):
    sizes = [(2, 1), (13, 12), (5, 2), (12, 1), (14, 3), (40, 1), (30, 25), (7, 6), (3, 3)]
    spans = [Span(tokens(n, seed), first) for seed, (n, first) in enumerate(sizes)]
    done: list[int] = []

    found = score(model, spans, batch_size, done.append)

    for span, each in zip(spans, found, strict=True):
        expected = one_at_a_time(model, span)
        assert each.nats == pytest.approx(expected.nats, rel=1e-12, abs=1e-12)
        assert each.is_greedy is expected.is_greedy
    assert found[-1] == Score(0.0, is_greedy=True)  # nothing to score
    assert sum(done) == len(spans) - 1
    assert [scoring.is_cut(span, 12) for span in spans] == [n > 13 for n, _ in sizes]


def test_a_greedy_answer_is_known(model: Transformer):
    prompt = tokens(4)
    best = model.generate(torch.tensor([prompt]), 3, temperature=0).tolist()[0]
    right, wrong = score(model, [Span(best, 4), Span([*best[:-1], (best[-1] + 1) % 11], 4)], 2)
    assert (right.is_greedy, wrong.is_greedy) == (True, False)
    assert 0 > right.nats > wrong.nats


def letters(ids: list[int]) -> str:
    return "".join("abcdefghijk"[i] for i in ids)


def alone(model: Transformer, prompt: Prompt) -> str:
    found = model.generate(torch.tensor([list(prompt.tokens)]), prompt.n_new, temperature=0)
    return letters(found[0].tolist()[len(prompt.tokens) :])


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batches_generate_as_one_text_at_a_time_and_end_before_a_stop(model, batch_size: int):
    prompts = [Prompt(tokens(n, seed), 6, ()) for seed, n in enumerate([3, 3, 5, 3, 1])]
    free = [alone(model, prompt) for prompt in prompts]
    assert generate(model, prompts, letters, batch_size) == free
    stops = [replace(p, stops=(text[3], "zz")) for p, text in zip(prompts, free, strict=True)]
    done: list[int] = []
    found = generate(model, stops, letters, batch_size, done.append)
    assert found == [text[: text.index(text[3])] for text in free]
    assert sum(done) == len(prompts)


def test_a_prompt_that_is_too_long_is_read_from_its_end(model: Transformer):
    assert scoring.room(Prompt(tokens(9), 4, ()), 12) == (8, 4)
    assert scoring.room(Prompt(tokens(3), 400, ()), 12) == (3, 6)
    assert scoring.room(Prompt(tokens(30), 400, ()), 12) == (6, 6)
    for temperature in (0.0, 1.5):  # drawn texts are the same each time
        long = Prompt(tokens(30), 4, (), temperature)
        short = replace(long, tokens=long.tokens[-8:])
        assert generate(model, [long], letters, 1) == generate(model, [short], letters, 1)
