"""Proofs on a design alone, without a trunk around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnres_cli.nn import design_page
from attnres_cli.nn.counting import costs_of
from attnres_cli.nn.plugins import place_of
from attnres_cli.nn.proofs.subject import (
    BrokenError,
    Subject,
    agree,
    design_of,
    values_for,
)
from attnres_cli.nn.residual import Residual, registry
from attnres_cli.nn.variant import options_of, parse


def keeps_shape(subject: Subject) -> None:
    """Every sublayer sees a tensor of the embedding's shape."""
    _all_reads(design_of(subject), values_for(subject, 1)[0])


def is_token_wise(subject: Subject) -> None:
    """A token changes what no other token's sublayers see, in no sequence."""
    for situation in subject.situations():
        design = design_of(subject).to(situation.dtype).train(situation.trains)
        x = values_for(subject, 1, situation.rows, situation.length)[0].to(situation.dtype)
        with situation.run():
            _is_token_wise(design, x, situation.rows - 1, situation.length // 2)


def _is_token_wise(design: Residual, x: Tensor, row: int, time: int) -> None:
    changed = x.clone()
    changed[row, time] += 1.0
    seen = [_all_reads(design, each) for each in (x, changed)]
    for l, (a, b) in enumerate(zip(*seen, strict=True), 1):
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise BrokenError(f"site {l} sees a number that is not finite")
        moved = (a != b).any(dim=-1)
        moved[row, time] = False
        if moved.any():
            if not torch.equal(_all_reads(design, x)[l - 1], a):
                raise BrokenError(f"site {l} sees other numbers when the same is computed again")
            there, then = moved.nonzero()[0].tolist()
            raise BrokenError(
                f"it mixes tokens: token {time} of sequence {row} was changed, and site {l} sees "
                f"another token {then} of sequence {there}; a design may move nothing between "
                "tokens"
            )


def keeps_states(subject: Subject) -> None:
    """A state is not changed in place: it can be read and written twice."""
    design = design_of(subject)
    x, *outputs = values_for(subject, design.n_sublayers + 1)
    state = design.start(x)
    for l, y in enumerate(outputs, 1):
        once, after_read = design.read(state, l)
        first = once.clone()
        design.write(after_read, l, y + 1.0)
        again, after_read = design.read(state, l)
        agree(f"a second read for sublayer {l}", again, first, 0, 0)
        state = design.write(after_read, l, y)


def counts_costs(subject: Subject) -> None:
    """FLOPs per token are those that its operations count, to a fifth and five per channel."""
    shape = subject.shape
    with torch.device("meta"):
        design = subject.variant.build(shape.d_model, shape.n_sublayers)
    stated, counted = design.extra_flops_per_token(), costs_of(design).flops
    if abs(stated - counted) > counted / 5 + 5 * shape.d_model * (shape.n_sublayers + 1):
        raise BrokenError(
            f"extra_flops_per_token() gives {stated:,}, its operations are {counted:,} at width "
            f"{shape.d_model} and {shape.n_sublayers} sublayers: correct it, or leave it out, and "
            "they are counted"
        )


def reads_back(subject: Subject) -> None:
    """Its canonical spec reads back as itself."""
    if str(parse(str(subject.variant))) != str(subject.variant):
        raise BrokenError(f"'{subject.variant}' reads back as '{parse(str(subject.variant))}'")


def is_documented(subject: Subject) -> None:
    """Its docstring opens with the equation and explains every option."""
    cls = registry()[subject.variant.name]
    page = design_page.page_of(cls)
    if not page.equation:
        raise BrokenError(f"the first line must read '{subject.variant.name}: h_l = ...'")
    for name in options_of(cls):
        if name not in page.options:
            raise BrokenError(f"under 'Options:' there is no line for {name}")


def _all_reads(design: Residual, x: Tensor) -> list[Tensor]:
    """What every site sees of x, between sublayers that move nothing between tokens."""
    state, seen = _given(design.start(x), design.start), []
    for l in range(1, design.n_sublayers + 1):
        back: Any = design.read(state, l)
        if not (isinstance(back, tuple) and len(back) == 2):
            raise BrokenError(
                f"read must return the pair (h, state), sublayer {l} got {_kind(back)} "
                f"({place_of(design.read)})"
            )
        h, state = back
        _has_shape(h, x, f"read for sublayer {l}", design.read)
        seen.append(h)
        state = _given(design.write(state, l, torch.tanh(h.roll(l, dims=-1))), design.write)
    out = design.finish(state)
    _has_shape(out, x, "finish", design.finish)
    return [*seen, out]


def _given(state: Any, method: Callable[..., Any]) -> Any:
    if state is None:
        raise BrokenError(
            f"{method.__name__} gives None: end it with `return` and the state ({place_of(method)})"
        )
    return state


def _has_shape(h: Any, x: Tensor, who: str, method: Callable[..., Any]) -> None:
    if not isinstance(h, Tensor):
        raise BrokenError(
            f"{who} must give a tensor (batch, time, d_model), got {_kind(h)} ({place_of(method)})"
        )
    if h.shape != x.shape:
        raise BrokenError(
            f"{who} gives shape {tuple(h.shape)}, expected {tuple(x.shape)} ({place_of(method)})"
        )


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
