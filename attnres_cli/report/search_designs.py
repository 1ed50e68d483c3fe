"""What a search over designs has found: how many it tried, what the best promised, what each choice
changed, what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Search, State, Trial, Value
from attnres_cli.report.table import Column, Report, Table, columns, tabled
from attnres_cli.stats.effects import Effect, Look, effects
from attnres_cli.verdict import fields
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.fields import Field
from attnres_cli.verdict.numbers import interval, plural

MOST = 20
"""Effects in a table or a figure; JSON has all."""

_LISTED = 10
_AT_EQUAL = "Fresh seeds are compared at equal tokens, first looks at equal time."
_SIZES = ("n_layers", "d_model", "n_heads", "d_ff", "aspect", "heads_per_layer", "tokens")


@dataclass(frozen=True)
class Tried:
    """A design and its looks, each None where it has none that has ended."""

    variant: str
    choices: Mapping[str, Value]
    short: Trial | None
    whole: Trial | None

    @property
    def loss(self) -> float:
        """Of its longest look; inf where it has none."""
        return next(
            (v for trial in (self.whole, self.short) if (v := _loss(trial)) is not None), math.inf
        )


def _loss(trial: Trial | None) -> float | None:
    return trial.values[0] if trial is not None and trial.values else None


def tried(search: Search) -> list[Tried]:
    """The designs of a search that have a look, best first, those with all tokens before others."""
    about, by_name = search.about, dict[str, dict[Value, Trial]]()
    for trial in (trial for family in search.families for trial in family.trials):
        if trial.state is State.COMPLETE:
            by_name.setdefault(trial.variant, {})[trial.dimensions["tokens"]] = trial
    found = []
    for name, looks in by_name.items():
        one = next(iter(looks.values()))
        choices = {key: v for key, v in one.dimensions.items() if key not in _SIZES}
        short, whole = (looks.get(n) for n in about.tokens)
        found.append(Tried(name, choices, short, whole))
    return sorted(found, key=lambda each: (each.whole is None, each.loss))


def first_look_of_baseline(search: Search, records: Sequence[RunRecord]) -> float | None:
    """The loss of the baseline on the seed of first looks, with all tokens; None without it."""
    mine = (search.about.baseline_digest, "standard", search.first_seed, search.fingerprint)
    losses = [
        record.result.val_loss
        for record in records
        if (record.recipe_digest, record.variant, record.seed, record.fingerprint) == mine
        and record.result is not None
    ]
    return losses[-1] if losses else None


def effects_of(search: Search) -> list[Effect]:
    """What each choice changes, by all looks of a search."""
    looks = [
        Look(each.choices, rung, loss)
        for each in tried(search)
        for rung, trial in enumerate((each.short, each.whole))
        if (loss := _loss(trial)) is not None
    ]
    return effects(looks)


def report_of(
    search: Search, records: Sequence[RunRecord], compared: Comparison | None = None
) -> Report:
    """All that a search over designs says. `records` are the study's runs, `compared` its best
    designs, tuned and on fresh seeds.
    """
    designs, baseline = tried(search), first_look_of_baseline(search, records)
    changed = effects_of(search)
    trials = [trial for family in search.families for trial in family.trials]
    lost = sum(trial.state is State.FAILED for trial in trials)
    said = answer(search, designs, baseline, compared)
    said += f" {_AT_EQUAL}" if _is_timed(search) else ""
    tables = [_table(search, designs, baseline)]
    tables += [effects_table(changed)] if changed else []
    head = asdict(search)
    del head["families"]
    return Report(
        title=f"Search {search.name}: recipe {search.recipe}, designs {search.space}",
        text=[said],
        caveats=[
            "every loss of this table is of one seed: the lowest of many is lucky, and no verdict "
            "rests on it",
            *_on_times(search, records),
        ],
        tables=tables,
        warnings=[f"{plural(lost, 'look')} failed"] if lost else [],
        notes=_notes(search, designs),
        document={
            "title": f"Search {search.name}",
            "answer": said,
            "search": head,
            "n_tried": len(designs),
            "baseline_first_look": baseline,
            "trials": [asdict(trial) for trial in trials],
            "effects": effects_document(changed),
        },
        records=[_record(search, each, baseline) for each in designs],
    )


def answer(
    search: Search, designs: Sequence[Tried], baseline: float | None, compared: Comparison | None
) -> str:
    """`12 designs of 49 tried; the best first look promised -0.031 nats (one seed); ...`."""
    about = search.about
    text = f"{plural(len(designs), 'design')} of {about.size:,} combinations tried"
    whole = [each for each in designs if each.whole is not None and math.isfinite(each.loss)]
    if not whole:
        return f"{text}; none has a first look with all tokens yet."
    if baseline is None or not math.isfinite(baseline):
        return f"{text}. The baseline has no first look to compare them with: --retry-failed."
    best = whole[0].variant
    text += f"; the best first look promised {whole[0].loss - baseline:+.4f} nats (one seed)"
    arm = compared.arm(best) if compared is not None else None
    if arm is not None and arm.verdict == "baseline":
        return f"{text}: it is {best} itself."
    if arm is None or arm.difference is None:
        how = "not compared on fresh seeds yet" if arm is None else "compared without a verdict"
        return f"{text}: {best}, {how}."
    left = interval(arm.difference.mean, arm.interval, "+.4f")
    return f"{text}; tuned and on fresh seeds {best} ends {left}."


def _is_timed(search: Search) -> bool:
    return search.objectives == ("time",)


def _on_times(search: Search, records: Sequence[RunRecord]) -> list[str]:
    """What weakens losses at equal time."""
    if not _is_timed(search):
        return []
    mine = {(t.recipe_digest, t.variant) for family in search.families for t in family.trials}
    mine |= {(search.about.baseline_digest, "standard")}
    at = [run for run in records if run.seed == search.first_seed]
    looks = [run for run in at if (run.recipe_digest, run.variant) in mine]
    on = sorted({run.result.settings.device_name for run in looks if run.result is not None})
    several = f", on different machines: {', '.join(on)}" if len(on) > 1 else ""
    what = "step times of looks are of single runs, beside whatever else the machine did"
    return [what + several]


def _table(search: Search, designs: Sequence[Tried], baseline: float | None) -> Table:
    short, whole = (f"{n:,} tokens" for n in search.about.tokens)
    heads = [Column("design", "name"), *columns(short, whole, "promised")]
    rows = []
    for each in designs[:_LISTED]:
        losses = [_loss(each.short), _loss(each.whole)]
        cells = ["-" if loss is None else f"{loss:.4f}" for loss in losses]
        gain = None if None in (losses[1], baseline) else each.loss - (baseline or 0.0)
        rows.append([each.variant, *cells, "-" if gain is None else f"{gain:+.4f}"])
    which = f"best {_LISTED} of {len(designs)}" if len(designs) > _LISTED else "all"
    goal = "val_loss at equal time" if _is_timed(search) else "val_loss"
    return Table(f"first looks, {which}: {goal} in nats per token on one seed", heads, rows)


def _record(search: Search, each: Tried, baseline: float | None) -> dict[str, Any]:
    return {
        "search": search.name,
        "variant": each.variant,
        **each.choices,
        "short_look": _loss(each.short),
        "whole_look": _loss(each.whole),
        "baseline_look": baseline,
    }


def _notes(search: Search, designs: Sequence[Tried]) -> list[str]:
    about = search.about
    short, whole = (f"{n:,}" for n in about.tokens)
    n_whole = sum(each.whole is not None for each in designs)
    again = [seed for seed in search.earlier_seeds if seed not in search.confirm_seeds]
    before = [f"{_seeds(again)} asked for before"] if again else []
    fresh = "; ".join([*filter(None, [_seeds(search.confirm_seeds)]), *before])
    n = max(len(designs), about.n_of(search.n_trials))
    told = [
        f"{len(designs)} of {n} designs tried, {n_whole} of them with all tokens; "
        f"{about.legal:.0%} of {about.size:,} combinations are legal",
        f"first look: seed {search.first_seed}, {short} tokens; the best quarter then {whole}; "
        f"sampler {search.families[0].sampler}",
        f"learning rate: {search.learning_rate}",
        f"fresh seeds: {fresh}, which chose nothing; the comparison's table judges" * bool(fresh),
        f"{search.recipe} ({search.recipe_digest}) on data {search.fingerprint}",
    ]
    return [line for line in told if line]


def _seeds(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def name_of(effect: Effect) -> str:
    """As it is typed: `stream=delta`, `attnres.norm=sigmoid`, `+vres`."""
    if effect.choice.startswith("+"):
        return effect.choice
    value = effect.value
    if isinstance(value, bool):
        return f"{effect.choice}={'on' if value else 'off'}"
    return f"{effect.choice}={'none' if value is None else value}"


def _designs(effect: Effect, _: None) -> str:
    lost = f" ({effect.n_diverged} diverged)" if effect.n_diverged else ""
    return f"{effect.n_designs}{lost}"


_EFFECT: list[Field[Effect, None]] = [
    Field("choice", lambda effect, _: name_of(effect), "choice", kind="name"),
    Field(
        "effect", "mean", "effect [95%]",
        lambda effect, _: interval(effect.mean, (effect.low, effect.high), "+.4f"),
    ),
    Field("low"),
    Field("high"),
    Field("n_designs", title="designs", show=_designs, is_optional=True),
    Field("n_diverged"),
]  # fmt: skip
"""Of an effect, once for tables and files."""


def effects_table(found: Sequence[Effect]) -> Table:
    """The largest effects, with their intervals."""
    shown = found[:MOST]
    of = f"the {len(shown)} largest of {len(found)} effects" if found[MOST:] else "effects"
    title = f"{of} of a choice: nats per token against its other values, each with its own 95%"
    return tabled(title, _EFFECT, shown, None)


def effects_document(found: Sequence[Effect]) -> list[dict[str, Any]]:
    """All effects for JSON, the largest first, in nats per token."""
    return [fields.record(_EFFECT, effect, None) for effect in found]
