"""How many seeds a study needs, and what they cost: from what it holds, before arms are trained;
and how many would decide an arm that is inconclusive so far.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from attnres_cli.config import address
from attnres_cli.config.as_typed import ablate_typed, overrides_of, plugins_typed
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.comparison_terms import BY_DESIGN, SHARED
from attnres_cli.records.run import DataDescription, RunRecord, RunResult
from attnres_cli.stats import power
from attnres_cli.stats.power import Noise, Pairing
from attnres_cli.stats.sequential import LEAST_SEEDS, MOST, first_rate, grows
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.family import BASELINE_FIRST
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.numbers import plural
from attnres_cli.verdict.slope import Slope

MINUTES = 5  # of training: what a resolution is quoted for
_SEEDS = 7  # of the baseline at another budget
_MOST_SEEDS = 1000  # that one command takes


@dataclass(frozen=True)
class PowerAnalysis:
    """What the runs of a study say about one that would separate a gap (nats per token).

    Attributes:
        noise: of the baseline's losses over seeds.
        n_arms: besides the baseline.
        alpha: the rate of the first look at each of them in this study.
        pairings: of each arm of the study, that with the largest spread first; then assumed ones.
        runs: for each arm, the baseline first, runs held and the seconds that one takes, the median
            of `n_timed` runs.
        left_out: runs of the baseline that do not count: diverged, or computed in another way.
        slope: of the baseline's loss over tokens; None: not known.
    """

    comparison: Comparison
    noise: Noise
    gap: float
    n_arms: int
    alpha: float
    pairings: tuple[Pairing, ...]
    runs: tuple[tuple[int, float], ...]
    n_timed: int
    workers: int
    numerics: str
    left_out: int
    slope: Slope | None

    def worth(self, nats: float) -> float | None:
        """A difference in loss as a multiple of compute; None where no slope is known."""
        return power.multiplier(nats, self.slope.value) if self.slope else None

    def until_decided(self, pairing: Pairing) -> tuple[float, int, float]:
        """Of new studies whose arms get seeds until they are decided: the share that finds the gap,
        and the seeds and seconds that this takes, on average.
        """
        looks = grows(MOST, self.n_arms)
        share, mean = power.growing(looks, self.gap / pairing.sd)
        seeds, fresh = math.ceil(mean), [(0, each) for _, each in self.runs]
        return share, seeds, power.seconds(seeds, fresh, self.workers)[2]

    def in_minutes(self, pairing: Pairing) -> tuple[int, float | None]:
        """Seeds of all arms that fit into MINUTES of training, and the least difference that they
        find, None of fewer than a verdict takes.
        """
        seeds = int(60 * MINUTES * self.workers / sum(each for _, each in self.runs))
        least = power.detectable(seeds, pairing.sd, self.alpha) if seeds >= LEAST_SEEDS else None
        return seeds, least


def analyse(
    records: Sequence[RunRecord],
    facts: DataDescription,
    baseline: str,
    gap: float,
    n_arms: int | None,
    workers: int | None,
    n_cores: int,
    slope: Slope | None = None,
) -> PowerAnalysis | None:
    """What runs of one recipe and fingerprint say; None where fewer than two of the baseline count.
    n_arms None stands for the arms that the study holds, or one; workers None for as many processes
    as the threads of the runs leave room for on n_cores, on a GPU one.
    """
    results: dict[str, dict[int, RunResult]] = {baseline: {}}
    for run in records:
        if run.result is not None:
            results.setdefault(run.variant, {})[run.seed] = run.result
    base = results[baseline]
    numerics = next((each.settings.numerics for each in reversed(base.values())), "")
    losses = {
        seed: result.val_loss
        for seed, result in base.items()
        if math.isfinite(result.val_loss) and result.settings.numerics == numerics
    }
    if len(losses) < 2:
        return None
    comparison = compare([run for run in records if run.result], facts, baseline)
    n_tests, floor = n_arms or max(1, len(results) - 1), power.noise([*losses.values()])
    alpha = first_rate(n_tests) * (1 if len(results) > 1 else BASELINE_FIRST)
    assumed = [power.assumed(floor, rho, gap, alpha) for rho in power.ASSUMED]
    pairs = _pairs(comparison, losses)
    each = (power.measured(arm, *pair, gap, alpha) for arm, pair in pairs.items())
    measured = sorted(filter(None, each), key=lambda pairing: -pairing.sd)
    on = base[next(iter(losses))].settings
    fitting = max(1, n_cores // max(1, on.threads)) if on.device == "cpu" else 1
    runs, n_timed = _runs(results, baseline, n_tests), sum(map(len, results.values()))
    return PowerAnalysis(
        comparison, floor, gap, n_tests, alpha, (*measured, *assumed), tuple(runs), n_timed,
        workers or fitting, numerics, len(base) - len(losses), slope,
    )  # fmt: skip


def _pairs(
    comparison: Comparison, losses: Mapping[int, float]
) -> dict[str, tuple[list[float], list[float]]]:
    """The losses of each arm that can be compared, and the baseline's, of the seeds of both."""
    found = {}
    for arm in comparison.arms:
        if arm.difference is not None:
            shared = sorted(arm.losses.keys() & losses.keys())
            pair = [arm.losses[s] for s in shared], [losses[s] for s in shared]
            found[arm.variant] = pair
    return found


