"""A pipeline gives the loss and gradients of one process, and sends only what was planned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from designs import DEFAULTS, perturbed
from processes import in_processes

from attnres_cli.nn.pipeline.cache import Cache
from attnres_cli.nn.pipeline.plan import Way
from attnres_cli.nn.pipeline.run import Pipeline, Stage, schedule_of
from attnres_cli.nn.shape import Shape

ROWS, TIME, VOCAB = 2, 4, 11
Check = tuple[str, Any, Any, float, float]
"""The name of a number, what a rank found, what it should be, and how near: relative, absolute."""


@dataclass(frozen=True)
class Case:
    """A design of 8 layers, and how it is cut and trained."""

    spec: str
    virtual: int = 2
    way: Way = "cached"
    schedule: str = "interleaved1f1b"
    n_micro: int = 4
    checkpoints: bool = False


QUICK = [
    Case("attnres:block_size=3", way="whole"),
    Case("attnres:block_size=3", checkpoints=True),
    Case("attnres", virtual=1, schedule="1f1b"),
    Case("unet", virtual=4),  # values that a rank keeps and reads two chunks later
]
FOUR = [
    Case("attnres:block_size=3", virtual=3, n_micro=8, schedule="loopedbfs"),
    Case("attnres", virtual=1, schedule="gpipe"),
    Case("attnres:block_size=2,query=stream,agg=rmssum"),
    Case("attnres:block_size=4", way="whole"),
    Case("delta:block_size=2,partial=off,gate=vector,null=on", virtual=3),
    Case("mhc:readout=sigmoid", virtual=1, schedule="1f1b"),
]
ALL_FOUR = [
    *(
        Case(spec, way=way)
        for spec in ("attnres", *(f"attnres:block_size={size}" for size in (2, 3, 4)))
        for way in ("whole", "cached")
    ),
    *(Case(spec) for spec in DEFAULTS),
    Case("denseformer:dilation=2", virtual=3),
    Case("laurel:kind=pa", virtual=3),
    Case("attnres:window=2", virtual=3),
]


def on_rank(
    cases: list[Case], n_ranks: int, store: str, ready: Barrier
) -> list[tuple[list[Check], set[str]]]:
    """The checks of each case, and the parameters whose gradients are on other ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=ready.wait(),
        world_size=n_ranks,
        timeout=timedelta(minutes=10),
    )
    try:
        return [_checks(case) for case in cases]
    finally:
        dist.destroy_process_group()


def _model(case: Case) -> Any:
    model = perturbed(case.spec, Shape(8, 16, 2, 2, 8, 24, VOCAB, TIME, norm_eps=1e-12))
    model.checkpoints_activations = case.checkpoints
    return model


def _checks(case: Case) -> tuple[list[Check], set[str]]:
    generator = torch.Generator().manual_seed(3)
    size = (ROWS * case.n_micro, TIME + 1)
    windows = torch.randint(0, VOCAB, size, generator=generator)
    tokens, targets = windows[:, :-1], windows[:, 1:]
    whole, loss = _model(case), 0.0
    for part in zip(tokens.split(ROWS), targets.split(ROWS), strict=True):
        each = whole(*part) / case.n_micro
        each.backward()
        loss += each.item()
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(expected.values()).item()

    pipeline = Pipeline(_model(case), case.virtual, case.schedule, way=case.way)
    sent: Counter[tuple[str, int]] = Counter()
    peak = [0]
    with pytest.MonkeyPatch.context() as patch:
        _watch(patch, sent, peak)
        for _ in range(2):  # a second batch does the same as the first, and gradients add up
            sent.clear()
            found = pipeline.backward(tokens, targets, case.n_micro).item()
    mine = {n: p.grad for n, p in pipeline.model.named_parameters() if p.grad is not None}
    off = {name: _off(g / 2, expected.get(name, torch.zeros_like(g))) for name, g in mine.items()}
    checks = [
        *((f"gradient of {name}", each, 0, 0, 1e-12) for name, each in off.items()),
        ("loss", found, loss, 1e-13, 0),
        ("loss of an evaluation", pipeline.loss(tokens, targets, 1).item(), loss, 1e-13, 0),
        ("norm of the gradient", pipeline.clip(1e-3).item(), 2 * norm, 1e-12, 0),
        ("bytes sent", dict(+sent), _planned(pipeline, case), 0, 0),
        ("bytes in the cache", max(peak), _planned_peak(pipeline, case), 0, 0),
        ("values left in the cache", len(pipeline.cache.entries), 0, 0, 0),
    ]
    return checks, set(expected) - set(mine)


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    scale = expected.abs().max().item()
    return (found - expected).abs().max().item() / scale if scale else found.abs().max().item()


def _watch(patch: pytest.MonkeyPatch, sent: Counter[tuple[str, int]], peak: list[int]) -> None:
    """Note the bytes given to the wire, by direction and chunk, and the cache after deposits."""
    deposit = Cache.deposit

    def counted(kind: str, send_ops: Any) -> Any:
        def ops(self: Stage, i: int) -> Any:
            found = send_ops(self, i)
            sent[kind, self.stage_index] += sum(op.tensor.nbytes for op in found)
            return found

        return ops

    def measured(self: Cache, value: int, x: torch.Tensor) -> torch.Tensor:
        found = deposit(self, value, x)
        peak.append(self.n_bytes)
        return found

    patch.setattr(Stage, "get_fwd_send_ops", counted("forward", Stage.get_fwd_send_ops))
    patch.setattr(Stage, "get_bwd_send_ops", counted("backward", Stage.get_bwd_send_ops))
    patch.setattr(Cache, "deposit", measured)


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


@pytest.mark.parametrize(
    ("n_ranks", "cases"),
    [
        (2, QUICK),
        pytest.param(4, FOUR, marks=pytest.mark.slow),
        pytest.param(4, ALL_FOUR, marks=pytest.mark.nightly),
    ],
    ids=["two ranks", "four ranks", "four ranks and all designs"],
)
def test_ranks_of_a_pipeline_learn_the_same_as_one_process(
    n_ranks: int, cases: list[Case], tmp_path: Path, subtests: pytest.Subtests
):
    ranks = in_processes(n_ranks, on_rank, cases, n_ranks, str(tmp_path / "store"))
    broken = [rank for rank in ranks if isinstance(rank, str)]
    assert not broken, broken

    for case, *found in zip(cases, *ranks, strict=True):
        with subtests.test(case=case):
            for checks, _ in found:
                for name, number, expected, rel, most in checks:
                    assert number == pytest.approx(expected, rel, most), name
            assert not set.intersection(*(missing for _, missing in found))


@pytest.mark.parametrize(
    ("name", "virtual", "words"),
    [
        ("InterleavedZeroBubble", 2, "splits backward into one pass for inputs and one for"),
        ("ZBVZeroBubble", 2, "splits backward"),
        ("1f1b", 2, "has one chunk per rank: 2 virtual stages take interleaved1f1b or loopedbfs"),
        ("2f2b", 1, "no schedule 2f2b: gpipe, 1f1b, interleaved1f1b, loopedbfs"),
    ],
)
def test_impossible_schedules_are_refused(name: str, virtual: int, words: str):
    with pytest.raises(ValueError, match=words):
        schedule_of(name, virtual)
