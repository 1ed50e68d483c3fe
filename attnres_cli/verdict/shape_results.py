"""The shapes that a search tried for one variant, and which may be the best. The first look, one
seed, chooses; fresh seeds, which chose nothing, judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.records import gates
from attnres_cli.records.run import RunRecord, Settings, Status
from attnres_cli.records.search_records import Family, Search, State, Trial, Value, on_front
from attnres_cli.stats.optima import may_be_best
from attnres_cli.stats.pairs import mean_interval
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.comparison import last_line
from attnres_cli.verdict.numbers import plural

SIZES = ("n_layers", "d_model", "n_heads", "mlp_ratio", "params")
"""What trials of one shape have in common, the last two where they were searched. d_ff is not in
it: d_ff takes up what a variant's own parameters change of the budget.
"""

_NOT_OPTIONS = {*SIZES[:3], "d_ff", "aspect", "heads_per_layer", "tokens"}
_WAITS = {Status.PENDING: "is pending", Status.RUNNING: "is running, or was killed"}
_UNCONFIRMED_SHOWN = 5

Cell = tuple[Value | None, ...]
"""The sizes of a shape, in the order of SIZES; None where one was not searched."""


Runs = Mapping[tuple[str, str, int], RunRecord]
"""By variant, recipe and seed."""


@dataclass(frozen=True)
class Shape:
    """One shape of a variant: what its first look promised, and what fresh seeds gave.

    Attributes:
        promised: loss of the first look, of one seed; lucky where it is the lowest of many.
        fresh: losses by seed, of the fresh seeds that have one that counts.
        missing: why each of the others has none: `seed 3 failed: ...`.
        ci95: t interval of their mean; None of fewer than two.
        numerics: of its runs, which are paired only if they are one; settings: of the first.
        may_be_best: whether it is in the set of its variant's confirmed shapes that holds the best
            with 95 % confidence; None where that was not tested. is_lowest: among them, by mean.
    """

    trial: Trial
    promised: float
    fresh: Mapping[int, float]
    missing: tuple[str, ...]
    ci95: tuple[float, float] | None
    numerics: frozenset[str]
    settings: Settings | None = None
    may_be_best: bool | None = None
    is_lowest: bool = False

    @property
    def mean(self) -> float | None:
        """Over the fresh seeds; None without any."""
        return sum(self.fresh.values()) / len(self.fresh) if self.fresh else None

    @property
    def surprise(self) -> float | None:
        """Fresh mean minus first look: above zero where the first look was lucky."""
        return None if self.mean is None else self.mean - self.promised

    @property
    def is_confirmed(self) -> bool:
        """Whether every fresh seed has a loss that counts."""
        return bool(self.fresh) and not self.missing

    @property
    def cell(self) -> Cell:
        """Its sizes."""
        return cell(self.trial)


@dataclass(frozen=True)
class Optimum:
    """One variant's search: every different point that is complete, by its first look.

    Attributes:
        failed: trials that came to nothing, with their error in a line, or that they diverged.
        failed_runs: runs of other trials that failed, with seed and error: most of fresh seeds.
        counts: trials asked for by what became of them, diverged ones apart; `extra`: those beyond.
        reason: why it is not said which shapes may be best; empty where it is.
    """

    family: Family
    shapes: tuple[Shape, ...]
    failed: tuple[tuple[Trial, str], ...]
    counts: Mapping[str, int]
    reason: str = ""
    failed_runs: tuple[tuple[Trial, int, str], ...] = ()

    @property
    def n_shapes(self) -> int:
        """How many different shapes; learning rates and options do not tell them apart."""
        return len({shape.cell for shape in self.shapes})

    @property
    def confirmed(self) -> list[Shape]:
        """Shapes with all fresh seeds, the lowest mean first."""
        return sorted((s for s in self.shapes if s.is_confirmed), key=lambda s: s.mean or math.inf)

    @property
    def best(self) -> Shape | None:
        """The lowest mean over fresh seeds; without those the lowest first look; None of none."""
        return next(iter(self.confirmed or self.shapes), None)

    @property
    def unmeasured(self) -> list[tuple[Trial, str]]:
        """Trials that ended without a loss, with why: `failed` or `diverged`."""
        ended = {State.FAILED: "failed", State.COMPLETE: "diverged"}
        trials = self.family.trials
        return [(t, ended[t.state]) for t in trials if t.state in ended and not is_sound(t)]

    @property
    def listed(self) -> list[Shape]:
        """The shapes in a table: confirmed ones, those with some fresh seeds, and the best first
        look; without any fresh seed the five best first looks. With two goals the front too.
        """
        begun = [s for s in self.shapes if s.missing and (s.fresh or s in self.shapes[:1])]
        kept = {trial.number for trial in front(self)}
        more = [s for s in self.shapes if s in begun or s.trial.number in kept]
        if self.confirmed:
            return self.confirmed + [s for s in more if not s.is_confirmed]
        return [s for s in self.shapes if s in more or s in self.shapes[:_UNCONFIRMED_SHOWN]]


def cell(trial: Trial) -> Cell:
    """The sizes of a trial, by which trials of two variants are of one shape."""
    return tuple(trial.dimensions.get(name) for name in SIZES)


def options(trial: Trial) -> dict[str, Value]:
    """What was searched besides the sizes: options of the variant, learning rate and others."""
    return {name: v for name, v in trial.dimensions.items() if name not in _NOT_OPTIONS}


def is_sound(trial: Trial) -> bool:
    """Whether a trial is complete with a loss that is a number."""
    return trial.state is State.COMPLETE and bool(trial.values) and math.isfinite(trial.values[0])


def front(one: Optimum) -> list[Trial]:
    """The Pareto front, the lowest loss first; empty where there is one objective."""
    sound = [t for t in one.family.trials if is_sound(t) and all(map(math.isfinite, t.values))]
    if not sound or len(sound[0].values) < 2:
        return []
    kept = zip(sound, on_front([tuple(t.values) for t in sound]), strict=True)
    return sorted((t for t, is_kept in kept if is_kept), key=lambda t: t.values)


def named(shape: Shape) -> str:
    """`6 layers of width 160 with 4 heads (aspect 26.7)`."""
    return f"{sizes(shape.cell)} (aspect {float(shape.trial.dimensions['aspect']):.3g})"


def sizes(of: Cell) -> str:
    """`6 layers of width 160 with 4 heads`."""
    n_layers, d_model, n_heads, *_ = of
    return f"{plural(n_layers, 'layer')} of width {d_model} with {plural(n_heads, 'head')}"


def brief(trial: Trial) -> str:
    """`6 x 354, 2 heads`."""
    return f"{layers_by_width(trial)}, {plural(trial.dimensions['n_heads'], 'head')}"


def layers_by_width(trial: Trial) -> str:
    """`6 x 354`."""
    return f"{trial.dimensions['n_layers']} x {trial.dimensions['d_model']}"


def optimum(search: Search, family: Family, runs: Runs) -> Optimum:
    """What a variant's trials and their runs, on the search's data, say."""
    sound = {(t.variant, t.recipe_digest): t for t in reversed(family.trials) if is_sound(t)}
    shapes = [_shape(search, trial, runs) for trial in sound.values()]
    shapes.sort(key=lambda shape: (shape.promised, shape.trial.number))
    diverged = [t for t in family.trials if t.state is State.COMPLETE and not is_sound(t)]
    failed = [(t, "diverged") for t in diverged]
    for trial in family.trials:
        if trial.state is State.FAILED:
            run = runs.get((trial.variant, trial.recipe_digest, search.first_seed))
            failed.append((trial, last_line(run.error if run else None)))
    asked = [t for t in family.trials if not t.is_extra]
    counts = {s.value: sum(t.state is s for t in asked) for s in State}
    n_diverged = sum(not t.is_extra for t in diverged)
    counts |= {"complete": counts["complete"] - n_diverged, "diverged": n_diverged}
    counts["extra"] = len(family.trials) - len(asked)
    others = _failed_runs(search, family, runs)
    found = Optimum(family, tuple(shapes), tuple(failed), counts, failed_runs=others)
    return _set_of_best(found, search)


def _failed_runs(search: Search, family: Family, runs: Runs) -> tuple[tuple[Trial, int, str], ...]:
    """Failed runs of any seed, without the first looks of trials that failed themselves."""
    found = []
    for trial in family.trials:
        for seed in (search.first_seed, *search.confirm_seeds):
            run = runs.get((trial.variant, trial.recipe_digest, seed))
            is_own = seed == search.first_seed and trial.state is State.FAILED
            if run is not None and run.status is Status.FAILED and not is_own:
                found.append((trial, seed, last_line(run.error)))
    return tuple(found)


def _shape(search: Search, trial: Trial, runs: Runs) -> Shape:
    fresh, missing, mine = {}, [], []
    for seed in (search.first_seed, *search.confirm_seeds):
        run = runs.get((trial.variant, trial.recipe_digest, seed))
        if run is not None and run.result is not None:
            mine.append(run.result)
        if seed != search.first_seed:
            why = _why_not(run)
            if why:
                missing.append(f"seed {seed} {why}")
            elif run is not None and run.result is not None:
                fresh[seed] = run.result.val_loss
    return Shape(
        trial=trial,
        promised=trial.values[0],
        fresh=fresh,
        missing=tuple(missing),
        ci95=mean_interval(np.array(list(fresh.values()))) if len(fresh) > 1 else None,
        numerics=frozenset(result.settings.numerics for result in mine),
        settings=mine[0].settings if mine else None,
    )


def _why_not(run: RunRecord | None) -> str:
    """Why a run's loss does not count; empty where it does."""
    if run is None:
        return "was not trained"
    if run.result is None:
        return _WAITS.get(run.status) or f"failed: {last_line(run.error)}"
    if run.status is Status.DIVERGED or not math.isfinite(run.result.val_loss):
        return "diverged"
    unmet = [gate.name for gate in run.gates if not gate.passed and gate.name not in gates.DOUBTS]
    return f"did not pass the gate '{unmet[0]}'" if unmet else ""


