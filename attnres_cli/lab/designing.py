"""What `attnres search --designs` does: plan, look at designs, tune and compare the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from optuna.storages import RDBStorage

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import StudyError, UsageError
from attnres_cli.lab import comparing, grid, match, memory, step_times, tune
from attnres_cli.lab.experiment import Experiment, Place, Watcher
from attnres_cli.lab.search import studies
from attnres_cli.lab.search.design_family import DesignFamily, DesignPoints, DesignRunner
from attnres_cli.lab.search.design_proposals import TOP, Seen, proposed
from attnres_cli.lab.search.designs import parse
from attnres_cli.lab.search.looks import BASELINE, MULTIPLES, SHARE, Looks, shorter
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.records.comparison_terms import Match
from attnres_cli.records.plan import Arm, Plan, n_tokens
from attnres_cli.records.run import FIRST_LOOK_SEED, RunRecord
from attnres_cli.records.search_records import MOST_COUNTED, Designs, Search
from attnres_cli.store.optuna import Turn, asking, optuna_storage, turns
from attnres_cli.store.store import Store
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import computing, duration, plural
from attnres_cli.verdict.slope import stated

FAMILY = "designs"
_REFERENCE = "attnres"  # what the best designs are compared with, beside the baseline
_TIMED = 4  # designs, drawn at random, whose steps stand for those of all
_TUNED_RUNS = 32  # of each arm that is compared


@dataclass(frozen=True)
class Request:
    """A search over designs that can be carried out; `search` has no families. Of `looks.plan` the
    arms are the baseline and a few designs drawn at random, to be weighed and timed.
    """

    search: Search
    looks: Looks
    place: Place
    n_confirmed: int

    @property
    def n_looks(self) -> tuple[int, int]:
        """How many there are, of a quarter of the tokens and of all."""
        n = self.search.about.n_of(self.search.n_trials)
        return n, max(1, n // SHARE)

    @property
    def n_compared(self) -> int:
        """How many runs tune and compare the best designs."""
        n_seeds = len(self.search.confirm_seeds)
        is_compared = self.n_confirmed > 0 and n_seeds > 0
        return (self.n_confirmed + 2) * (_TUNED_RUNS + n_seeds) if is_compared else 0


def make(
    recipe: Recipe,
    text: str,
    budget: Match,
    objective: str,
    n_trials: int,
    n_confirmed: int,
    seeds: tuple[int, ...],
    place: Place,
) -> Request:
    """The search that is asked for, of what is typed. Raises UsageError, VariantError, DataError,
    DeviceError where a design cannot fit into memory.
    """
    if recipe.ladder:
        raise UsageError(f"recipe {recipe.name} has a ladder of sizes: a search has one size")
    slope = stated(recipe) if objective == "time" else None
    if objective == "time" and slope is None:
        raise UsageError(
            f"--objective time: recipe {recipe.name} states no slope, what tokens are worth; type "
            "--objective val_loss, or --set slope=0.2, in nats per e-fold of tokens"
        )
    space, recipe, tokens = parse(text), grid.named(recipe), sources.load(recipe)
    shared = recipe.at_rate(recipe.optim.lr)
    base = grid.resolve([BASELINE], shared, tokens.vocab_size)
    plan = _planned(shared, base, tokens, n_trials, place)
    looks = Looks(space, recipe, tokens, budget, plan)
    search = Search(
        name="",
        recipe=recipe.name,
        recipe_digest=shared.digest,
        fingerprint=tokens.fingerprint,
        budget=budget,
        tolerance=match.TOLERANCE.get(budget, 0.0),
        space=space.text or "all",
        objectives=(objective,),
        learning_rate="that of its stream, and of each part the multiple that suits it alone",
        first_seed=FIRST_LOOK_SEED,
        confirm_seeds=seeds,
        n_trials=n_trials,
        families=(),
        codes=tuple(code_of(part).digest for part in (*space.streams, *space.addons)),
        designs=_about(looks, shared, slope.value if slope else None),
    )
    search = replace(search, name=studies.name_of(search, [FAMILY]))
    looks.plan = _fitted(replace(plan, arms=(*base, *_drawn(looks))), looks, objective, place)
    return Request(search, looks, place, n_confirmed)


def _planned(
    shared: Recipe, base: tuple[Arm, ...], tokens: Tokens, n_trials: int, place: Place
) -> Plan:
    """Of the baseline, on the threads of the study's."""
    held = Store.existing(place.study)
    before = [run for run in (held.runs(curves=False) if held else []) if run.variant == BASELINE]
    threads = grid.threads_of(before, held)
    on = place.device, place.workers, place.engine, threads
    plan = grid.make(shared, base, tuple(range(n_trials)), tokens.fingerprint, *on)
    return replace(plan, seeds=(FIRST_LOOK_SEED,), data=tokens.description)


