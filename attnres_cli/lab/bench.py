"""What each arm of a plan costs on this machine: training steps, and generation."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Callable
from dataclasses import asdict, replace

import torch
from torch import Tensor

import attnres_cli
from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import StudyError, UsageError
from attnres_cli.lab import doctor
from attnres_cli.lab.grid import sketch
from attnres_cli.nn import measure, variant
from attnres_cli.nn.cost import ArmCost, Conditions, DecodeArm, DecodeBench, StepBench
from attnres_cli.nn.counting import costs_of
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.generate import generate
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import RunRecord, RunSpec, Settings
from attnres_cli.records.step_ratio import StepRatio, TimedArm
from attnres_cli.store.store import Store
from attnres_cli.train.trainer import Trainer

Note = Callable[[str], None]
"""Told what takes long."""

_CHECKED_ROWS = 2  # sequences that an arm is checked on, where no compiler needs the whole batch
_WARM_UP = 2  # steps
_LONGEST_ERROR = 200  # characters


def steps(plan: Plan, tokens: Tokens, rounds: int, baseline: str, note: Note) -> StepBench:
    """Time whole training steps of the plan's arms, which take turns on its first device: one step
    each per round. An arm that cannot be run, or whose loss or gradients differ from the reference
    engine's, is reported with the reason and not timed.
    """
    device = _start(plan)
    costs: dict[str, ArmCost] = {}
    trainers: dict[str, Trainer] = {}
    for arm in plan.arms:
        costs[arm.variant] = _counted(arm, plan, tokens.vocab_size)
        if plan.settings.compiled:
            note(f"compiling {arm.variant}, about a minute, once")
        costs[arm.variant], trainer = _checked(costs[arm.variant], plan, tokens, device)
        if trainer is not None:
            trainers[arm.variant] = trainer
    calls = {name: _stepping(trainer) for name, trainer in trainers.items()}
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    times = measure.in_turn(calls, rounds, device)
    for name, call in calls.items():
        peak = measure.peak_bytes(call, device) + held_bytes(trainers[name])
        costs[name] = replace(costs[name], seconds=times[name], peak_bytes=peak)
    conditions = _conditions(plan, tokens, rounds, baseline, device)
    return StepBench(conditions, plan.recipe.tokens_per_step, tuple(costs.values()))


def runs_of(study: str, recipe: Recipe) -> list[RunRecord]:
    """The runs of a study under a recipe. Raises StudyError where it knows no such recipe."""
    store = Store.open(study, create=False)
    if recipe.digest not in store.recipes():
        raise StudyError(
            f"study {study} has no recipe {recipe.name} ({recipe.digest}): type --recipe and --set "
            "as for its runs, see `attnres runs`"
        )
    return [run for run in store.runs(curves=False) if run.recipe_digest == recipe.digest]


def keep(found: StepBench, study: str) -> int:
    """Write the ratios to the baseline into a study; how many there are."""
    on, base = found.conditions, found.times(found.conditions.baseline)
    timed = []
    for arm in found.arms:
        if arm.seconds and base:
            ratio = StepRatio.of([ours / b for ours, b in zip(arm.seconds, base, strict=True)])
            way = on.baseline, on.computed, on.device_name
            timed.append(TimedArm(on.recipe_digest, arm.variant, *way, **vars(ratio)))
    Store.open(study, create=True).keep_step_ratios(timed)
    return len(timed)


def _start(plan: Plan) -> torch.device:
    torch.set_num_threads(plan.settings.threads)
    measure.keep_freed_memory()
    return torch.device(plan.devices[0])


def _counted(arm: Arm, plan: Plan, vocab_size: int) -> ArmCost:
    """What arithmetic says of an arm."""
    shape = plan.recipe.model.shape(vocab_size)
    design = sketch(arm.variant, shape)
    itemsize = 2 if plan.settings.precision == "bf16" else 4
    extra = itemsize * costs_of(design).numbers
    return ArmCost(
        variant=arm.variant,
        n_params=arm.n_params,
        extra_flops=design.extra_flops_per_token(),
        extra_bytes=extra,
        io_per_sublayer=3 + extra / (itemsize * shape.d_model * shape.n_sublayers),
        table_one=design.table_one(),
    )


def _checked(
    counted: ArmCost, plan: Plan, tokens: Tokens, device: torch.device
) -> tuple[ArmCost, Trainer | None]:
    """The arm with what its check found, and its trainer if that was good."""
    recipe, settings = plan.recipe, plan.settings
    spec = RunSpec(recipe, counted.variant, plan.seeds[0], plan.fingerprint)
    rows = recipe.train.rows
    if not settings.compiled:
        rows = min(rows, _CHECKED_ROWS)
    try:
        trainer = Trainer(spec, tokens, settings, device)
        measure.stir(trainer.model.residual)
        windows = _windows(tokens, plan, rows).to(device)
        given = trainer.model, trainer.forward, windows, settings.engine, settings.precision
        found, start_s = measure.check(*given)
        for _ in range(doctor.REPLAYED_AFTER * settings.graphs):
            found, _ = measure.check(*given)
    except Exception as error:  # a design may raise anything
        return replace(counted, wrong=_cannot(error)), None
    wrong = found.complaint(settings.precision)
    checked = replace(
        counted, wrong=wrong, disagreement=(found.loss, found.gradient), start_s=start_s
    )
    return checked, trainer if wrong is None else None


def _cannot(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"it cannot be run: {text[:_LONGEST_ERROR]}"


def _windows(tokens: Tokens, plan: Plan, rows: int) -> Tensor:
    return torch.from_numpy(tokens.batch(plan.seeds[0], 0, rows, plan.recipe.model.seq_len))


def _stepping(trainer: Trainer) -> Callable[[], object]:
    """Each call trains one step; when the recipe's steps are through it starts again."""
    numbers = itertools.cycle(range(trainer.spec.recipe.steps))
    return lambda: trainer.step(next(numbers))


