"""How long a training step of each arm takes, in turn with the baseline's, before the first run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median

import torch

from attnres_cli.data.tokens import Tokens
from attnres_cli.records.assumed import step_s
from attnres_cli.records.plan import COMPILE_S, TIMED_STEPS, Arm, Plan
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.records.step_ratio import StepRatio
from attnres_cli.train.device import assumed
from attnres_cli.train.trainer import Trainer

SHARE = 0.05
"""Of a plan's predicted time, that timing its compiled steps takes at most."""

_LONG_S = 5.0  # after so long an arm is timed no more
_Pairs = Sequence[tuple[float, float]]


def timed(
    plan: Plan, tokens: Tokens, note: Callable[[str], None] | None = None, baseline: str = ""
) -> Plan:
    """The plan, after timing a few steps of every missing arm on its first device, each followed by
    one of the baseline, which makes their ratio fair on a busy machine; of long steps a part of the
    batch (`Plan.timed_sequences`). An arm that cannot be trained keeps step_s None. On CPUs the
    plan has the share of a core that was had for it.
    """
    if (gpus := assumed()) is not None:
        return replace(
            plan, arms=tuple(_foretold(arm, plan) for arm in plan.arms), assumed=gpus.text
        )
    missing = {arm.variant for arm, _ in plan.missing if arm.step_s is None}
    if note is not None and missing:
        note("timing a few training steps of every arm")
    if plan.timed_sequences == 0 or not missing:
        return plan
    torch.set_num_threads(plan.settings.threads)
    began, worked = time.perf_counter(), time.thread_time()
    arms = {
        (arm.variant, plan.recipe_of(arm).model): arm for arm in plan.arms
    }  # rates are no matter
    base = next((arm for arm in plan.arms if arm.variant == baseline), None)
    first = next(arm for arm in plan.arms if arm.variant in missing)
    _alone(first, plan, tokens)  # the first steps of a process are slower
    theirs = None
    with suppress(torch.OutOfMemoryError):
        theirs = None if base is None else _trainer(base, plan, tokens)
    found: dict[object, _Pairs | None] = {}
    for key, arm in arms.items():
        if arm.variant not in missing:
            continue
        try:
            found[key] = _in_turn(_trainer(arm, plan, tokens), theirs)
        except torch.OutOfMemoryError:  # not both at once
            theirs = None
            found[key] = _alone(arm, plan, tokens)
    share = (time.thread_time() - worked) / (time.perf_counter() - began)
    known = [
        _known(arm, plan, found.get((arm.variant, plan.recipe_of(arm).model)), theirs is not None)
        for arm in plan.arms
    ]
    share = share if plan.settings.device == "cpu" else plan.core_share  # on a GPU this one waits
    lacking = [arm.variant for key, arm in arms.items() if found.get(key, ()) is None]
    return replace(plan, arms=tuple(known), core_share=share, no_room=tuple(dict.fromkeys(lacking)))


def compiled(
    plan: Plan,
    tokens: Tokens,
    note: Callable[[str], None],
    baseline: str,
    known: Collection[str] = (),
) -> Plan:
    """The timed plan with ratios of compiled steps instead: of as many arms, but for those that are
    `known`, as can be compiled and timed within SHARE of the time that the plan is to take.
    """
    arms, found = {arm.variant: arm for arm in plan.arms}, dict[str, StepRatio]()
    ends, compile_s = time.perf_counter() + SHARE * (plan.seconds or 0), COMPILE_S
    torch.set_num_threads(plan.settings.threads)
    theirs: Trainer | None = None
    for name in [arm.variant for arm in plan.arms if is_timed(arm, plan)]:
        if name in (baseline, *known) or baseline not in arms:
            continue
        began, pair = time.perf_counter(), (arms[name], arms[baseline])
        n_compiled = 1 if theirs else 2
        steps_s = (TIMED_STEPS + 1) * sum(each.step_s or 0 for each in pair)
        if began + n_compiled * compile_s + steps_s > ends:
            break
        note(f"compiling {name}, to time its steps beside those of {baseline}")
        with suppress(Exception):  # no room for both, or what a design may raise
            theirs = theirs or _warm(pair[1], plan, tokens)
            ours = _warm(pair[0], plan, tokens)
            compile_s = max(compile_s, (time.perf_counter() - began) / n_compiled)
            if pairs := _in_turn(ours, theirs):
                found[name] = StepRatio.of([mine / base_s for mine, base_s in pairs])
    if theirs is not None:
        torch.compiler.reset()
    timed = (replace(arm, step_ratio=found.get(arm.variant)) for arm in plan.arms)
    return replace(plan, arms=tuple(timed))


