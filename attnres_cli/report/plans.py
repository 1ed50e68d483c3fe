"""The plan of what will be trained, before it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.records import doubts
from attnres_cli.records.assumed import LEAST, MOST, terms
from attnres_cli.records.comparison_terms import Given, settings_text
from attnres_cli.records.plan import TIMED_STEPS, Arm, Plan, n_tokens, smaller_step
from attnres_cli.records.search_records import Search
from attnres_cli.report.table import Report, Table, columns, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict.fields import Field, picked, record
from attnres_cli.verdict.numbers import between, computing, duration, megabytes, params, plural

_OF_A_RANK = {
    "ddp": "; all is of one rank",
    "fsdp": "; all is of one rank, had it all weights: sharding leaves it less",
}
"""What a plan's memory is of, by the way that ranks share a run."""

_MOST_TOLD = 4  # runs by name
_IDLE = 0.8  # of a core that timed steps had: less, and other processes slowed them
_COMPILING = "compiling every arm: about a minute each the first time, seconds after that"
_HELD = (
    "memory: the most that a training step holds (weights, optimiser state, activations, logits, "
    "gradients), not compiled; each process takes some 0.4 GB more"
)


_ARMS: Sequence[Field[Arm, Plan]] = (
    Field("variant", title="variant", kind="code"),
    Field(
        "its_own", lambda arm, plan: _own(arm, plan), "its own", lambda arm, plan: _owns(arm, plan),
        "text", applies=lambda plan: any(arm.recipe is not None for arm in plan.arms),
    ),
    Field("recipe_digest", lambda arm, plan: plan.recipe_of(arm).digest),
    Field("n_params", "", "params", lambda arm, plan: params(arm.n_params, plan.recipe_of(arm))),
    Field("n_active_params", lambda arm, plan: plan.recipe_of(arm).model.active(arm.n_params)),
    Field("flops_per_token", "", "FLOPs/token", "{:.3g}"),
    Field(
        "memory_bytes", "memory.peak", "memory",
        lambda arm, _: "-" if arm.memory is None else megabytes(arm.memory.peak),
    ),
    Field("weights_bytes", "memory.weights"),
    Field("optimiser_bytes", "memory.optimiser"),
    Field(
        "step_s", "", "ms/step",
        lambda arm, _: "-" if arm.step_s is None else f"{1000 * arm.step_s:.1f}",
    ),
    Field("runs", lambda _, plan: len(plan.seeds)),
    Field(
        "to_train", lambda arm, plan: sum(each == arm for each, _ in plan.missing), "to train",
        lambda arm, plan: _left(arm, plan),
    ),
)  # fmt: skip


def plan_of(plan: Plan, title: str = "") -> Report:
    """What will be done: per arm its size, memory and speed, in all the runs, FLOPs and time. JSON
    and CSV have a record per arm; in a plan that tunes there is one per learning rate.
    """
    first = {arm.variant: arm for arm in reversed(plan.arms)}
    rows = [first[variant] for variant in dict.fromkeys(arm.variant for arm in plan.arms)]
    records = [record(_ARMS, arm, plan) for arm in plan.arms]
    return Report(
        f"plan: recipe {plan.recipe.name}" + (title and f", {title}"),
        [tabled("", _ARMS, rows, plan)],
        warnings=[f"warning: {doubt}" for doubt in doubts_of(plan)],
        notes=_lines(plan),
        document=_document(plan, title) | {"arms": records},
        records=records,
    )


def _owns(arm: Arm, plan: Plan) -> str:
    """What a design has of its own, from its first learning rate to its last."""
    owns = [_own(each, plan) for each in plan.arms if each.variant == arm.variant]
    return " to ".join(owns if len(owns) == 1 else [owns[0], owns[-1]])


def _left(arm: Arm, plan: Plan) -> str:
    left = sum(each.variant == arm.variant for each, _ in plan.missing)
    of = sum(each.variant == arm.variant for each in plan.arms) * len(plan.seeds)
    return f"{left} of {of}"


def line_of(plan: Plan, title: str = "") -> str:
    """The plan in a line: size, tokens, runs, workers, time."""
    held = [arm.n_params for arm in plan.arms]
    size = " to ".join(dict.fromkeys(f"{n / 1e6:.2f}M" for n in (min(held), max(held))))
    tokens = between([n_tokens(plan.recipe_of(arm)) for arm in plan.arms])
    text = f"{plan.recipe.name}{title and f', {title}'}: {size} parameters, {tokens} tokens, "
    text += f"{_runs(plan)}, {len(plan.missing)} to train on {plural(len(plan.devices), 'worker')}"
    about = "" if plan.seconds is None else f", about {duration(plan.seconds)}"
    return f"{text}{about} (-v: data, memory, disk)"


