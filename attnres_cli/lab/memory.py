"""Whether runs fit into the memory that there is, and how many at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage

from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DeviceError
from attnres_cli.lab.step_memory import of_step
from attnres_cli.records import machine
from attnres_cli.records.device_flops import least_s
from attnres_cli.records.plan import KEEPS_LESS, NOTHING_LESS, Arm, Memory, Plan
from attnres_cli.train.device import assumed, memory_there
from attnres_cli.verdict.numbers import megabytes, plural

_MARGIN = 1.15
"""How far a prediction may be too high: what could fit is not refused."""

_LAUNCH_S = 5e-6
"""Of an eager operation, by Python, autograd and dispatch: 4.2 to 5.5 us on a core of an AMD EPYC,
tiny tensors' arithmetic included; a launch on a GPU takes more, which leaves it more idle.
"""

_KERNEL_S = 2e-6  # of the shortest kernel
_SHARE_OF_PEAK = 0.5  # of FLOPs and bytes per second, that eager kernels reach at best
_CONTEXT_BYTES = 5 * 10**8
"""Of a GPU, that a process takes beside its tensors: 426 MiB of torch 2.10 with CUDA 13, and the
kernels that it loads. The workspace of its matrix products is part of `Memory.peak`.
"""

_PROCESS_BYTES = 12 * 10**8  # of a machine, that this command and one worker take beside theirs

_KNOWN: dict[Hashable, Memory | None] = {}
"""What has been counted in this process."""


def lacks_disk(plan: Plan, folder: Path) -> str:
    """What to warn of where the disk that a study's files are to lie on has too little room for
    what a plan's runs write; empty where it has.
    """
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), None)
    needed = plan.kept_bytes + plan.checkpoint_bytes
    if there is None or not plan.missing or (free := disk_usage(there).free) >= needed:
        return ""
    return (
        f"the disk of {folder} has {megabytes(free)} free, and these runs write up to "
        f"{megabytes(needed)}: losses are kept, final weights and checkpoints that do not fit are "
        "lost"
    )


def weighed(plan: Plan, tokens: Tokens, there: int | None) -> Plan:
    """The plan with the memory of every missing arm, counted: about a second for both of quick. Not
    of those after one whose weights and optimiser state alone do not fit into `there` bytes.
    """
    missing, arms = {arm for arm, _ in plan.missing}, list(plan.arms)
    for place, arm in enumerate(plan.arms):
        if arm not in missing:
            continue
        arms[place] = _weighed(arm, plan, tokens)
        held = arms[place].memory
        if held and there and held.weights + held.optimiser > _MARGIN * there:
            break
    return replace(plan, arms=tuple(arms))


def fitted(plan: Plan, tokens: Tokens, workers: int | None) -> Plan:
    """The plan, weighed, with no more workers than fit at once; as many as were typed, if any.
    Raises DeviceError with what to type where what is missing cannot fit.
    """
    there, where = memory_there(plan.devices[0])
    plan = weighed(plan, tokens, there)
    if there is None:
        return plan
    peaks = {arm: arm.memory.peak for arm, _ in plan.missing if arm.memory is not None}
    if peaks and max(peaks.values()) + _beside(plan) > _MARGIN * there:
        arm = max(peaks, key=peaks.__getitem__)
        raise DeviceError(f"{_needs(arm)}, and {where}: {_help(arm, plan, tokens, there)}")
    n = len(plan.devices)
    fits = next(k for k in range(n, 0, -1) if k == 1 or _together(plan, k) <= _MARGIN * there)
    if fits == n:
        return plan if workers is not None else _sharing(plan, there)
    needs = f"{n} workers at once need {megabytes(_together(plan, n))}, and {where}"
    if workers is not None:
        raise DeviceError(f"{needs}: --workers {fits}")
    told = f"{plural(fits, 'worker')}, not {n}, for want of memory: {needs}"
    return replace(plan, devices=plan.devices[:fits], workers_by=told)


def _sharing(plan: Plan, there: int) -> Plan:
    """The plan with several workers per GPU where one leaves it idle by arithmetic: while it
    launches the operations of a step (`_LAUNCH_S`), more of them could be computed, each in
    `_KERNEL_S` at least and all in twice what the device's peaks allow.
    """
    settings, missing = plan.settings, {arm for arm, _ in plan.missing}
    if settings.device == "cpu" or settings.compiled or settings.way or not missing or assumed():
        return plan
    found = []
    for arm in missing:
        held, train = arm.memory, plan.recipe_of(arm).train
        if held is None:
            return plan
        parts = train.batch_size // train.rows
        n, flops = held.n_operations * parts, arm.flops_per_token * plan.recipe.tokens_per_step
        moved = 3 * held.made * parts  # written once, read twice
        least = least_s(settings.device_name, settings.precision, flops, moved)
        if least is None:
            return plan
        busy = max(n * _KERNEL_S, least / _SHARE_OF_PEAK)
        room = there / (_MARGIN * held.peak + _CONTEXT_BYTES)
        found.append((min(int(n * _LAUNCH_S / busy), int(room)), n, busy, arm.variant))
    each, n, busy, variant = min(found)
    gpus = list(dict.fromkeys(plan.devices))
    hands = min(each * len(gpus), len(plan.missing), machine.cores().n)
    if hands <= len(plan.devices):
        return plan
    told = (
        f"{hands} workers: by arithmetic, a step of {variant} takes {1e3 * n * _LAUNCH_S:.2g} ms "
        f"to launch its {n:,} operations, and a GPU {1e3 * busy:.2g} ms to compute them; "
        "--workers overrides"
    )
    return replace(plan, devices=tuple(gpus[i % len(gpus)] for i in range(hands)), workers_by=told)


def _weighed(arm: Arm, plan: Plan, tokens: Tokens) -> Arm:
    recipe, settings = plan.recipe_of(arm), plan.settings.uncompiled
    if settings.parallel[0] == "pipeline":  # no rank has the model whole
        return arm
    train = recipe.train.of_rank(settings.ranks)
    key = (
        *(arm.variant, arm.code, recipe.model, recipe.optim.optimizer, tokens.vocab_size),
        tokens.separator is None,
        *(train.rows, train.rows < train.batch_size, train.checkpoint_activations),
        *(settings.device, settings.precision, settings.engine, settings.ranks),
    )
    if key not in _KNOWN:
        _KNOWN[key] = of_step(plan.spec(arm, plan.seeds[0]), tokens, plan.settings)
    return replace(arm, memory=_KNOWN[key])


def _together(plan: Plan, n_workers: int) -> int:
    """Bytes of the runs that so many workers begin with, on the device that has fewest of them."""
    held = [arm.memory.peak if arm.memory else 0 for arm, _ in plan.missing[:n_workers]]
    each = n_workers // len(set(plan.devices[:n_workers]))
    return sum(sorted(held)[:each]) + each * _beside(plan)


def _beside(plan: Plan) -> int:
    """Bytes of a device that a process takes for itself."""
    return _CONTEXT_BYTES if plan.settings.device == "cuda" else 0


def _needs(arm: Arm) -> str:
    assert arm.memory is not None
    whole, weights, optimiser = arm.memory.peak, arm.memory.weights, arm.memory.optimiser
    return (
        f"a run of {arm.variant} needs {megabytes(whole)} ({megabytes(weights)} of weights, "
        f"{megabytes(optimiser)} of optimiser state, {megabytes(whole - weights - optimiser)} of "
        "a step)"
    )


def _help(arm: Arm, plan: Plan, tokens: Tokens, there: int) -> str:
    """What to type, so that the arm fits."""
    recipe = plan.recipe_of(arm)
    train, room = recipe.train.of_rank(plan.settings.ranks), there - _PROCESS_BYTES

    def peak(rows: int, keeps_less: bool) -> int:
        changes = {"micro_batch_size": rows, "checkpoint_activations": keeps_less}
        own = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
        memory = _weighed(replace(arm, recipe=own), plan, tokens).memory
        return memory.peak if memory is not None else 0

    assert arm.memory is not None
    if arm.memory.weights + arm.memory.optimiser > room:
        return NOTHING_LESS
    for keeps_less in dict.fromkeys((train.checkpoint_activations, True)):
        if (one := peak(1, keeps_less)) > room:
            continue
        each = (peak(train.rows, keeps_less) - one) / max(1, train.rows - 1)
        divisors = [n for n in range(1, train.rows + 1) if train.batch_size % n == 0]
        rows = max(n for n in divisors if one + each * (n - 1) <= room)
        words = []
        if keeps_less and not train.checkpoint_activations:
            words.append(KEEPS_LESS)
        if rows < train.rows:
            words.append(f"--set train.micro_batch_size={rows}")
        return " ".join(words)
    return NOTHING_LESS