def held_bytes(trainer: Trainer) -> int:
    """Bytes of weights and optimiser state, which are there between steps."""
    states = [values for each in trainer.optimizers for values in each.state.values()]
    tensors = [value for values in states for value in values.values() if torch.is_tensor(value)]
    return sum(tensor.nbytes for tensor in (*trainer.model.parameters(), *tensors))


def _conditions(
    plan: Plan, tokens: Tokens, rounds: int, baseline: str, device: torch.device
) -> Conditions:
    recipe, settings = plan.recipe, plan.settings
    shape = asdict(recipe.model.shape(tokens.vocab_size))
    versions = {
        "attnres": attnres_cli.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return Conditions(
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        shape={**shape, "batch_size": recipe.train.batch_size},
        device=str(device),
        device_name=settings.device_name,
        computed=settings.numerics,
        precision=settings.precision,
        compiled=settings.compiled,
        engine=settings.engine,
        threads=settings.threads,
        versions=versions,
        rounds=rounds,
        baseline=baseline,
        copy_speed=measure.copy_speed(device),
    )


def decode(
    plan: Plan,
    tokens: Tokens,
    rounds: int,
    baseline: str,
    batch_sizes: tuple[int, ...],
    n_new: int,
) -> DecodeBench:
    """Time generation by the plan's arms, in turn on its first device: seconds per generated token,
    at each of these batch sizes. Raises UsageError where the recipe has too few positions.

    Half of the recipe's positions are the prompt. The time of generating one token, which is the
    prompt's, is taken off that of generating them all. Steps of one token are compiled where the
    recipe says `compile=on`; bf16 casts the weights. `n_new` tokens follow the first, or as many as
    the recipe has room for.
    """
    device, seq_len = _start(plan), plan.recipe.model.seq_len
    n_prompt = seq_len // 2
    n_new = min(n_new, seq_len - n_prompt - 1)
    if n_new < 1:
        raise UsageError(f"generation takes at least 4 positions, model.seq_len is {seq_len}")
    if plan.recipe.train.compile in ("on", "graphs"):  # which `auto` may choose, for training
        measure.allow_compiling()
    else:
        plan = replace(plan, settings=plan.settings.uncompiled)
    arms: list[DecodeArm] = []
    calls: dict[str, Callable[[], object]] = {}
    for arm in plan.arms:
        wrong, model = _generating(arm, plan, tokens, device, n_prompt, n_new)
        arms.append(DecodeArm(arm.variant, arm.n_params, wrong, {}))
        for size in batch_sizes if model is not None else ():
            assert model is not None
            prompt = _windows(tokens, plan, size)[:, :n_prompt].to(device)
            for length in (1, 1 + n_new):
                name = f"{arm.variant} {size} {length}"
                calls[name] = _drawing(model, prompt, length, plan.settings)
    measure.in_turn(calls, 1, device)  # warms up
    times = measure.in_turn(calls, rounds, device)
    timed = tuple(_per_token(arm, times, batch_sizes, n_new) for arm in arms)
    conditions = _conditions(plan, tokens, rounds, baseline, device)
    return DecodeBench(conditions, n_prompt, n_new, batch_sizes, timed)


def _per_token(
    arm: DecodeArm, times: dict[str, tuple[float, ...]], batch_sizes: tuple[int, ...], n_new: int
) -> DecodeArm:
    """The arm with its times: all of generation less the prompt's pass, per token."""
    found: dict[int, tuple[float, ...]] = {}
    for size in batch_sizes if arm.wrong is None else ():
        pairs = zip(
            times[f"{arm.variant} {size} 1"],
            times[f"{arm.variant} {size} {1 + n_new}"],
            strict=True,
        )
        found[size] = tuple((whole - prompt) / n_new for prompt, whole in pairs)
    return replace(arm, seconds=found)


def _drawing(
    model: Transformer, prompt: Tensor, n_new: int, settings: Settings
) -> Callable[[], Tensor]:
    def draw() -> Tensor:
        with engines.use(settings.engine):
            return generate(model, prompt, n_new, temperature=0.0, compiled=settings.compiled)

    return draw


def _generating(
    arm: Arm, plan: Plan, tokens: Tokens, device: torch.device, n_prompt: int, n_new: int
) -> tuple[str | None, Transformer | None]:
    """What is wrong with an arm's generation, or the model that generates."""
    shape, settings = plan.recipe.model.shape(tokens.vocab_size), plan.settings
    try:
        design = variant.parse(arm.variant).build(shape.d_model, shape.n_sublayers)
        model = Transformer(shape, design)
        init_weights(model, plan.seeds[0])
        measure.stir(model.residual)
        model = model.to(device, torch.bfloat16 if settings.precision == "bf16" else None)
        prompt = _windows(tokens, plan, 1)[:, :n_prompt].to(device)
        out = _drawing(model, prompt, 1 + n_new, settings)()
        wrong = _not_the_likeliest(model, out, n_prompt, settings.precision)
    except Exception as error:  # a design may raise anything
        return _cannot(error), None
    return wrong, model if wrong is None else None


@torch.no_grad()
def _not_the_likeliest(
    model: Transformer, out: Tensor, n_prompt: int, precision: str
) -> str | None:
    """What is wrong with greedily generated tokens. For the reference engine, which sees the whole
    sequence at once, each must be the likeliest, to rounding.
    """
    with engines.use("reference"):
        logits = model(out[:, :-1])[:, n_prompt - 1 :].float()
    chosen = logits.gather(-1, out[:, n_prompt:, None]).squeeze(-1)
    short = float(((logits.amax(dim=-1) - chosen) / logits.std(dim=-1)).max())
    most = measure.TOLERANCE[precision]
    if short <= most:
        return None
    return f"a token it generates is not the reference's likeliest: short by {short:.2g} sd"
