"""The search of designs while it goes on: one trial of Optuna for each design and rung."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from attnres_cli.lab import branches
from attnres_cli.lab.search.design_proposals import TOP, Seen, proposed
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.looks import SHARE, Look, Looks
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.proposals import Points, seed_of
from attnres_cli.lab.search.studies import VOID
from attnres_cli.lab.search.trial_runner import TrialRunner, arm_of
from attnres_cli.nn.residual import Value
from attnres_cli.records.run import RunRecord, RunResult

RUNG = "rung"


class DesignPoints(Points):
    """Looks as Optuna sees them. They are too many to be listed."""

    def __init__(self, looks: Looks) -> None:
        super().__init__(())
        self.looks = looks

    def of_trial(self, trial: FrozenTrial) -> Point | None:
        """What a trial tries; None where it is void."""
        if VOID in trial.user_attrs or RUNG not in trial.params:
            return None
        choices = self.looks.space.draw(lambda name, _: cast("Value", trial.params[name]))
        return self.looks.look(choices, trial.params[RUNG])

    def params_of(self, point: Point) -> dict[str, Any]:
        """The choices of which there were several, and the rung."""
        return {key: self._value(point, key) for key in self.distributions_of(point)}

    def distributions_of(self, point: Point) -> dict[str, BaseDistribution]:
        """Among which values the choices of its design were made."""
        found: dict[str, BaseDistribution] = {RUNG: CategoricalDistribution((0, TOP))}

        def pick(name: str, values: Sequence[Value]) -> Value:
            found[name] = CategoricalDistribution(values)
            return cast("Value", self._value(point, name))

        self.looks.space.draw(pick)
        return found

    @staticmethod
    def _value(point: Point, name: str) -> Any:
        assert isinstance(point, Look)
        return point.rung if name == RUNG else point.choices[name]


@dataclass
class DesignFamily(Family):
    """The trials of a search over designs, which proposes them itself. A design is looked at anew
    with all tokens if it is in the best quarter of the first looks (successive halving).
    """

    looks: Looks
    seed: int
    n_designs: int
    _is_exhausted: bool = False

    def _at(self, rung: int) -> dict[Look, float]:
        """What looks at a rung have come to, best first."""
        found = {p: v[0] for p, v in self.complete().items() if isinstance(p, Look)}
        at = [look for look in found if look.rung == rung]
        return {look: found[look] for look in sorted(at, key=lambda look: found[look])}

    def _n_new(self) -> int:
        """Designs that are left to be proposed."""
        asked = {point.variant for _, point in self.counted()}
        return 0 if self._is_exhausted else max(0, self.n_designs - len(asked))

    def _promotable(self) -> list[Look]:
        """The looks whose designs are to be looked at with all tokens, best first."""
        first = self._at(0)
        is_over = not self._n_new() and not any(
            trial.state is TrialState.RUNNING for trial, _ in self.tried()
        )
        n = max(len(first) // SHARE, int(is_over))
        best = [look for look, loss in first.items() if math.isfinite(loss)][:n]
        above = {p.variant for _, p in self.tried() if isinstance(p, Look) and p.rung >= TOP}
        return [look for look in best if look.variant not in above]

    def n_to_ask(self, n_trials: int) -> int:
        """Looks that may be asked for now, if none fails."""
        return self._n_new() + len(self._promotable())

    def n_left(self, n_trials: int) -> int:
        """Looks that are left, if none fails: the promotions to come are foreseen."""
        tops = [p for _, p in self.tried() if isinstance(p, Look) and p.rung >= TOP]
        n_designs = min(n_trials, self.n_designs)
        to_come = max(1, n_designs // SHARE) - len(tops) - len(self._promotable())
        return super().n_left(n_trials) + max(0, to_come)

    def _ask(self) -> bool:
        """Ask for a look: at all tokens if there is one to promote, or else at a new design."""
        if promotable := self._promotable():
            choices, rung = dict(promotable[0].choices), TOP
        else:
            number = len(self.study.get_trials(deepcopy=False))
            seed = seed_of(self.seed, number)
            found = proposed(self.looks.space, self.looks.name_of, self._seen(), seed)
            self._is_exhausted = found is None
            if found is None:
                return False
            choices, rung = found[0], 0
        look = self.looks.look(choices, rung)
        assert look is not None
        self.add(look, None, TrialState.RUNNING, is_extra=False)
        return True

    def _seen(self) -> list[Seen]:
        """Every design that was tried, at its highest rung; a failure is the worst answer."""
        seen: dict[str, Seen] = {}
        for trial, point in sorted(self.tried(), key=lambda each: each[0].number):
            assert isinstance(point, Look)
            failed = trial.state is TrialState.FAIL
            loss = math.inf if failed else trial.values[0] if trial.values else None
            before = seen.get(point.variant)
            if before is None or (loss is not None and point.rung > before.rung):
                seen[point.variant] = Seen(point.choices, point.rung, loss)
        return list(seen.values())

    def best_designs(self, k: int) -> list[str]:
        """The k designs that were best with all tokens, best first."""
        ended = [look.variant for look, loss in self._at(TOP).items() if math.isfinite(loss)]
        return ended[:k]


@dataclass
class DesignRunner(TrialRunner):
    """Where looks are trained. `slope` and the baseline's seconds per step say what a loss is worth
    at equal time; `look_s` is how long a look takes on the mean, with all workers.
    """

    slope: float = 0.0
    baseline_step_s: float = math.nan
    look_s: float | None = None

    def _known(self, result: RunResult) -> dict[str, float]:
        known = super()._known(result)
        later = self.slope * math.log(result.step_s / self.baseline_step_s) if self.slope else 0.0
        return known | {"time": known["val_loss"] + later}

    def _predicted_s(self, n_trials: Sequence[int]) -> float | None:
        if self.look_s is None:
            return None
        return sum(n_trials) * self.look_s

    def _continue(self, points: Sequence[Point], records: Sequence[RunRecord]) -> None:
        arms = tuple(map(arm_of, points))
        plan = replace(self.plan, arms=arms, seeds=(self.search.first_seed,))
        branches.branch(self.experiment.store, plan, records)