def _set_of_best(found: Optimum, search: Search) -> Optimum:
    """With the shapes marked that may be the best of the confirmed ones."""
    confirmed = found.confirmed
    reason = untested(search, confirmed)
    if reason:
        return replace(found, reason=reason)
    losses = np.array([[s.fresh[seed] for seed in search.confirm_seeds] for s in confirmed])
    choice = min(range(len(confirmed)), key=lambda i: confirmed[i].promised)
    p = dict(zip((s.trial.number for s in confirmed), may_be_best(losses, choice), strict=True))
    lowest = confirmed[0].trial.number
    marked = [
        replace(s, may_be_best=p[s.trial.number] >= ALPHA, is_lowest=s.trial.number == lowest)
        if s.trial.number in p
        else s
        for s in found.shapes
    ]
    return replace(found, shapes=tuple(marked))


def untested(search: Search, confirmed: Sequence[Shape]) -> str:
    """Why nothing can be tested on these shapes; empty where it can."""
    if not search.confirm_seeds:
        return "no shape was trained with fresh seeds"
    if not confirmed:
        return f"no shape has all of the {len(search.confirm_seeds)} fresh seeds"
    if len(search.confirm_seeds) < 2:
        return "a test takes two fresh seeds or more, this search has one"
    numerics = sorted({name for shape in confirmed for name in shape.numerics})
    if len(numerics) > 1:
        return f"runs were computed in different ways: {', '.join(numerics)}"
    return ""
