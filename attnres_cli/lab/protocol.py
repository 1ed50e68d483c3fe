"""Settings of its own for every arm, by one protocol, on seeds that no comparison uses.

1. Five learning rates around the recipe's, a factor of 1.41 apart. The arm's rate is the vertex of
   the parabola in log(lr) through the best and its neighbours.
2. At the best of them three settings of a second number: `optim.design_lr_scale` at 3, 10 and 30
   times (1 has been seen) for an arm that adds parameters; weight decay and warm-up for one that
   adds none, as the baseline does, so that it has as many settings to choose from. The recipe's own
   is kept unless another is better by more than a standard error over seeds.

An arm that has settings of its own in the recipe tries three rates around its own, and keeps the
rest: tuned elsewhere, they are taken, not tuned again.

Where the best is at an edge, that arm's grid goes on once: two rates more, a scale of 100, or the
number that was best as far again. Each on four seeds: 32 runs for an arm, 12 for one that keeps its
own. Nothing that diverged is chosen.
That every arm is trained at the baseline's best rate is the commonest way in which comparisons of
architectures are unfair (arXiv 2509.02046).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnres_cli.config.arms import LR, SCALE, Setting
from attnres_cli.config.recipe import Optim
from attnres_cli.records.comparison_terms import Given, Trial, Tuned, settings_text
from attnres_cli.records.run import FIRST_TUNING_SEED
from attnres_cli.stats.optima import parabola_vertex
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.stats.regret import regret

SEEDS = tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + 4))
"""Of the tuning runs; `--seeds` takes none of them."""

SCALES, BEYOND = (3.0, 10.0, 30.0), 100.0
_LONGEST = 0.9  # of the steps to warm up
_N_RATES, _N_NEAR, _FACTOR = 5, 3, math.sqrt(2)  # _N_NEAR: around an arm's own rate
_EXTENDS = 2  # by so many rates, once
_OF_PARABOLA = 3  # points

Changes = tuple[Setting, ...]


def rates(lr: float, *, is_own: bool = False) -> tuple[float, ...]:
    """The grid around a recipe's learning rate: 0.01 -> 0.005, 0.00707, 0.01, 0.0141, 0.02. The
    middle three around one that `is_own`, of a design.
    """
    side = (_N_NEAR if is_own else _N_RATES) // 2
    steps = range(-side, side + 1)
    return tuple(_rounded(lr * _FACTOR**step) if step else lr for step in steps)


def extended(grid: tuple[float, ...], best: int | None) -> tuple[float, ...]:
    """The grid, and two rates more where its best is at an edge."""
    beyond = range(1, _EXTENDS + 1)
    if best == 0:
        return (*(_rounded(grid[0] / _FACTOR**k) for k in reversed(beyond)), *grid)
    if best == len(grid) - 1:
        return (*grid, *(_rounded(grid[-1] * _FACTOR**k) for k in beyond))
    return grid


def seconds(optim: Optim, *, adds: bool) -> tuple[Changes, ...]:
    """Settings of the second number: of what a design adds, or of an arm's that adds nothing."""
    if adds:
        return scaled(optim, SCALES)
    decay, warmup = optim.weight_decay or 0.1, optim.warmup_fraction or 0.05
    less = decay / 3 if optim.weight_decay else 3 * decay
    return (
        (("optim.weight_decay", _rounded(less)),),
        (("optim.weight_decay", _rounded(3 * decay if optim.weight_decay else decay)),),
        (("optim.warmup_fraction", _rounded(3 * warmup if warmup < 0.2 else warmup / 3)),),
    )


def scaled(optim: Optim, scales: Sequence[float]) -> tuple[Changes, ...]:
    """What a design adds at these multiples of the rate that it has."""
    return tuple(((SCALE, _rounded(optim.design_lr_scale * scale)),) for scale in scales)


def beyond(optim: Optim, best: Changes) -> tuple[Changes, ...]:
    """The setting behind one of `seconds` that was best; none behind a scale but the largest."""
    ((key, chosen),) = best
    if key == SCALE:
        return scaled(optim, (BEYOND,)) if best == scaled(optim, SCALES)[-1] else ()
    own, value = getattr(optim, key.removeprefix("optim.")), float(chosen)
    further = value * 3 if value > own else value / 3
    most = _LONGEST if key == "optim.warmup_fraction" else math.inf
    return (((key, _rounded(min(further, most))),),)


def best_of(trials: Sequence[Trial | None]) -> int | None:
    """The index of the lowest mean loss; None where a setting is not known, or none trained."""
    if any(trial is None for trial in trials):
        return None
    means = [(t.mean, i) for i, t in enumerate(trials) if t is not None and t.mean is not None]
    return min(means)[1] if means else None


