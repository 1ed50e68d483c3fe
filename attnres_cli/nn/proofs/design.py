"""Proofs on a design alone, without a trunk around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnres_cli.nn import design_page
from attnres_cli.nn.addon import Addon, Composed
from attnres_cli.nn.counting import costs_of
from attnres_cli.nn.plugins import place_of
from attnres_cli.nn.proofs.subject import (
    BrokenError,
    NotApplicableError,
    Subject,
    agree,
    design_of,
    perturb,
    values_for,
)
from attnres_cli.nn.residual import Hidden, Inputs, Residual, registry
from attnres_cli.nn.variant import options_of, parse

_INPUTS = ("queries", "keys", "values")


def keeps_shape(subject: Subject) -> None:
    """Every sublayer sees a tensor of the embedding's shape."""
    _all_reads(design_of(subject), values_for(subject, 1)[0])


def is_token_wise(subject: Subject) -> None:
    """A token changes what no other token's sublayers see, in no sequence."""
    for situation in subject.situations():
        design = design_of(subject).to(situation.dtype).train(situation.trains)
        x = values_for(subject, 1, situation.rows, situation.length)[0].to(situation.dtype)
        rows, last = situation.rows - 1, situation.length - 1
        # Some token in the middle; the first and last, whose values a design might hand to all.
        places = ((rows, situation.length // 2), (0, 0), (0, last))
        with situation.run():
            for row, time in places:
                _is_token_wise(design, x, row, time)


def _is_token_wise(design: Residual, x: Tensor, row: int, time: int) -> None:
    changed = x.clone()
    changed[row, time] += 1.0
    seen = [_all_reads(design, each) for each in (x, changed)]
    for site, a in seen[0].items():
        b = seen[1][site]
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise BrokenError(f"{site} sees a number that is not finite")
        moved = (a != b).any(dim=-1)
        moved[row, time] = False
        if moved.any():
            if not torch.equal(_all_reads(design, x)[site], a):
                raise BrokenError(f"{site} sees other numbers when the same is computed again")
            there, then = moved.nonzero()[0].tolist()
            raise BrokenError(
                f"it mixes tokens: token {time} of sequence {row} was changed, and {site} sees "
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
        first = {name: each.clone() for name, each in _named(once).items()}
        design.write(_with_values(design, after_read, l, y + 1.0)[1], l, y + 1.0)
        again, after_read = design.read(state, l)
        for name, h in _named(again).items():
            agree(f"a second read for sublayer {l}{name}", h, first[name], 0, 0)
        state = design.write(_with_values(design, after_read, l, y)[1], l, y)


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


def commutes(subject: Subject) -> None:
    """An add-on goes before or after others of its `order` alike."""
    (part, *others), (cls, *_) = subject.variant.parts, subject.variant.classes
    if others or not issubclass(cls, Addon):
        raise NotApplicableError("it is no add-on")
    sizes = subject.shape.d_model, subject.shape.n_sublayers
    x = values_for(subject, 1)[0]
    for name, other in registry().items():
        if other is cls or not issubclass(other, Addon) or other.order != cls.order:
            continue
        stream = registry()["standard"](*sizes)
        both = {part.name: part.build(*sizes), name: parse(name).build(*sizes)}
        for addon in both.values():
            perturb(addon)
        orders = [dict(both.items()), dict(reversed(both.items()))]
        seen = [_all_reads(Composed(stream, each).to(subject.dtype), x) for each in orders]  # type: ignore[arg-type]
        for site, h in seen[0].items():
            if not torch.allclose(h, seen[1][site], rtol=subject.near(1e-9), atol=1e-9):
                raise BrokenError(
                    f"before {name}, {site} sees other numbers than after it: give it an `order` "
                    f"other than {cls.order}"
                )


def reads_back(subject: Subject) -> None:
    """Its canonical spec reads back as itself."""
    if str(parse(str(subject.variant))) != str(subject.variant):
        raise BrokenError(f"'{subject.variant}' reads back as '{parse(str(subject.variant))}'")


def is_documented(subject: Subject) -> None:
    """Its docstring opens with the equation and explains every option."""
    for part, cls in zip(subject.variant.parts, subject.variant.classes, strict=True):
        page = design_page.page_of(cls)
        if not page.equation:
            raise BrokenError(f"the first line must read '{part.name}: h_l = ...'")
        for name in options_of(cls):
            if name not in page.options:
                raise BrokenError(f"under 'Options:' there is no line for {name}")


def _all_reads(design: Residual, x: Tensor) -> dict[str, Tensor]:
    """What every site sees of x, between sublayers that move nothing between tokens."""
    state, seen = _given(design.start(x), design.start), dict[str, Tensor]()
    for l in range(1, design.n_sublayers + 1):
        back: Any = design.read(state, l)
        if not (isinstance(back, tuple) and len(back) == 2):
            raise BrokenError(
                f"read must return the pair (h, state), sublayer {l} got {_kind(back)} "
                f"({place_of(design.read)})"
            )
        h, state = back
        if isinstance(h, Inputs) and not (l % 2 and design.named_inputs):
            why = "an MLP has one input" if l % 2 == 0 else "named_inputs = True has to say so"
            raise BrokenError(
                f"read for sublayer {l} gives Inputs: {why} ({place_of(design.read)})"
            )
        for name, each in _named(h).items():
            _has_shape(each, x, f"read for sublayer {l}", design.read)
            seen[f"site {l}{name}"] = each
        y = torch.tanh(torch.stack([*_named(h).values()]).sum(dim=0).roll(l, dims=-1))
        v, state = _with_values(design, _given(state, design.read), l, y)
        seen |= {} if v is None else {f"site {l} in its values": v.flatten(-2)}
        state = _given(design.write(state, l, y), design.write)
    out = design.finish(state)
    _has_shape(out, x, "finish", design.finish)
    return seen | {f"site {design.n_sublayers + 1}": out}


def _named(h: Hidden | Inputs) -> dict[str, Hidden]:
    """What a read gives, by what a sentence adds to its sublayer's number."""
    if not isinstance(h, Inputs):
        return {"": h}
    return {f" in its {name}": x for name, x in zip(_INPUTS, h, strict=True)}


def _with_values(design: Residual, state: Any, l: int, y: Hidden) -> tuple[Tensor | None, Any]:
    """Values of two heads that an attention may have made, as the design changes them, and the
    state; None where it changes none.
    """
    if l % 2 == 0 or not design.sees_values:
        return None, state
    v = y.unflatten(-1, (2, -1))
    changed, state = design.values(state, l, v)
    if changed.shape != v.shape:
        raise BrokenError(
            f"values for sublayer {l} gives shape {tuple(changed.shape)}, expected "
            f"{tuple(v.shape)} ({place_of(design.values)})"
        )
    return changed, state


def _given(state: Any, method: Callable[..., Any]) -> Any:
    if state is None:
        raise BrokenError(
            f"{method.__name__} gives None: end it with `return` and the state ({place_of(method)})"
        )
    return state


def _has_shape(h: Any, x: Tensor, who: str, method: Callable[..., Any]) -> None:
    if not isinstance(h, Tensor):
        raise BrokenError(
            f"{who} must give a tensor (batch, time, d_model), got {_kind(h)} "
            f'({place_of(method)}); see docs/contract.md, "What it cannot say"'
        )
    if h.shape != x.shape:
        raise BrokenError(
            f"{who} gives shape {tuple(h.shape)}, expected {tuple(x.shape)} ({place_of(method)})"
        )


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
