"""Generation: tokens after tokens, with what each attention keeps of those before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from attnres_cli.nn.shape import Shape


class LanguageModel(Protocol):
    """What is asked of a model; see model.Transformer."""

    shape: Shape
    head: nn.Linear

    def caches(self, length: int) -> list[object]:
        """Empty ones for up to so many tokens, one per sublayer."""

    def hidden(self, tokens: Tensor, caches: Sequence[object]) -> Tensor:
        """What the head sees of tokens that follow those in the caches."""

    def modules(self) -> Iterator[nn.Module]:
        """All its modules, itself first."""


def generate(
    model: LanguageModel,
    tokens: Tensor,
    n_new: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
    chunk: int = 512,
    compiled: bool = False,
) -> Tensor:
    """Tokens (B, T) and `n_new` more of each row, drawn one at a time: (B, T + n_new).

    The logits are divided by `temperature`; 0 takes the likeliest token. `top_k` draws from the k
    likeliest tokens alone. `generator` is on the model's device; None is torch's own. `compiled`
    leaves steps of one token to torch.compile, which takes 10 s to two minutes at a model's first.

    The given tokens, T at least 1, go through the model `chunk` at a time. Memory beyond the
    model's own: what attentions keep of T + n_new tokens, and the sources of `chunk` tokens. The
    model is in eval mode meanwhile. Raises ValueError for a value that cannot be, or for more
    tokens than the model has positions.
    """
    _refuse(model, tokens, n_new, temperature, top_k, chunk)
    given = tokens.shape[1]
    out = torch.cat((tokens, tokens.new_empty(len(tokens), n_new)), dim=1)
    caches = model.caches(given + n_new)
    one = torch.compile(model.hidden, fullgraph=True) if compiled else model.hidden
    with evaluating(model), torch.inference_mode():
        seen = 0
        for length in range(given, given + n_new):
            while seen < length:
                part = out[:, seen : min(seen + chunk, length)]
                hidden = (one if seen >= given else model.hidden)(part, caches)
                seen += part.shape[1]
            logits = model.head(hidden[:, -1])
            out[:, length] = draw(logits, temperature, top_k, generator)
    return out


def draw(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One token (B) from each row of logits (B, vocab_size); the arguments are `generate`'s."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    candidates = None
    if top_k is not None and top_k < logits.shape[-1]:
        logits, candidates = logits.topk(top_k, dim=-1)
    logits = logits.float() - logits.float().amax(dim=-1, keepdim=True)
    weights = torch.softmax(logits / temperature, dim=-1)
    drawn = torch.multinomial(weights, 1, generator=generator)
    return (drawn if candidates is None else candidates.gather(-1, drawn)).squeeze(-1)


@contextlib.contextmanager
def evaluating(model: nn.Module | LanguageModel) -> Iterator[None]:
    """Every module in eval mode inside, in its own mode after."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _refuse(
    model: LanguageModel,
    tokens: Tensor,
    n_new: int,
    temperature: float,
    top_k: int | None,
    chunk: int,
) -> None:
    if tokens.ndim != 2 or tokens.shape[1] < 1:
        raise ValueError(f"tokens must be (batch, at least one), got {tuple(tokens.shape)}")
    if n_new < 0:
        raise ValueError(f"n_new must be at least 0, got {n_new}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0 (0 is greedy), got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, got {chunk}")
    length, seq_len = tokens.shape[1] + n_new, model.shape.seq_len
    if length > seq_len:
        raise ValueError(
            f"{tokens.shape[1]} tokens and {n_new} new ones are {length}, but the model has "
            f"{seq_len} positions (shape.seq_len)"
        )
