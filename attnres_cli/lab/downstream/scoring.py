"""Log-likelihoods and continuations of tokens by a model, in batches; nothing of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres_cli.nn.loss import MOST_LOGITS
from attnres_cli.nn.model import Transformer

_AT_ONCE = 32  # new tokens before the given stops are looked for

Tick = Callable[[int], None]
"""Told how many requests have been answered since it was last told."""


@dataclass(frozen=True)
class Span:
    """Tokens of which those from `first` on are to be scored, at least one given before them."""

    tokens: Sequence[int]
    first: int


@dataclass(frozen=True)
class Score:
    """Log-likelihood in nats, and whether each token was the model's likeliest."""

    nats: float
    is_greedy: bool


@dataclass(frozen=True)
class _Window:
    span: int
    tokens: Sequence[int]
    first: int  # of `tokens`, to be scored


def windows(n_tokens: int, first: int, seq_len: int) -> list[tuple[int, int, int]]:
    """(start, first scored, end) of what the model is shown: each token from `first` on is scored
    once, at most seq_len tokens are read, and as many as fit stand before the last window's. As in
    the harness, so that numbers compare with those of other models.
    """
    found = []
    while first < n_tokens:
        end = min(first + seq_len, n_tokens)
        found.append((max(0, end - 1 - seq_len), first, end))
        first = end
    return found


def is_cut(span: Span, seq_len: int) -> bool:
    """Whether the model has no room for all that stands before its last token."""
    return len(span.tokens) - 1 > seq_len


@torch.inference_mode()
def score(
    model: Transformer, spans: Sequence[Span], batch_size: int, tick: Tick = lambda _n: None
) -> list[Score]:
    """The scores of these, longest windows first, `batch_size` at once; what is shorter than others
    of its batch is padded on the right, where nothing looks back at it.
    """
    cut = [
        _Window(number, span.tokens[start:end], first - start)
        for number, span in enumerate(spans)
        for start, first, end in windows(len(span.tokens), span.first, model.shape.seq_len)
    ]
    cut.sort(key=lambda window: -len(window.tokens))
    left = [0] * len(spans)
    for window in cut:
        left[window.span] += 1
    nats: list[list[float]] = [[] for _ in spans]
    greedy = [True] * len(spans)
    for start in range(0, len(cut), batch_size):
        batch = cut[start : start + batch_size]
        for window, found in zip(batch, _scores(model, batch), strict=True):
            nats[window.span].append(found.nats)
            greedy[window.span] &= found.is_greedy
            left[window.span] -= 1
        tick(sum(left[number] == 0 for number in {window.span for window in batch}))
    return [Score(math.fsum(n), g) for n, g in zip(nats, greedy, strict=True)]


def _scores(model: Transformer, batch: Sequence[_Window]) -> list[Score]:
    """Of one batch; logits are made where a token is scored alone, MOST_LOGITS bytes at a time."""
    device, longest = model.head.weight.device, max(len(window.tokens) for window in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.int64)
    is_scored = torch.zeros(len(batch), longest - 1, dtype=torch.bool)
    for row, window in enumerate(batch):
        tokens[row, : len(window.tokens)] = torch.tensor(window.tokens)
        is_scored[row, window.first - 1 : len(window.tokens) - 1] = True
    tokens, is_scored = tokens.to(device), is_scored.to(device)
    hidden, targets = model.hidden(tokens[:, :-1])[is_scored], tokens[:, 1:][is_scored]
    size = max(1, MOST_LOGITS // (4 * model.shape.vocab_size))
    parts = [
        _of_part(model.head(h), t)
        for h, t in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    counts = is_scored.sum(dim=1).tolist()
    log_p = torch.cat([log_p for log_p, _ in parts]).double().cpu().split(counts)
    hits = torch.cat([hits for _, hits in parts]).cpu().split(counts)
    return [Score(float(row.sum()), bool(hit.all())) for row, hit in zip(log_p, hits, strict=True)]


def _of_part(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets' log-probabilities, in float32 or wider, and whether each is the likeliest."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    log_p = wide.log_softmax(dim=-1).gather(1, targets[:, None]).squeeze(1)
    return log_p, wide.argmax(dim=-1) == targets


@dataclass(frozen=True)
class Prompt:
    """Tokens to go on from: `n_new` more, until one of `stops` stands in their text."""

    tokens: Sequence[int]
    n_new: int
    stops: tuple[str, ...]
    temperature: float = 0.0  # 0: the likeliest token each time


def room(prompt: Prompt, seq_len: int) -> tuple[int, int]:
    """How many tokens of a prompt are read, its last ones, and how many are written: at most half
    of the model's positions are kept for these.
    """
    n_new = min(prompt.n_new, max(1, seq_len // 2))
    return min(len(prompt.tokens), seq_len - n_new), n_new


def generate(
    model: Transformer,
    prompts: Sequence[Prompt],
    decode: Callable[[Sequence[int]], str],
    batch_size: int,
    tick: Tick = lambda _n: None,
) -> list[str]:
    """What the model writes after each prompt, without the stop and what follows it. Prompts of
    equal length go on together, and leave when they stop.
    """
    texts = [""] * len(prompts)
    rooms = [room(prompt, model.shape.seq_len) for prompt in prompts]
    alike: dict[tuple[int, int, float], list[int]] = {}
    for number, prompt in enumerate(prompts):
        alike.setdefault((*rooms[number], prompt.temperature), []).append(number)
    for (n_read, n_new, temperature), numbers in alike.items():
        for start in range(0, len(numbers), batch_size):
            some = numbers[start : start + batch_size]
            given = [list(prompts[number].tokens[-n_read:]) for number in some]
            stops = [prompts[number].stops for number in some]
            written = _written(model, given, stops, n_new, temperature, decode)
            for number, text in zip(some, written, strict=True):
                texts[number] = text
            tick(len(some))
    return texts


def _written(
    model: Transformer,
    given: Sequence[list[int]],
    stops: Sequence[tuple[str, ...]],
    n_new: int,
    temperature: float,
    decode: Callable[[Sequence[int]], str],
) -> list[str]:
    device, n_read = model.head.weight.device, len(given[0])
    generator = torch.Generator(device).manual_seed(0) if temperature else None
    rows, texts, going = list(given), [""] * len(given), list(range(len(given)))
    done = 0
    while going and done < n_new:
        more = min(_AT_ONCE, n_new - done)
        tokens = torch.tensor([rows[i] for i in going], device=device)
        found = model.generate(tokens, more, temperature=temperature, generator=generator)
        done += more
        for i, row in zip(going, found.tolist(), strict=True):
            rows[i], texts[i] = row, decode(row[n_read:])
        going = [i for i in going if not any(stop in texts[i] for stop in stops[i])]
    return [_before(text, its) for text, its in zip(texts, stops, strict=True)]


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of these that stands in it."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]