def _runs(plan: Plan) -> str:
    """`21 runs (3 arms x 7 seeds)`."""
    arms = len({arm.variant for arm in plan.arms})
    each = len(plan.arms) // arms
    rates = len({(arm.variant, plan.recipe_of(arm).optim.lr) for arm in plan.arms})
    what = "learning rates" if rates == len(plan.arms) else "settings"
    grid = f"{each} {what} x " if each > 1 else ""
    runs = plural(len(plan.arms) * len(plan.seeds), "run")
    return f"{runs} ({plural(arms, 'arm')} x {grid}{plural(len(plan.seeds), 'seed')})"


@dataclass(frozen=True)
class Step:
    """One of several plans that are carried out in turn; `seconds` is None where not predicted."""

    title: str
    to_train: int
    seconds: float | None


def summed(title: str, steps: Sequence[Step]) -> Step:
    """Several as one; not predicted where one is not."""
    known = [step.seconds for step in steps if step.seconds is not None]
    seconds = sum(known) if len(known) == len(steps) else None
    return Step(title, sum(step.to_train for step in steps), seconds)


def in_all(steps: Sequence[Step]) -> Report:
    """What several plans take, one after the other."""
    whole = summed("all", steps)
    rows = [
        [each.title, str(each.to_train), "-" if each.seconds is None else duration(each.seconds)]
        for each in (*steps, whole)
    ]
    records = [asdict(step) for step in steps]
    return Report(
        "all plans, one after the other",
        [Table("", columns("plan:text", "to train", "predicted time"), rows)],
        document={"plans": records, **picked(whole, "to_train seconds")},
        records=records,
    )


def plan_of_search(
    search: Search,
    lines: Sequence[str],
    n_trials: Mapping[str, int],
    plan: Plan,
    seconds: float | None,
) -> Report:
    """What a search will try, in `lines`; JSON and CSV have the number of trials of each design."""
    records = [{"variant": spec, "trials": n} for spec, n in n_trials.items()]
    document = asdict(replace(search, families=())) | {
        **_computing(plan),
        "memory_bytes": max((a.memory.peak for a in plan.arms if a.memory), default=None),
        "seconds": seconds,
        "designs": records,
    }
    del document["families"]
    return Report("", text=lines, document=document, records=records)


def _computing(plan: Plan) -> dict[str, Any]:
    return {
        "workers": len(plan.devices),
        "settings": asdict(plan.settings),
        **picked(plan, "threads_by workers_by"),
    }


def _document(plan: Plan, title: str) -> dict[str, Any]:
    """All but the arms."""
    return {
        **picked(plan, "recipe=recipe.name recipe_digest=recipe.digest"),
        "title": title,
        "data": None if plan.data is None else asdict(plan.data),
        **picked(plan, "match=terms.match tuned=terms.is_tuned seeds"),
        **_computing(plan),
        "to_train": len(plan.missing),
        "going_on": [
            {"variant": variant, "seed": seed, "step": step}
            for (_, variant, seed, *_), step in plan.begun.items()
        ],
        **picked(plan, "flops kept_bytes checkpoint_bytes seconds gpu_hours assumed core_share"),
    }


def _own(arm: Arm, plan: Plan) -> str:
    """What an arm's recipe has of its own; a learning rate that the recipe gives it too."""
    how = arm.how
    return how.text if isinstance(how, Given) else own_text(plan.recipe_of(arm), plan.recipe)


def own_text(recipe: Recipe, shared: Recipe) -> str:
    """What an arm's recipe has of its own: `lr 0.0141, d_ff 87`; empty where it has nothing."""
    sizes = ("n_layers", "d_model", "n_heads")
    numbers = (
        *((name, getattr(recipe.model, name), getattr(shared.model, name)) for name in sizes),
        ("d_ff", recipe.model.shape(1).d_ff, shared.model.shape(1).d_ff),
        ("tokens", n_tokens(recipe), n_tokens(shared)),
    )
    before, now = (each.optim.model_dump() for each in (shared, recipe))
    multiples = set(now.pop("part_lr_scale")) - set(before.pop("part_lr_scale"))
    own = tuple((f"optim.{key}", now[key]) for key in now if now[key] != before[key])
    parts = [f"{part} x{scale:g}" for part, scale in sorted(multiples)]
    parts += [f"{name} {mine:,}" for name, mine, theirs in numbers if mine != theirs]
    return ", ".join([*([settings_text(own)] if own else []), *parts])


