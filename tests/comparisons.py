"""Arms, runs and comparisons without training: each run starts at ln(256) nats and has a loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import studies
from studies import SETTINGS, VERSIONS

from attnres_cli.config.recipe import Recipe, load, validate
from attnres_cli.records.run import DataDescription, Point, Probe, RunRecord, Status
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.report_section import Chapter

MakeRun = Callable[..., RunRecord]
MakeArm = Callable[..., list[RunRecord]]
MakeChapter = Callable[..., Chapter]
Judge = Callable[..., Comparison]

BASE = (1.50, 1.70, 1.60, 1.40, 1.55)  # the seeds differ more than the arms below do
BETTER = (1.39, 1.59, 1.50, 1.31, 1.45)
WORSE = (1.61, 1.80, 1.71, 1.50, 1.65)
EQUAL = (1.51, 1.68, 1.61, 1.40, 1.54)
_CURVE = (Point(0, None, math.log(256)), Point(200, 2.0, 1.9), Point(400, 1.6, 1.5))
RESULT = replace(studies.RESULT, steps=400, tokens=102_400, train_s=5.0, curve=_CURVE)
PROBE = Probe(
    step=400,
    output_rms=(1.0, 0.5, 2.0),
    gradient_rms=(0.08, 0.002, 0.04),
    input_rms=(1.0, 1.25, 1.75),
    newest_share=(1.0, 0.75, 0.25),
    embedding_share=(1.0, 0.25, 0.05),
    entropy=(0.0, 0.5, 1.5),
    mixing=((1.0, 0.0, 0.0), (0.25, 0.75, 0.0), (0.05, 0.7, 0.25)),
)


def arm_of(comparison: Comparison, variant: str = "attnres") -> ArmResult:
    (arm,) = [arm for arm in comparison.arms if arm.variant == variant]
    return arm


def grown(n_layers: int) -> Recipe:
    model = {"n_layers": n_layers, "d_model": 16, "n_heads": 2, "seq_len": 16}
    values = {"name": "grown", "model": model, "optim": {"lr": 1e-2}}
    values["train"] = {"tokens": 384, "batch_size": 4, "eval_tokens": 256}
    return validate(values, "grown")


@pytest.fixture
def facts() -> DataDescription:
    return DataDescription("0123456789abcdef", "stdlib", 100_000, 256, 95_000, 5000, 3.3, 2.4)


@pytest.fixture
def make_run() -> MakeRun:
    numbers = itertools.count(1)

    def make(
        variant: str,
        seed: int,
        *,
        status: Status = Status.COMPLETE,
        error: str | None = None,
        recipe: tuple[str, str] = ("quick", "abcdef012345"),
        fingerprint: str = "0123456789abcdef",
        versions: Mapping[str, str] = VERSIONS,
        settings: Mapping[str, object] | None = None,
        **changes: object,
    ) -> RunRecord:
        if status is Status.DIVERGED:
            changes = {"val_loss": math.nan, **changes}
        result = replace(RESULT, status=status, settings=replace(SETTINGS, **(settings or {})))
        ended = status in (Status.COMPLETE, Status.DIVERGED)
        return RunRecord(
            id=next(numbers),
            recipe=recipe[0],
            recipe_digest=recipe[1],
            variant=variant,
            seed=seed,
            fingerprint=fingerprint,
            status=status,
            error=error,
            result=replace(result, **changes) if ended else None,
            versions=versions if ended else {},
        )

    return make


@pytest.fixture
def make_arm(make_run: MakeRun) -> MakeArm:
    """A function that makes one complete run of a variant per loss, from seed 0 up."""

    def make(variant: str, *losses: float, **changes: object) -> list[RunRecord]:
        return [make_run(variant, seed, val_loss=v, **changes) for seed, v in enumerate(losses)]

    return make


@pytest.fixture
def judge(facts: DataDescription) -> Judge:
    """A function that compares arms, each a list of its runs, with the baseline."""

    def judged(
        *arms: Sequence[RunRecord],
        baseline: str = "standard",
        data: DataDescription = facts,
        **how: Any,
    ) -> Comparison:
        return compare(list(itertools.chain(*arms)), data, baseline, **how)

    return judged


@pytest.fixture
def base(make_arm: MakeArm) -> list[RunRecord]:
    return make_arm("standard", *BASE)


@pytest.fixture
def make_chapter(judge: Judge) -> MakeChapter:
    """A function that makes a chapter of runs, each probed at its end unless told not to be."""

    def make(runs: list[RunRecord], *, probed: bool = True) -> Chapter:
        ended = [run for run in runs if run.result is not None] if probed else []
        probes = {run.id: PROBE for run in ended}
        return Chapter(judge(runs), probes, {"abcdef012345": load("smoke")}, study="my.db")

    return make