def _about(looks: Looks, shared: Recipe, slope: float | None) -> Designs:
    """What is kept of the space, and of the tokens of its looks."""
    space, whole = looks.space, looks.arm(BASELINE, TOP).recipe
    assert whole is not None
    sizes = shared.model.d_model, 2 * shared.model.n_layers
    return Designs(
        size=space.size,
        legal=space.legal(lambda choices: space.name_of(choices, *sizes)),
        tokens=(n_tokens(shorter(whole)), n_tokens(whole)),
        baseline_digest=whole.digest,
        settings_digest=looks.recipe.digest,
        slope=slope,
    )


def _fitted(plan: Plan, looks: Looks, objective: str, place: Place) -> Plan:
    """The plan on as many workers as fit; on a GPU one, where times are compared."""
    found = memory.fitted(plan, looks.tokens, place.workers)
    if objective == "time" and place.workers is None and found.settings.device != "cpu":
        return replace(found, devices=plan.devices, workers_by=plan.workers_by)
    return found


def _drawn(looks: Looks) -> list[Arm]:
    """A few designs of the space. Raises UsageError where none is legal."""
    seen, found = list[Seen](), list[Arm]()
    while len(found) < _TIMED:
        if (one := proposed(looks.space, looks.name_of, seen, len(seen), None)) is None:
            break
        seen.append(Seen(one[0], 0, None))
        found.append(looks.arm(one[1], TOP))
    if not found:
        raise UsageError("--designs: no design of this space fits the recipe: widen the space")
    return found


def run(request: Request, watcher: Watcher) -> tuple[list[Comparison], int]:
    """Do what the study lacks of a search: the comparisons of its best designs, the one that counts
    last, and how many runs failed.
    """
    study, search, looks = request.place.study, request.search, request.looks
    store = Store.open(study, create=True)
    for line in studies.of_other_code(search, [FAMILY], study):
        watcher.note(line)
    experiment = Experiment(request.place, store, looks.tokens, watcher)
    with optuna_storage(study) as storage, turns(study) as alone:
        baseline, recipe = _prepared(request, experiment), looks.compared()
        about = replace(request.search.about, compared_digest=recipe.digest)
        search = replace(search, designs=about)
        request = replace(request, search=search)
        family = _family(request, storage, alone)
        slope = about.slope or 0.0
        runner = DesignRunner(experiment, looks.plan, search, [family], slope=slope)
        if slope:
            runner.baseline_step_s = _step_s(baseline)
        if request.place.retry_failed:
            runner.retry()
        if family.n_left(search.n_trials):
            timed = step_times.timed(looks.plan, looks.tokens)
            seconds = seconds_of(request, timed)
            runner.look_s = seconds[0] / sum(request.n_looks) if seconds else None
            watcher.text(lines(request, timed))
        runner.screen()
        names = family.best_designs(request.n_confirmed)
    if not names or not search.confirm_seeds:
        return [], len(experiment.failed)
    watcher.note(f"tuning and comparing {', '.join(names)}")
    specs = list(dict.fromkeys([_REFERENCE, *names]))
    asked = comparing.Request(
        specs, search.confirm_seeds, BASELINE, looks.budget, tune_lr=True, place=request.place
    )
    found, n_failed = comparing.ablation(asked, recipe, watcher).compared()
    return found, n_failed + len(experiment.failed)


