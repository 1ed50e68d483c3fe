"""Can tuning favour an arm? Words of the protocol of `--tune-lr` on arms equal at their best.

    python benchmarks/tuning.py --studies 20000

Each arm has a loss surface: 0.058 nats per squared doubling of the learning rate (from the
reference study), and of its second number some nats per squared doubling, or nothing. Where the
optima lie is drawn for each study, between the settings that are tried or beyond them; at its own
optimum each arm has the same loss. Where settings are kept, the arm's scale was tuned elsewhere,
the best one here lies so many doublings off, and three rates are tried around one from there.
A run adds noise of 0.017 nats, a part of which belongs to its seed. What is chosen
(attnres_cli/lab/protocol.py), judged (stats/sequential.py) and withheld (verdict/judge.py) is done
by the functions that the commands use; the arms are then compared on seven fresh seeds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from itertools import islice

import numpy as np

from attnres_cli.config.arms import LR, SCALE
from attnres_cli.lab import protocol
from attnres_cli.records.comparison_terms import Given, Trial, Tuned
from attnres_cli.stats.sequential import ALPHA, look, word
from attnres_cli.verdict.family import Family
from attnres_cli.verdict.judge import may_be_tuning

BEND, NOISE, SHARED, SEEDS = 0.058, 0.017, 0.006, 7
SCENARIOS = {
    # what the second number bends by (arm, baseline), where the arm's best scale lies, common noise
    "nothing but the rate matters": (0.0, 0.0, (1, 1), 0.5),
    "scales matter, best within the grid": (0.01, 0.0, (1, 30), 0.5),
    "scales matter much, best within the grid": (0.03, 0.0, (1, 30), 0.5),
    "scales matter, best beyond the grid": (0.01, 0.0, (30, 1000), 0.5),
    "both matter": (0.01, 0.01, (1, 30), 0.5),
    "seeds have little in common": (0.01, 0.0, (1, 30), 0.0),
    "seeds have much in common": (0.01, 0.0, (1, 30), 0.9),
}
KEPT = {
    # what the second number bends by, how many doublings its best lies off, at most, common noise
    "settings kept, the best scale up to 0.8 doublings off": (0.01, 0.8, 0.5),
    "settings kept, the best scale up to 1.6 doublings off": (0.01, 1.6, 0.5),
    "settings kept, seeds have much in common": (0.01, 0.8, 0.9),
}
_MISSED = 0.002  # nats: what the recipe says that tuning may have missed, as most of `quick`
_BEYOND = -1  # no number that may be best
_NUMBERS = (
    ("optim.weight_decay", 0.0333),
    ("optim.weight_decay", 0.3),
    ("optim.warmup_fraction", 0.15),
)


class Arm:
    """A loss surface, and the noise of the runs on it."""

    def __init__(self, bend: float, best_scale: float, level: np.ndarray, common: float, random):
        self.bend, self.level, self.random = bend, level, random
        self.own = NOISE * math.sqrt(1 - common)
        self.best_lr = SHARED * 2 ** random.uniform(-0.75, 0.75)
        self.best_scale = best_scale
        self.best_number = random.integers(4)  # of the recipe's own and three others

    def loss(self, lr: float, second: float, seeds: slice) -> np.ndarray:
        """Of runs on these seeds."""
        true = BEND * math.log2(lr / self.best_lr) ** 2 + second
        noise = self.own * self.random.standard_normal(len(self.level[seeds]))
        return true + self.level[seeds] + noise

    def of_scale(self, scale: float) -> float:
        """What a scale costs."""
        return self.bend * math.log2(scale / self.best_scale) ** 2

    def of_number(self, number: int) -> float:
        """What another of the recipe's numbers costs."""
        return 0.0 if number == self.best_number else 4 * self.bend

    def tuned(self, *, adds: bool) -> Tuned:
        """By the protocol, on four seeds of its own."""
        at, of = slice(SEEDS, SEEDS + 4), self.of_scale if adds else self.of_number
        first = of(1.0 if adds else 0)

        def trial(lr: float, second: float, *changes) -> Trial:
            losses = tuple(float(loss) for loss in self.loss(lr, second, at))
            return Trial(((LR, lr), *changes), losses)

        grid = protocol.rates(SHARED)
        by_rate = {lr: trial(lr, first) for lr in grid}
        grid = protocol.extended(grid, protocol.best_of(list(by_rate.values())))
        rates = [by_rate.get(lr) or trial(lr, first) for lr in grid]
        lr = grid[protocol.best_of(rates)]
        if not adds:
            more = [trial(lr, of(i), each) for i, each in enumerate(_NUMBERS, 1)]
            if best := protocol.best_of([rates[grid.index(lr)], *more]):
                more.append(trial(lr, of(_BEYOND), (_NUMBERS[best - 1][0], 9.0)))
            return protocol.decided(SHARED, rates, more, on_a_line=False)
        more = [trial(lr, of(scale), (SCALE, scale)) for scale in protocol.SCALES]
        if protocol.best_of([rates[grid.index(lr)], *more]) == len(more):
            more.append(trial(lr, of(100.0), (SCALE, 100.0)))
        return protocol.decided(SHARED, rates, more, on_a_line=True)

    def kept(self, start: float, second: float) -> Tuned:
        """Its rate alone, from one that was best elsewhere; `second` is what the rest costs."""

        def trial(lr: float) -> Trial:
            losses = self.loss(lr, second, slice(SEEDS, SEEDS + 4))
            return Trial(((LR, lr),), tuple(float(loss) for loss in losses))

        by_rate = {lr: trial(lr) for lr in protocol.rates(start, is_own=True)}
        grid = protocol.extended((*by_rate,), protocol.best_of([*by_rate.values()]))
        rates = [by_rate.get(lr) or trial(lr) for lr in grid]
        how = protocol.decided(start, rates, [], on_a_line=True)
        return protocol.kept(how, Given(start, is_own=True, regret=_MISSED))

    def compared(self, how: Tuned, *, adds: bool) -> np.ndarray:
        """Losses on the fresh seeds at what was chosen."""
        if adds:
            second = self.of_scale(float(dict(how.changes).get(SCALE, 1.0)))
        else:
            known = {(): 0} | {(each,): i for i, each in enumerate(_NUMBERS, 1)}
            second = self.of_number(known.get(how.changes, _BEYOND))
        return self.loss(how.lr, second, slice(0, SEEDS))


