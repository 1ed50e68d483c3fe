"""A pipeline gives the loss and gradients of one process, and sends only what was planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from designs import DEFAULTS
from ranks import Case, run

from attnres_cli.nn.pipeline.run import schedule_of

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
    for i, by_rank in enumerate(zip(*run(cases, n_ranks, tmp_path), strict=True)):
        with subtests.test(case=cases[i]):
            for rank, found in enumerate(by_rank):
                assert found.worst <= 1e-12, (rank, found.worst_name, found.worst)
                assert found.loss == pytest.approx(found.expected_loss, rel=1e-13)
                assert found.eval_loss == pytest.approx(found.expected_loss, rel=1e-13)
                assert found.norm == pytest.approx(found.expected_norm, rel=1e-12)
                assert found.sent == found.planned
                assert found.cache_peak == found.cache_planned
                assert found.left == 0
            assert not frozenset.intersection(*(found.missing for found in by_rank))


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
