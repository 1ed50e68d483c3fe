"""What each choice of a search over designs changed, as a table and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnres_cli.report.table import Table, tabled
from attnres_cli.stats.effects import Effect
from attnres_cli.verdict import fields
from attnres_cli.verdict.fields import Field
from attnres_cli.verdict.numbers import interval

MOST = 20
"""Rows of a table or a figure; JSON has all."""


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


FIELDS: list[Field[Effect, None]] = [
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


def effects_table(effects: Sequence[Effect]) -> Table:
    """The largest effects, with their intervals."""
    shown = effects[:MOST]
    of = f"the {len(shown)} largest of {len(effects)} effects" if effects[MOST:] else "effects"
    title = f"{of} of a choice: nats per token against its other values, each with its own 95%"
    return tabled(title, FIELDS, shown, None)


def effects_document(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """All effects for JSON, the largest first, in nats per token."""
    return [fields.record(FIELDS, effect, None) for effect in effects]
