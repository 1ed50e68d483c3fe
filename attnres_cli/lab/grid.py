"""The grid arms x seeds: what it takes, and what a study already holds of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, VariantError, unknown
from attnres_cli.lab import doctor
from attnres_cli.lab.workers import cores
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.lab.workers.worker import Job
from attnres_cli.nn import transfer, variant
from attnres_cli.nn.model import check_open, n_params, train_flops_per_token
from attnres_cli.nn.proofs.prove import admit
from attnres_cli.nn.residual import Residual, presets, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.records import machine
from attnres_cli.records.machine import Cores
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import WAITS, RunRecord, Settings
from attnres_cli.store.store import Store
from attnres_cli.train import device as computing
from attnres_cli.train import group
from attnres_cli.train.checkpoint import newest_identity, newest_step
from attnres_cli.verdict.numbers import plural

_NARROW = 256  # widths up to which two processes of one thread beat one of two on a CPU


def resolve(specs: Sequence[str], recipe: Recipe, vocab_size: int) -> tuple[Arm, ...]:
    """Arms from specs as they are typed, each design once, in the order given. Raises VariantError
    where a spec makes no sense, does not fit the recipe's sizes, or is an unfair design (`admit`:
    the 29 of suite `all` take a second or so in recipe quick, one of a user's own a tenth).
    """
    shape = recipe.model.shape(vocab_size)
    for part, _ in recipe.optim.part_lr_scale:
        if part not in registry():
            raise VariantError(f"optim.part_lr_scale: {unknown('variant', part, registry())}")
    arms: dict[str, Arm] = {}
    for spec in specs:
        typed, design = variant.parse(spec), sketch(spec, shape)
        check_transfer(design, shape, recipe)
        admit(typed, shape, recipe.train.batch_size)
        name = str(typed.at_depth(shape.n_sublayers))
        arms.setdefault(name, Arm(name, *counted(design, shape), code=code_of(name)))
    return tuple(arms.values())


def canonical(spec: str, recipe: Recipe) -> str:
    """The name of a design under a recipe. Raises VariantError where it does not fit its sizes."""
    shape = recipe.model.shape(vocab_size=1)
    sketch(spec, shape)
    return str(variant.parse(spec).at_depth(shape.n_sublayers))


def named(recipe: Recipe) -> Recipe:
    """The recipe with its settings by the canonical names of designs. Raises RecipeError. A design
    that does not fit the recipe's sizes or attention keeps the name that it has: nobody can train
    it here, and what a recipe says of it is of no matter. Of designs that are one only at this
    depth, as mudd:layers=2 is mudd in two layers, the settings of the one with that name count.
    """

    def name(spec: str) -> str:
        typed = str(variant.parse(spec))
        try:
            return canonical(spec, recipe)
        except VariantError:
            return typed

    typed = dict[str, str]()
    for spec, _ in (*recipe.arms, *recipe.regret):
        with suppress(VariantError):  # which `recipe.named` raises, and says where
            typed[spec] = str(variant.parse(spec))
    own = set(typed.values())
    other = {spec for spec, its in typed.items() if name(spec) != its and name(spec) in own}
    kept = {
        key: tuple(each for each in getattr(recipe, key) if each[0] not in other)
        for key in ("arms", "regret")
    }
    return recipe.model_copy(update=kept).named(name)


def sketch(spec: str, shape: Shape) -> Residual:
    """A design without numbers, to be counted. Raises VariantError where it does not fit."""
    with torch.device("meta"):
        design = variant.parse(spec).build(shape.d_model, shape.n_sublayers)
    try:
        check_open(design, shape)
    except VariantError as error:
        raise VariantError(f"{spec}: {error}") from error
    return design


def check_transfer(design: Residual, shape: Shape, recipe: Recipe) -> None:
    """Raise VariantError where a recipe transfers rates, and nothing says how to this design's."""
    if recipe.optim.base is not None:
        transfer.check(design, shape, over_depth=recipe.optim.transfer == "completep")


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