def _lines(plan: Plan) -> list[str]:
    steps = between([plan.recipe_of(arm).steps for arm in plan.arms])
    tokens = [n_tokens(plan.recipe_of(arm)) for arm in plan.arms]
    each = f"{plural(steps, 'step')}, {plural(between(tokens), 'token')}"
    lines = [
        f"{_runs(plan)}, {len(plan.missing)} to train; each {each}; {plan.flops:.3g} FLOPs in all",
        *going_on(plan),
        *(labels.of_data(plan.data, plan.recipe, tokens) if plan.data else []),
        *begins(plan),
        computing(plan),
        *([plan.threads_by] if plan.threads_by else []),
        *([plan.workers_by] if plan.workers_by else []),
        *([labels.whose_rates(plan.terms)] if plan.terms.by_design else []),
        *labels.remaining(plan.arm_recipes),
    ]
    if plan.missing and plan.settings.compiled:
        lines.append(_COMPILING)
    if plan.missing:
        kept, written = megabytes(plan.kept_bytes), megabytes(plan.checkpoint_bytes)
        what = "final weights" + (", and to train further from" if plan.can_go_on else "")
        lines.append(f"disk: {kept} for {what}; while it trains up to {written} more")
        if any(arm.memory for arm in plan.arms):
            lines.append(_HELD + _OF_A_RANK.get(plan.settings.parallel[0], ""))
        lines.append(_prediction(plan))
    return lines


def doubts_of(plan: Plan) -> list[str]:
    """What to doubt of the data before a run is trained."""
    if plan.data is None:
        return []
    tokens = max(n_tokens(plan.recipe_of(arm)) for arm in plan.arms)
    return doubts.of(plan.data, tokens, plan.recipe.train.eval_tokens)


def begins(plan: Plan) -> list[str]:
    """`training text begins "Once upon a time`, where it is a person's own."""
    return [f"training text begins {plan.beginning}"] if plan.beginning else []


def going_on(plan: Plan) -> list[str]:
    """`1 of them goes on: attnres seed 0 from step 120`; of many the steps alone; none where all
    begin.
    """
    steps = [(arm, n, plan.begun.get(plan.spec(arm, n).identity)) for arm, n in plan.missing]
    begun = [f"{arm.variant} seed {n} from step {step:,}" for arm, n, step in steps if step]
    goes = "goes" if len(begun) == 1 else "go"
    if len(begun) > _MOST_TOLD:
        return [f"{len(begun)} of them go on from steps {between({s for *_, s in steps if s})}"]
    return [f"{len(begun)} of them {goes} on: {', '.join(begun)}"] if begun else []


def _prediction(plan: Plan) -> str:
    if plan.assumed and plan.seconds is not None:
        return (
            f"predicted for {plan.assumed}, by arithmetic: {duration(plan.seconds)}, "
            f"{plan.gpu_hours:,.3g} GPU hours. {terms()} Steps on an H100 and an H200 took "
            f"{LEAST} to {MOST} times what this says"
        )
    if plan.timed_sequences == 0:
        return f"no predicted time: on {plan.settings.device} one sequence alone takes too long"
    if plan.no_room:
        n, what = plural(plan.timed_sequences, "sequence"), ", ".join(plan.no_room)
        less = smaller_step(plan.recipe.train.of_rank(plan.settings.ranks))
        return f"no predicted time: {what} ran out of memory with {n} at a time: {less}"
    if plan.seconds is None:
        return "no predicted time: an arm could not be trained; its runs will say why"
    text = f"predicted time {duration(plan.seconds)}, from {TIMED_STEPS} training steps of each arm"
    ranks = plan.settings.ranks
    batch_size = plan.recipe.train.of_rank(ranks).batch_size
    if plan.timed_sequences < batch_size:
        text += f" ({plan.timed_sequences} of the batch's {batch_size} sequences)"
    eager = ", not compiled yet; a minute per arm is added" if plan.settings.compiled else ""
    alone = f", by one of {ranks} ranks, which send nothing to each other yet" if ranks > 1 else ""
    text = f"{text} timed just now, one arm at a time{alone}{eager}"
    if plan.core_share > _IDLE:
        return text
    held, idle = 1 - plan.core_share, duration(plan.core_share * plan.seconds)
    return f"{text}; other processes had {held:.0%} of its core meanwhile: without them some {idle}"
