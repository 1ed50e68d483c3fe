"""A run proves itself as it is judged: by the precision, engine, batch and length of evaluation,
never compiled.

Tokens are changed from some time on, in every sequence of a batch but one. What the head sees of
all that came before, and of the other sequence, must be the same bits, in evaluation and in
training; else the design passes on what it is to predict. Where the order of an engine's sums
depends on the tokens (an expert's product has as many rows as tokens choose it), bits may differ by
rounding, which is then measured. Where documents are isolated, all tokens before a separator are
changed too, and what is after it must be the same. Proofs on a fresh, small model (nn/proofs) are
not enough: a leak may begin at 48 tokens, or with a gate that training opens.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres_cli.nn.proofs import trace
from attnres_cli.records.gates import CAUSAL, REPEATS, TRACELESS
from attnres_cli.train.trainer import Trainer

_MOVED_BY = 0.3  # of a parameter's spread; of 1 where all its numbers are equal
_N_TIMES = 5  # at the least, from which tokens are changed
_ROUNDING = 16  # times what the last bit of every sum does to the median token
_MOST = {"fp32": 1e-3, "bf16": 0.1}  # of a token's size, that is rounding: chance moves it further
_FEW = 0.01  # of all tokens, which rounding may have sent to another expert


class _Change(NamedTuple):
    """Windows (B, T + 1) with other tokens; which tokens (B, T) must not see that, and of each row
    the place (B,) of the one that is nearest to the change; in words, what was changed from or up
    to each place `at` (B,).
    """

    windows: Tensor
    kept: Tensor
    nearest: Tensor
    at: Tensor
    words: str


@torch.no_grad()
def prove_start(trainer: Trainer) -> dict[str, str]:
    """Prove a model that is not trained yet, with all parameters moved off their start, to which
    they return: a gate that starts closed shows nothing. See `prove`.
    """
    before = {name: mine.clone() for name, mine in _parameters(trainer)}
    for name, mine in _parameters(trainer):
        generator = torch.Generator(mine.device).manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(mine.shape, generator=generator, device=mine.device, dtype=mine.dtype)
        spread = mine.float().std().item() if mine.numel() > 1 else 0.0
        mine.add_(noise, alpha=_MOVED_BY * (spread or 1.0))
    try:
        return prove(trainer, "with parameters moved off their start")
    finally:
        for name, mine in _parameters(trainer):
            mine.copy_(before[name])


@torch.no_grad()
def prove(trainer: Trainer, when: str = "with its trained weights") -> dict[str, str]:
    """What is wrong with a model as it is, by the name of the gate, empty where nothing is: on the
    first validation batch, in evaluation and as it trains. Ranks make the same call.
    """
    recipe, tokens = trainer.spec.recipe, trainer.tokens
    evals = tokens.eval_batches(recipe.train.eval_tokens, trainer.rows, recipe.model.seq_len)
    windows = torch.from_numpy(next(iter(evals)))
    generator = torch.Generator().manual_seed(trainer.spec.seed)
    batches = [(windows, list(_changes(windows, tokens.vocab_size, generator)))]
    if tokens.separator is not None:
        batches.append(_beyond(windows, tokens.vocab_size, tokens.separator, generator))
    found = {CAUSAL: "", REPEATS: "", TRACELESS: ""}
    for trains in (False, True):
        trainer.model.train(trains)
        mode = f"{when}, in {'training' if trains else 'evaluation'}"
        try:
            wrong = [each for batch in batches for each in _wrong(trainer, *batch)]
        finally:
            trainer.model.train()
        for name, text in wrong:
            found[name] = found[name] or f"{mode}, {text}"
    return found


def _changes(windows: Tensor, vocab_size: int, generator: torch.Generator) -> Iterator[_Change]:
    """Other tokens from a time on: 1, the middle, the last and random ones. Of several sequences
    the last one keeps its tokens, its time is T.
    """
    rows, length = windows.shape[0], windows.shape[1] - 1
    n = max(1, rows - 1)
    n_passes = -(-_N_TIMES // n)
    random = torch.randint(1, length, (n_passes * n,), generator=generator).tolist()
    times = [1, length // 2, length - 1, *random]
    for first in range(0, n_passes * n, n):
        at = torch.tensor([*times[first : first + n], *[length] * (rows - n)])
        is_new = torch.arange(length + 1) >= at[:, None]
        changed = torch.where(is_new, _others(windows, vocab_size, generator), windows)
        yield _Change(changed, ~is_new[:, :-1], at - 1, at, "from position {} on")


def _beyond(
    windows: Tensor, vocab_size: int, separator: int, generator: torch.Generator
) -> tuple[Tensor, list[_Change]]:
    """Windows with a separator in the middle or at a random place, and other tokens before it."""
    rows, length = windows.shape[0], windows.shape[1] - 1
    at = torch.randint(0, length - 1, (rows,), generator=generator)
    at[0] = (length - 1) // 2
    place = torch.arange(length + 1)
    windows = torch.where(place == at[:, None], separator, windows)
    others = _others(windows, vocab_size, generator)
    changed = torch.where(place < at[:, None], others, windows)
    kept = place[:-1] > at[:, None]
    return windows, [_Change(changed, kept, at + 1, at, "before the separator at position {}")]


def _others(windows: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
    return (windows + torch.randint(1, vocab_size, windows.shape, generator=generator)) % vocab_size


def _wrong(
    trainer: Trainer, windows: Tensor, changes: Sequence[_Change]
) -> Iterator[tuple[str, str]]:
    """What is wrong in one mode. Ranks go on alike, though only one may see it."""
    before = _seen(trainer, windows)
    left = trace.held(trainer.model.residual)
    for change in changes:
        after = _seen(trainer, change.windows)
        if not trainer.largest_over_ranks(_differs(before, after, change.kept)):
            continue
        if not trainer.largest_over_ranks(
            _is_more(before, after, change, _rounding(trainer, windows, before))
        ):
            continue
        if trainer.largest_over_ranks(
            _differs(before, _seen(trainer, windows), torch.ones_like(change.kept))
        ):
            yield REPEATS, "the same batch gives other numbers when it is computed again"
        else:
            yield CAUSAL, _where(trainer, windows, change)
        break
    if names := trace.changed(left, trace.held(trainer.model.residual)):
        yield TRACELESS, f"a batch leaves a trace in the design: {names}"


def _seen(trainer: Trainer, windows: Tensor) -> Tensor:
    """What the head sees (B, T, D) of windows; empty on a rank that has no head."""
    seen: list[Tensor] = []
    with _hooked([trainer.model.norm], lambda _module, _given, out: seen.append(out)):
        trainer.judge(windows)
    return torch.cat(seen) if seen else torch.empty(0)


@contextlib.contextmanager
def _hooked(
    parts: Sequence[nn.Module], hook: Callable[[nn.Module, Any, Tensor], Any]
) -> Iterator[None]:
    handles = [part.register_forward_hook(hook) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _differs(before: Tensor, after: Tensor, kept: Tensor) -> int:
    """1 where kept tokens are not the same bits."""
    if not before.numel():
        return 0
    mask = kept.to(before.device)
    return int(not torch.equal(before[mask].view(torch.uint8), after[mask].view(torch.uint8)))


def _rounding(trainer: Trainer, windows: Tensor, before: Tensor) -> float:
    """By how much rounding may move a token, relative to its size: some times what the median token
    moves by where all that the embedding and the sublayers put out is off by its last bit.
    """
    generator = torch.Generator().manual_seed(0)

    def round_off(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
        signs = torch.randint(0, 2, out.shape, generator=generator).to(out) * 2 - 1
        return out * (1 + torch.finfo(out.dtype).eps * signs)

    with _hooked([trainer.model.embed, *trainer.model.sublayers], round_off):
        after = _seen(trainer, windows)
    if not before.numel():
        return 0.0
    found = _ROUNDING * _moves(before, after).median().item()
    return min(found, _MOST[trainer.settings.precision])


def _moves(before: Tensor, after: Tensor) -> Tensor:
    """By how much tokens (B, T, D) have moved, relative to their size (B, T)."""
    off = (after.float() - before.float()).norm(dim=-1) / before.float().norm(dim=-1)
    return off.nan_to_num(torch.inf)


def _is_more(before: Tensor, after: Tensor, change: _Change, rounding: float) -> int:
    """1 where kept tokens moved by more than rounding: one in a hundred, or most of those just
    beside a change.
    """
    if not before.numel():
        return 0
    is_moved = (_moves(before, after) > rounding).cpu()
    nearest = is_moved[torch.arange(len(change.nearest)), change.nearest]
    return int(is_moved[change.kept].float().mean() > _FEW or nearest.float().mean() > 0.5)


def _where(trainer: Trainer, windows: Tensor, change: _Change) -> str:
    """Which token sees a change that it must not see, and which sublayer reads it first."""
    kept = change.kept
    l, row, time = _first(trainer, windows, change.windows, kept)
    alone, mine = windows.clone(), torch.zeros_like(kept)
    alone[row], mine[row] = change.windows[row], kept[row]
    is_own = _first(trainer, windows, alone, mine)[0] <= len(trainer.model.sublayers) + 1
    reader = f"sublayer {l} reads" if l <= len(trainer.model.sublayers) else "the head sees"
    what = f"tokens changed {change.words.format(change.at[row])}" if is_own else "other sequences"
    return f"{what} change what {reader} at position {time} of sequence {row}"


def _first(
    trainer: Trainer, windows: Tensor, changed: Tensor, kept: Tensor
) -> tuple[int, int, int]:
    """The first sublayer, and of kept tokens the first sequence and time, that a change moves;
    L + 2 for none.
    """
    parts = [*trainer.model.sublayers, trainer.model.norm]
    inputs: list[dict[nn.Module, Tensor]] = [{}, {}]
    for into, each in zip(inputs, (windows, changed), strict=True):
        with _hooked(parts, partial(_keep, into)):
            trainer.judge(each)
    mine = len(parts) + 1, 0, 0
    for l, part in enumerate(parts, 1):
        if part in inputs[0]:
            moved = (inputs[0][part] != inputs[1][part]).any(dim=-1).cpu() & kept
            if moved.any():
                row, time = moved.nonzero()[0].tolist()
                mine = l, row, time
                break
    first = -trainer.largest_over_ranks(-mine[0])
    row, time = (
        trainer.largest_over_ranks(number if mine[0] == first else 0) for number in mine[1:]
    )
    return first, row, time


def _keep(into: dict[nn.Module, Tensor], part: nn.Module, given: Any, _out: Tensor) -> None:
    into[part] = given[0]


def _parameters(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """The numbers of each parameter that are on this rank, by name."""
    for name, parameter in trainer.here().named_parameters():
        yield name, parameter.to_local() if hasattr(parameter, "to_local") else parameter
