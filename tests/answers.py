"""What runs would answer to tasks: simulated; seeds, items and arms have parts of their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnres_cli.records.items import Items, Kind
from attnres_cli.records.run import RunRecord

N_CHOICES = 4


def answers(
    run: RunRecord,
    task: str,
    *,
    gain: float = 0.0,
    skill: float = 1.0,
    n_items: int = 200,
    kind: Kind = Kind.CHOICE,
    **changes: object,
) -> Items:
    """A run's answers to a task. `gain` adds nats to right answers; with `skill` 0 it guesses."""
    shared = np.random.default_rng(sum(task.encode()))  # the items, the same for all runs
    hard = shared.normal(size=n_items)
    own = np.random.default_rng([run.id, sum(task.encode())])
    nats = -6 + hard + gain + 0.05 * own.normal() + 0.3 * own.normal(size=n_items)
    score = skill * (1 + hard + 4 * gain) + own.gumbel(size=n_items)
    others = own.gumbel(size=(n_items, N_CHOICES - 1)).max(axis=1)
    values: Mapping[str, np.ndarray] = {
        "acc": (score > others).astype(float),
        "gold_nats": nats,
        "gold_bytes": np.full(n_items, 4.0),
        "choice_nats": -np.log1p(np.exp(others - score)),
        "n_choices": np.full(n_items, float(N_CHOICES)),
        "exact_match": (score > 2).astype(float),
    }
    held = {
        Kind.CHOICE: ("acc", "gold_nats", "gold_bytes", "choice_nats", "n_choices"),
        Kind.TEXT: ("gold_nats", "gold_bytes"),
        Kind.ANSWER: ("acc", "gold_nats", "gold_bytes"),
        Kind.GENERATION: ("exact_match",),
    }[kind]
    given: dict[str, object] = {
        "run_id": run.id,
        "task": task,
        "content": "0123456789ab",
        "kind": kind,
        "doc_ids": tuple(range(n_items)),
        "doc_hashes": tuple(f"{i * 0x9E3779B97F4A7C15 % 2**64:016x}" for i in range(n_items)),
        "values": {name: tuple(map(float, values[name])) for name in held},
        "truncated": 0,
        "weights_sha256": "",
        "harness": "0.4.13",
        "evaluated_at": f"2026-11-23T20:{run.id:02}:00+00:00",
    }
    return Items(**(given | changes))  # type: ignore[arg-type]