def decided(
    shared: float, rates: Sequence[Trial | None], more: Sequence[Trial | None], *, on_a_line: bool
) -> Tuned | None:
    """What the trials at each rate, and then at `more` settings at the best of them, decide; those
    are scales, `on_a_line`, or numbers of other kinds. None where a trial is not known, or no rate
    trained.
    """
    best = best_of(rates)
    if best is None:
        return None
    by_rate = [trial for trial in rates if trial is not None]
    lowest = best_of([by_rate[best], *more])
    if lowest is None:
        return None
    tried = [by_rate[best], *(trial for trial in more if trial is not None)]
    chosen = lowest if _is_better(tried[lowest], tried[0]) else 0
    lr, fit = _vertex(by_rate, best)
    ends = _edges(by_rate, best, tried, chosen, on_a_line=on_a_line)
    return Tuned(
        shared=shared,
        rates=tuple(_rate(trial) for trial in by_rate),
        losses=tuple(trial.mean for trial in by_rate),
        seeds=SEEDS,
        lr=lr,
        is_on_edge=bool(ends),
        fit=f"{fit}{ends}",
        second=tuple(replace(trial, changes=trial.changes[1:]) for trial in tried[1:]),
        changes=tried[chosen].changes[1:],
        regret=_missed_in_all(
            by_rate, best, lr, tried, chosen, on_a_line=on_a_line and chosen == lowest
        ),
    )


def kept(how: Tuned, given: Given) -> Tuned:
    """What was decided of an arm's rate, with what a recipe says of its other settings: what their
    tuning may have missed there may be missed here too.
    """
    fit = f"{how.fit}; its other settings are the recipe's" if given.changes else how.fit
    known = how.regret is not None and math.isfinite(given.may_miss)
    return replace(
        how,
        changes=given.changes,
        fit=f"{fit}; those are at an edge of what was tried" if given.is_on_edge else fit,
        is_on_edge=how.is_on_edge or given.is_on_edge,
        regret=(how.regret or 0.0) + given.may_miss if known else None,
    )


def _is_better(one: Trial, other: Trial) -> bool:
    """Whether one is below the other by more than a standard error, paired by seed."""
    pairs = zip(one.losses, other.losses, strict=True)
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    mean, sd = mean_sd(gaps)
    return mean < -(sd or 0.0) / math.sqrt(len(gaps))


def _edges(
    by_rate: Sequence[Trial], best: int, tried: Sequence[Trial], chosen: int, *, on_a_line: bool
) -> str:
    """Which of the choices is the last of its kind that trained, beyond which a better one may
    lie. Of three numbers of other kinds each is, unless a fourth, the best as far again, is worse.
    """
    words, trained = [], [i for i, trial in enumerate(by_rate) if trial.mean is not None]
    if best in (trained[0], trained[-1]):
        words.append(f"the {'smallest' if best == trained[0] else 'largest'} learning rate")
    is_last, is_whole = 0 < chosen == len(tried) - 1, len(tried) > 1 + len(SCALES)
    if on_a_line and is_last:
        words.append("the largest scale of what it adds")
    elif not on_a_line and chosen and (is_last or not is_whole):
        words.append(settings_text(tried[chosen].changes[1:]))
    return f"; {' and '.join(words)} was best: a better one may lie beyond" if words else ""


def _vertex(by_rate: Sequence[Trial], best: int) -> tuple[float, str]:
    """A learning rate and how it was chosen: the vertex of the parabola in log(lr) through the best
    rate and its neighbours, or that rate where one of these is missing or diverged.
    """
    rates = [_rate(trial) for trial in by_rate]
    near = [t.mean for t in by_rate[max(0, best - 1) : best + 2] if t.mean is not None]
    if len(near) < _OF_PARABOLA:
        return rates[best], "the best of those tried"
    found = parabola_vertex([math.log(lr) for lr in rates[best - 1 : best + 2]], near)
    if found is None:
        return rates[best], "the best of those tried, its neighbors are as good"
    return _rounded(math.exp(found)), "parabola through the best rate and its neighbors"


def _rate(trial: Trial) -> float:
    return float(dict(trial.changes)[LR])


def _missed_in_all(
    by_rate: Sequence[Trial],
    best: int,
    lr: float,
    tried: Sequence[Trial],
    chosen: int,
    *,
    on_a_line: bool,
) -> float | None:
    """How much better the best settings may be than the chosen: of the rate, and of the second
    number, where another was tried than the recipe's own, the first; None where that is not known.
    """
    scales = [1.0, *SCALES, BEYOND][: len(tried)] if on_a_line else None
    found = _missed(by_rate, best, [_rate(trial) for trial in by_rate], math.log(lr))
    found += _missed(tried, chosen, scales) if len(tried) > 1 else 0.0
    return found if math.isfinite(found) else None


def _missed(
    trials: Sequence[Trial],
    best: int,
    at: Sequence[float] | None,
    chosen_at: float | None = None,
) -> float:
    trained = [i for i, trial in enumerate(trials) if trial.mean is not None]
    losses = np.array([trials[i].losses for i in trained], dtype=np.float64)
    places = None if at is None else np.log([at[i] for i in trained])
    return regret(losses, trained.index(best), places, chosen_at)


def _rounded(lr: float) -> float:
    """To three digits, so that a rate can be read and typed."""
    return float(f"{lr:.3g}")
