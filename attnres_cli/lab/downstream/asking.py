"""Tasks asked of a model by lm-evaluation-harness, and what is kept of every item."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from attnres_cli.lab.downstream.tasks import Task, explained, hashed, quiet
from attnres_cli.records.items import CHOICE_NATS, GOLD_BYTES, GOLD_NATS, N_CHOICES, Items, Kind

if TYPE_CHECKING:
    from attnres_cli.lab.downstream.answers import Answers

_KINDS = {
    "multiple_choice": Kind.CHOICE,
    "loglikelihood": Kind.ANSWER,
    "loglikelihood_rolling": Kind.TEXT,
    "generate_until": Kind.GENERATION,
}


def ask(task: Task, model: Answers, run_id: int, weights: str, limit: int | None) -> Items:
    """What the model answers to a task's items, or to the first of them. Raises UsageError."""
    from lm_eval.evaluator import evaluate

    with quiet(), explained(task.name):
        task.seed()
        found = evaluate(
            lm=model, task_dict={"tasks": {task.name: task.loaded}}, limit=limit, bootstrap_iters=0
        )
    samples = found["samples"][task.name]
    filters = list(dict.fromkeys(sample["filter"] for sample in samples))
    by_doc: dict[int, dict[str, float]] = {}
    first = [sample for sample in samples if sample["filter"] == filters[0]]
    for sample in samples:
        suffix = "" if sample["filter"] == filters[0] else f",{sample['filter']}"
        values = by_doc.setdefault(sample["doc_id"], {})
        values |= {name + suffix: value for name, value in _metrics(task.loaded, sample).items()}
    for sample in first:
        by_doc[sample["doc_id"]] |= _likelihoods(task.loaded, sample)
    names = list(dict.fromkeys(name for values in by_doc.values() for name in values))
    return Items(
        run_id,
        task.name,
        task.content,
        _KINDS[task.loaded.OUTPUT_TYPE],
        tuple(sample["doc_id"] for sample in first),
        tuple(hashed(sample["doc"], sample["arguments"]) for sample in first),
        {n: _kept(by_doc[s["doc_id"]].get(n, math.nan) for s in first) for n in names},
        len(model.cut),
        weights,
        version("lm_eval"),
    )


def _kept(values: Iterable[float]) -> tuple[float, ...]:
    """As the study keeps them, so that they are the same whenever they are shown."""
    return tuple(np.array(list(values), dtype=np.float32).tolist())


def _metrics(loaded: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    """The harness's numbers of a document that are better where they are higher."""
    better = loaded.higher_is_better()
    return {
        name: float(sample[name])
        for name in sample["metrics"]
        if better.get(name, True) is True and isinstance(sample[name], int | float)
    }


def _likelihoods(loaded: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    """What the harness does not keep by document: the right answer's likelihood and length."""
    kind, answers = _KINDS[loaded.OUTPUT_TYPE], [each[0] for each in sample["resps"]]
    if kind is Kind.GENERATION:
        return {}
    if kind is Kind.TEXT:
        text = sample["arguments"][0][0]
        return {GOLD_NATS: float(answers[0]), GOLD_BYTES: float(len(text.encode()))}
    nats = [float(log_p) for log_p, _ in answers]
    sizes = [float(len(arguments[1].encode())) for arguments in sample["arguments"]]
    if kind is Kind.ANSWER:
        return {GOLD_NATS: nats[0], GOLD_BYTES: sizes[0]} if len(nats) == 1 else {}
    n = len(loaded.doc_to_choice(sample["doc"]))
    gold = _gold(loaded, sample["doc"], nats)
    least = max(nats[:n])
    total = least + math.log(math.fsum(math.exp(each - least) for each in nats[:n]))
    found = {GOLD_NATS: math.nan, GOLD_BYTES: math.nan, CHOICE_NATS: math.nan, N_CHOICES: float(n)}
    if gold is None:
        return found
    return found | {
        GOLD_NATS: nats[gold], GOLD_BYTES: sizes[gold], CHOICE_NATS: nats[gold] - total
    }  # fmt: skip


def _gold(loaded: Any, doc: Any, nats: Sequence[float]) -> int | None:
    """The number of the right answer, of several the likeliest; None where the task names none."""
    told, choices = loaded.doc_to_target(doc), loaded.doc_to_choice(doc)
    if getattr(loaded, "multiple_input", 0):
        told = loaded.doc_to_text(doc)
    several = told if isinstance(told, list) else [told]
    numbers = [choices.index(t) if isinstance(t, str) and t in choices else t for t in several]
    right = [i for i in numbers if isinstance(i, int) and 0 <= i < len(choices)]
    return max(right, key=lambda i: nats[i], default=None)