def is_timed(arm: Arm, plan: Plan) -> bool:
    """Whether a ratio of an arm's steps is known, which are of the plan's own shape."""
    return arm.step_ratio is not None and plan.recipe_of(arm).model == plan.recipe.model


def _warm(arm: Arm, plan: Plan, tokens: Tokens) -> Trainer:
    """What trains an arm, compiled. Raises what the design does."""
    trainer = _trainer(arm, plan, tokens, plan.settings)
    assert trainer is not None
    _step(trainer, 0)
    return trainer


def _foretold(arm: Arm, plan: Plan) -> Arm:
    """The arm with what its steps take by arithmetic, where its memory has been counted."""
    if arm.memory is None:
        return arm
    recipe = plan.recipe_of(arm)
    flops, train = arm.flops_per_token * recipe.tokens_per_step, recipe.train
    seconds = step_s(arm.memory, flops, train.batch_size // train.rows, plan.settings)
    return replace(arm, step_s=seconds)


def _known(arm: Arm, plan: Plan, pairs: _Pairs | None, is_ratio: bool) -> Arm:
    """The arm with what its steps took."""
    if not pairs:
        return arm
    part = plan.timed_sequences / plan.recipe_of(arm).train.of_rank(plan.settings.ranks).batch_size
    arm = replace(arm, step_s=median(ours for ours, _ in pairs) / part)
    if not is_ratio:
        return arm
    ratio = StepRatio.of([ours / theirs for ours, theirs in pairs])
    return replace(arm, step_ratio=ratio)


def _trainer(
    arm: Arm, plan: Plan, tokens: Tokens, settings: Settings | None = None
) -> Trainer | None:
    """What trains an arm on so many sequences as are timed, by default uncompiled; None where it
    cannot be trained. Raises OutOfMemoryError.
    """
    less = {"batch_size": plan.timed_sequences, "micro_batch_size": None}
    recipe = plan.recipe_of(arm)
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=less)})
    spec = RunSpec(recipe, arm.variant, plan.seeds[0], plan.fingerprint)
    try:
        on = settings or plan.settings.uncompiled
        return Trainer(spec, tokens, on, torch.device(plan.devices[0]))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a design may raise anything; the worker that runs it writes it down
        return None


def _alone(arm: Arm, plan: Plan, tokens: Tokens) -> _Pairs | None:
    """Seconds of its steps, beside no baseline; None where there is no room for it."""
    try:
        return _in_turn(_trainer(arm, plan, tokens), None)
    except torch.OutOfMemoryError:
        return None


def _in_turn(ours: Trainer | None, theirs: Trainer | None) -> _Pairs:
    """Seconds of warm steps of both in turn; empty where one fails. Raises OutOfMemoryError."""
    pairs: list[tuple[float, float]] = []
    began = time.perf_counter()
    if ours is None:
        return pairs
    try:
        for step in range(TIMED_STEPS + 1):
            mine = _step(ours, step)
            pairs.append((mine, mine if theirs is None else _step(theirs, step)))
            if time.perf_counter() - began > _LONG_S:
                break
    except torch.OutOfMemoryError:
        raise
    except Exception:  # as above
        return []
    return pairs[1:] or pairs


def _step(trainer: Trainer, step: int) -> float:
    """Seconds of one training step."""
    began = time.perf_counter()
    trainer.step(min(step, trainer.spec.recipe.steps - 1)).item()
    return time.perf_counter() - began