def study_of_kept(scenario, random) -> tuple[str, str]:
    """The same of arms that keep their settings, the baseline too, but for their rates."""
    bend, off, common = scenario
    level = NOISE * math.sqrt(common) * random.standard_normal(SEEDS + 4)
    arm, base = (Arm(bend, 1.0, level, common, random) for _ in range(2))
    second = arm.of_scale(2 ** random.uniform(-off, off))
    hows = [each.kept(SHARED, cost) for each, cost in ((arm, second), (base, 0.0))]
    fresh = slice(0, SEEDS)
    losses = [
        list(each.loss(how.lr, cost, fresh))
        for each, how, cost in zip((arm, base), hows, (second, 0.0), strict=True)
    ]
    return words_of(losses, hows)


def study(scenario, random) -> tuple[str, str]:
    """The word that the interval alone says, and the one that is said."""
    bend, base_bend, (low, high), common = scenario
    level = NOISE * math.sqrt(common) * random.standard_normal(SEEDS + 4)
    scale = math.exp(random.uniform(math.log(low), math.log(high)))
    arm = Arm(bend, scale, level, common, random)
    base = Arm(base_bend, 1.0, level, common, random)
    ours, theirs = arm.tuned(adds=True), base.tuned(adds=False)
    losses = [list(arm.compared(ours, adds=True)), list(base.compared(theirs, adds=False))]
    return words_of(losses, [ours, theirs])


def words_of(losses, hows) -> tuple[str, str]:
    """The words about an arm and its baseline, each by losses and how it was tuned."""
    family = Family(tuple(range(SEEDS)), SEEDS, {"arm": ALPHA}, is_registered=True)
    found = look(*losses, islice(family.looks("arm"), 1))
    said = word(found.low, found.high, None)
    if said not in ("better", "worse"):
        return "", ""
    missed = [replace(how, rate_digest="by this protocol").may_miss for how in hows]
    return said, "" if may_be_tuning(said, (found.low, found.high), *missed, None) else said


def main() -> None:
    """Print a table: for each scenario the share of studies that call the arm anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    typed = parser.parse_args()
    error = 100 * math.sqrt(ALPHA * (1 - ALPHA) / typed.studies)
    print(f"{typed.studies} studies each; % called, one standard error at 5 % is {error:.2f}\n")
    print("| scenario | worse, before | better, before | worse | better | called |")
    print("|---|---|---|---|---|---|")
    for name, scenario in (SCENARIOS | KEPT).items():
        random, drawn = np.random.default_rng(typed.seed), study_of_kept if name in KEPT else study
        words = [drawn(scenario, random) for _ in range(typed.studies)]
        counts = [
            100 * sum(each[k] == w for each in words) / typed.studies
            for k in (0, 1)
            for w in ("worse", "better")
        ]
        shown = " | ".join(f"{count:.2f}" for count in (*counts, counts[2] + counts[3]))
        print(f"| {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
