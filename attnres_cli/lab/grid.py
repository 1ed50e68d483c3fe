"""The grid arms x seeds: what it takes, and what a study already holds of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import VariantError
from attnres_cli.lab.workers import cores
from attnres_cli.lab.workers.worker import Job
from attnres_cli.nn import code, design_page, variant
from attnres_cli.nn.model import n_params, train_flops_per_token
from attnres_cli.nn.proofs.prove import admit
from attnres_cli.nn.residual import Residual, is_built_in, presets, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.records import device_flops
from attnres_cli.records.plan import TIMED_STEPS, Arm, Plan
from attnres_cli.records.run import DESIGN_CODE, WAITS, RunRecord, RunSpec
from attnres_cli.train import device as computing
from attnres_cli.train.trainer import seconds_per_step

_NARROW = 256  # widths up to which two processes of one thread beat one of two on a CPU


def resolve(specs: Sequence[str], recipe: Recipe, vocab_size: int) -> tuple[Arm, ...]:
    """Arms from specs as they are typed, each design once, in the order given. Raises VariantError
    where a spec makes no sense, does not fit the recipe's sizes, or is an unfair design (`admit`).
    """
    shape = recipe.model.shape(vocab_size)
    arms: dict[str, Arm] = {}
    for spec in specs:
        typed, design = variant.parse(spec), sketch(spec, shape)
        if not is_built_in(type(design)):
            admit(typed, shape)
        name = str(typed.at_depth(shape.n_sublayers))
        arms.setdefault(name, Arm(name, *counted(design, shape)))
    return tuple(arms.values())


def canonical(spec: str, recipe: Recipe) -> str:
    """The name of a design under a recipe. Raises VariantError where it does not fit its sizes."""
    shape = recipe.model.shape(vocab_size=1)
    sketch(spec, shape)
    return str(variant.parse(spec).at_depth(shape.n_sublayers))


def sketch(spec: str, shape: Shape) -> Residual:
    """A design without numbers, to be counted. Raises VariantError where it does not fit."""
    with torch.device("meta"):
        return variant.parse(spec).build(shape.d_model, shape.n_sublayers)


def counted(design: Residual, shape: Shape) -> tuple[int, int]:
    """Parameters of a model with this design, and training FLOPs per token."""
    return n_params(shape, design), train_flops_per_token(shape, design)


def renamed(specs: Sequence[str], recipe: Recipe) -> list[tuple[str, str]]:
    """(spec, name) of specs that are presets, or equal a simpler design at the recipe's depth."""
    found = []
    for typed in specs:
        spec = variant.parse(typed)
        before = typed if typed.partition(":")[0] in presets() else str(spec)
        found.append((before, str(spec.at_depth(2 * recipe.model.n_layers))))
    return [(before, name) for before, name in found if before != name]


def check_code(plan: Plan, records: Sequence[RunRecord]) -> None:
    """Raise VariantError where the study holds runs of a design made by other code of it."""
    made: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in records:
        if run.result is not None and DESIGN_CODE in run.versions:
            made[run.variant, run.recipe_digest].add(run.versions[DESIGN_CODE])
    for arm in plan.arms:
        cls = registry()[variant.parse(arm.variant).name]
        before = made[arm.variant, plan.recipe_of(arm).digest]
        if before and before != {code.of_design(cls)}:
            raise VariantError(
                f"{arm.variant}: {design_page.file_of(cls)}, or a file that it imports, has "
                "changed since the study's runs of it: use another --study"
            )


def make(
    recipe: Recipe,
    arms: tuple[Arm, ...],
    seeds: tuple[int, ...],
    fingerprint: str,
    device: str,
    workers: int | None,
    engine: str = "auto",
) -> Plan:
    """The whole grid, and where it will be computed. Raises DeviceError or UsageError where device,
    engine and the recipe's `compile` do not go together.

    Without a number of workers: one per GPU; on a CPU one per core up to a width of 256, where
    processes of one thread each pay most, else one with all cores.
    """
    found, n_cores = computing.devices(device), len(device_flops.cores())
    if workers is None:
        on_cpu = n_cores if recipe.model.d_model <= _NARROW else 1
        workers = on_cpu if found == ["cpu"] else len(found)
        workers = min(workers, len(arms) * len(seeds))
    shape = recipe.model.shape(vocab_size=1)
    run_flops = 3.0 * shape.flops_per_token() * recipe.steps * recipe.tokens_per_step
    settings = computing.settings(recipe, found[0], max(1, n_cores // workers), run_flops, engine)
    devices = tuple(found[i % len(found)] for i in range(workers))
    return Plan(recipe, arms, seeds, devices, settings, fingerprint)


def timed(plan: Plan, tokens: Tokens, note: Callable[[str], None] | None = None) -> Plan:
    """The plan, after timing a few steps of every missing arm on its first device; of long steps a
    part of the batch (`Plan.timed_sequences`). An arm that cannot be trained keeps step_s None.
    """
    missing = {arm.variant for arm, _ in plan.missing if arm.step_s is None}
    if note is not None and missing:
        note("timing a few training steps of every arm")
    if plan.timed_sequences == 0:
        return plan
    torch.set_num_threads(plan.settings.threads)
    times = {}  # arms that differ in their learning rates are as fast as each other
    for arm in plan.arms:
        alike = (arm.variant, plan.recipe_of(arm).model)
        if arm.variant in missing and alike not in times:
            times[alike] = _step_s(arm, plan, tokens)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # the workers need that memory
    arms = [
        replace(arm, step_s=times.get((arm.variant, plan.recipe_of(arm).model), arm.step_s))
        for arm in plan.arms
    ]
    return replace(plan, arms=tuple(arms))


def _step_s(arm: Arm, plan: Plan, tokens: Tokens) -> float | None:
    sequences, recipe = plan.timed_sequences, plan.recipe_of(arm)
    batch_size = recipe.train.batch_size
    less = {"batch_size": sequences, "micro_batch_size": None}
    part = recipe.train.model_copy(update=less)
    recipe = recipe.model_copy(update={"train": part})
    spec = RunSpec(recipe, arm.variant, plan.seeds[0], plan.fingerprint)
    settings = plan.settings.uncompiled
    try:
        seconds = seconds_per_step(spec, tokens, settings, plan.devices[0], TIMED_STEPS)
    except Exception:  # a design may raise anything; the worker that runs it writes it down
        return None
    return seconds * batch_size / sequences


def without(plan: Plan, records: Sequence[RunRecord]) -> Plan:
    """The plan less its runs that have ended, whatever came of them."""
    held = {
        (record.recipe_digest, record.variant, record.seed)
        for record in records
        if record.status not in WAITS and record.fingerprint == plan.fingerprint
    }
    return replace(plan, done=frozenset(held))


def jobs(plan: Plan, study: str) -> list[Job]:
    """One for each of the plan's workers; on a CPU each is bound to cores of its own."""
    bound = cores.shares(device_flops.cores(), len(plan.devices))
    return [
        Job(study, name, plan.settings, plan.recipe, mine if name == "cpu" else ())
        for name, mine in zip(plan.devices, bound, strict=True)
    ]