def make(
    recipe: Recipe,
    arms: tuple[Arm, ...],
    seeds: tuple[int, ...],
    fingerprint: str,
    device: str,
    workers: int | None,
    engine: str = "auto",
    threads: int | None = None,
) -> Plan:
    """The whole grid, and where it will be computed: by default by as many workers as the cores
    have room for, on GPUs by one for each. `threads` are those of earlier runs of the comparison
    (`threads_of`). Raises DeviceError or UsageError where device, engine and the recipe's `compile`
    do not go together, VariantError for a design that ranks cannot share.
    """
    found, allowed = computing.devices(device), machine.cores()
    on_cpu = found == ["cpu"]
    if (ranks := group.current()) is not None:  # all ranks are one worker
        workers, found = _alone(workers, ranks), found[:1]
    hands = workers or (0 if on_cpu else len(found))
    is_narrow = on_cpu and recipe.model.d_model <= _NARROW
    threads, whose = _threads(is_narrow, hands, allowed, threads)
    if workers is None:
        room = allowed.n // threads if on_cpu else len(found)
        workers = min(room, len(arms) * len(seeds))
    on = settings(recipe, found[0], threads, engine)
    if on.device == "cuda" and engine == "auto" and computing.assumed() is None:
        on = doctor.sound(on, found[0])
    if on.parallel[0] == "fsdp":
        from attnres_cli.train.ranks import check_sharded  # takes seconds to import

        for arm in arms:
            check_sharded(arm.variant, sketch(arm.variant, recipe.model.shape(vocab_size=1)))
    devices = tuple(found[i % len(found)] for i in range(workers))
    return Plan(recipe, arms, seeds, devices, on, fingerprint, threads_by=whose if on_cpu else "")


def settings(recipe: Recipe, device: str, threads: int, engine: str) -> Settings:
    """How runs of a recipe are computed on a device; raises as `make`."""
    flops = 3.0 * recipe.model.shape(vocab_size=1).flops_per_token()
    run_flops = flops * recipe.steps * recipe.tokens_per_step
    return computing.settings(recipe, device, threads, run_flops, engine)


def _alone(workers: int | None, ranks: group.Group) -> int:
    if workers not in (None, 1):
        raise UsageError(f"--workers {workers}: the {ranks.ranks} ranks of torchrun are one worker")
    return 1


def _threads(is_narrow: bool, workers: int, on: Cores, held: int | None) -> tuple[int, str]:
    """CPU threads of each run, and whose word that is: that of earlier runs of the comparison, as
    their number decides the rounding. Of a new one it is 1 for a narrow model, where processes of
    one thread each pay most, else all cores, shared by the workers typed (0: none were). The cores
    that may be used and OMP_NUM_THREADS bound it all the same.
    """
    wanted = held or (1 if is_narrow else max(1, on.n // max(1, workers)))
    most = min(machine.most_threads() or on.n, on.n)
    cores_ = f"{plural(on.n, 'core')}, {f'by {on.by}' if on.by else 'all of this machine'}"
    bound = cores_ if most == on.n else f"OMP_NUM_THREADS={most}"
    if held and most < held:
        whose = f"not {held} as the study's runs, which are not paired with these: {bound}"
    elif most < wanted:
        whose = bound
    elif held:
        whose = "as the study's runs"
    else:
        whose = f"which pays up to a width of {_NARROW}" if is_narrow else "shared by all workers"
    threads = min(wanted, most)
    return threads, f"{plural(threads, 'thread')} for each run, {whose}; {cores_}"


def threads_of(records: Sequence[RunRecord], held: Store | None = None) -> int | None:
    """CPU threads of the newest of these runs that a CPU has trained. If none has ended, those of a
    checkpoint beside their study: by others nothing goes on from it. None without both.
    """
    ended = [run.result.settings for run in records if run.result is not None]
    found = [on.threads for on in reversed(ended) if on.device == "cpu"]
    if found or held is None:
        return found[0] if found else None
    begun = (newest_identity(held.folder_of(run)) for run in reversed(records))
    return next((int(made["threads"]) for made in begun if made.get("device") == "cpu"), None)


def without(
    plan: Plan, records: Sequence[RunRecord], folder_of: Callable[[RunRecord], Path] | None = None
) -> Plan:
    """The plan less its runs that have ended, whatever came of them. Of those that have checkpoints
    in their folders, it knows from which step they go on.
    """
    held = {record.identity for record in records if record.status not in WAITS}
    waiting = [record for record in records if record.status in WAITS]
    steps = {run.identity: newest_step(folder_of(run)) for run in waiting} if folder_of else {}
    begun = {identity: step for identity, step in steps.items() if step}
    return replace(plan, done=frozenset(held), begun=begun)


def jobs(plan: Plan, study: str) -> list[Job]:
    """One for each of the plan's workers; on a CPU each is bound to cores of its own."""
    bound = cores.shares(machine.cores(), len(plan.devices))
    return [
        Job(study, name, plan.settings, plan.recipe, mine if name == "cpu" else ())
        for name, mine in zip(plan.devices, bound, strict=True)
    ]