def _runs(
    results: Mapping[str, Mapping[int, RunResult]], baseline: str, n_arms: int
) -> list[tuple[int, float]]:
    """Runs held and seconds of the baseline, then of the arms with most runs. Arms that are still
    to come take as long as the others' median, or the baseline's.
    """
    held = {n: (len(of), median(r.train_s for r in of.values())) for n, of in results.items()}
    base = held.pop(baseline)
    usual = median(time for _, time in held.values()) if held else base[1]
    arms = sorted(held.values(), reverse=True)[:n_arms]
    return [base, *arms, *[(0, usual)] * (n_arms - len(arms))]


def too_few_runs(study: str, recipe: str, baseline: str, held: int) -> StudyError:
    """What to say where the baseline has too few runs."""
    words = ["attnres", "ablate", baseline, "--recipe", recipe, "--seeds", "5"]
    command = shlex.join([*words, *address.typed(study), *plugins_typed([baseline])])
    return StudyError(
        f"study {study} holds {plural(held or 'no', 'run')} of {baseline} under recipe {recipe} "
        f"that count, a noise floor takes two or more: `{command}`"
    )


def to_measure(recipe: Recipe, baseline: str, study: str) -> list[str]:
    """What trains the baseline at half of the recipe's tokens and at twice as many, for its slope;
    empty where no command gives such recipes.
    """
    other = [recipe.at(n * recipe.tokens_per_step) for n in (recipe.steps // 2, 2 * recipe.steps)]
    typed = [overrides_of(each) for each in other] if recipe.steps > 1 else []
    return [
        shlex.join([*ablate_typed([baseline], *each, range(_SEEDS)), *address.typed(study)])
        for each in typed
        if each is not None
    ]


@dataclass(frozen=True)
class Deciding:
    """The arm, the seeds that it and the baseline need in all, and how long those that are missing
    train one after the other; None where that is not known.
    """

    arm: ArmResult
    seeds: int
    n_more: int
    seconds: float | None


def deciding(comparison: Comparison) -> Deciding | None:
    """Of the inconclusive arms the one that fewest seeds decide with a probability of 80%, if its
    difference is what it seems; None where 1,000 seeds would not, or a command would not name the
    same runs.
    """
    if comparison.terms not in (SHARED, BY_DESIGN):
        return None
    needed = [(n, arm) for arm in comparison.arms if (n := _needed(arm, comparison)) is not None]
    if not needed:
        return None
    seeds, arm = min(needed, key=lambda each: each[0])
    held: dict[str, list[float]] = {comparison.baseline: [], arm.variant: []}
    for run in comparison.records:
        if run.result is not None and run.variant in held:
            held[run.variant].append(run.result.train_s)
    missing = [(max(0, seeds - len(times)), times) for times in held.values()]
    seconds = sum(n * median(times) for n, times in missing) if all(held.values()) else None
    return Deciding(arm, seeds, max(n for n, _ in missing), seconds)


def _needed(arm: ArmResult, comparison: Comparison) -> int | None:
    """Seeds of the first later look that finds a difference as large with enough power."""
    one, look = arm.difference, arm.look
    if arm.verdict != "inconclusive" or one is None or look is None or one.sd == 0:
        return None
    for size, alpha in comparison.family.looks(arm.variant):
        if size > _MOST_SEEDS:
            return None
        if size > look.n and power.power(size, abs(one.mean) / one.sd, alpha) >= power.POWER:
            return size
    return None
