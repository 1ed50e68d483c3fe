"""A run's model as the harness asks it: text in, likelihoods and text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.api.model import LM

from attnres_cli.data.tokenizers import Tokenizer
from attnres_cli.lab.downstream.scoring import (
    Prompt,
    Span,
    Tick,
    generate,
    is_cut,
    room,
    score,
)
from attnres_cli.nn.model import Transformer

_MOST_NEW = 256  # tokens, where a task does not say


class Answers(LM):  # type: ignore[misc]  # the harness's class is untyped here
    """A model with its tokenizer. `cut` has the documents whose contexts were longer than the model
    has positions, and were cut from the left.

    A text begins after a newline: our models know no token that begins one, and documents that they
    are trained on stand in a row.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, batch_size: int, tick: Tick
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.batch_size, self.tick = model, tokenizer, batch_size, tick
        self.begin = self._encode("\n")[-1:] or [0]
        self.cut: set[int] = set()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Of each (context, answer): nats of the answer, and whether it is the likeliest."""
        spans = [self._span(*request.args) for request in requests]
        for request, span in zip(requests, spans, strict=True):
            if is_cut(span, self.model.shape.seq_len):
                self.cut.add(request.doc_id)
        found = score(self.model, spans, self.batch_size, self.tick)
        return [(each.nats, each.is_greedy) for each in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Of each (text,): its nats, every token scored once."""
        spans = [Span(self.begin + self._encode(request.args[0]), 1) for request in requests]
        return [each.nats for each in score(self.model, spans, self.batch_size, self.tick)]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Of each (context, settings): what the model writes up to a stop."""
        prompts = [self._prompt(*request.args) for request in requests]
        for request, prompt in zip(requests, prompts, strict=True):
            if room(prompt, self.model.shape.seq_len)[0] < len(prompt.tokens):
                self.cut.add(request.doc_id)
        return generate(self.model, prompts, self.tokenizer.decode, self.batch_size, self.tick)

    def _encode(self, text: str) -> list[int]:
        (tokens,) = self.tokenizer.encode([text])
        return list(tokens)

    def _span(self, context: str, answer: str) -> Span:
        """The tokens of both together, as they would stand in a text: spaces at the end of the
        context belong to the answer, where a tokenizer joins them with what follows.
        """
        if not context:
            return Span(self.begin + self._encode(answer), len(self.begin))
        if self.tokenizer.identity != "bytes":
            stem = context.rstrip()
            context, answer = (stem, context[len(stem) :] + answer) if stem else (context, answer)
        given, whole = self._encode(context), self._encode(context + answer)
        if not given or whole[: len(given)] != given:
            given = given or self.begin
            whole = given + self._encode(answer)
        return Span(whole, len(given))

    def _prompt(self, context: str, settings: dict[str, Any]) -> Prompt:
        until = settings.get("until") or []
        stops = (until,) if isinstance(until, str) else tuple(until)
        temperature = settings.get("temperature", 0.0) if settings.get("do_sample") else 0.0
        n_new = int(settings.get("max_gen_toks", _MOST_NEW))
        tokens = self._encode(context) or self.begin
        return Prompt(tokens, n_new, tuple(filter(None, stops)), float(temperature))
