"""Pipelines of real processes, each compared with one process that has all of the model."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from designs import perturbed
from processes import in_processes

from attnres_cli.nn.pipeline.cache import Cache
from attnres_cli.nn.pipeline.plan import Way
from attnres_cli.nn.pipeline.run import Pipeline, Stage
from attnres_cli.nn.shape import Shape

ROWS, TIME, VOCAB = 2, 4, 11


@dataclass(frozen=True)
class Case:
    """A design of 8 layers, and how it is cut and trained."""

    spec: str
    virtual: int = 2
    way: Way = "cached"
    schedule: str = "interleaved1f1b"
    n_micro: int = 4
    checkpoints: bool = False
    n_layers: int = 8


@dataclass(frozen=True)
class Found:
    """What one rank saw of a case, and what it should have seen."""

    loss: float
    expected_loss: float
    eval_loss: float
    worst: float
    worst_name: str
    norm: float
    expected_norm: float
    missing: frozenset[str]
    left: int
    cache_peak: int
    cache_planned: int
    sent: dict[tuple[str, int], int]
    planned: dict[tuple[str, int], int]


def run(cases: list[Case], n_ranks: int, folder: Path) -> list[list[Found]]:
    """What each rank found of each case, by rank."""
    answers = in_processes(n_ranks, _rank, cases, n_ranks, str(folder / "store"))
    broken = [answer for answer in answers if isinstance(answer, str)]
    assert not broken, broken
    return [found for _, found in sorted(answers, key=lambda answer: answer[0])]


def _rank(cases: list[Case], n_ranks: int, store: str, ready: Barrier) -> tuple[int, list[Found]]:
    torch.set_num_threads(1)
    rank = ready.wait()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(minutes=10),
    )
    try:
        return rank, [_found(case) for case in cases]
    finally:
        dist.destroy_process_group()


def _model(case: Case) -> Any:
    shape = Shape(case.n_layers, 16, 2, 2, 8, 24, VOCAB, TIME, norm_eps=1e-12)
    model = perturbed(case.spec, shape)
    model.checkpoints_activations = case.checkpoints
    return model


def _found(case: Case) -> Found:
    generator = torch.Generator().manual_seed(3)
    size = (ROWS * case.n_micro, TIME + 1)
    windows = torch.randint(0, VOCAB, size, generator=generator)
    tokens, targets = windows[:, :-1], windows[:, 1:]
    whole = _model(case)
    loss = sum(
        _backward(whole(*part) / case.n_micro)
        for part in zip(tokens.split(ROWS), targets.split(ROWS), strict=True)
    )
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(expected.values())

    pipeline = Pipeline(_model(case), case.virtual, case.schedule, way=case.way)
    with _watched() as (sent, peak):
        for _ in range(2):  # a second step does the same as the first
            pipeline.model.zero_grad()
            sent.clear()
            found = pipeline.backward(tokens, targets, case.n_micro)
    mine = {n: p.grad for n, p in pipeline.model.named_parameters() if p.grad is not None}
    off = {n: _off(g, expected.get(n, torch.zeros_like(g))) for n, g in mine.items()}
    worst = max(off, key=lambda name: off[name])
    return Found(
        loss=found.item(),
        expected_loss=loss,
        eval_loss=pipeline.loss(tokens, targets, 1).item(),
        worst=off[worst],
        worst_name=worst,
        norm=pipeline.clip(1e-3).item(),
        expected_norm=norm.item(),
        missing=frozenset(expected).difference(mine),
        left=len(pipeline.cache.entries),
        cache_peak=max(peak, default=0),
        cache_planned=_planned_peak(pipeline, case),
        sent=dict(+sent),
        planned=_planned(pipeline, case),
    )


def _backward(loss: torch.Tensor) -> float:
    loss.backward()
    return loss.item()


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    scale = expected.abs().max().item()
    return (found - expected).abs().max().item() / scale if scale else found.abs().max().item()


@contextlib.contextmanager
def _watched() -> Any:
    """Bytes given to the wire, by direction and chunk; sizes of the cache after deposits."""
    sent: Counter[tuple[str, int]] = Counter()
    peak: list[int] = []
    deposit = Cache.deposit
    kinds = {"forward": Stage.get_fwd_send_ops, "backward": Stage.get_bwd_send_ops}

    def counted(kind: str) -> Any:
        def ops(self: Stage, i: int) -> Any:
            found = kinds[kind](self, i)
            sent[kind, self.stage_index] += sum(op.tensor.nbytes for op in found)
            return found

        return ops

    def measured(self: Cache, value: int, x: torch.Tensor) -> torch.Tensor:
        found = deposit(self, value, x)
        peak.append(self.n_bytes)
        return found

    Stage.get_fwd_send_ops, Stage.get_bwd_send_ops = counted("forward"), counted("backward")
    Cache.deposit = measured
    try:
        yield sent, peak
    finally:
        Stage.get_fwd_send_ops, Stage.get_bwd_send_ops = kinds["forward"], kinds["backward"]
        Cache.deposit = deposit


def _planned(pipeline: Pipeline, case: Case) -> dict[tuple[str, int], int]:
    """What the plan has this rank send in a step: forward from a chunk, backward to the one before
    it.
    """
    plan, n_tokens = pipeline.plan, ROWS * TIME * case.n_micro
    hops, found = plan.hops(), dict[tuple[str, int], int]()
    for chunk in pipeline.chunks:
        c = chunk.c
        if c + 1 < plan.n_chunks:
            found["forward", c] = n_tokens * hops[c]
        if c > 0:
            found["backward", c] = n_tokens * hops[c - 1]
    return found


def _planned_peak(pipeline: Pipeline, case: Case) -> int:
    """The most that the cache holds by the plan, in the order of torch's schedule."""
    schedule = pipeline._made[ROWS, TIME, case.n_micro, True]
    plan, held, most = pipeline.plan, 0, 0
    for action in filter(None, schedule.pipeline_order[pipeline.rank]):
        n = sum(plan.cuts.bytes_of[i] for i in plan.kept(action.stage_index)) * ROWS * TIME
        held += n if action.computation_type.name == "FORWARD" else -n
        most = max(most, held)
    return most