def _prepared(request: Request, experiment: Experiment) -> RunRecord:
    """The baseline's first look, which is trained here, as are parts at several rates."""
    looks, plan = request.looks, request.looks.plan
    experiment.prepare(plan)
    first = replace(plan, arms=(looks.arm(BASELINE, TOP),), terms=plan.terms)
    experiment.complete(first, "the first look at the baseline")
    arms = {part: looks.at_multiples(part) for part in looks.untuned()}
    if arms:
        every = tuple(arm for tried in arms.values() for arm in tried)
        title = "rates of parts of which the recipe says nothing"
        experiment.complete(replace(plan, arms=every), title)
    losses = tune.losses_of(experiment.store.runs(curves=False))

    def loss(arm: Arm) -> float:
        found = losses.get(plan.spec(arm, FIRST_LOOK_SEED).identity, math.inf)
        return found if math.isfinite(found) else math.inf

    for part, tried in arms.items():
        best = min(range(len(MULTIPLES)), key=lambda n: loss(tried[n]))
        looks.multiples[part] = MULTIPLES[best]
        if math.isinf(loss(tried[best])):
            experiment.watcher.warn(f"{part}: no multiple of the rate trained; 1 is taken")
    (record,) = experiment.records(first.specs)
    return record


def _step_s(baseline: RunRecord) -> float:
    if baseline.result is None:
        raise StudyError(
            f"--objective time: the first look at {BASELINE} (run {baseline.id}) has failed; "
            "--retry-failed trains it again"
        )
    return baseline.result.step_s


def _family(request: Request, storage: RDBStorage, alone: Turn) -> DesignFamily:
    search, study = request.search, request.place.study
    begin = partial(studies.open_study, storage, search, [FAMILY], FAMILY)
    held = asking(study, begin)
    seed = int(search.name, 16)
    opened = FAMILY, DesignPoints(request.looks), held, storage, alone, 0, study
    family = DesignFamily(*opened, request.looks, seed, request.n_looks[0])
    family.keep_asked(search, "tpe")
    return family


def lines(request: Request, timed: Plan) -> list[str]:
    """What a search will look at, and how long that takes; `timed` is its plan with step times."""
    search, about = request.search, request.search.about
    (n_short, n_whole), (short, whole) = request.n_looks, about.tokens
    share = "" if about.size <= MOST_COUNTED else " (of 500 drawn)"
    held = {
        "tokens": f"the tokens of {BASELINE}",
        "params": f"the parameters and tokens of {BASELINE}",
        "flops": f"the FLOPs and tokens of {BASELINE}",
    }
    told = [
        f"search {search.name}: recipe {search.recipe}, designs {search.space}",
        f"{about.size:,} combinations, {about.legal:.0%} legal{share}; each design has "
        f"{held[search.budget]}",
        f"{plural(n_short, 'design')} at {short:,} tokens, about {n_whole} of them at {whole:,}; "
        f"sampler tpe, objective {search.objectives[0]}",
    ]
    if untuned := request.looks.untuned():
        told.append(f"rates tuned first, {len(MULTIPLES)} runs each: {', '.join(untuned)}")
    told += [computing(timed), *filter(None, (timed.threads_by, timed.workers_by))]
    n_seeds = len(search.confirm_seeds)
    if request.n_compared:
        told.append(
            f"then {BASELINE}, {_REFERENCE} and the {request.n_confirmed} best are tuned (about "
            f"{_TUNED_RUNS} runs each) and compared on {plural(n_seeds, 'fresh seed')}"
        )
    if (seconds := seconds_of(request, timed)) is not None:
        looks_s, after_s = seconds
        after = f", of the comparison {duration(after_s)}" if request.n_compared else ""
        told.append(f"predicted time of the looks: {duration(looks_s)}{after}")
    return told


def seconds_of(request: Request, timed: Plan) -> tuple[float, float] | None:
    """How long looks, and the comparison after them, train; None where that cannot be timed."""
    took = [arm.step_s for arm in timed.arms[1:] if arm.step_s is not None]
    if not took:
        return None
    (short, whole), (n_short, n_whole) = request.search.about.tokens, request.n_looks
    n_tuned = len(request.looks.untuned()) * len(MULTIPLES)
    token_s = fmean(took) / request.looks.recipe.tokens_per_step / len(timed.devices)
    looks_s = token_s * ((n_short + n_tuned) * short + n_whole * whole)
    return looks_s, token_s * request.n_compared * whole
