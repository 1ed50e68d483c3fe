"""The values that a pipeline sends at each hop: the paper's equations, and nothing sent twice."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from designs import SIMPLE

from attnres_cli.nn.pipeline.cuts import planned, states_of
from attnres_cli.nn.pipeline.plan import Plan, Planned, Way, paper_cached, paper_whole
from attnres_cli.nn.residual import Residual, VariantError
from attnres_cli.nn.variant import parse

EMBEDDING = (0,)
WAYS: tuple[Way, ...] = ("whole", "cached")


def of(spec: str, stages: int, virtual: int, n_layers: int = 8) -> Planned:
    return planned(parse(spec), n_layers, 16, stages, virtual)


def blocks(plan: Plan, without: tuple[int, ...] = ()) -> list[int]:
    return [n // (4 * 16) for n in plan.hops(without)]


@pytest.mark.parametrize(
    ("stages", "virtual", "size", "whole", "cached"),
    [
        (2, 2, 4, [2, 3, 4], [2, 1, 1]),
        (4, 2, 2, [2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 3, 3, 3, 3]),
        (4, 2, 4, [2, 2, 3, 3, 4, 4, 5], [2, 2, 3, 2, 2, 2, 2]),  # Fig. 3: over two chunks
        (4, 2, 3, [2, 3, 3, 4, 5, 5, 6], [2, 3, 3, 3, 3, 2, 3]),  # not aligned
        (2, 2, 1, [5, 9, 13], [5, 4, 4]),
    ],
)
def test_hops_of_attention_residuals(
    stages: int, virtual: int, size: int, whole: list[int], cached: list[int]
):
    found = of(f"attnres:block_size={size}", stages, virtual)

    assert blocks(found.whole) == whole
    assert blocks(found.cached) == cached


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("virtual", [1, 2, 3])
def test_with_a_block_per_chunk_hops_are_eq_7_and_fewer_than_eq_8(stages: int, virtual: int):
    found = of("attnres:block_size=2", stages, virtual, stages * virtual)
    whole, cached = found.paper
    assert whole is not None
    assert cached is not None
    made_by_the_receiver = (virtual - 1) * stages

    assert sum(blocks(found.whole, EMBEDDING)) == whole
    assert sum(blocks(found.cached, EMBEDDING)) == cached - made_by_the_receiver


def test_the_equations_give_the_numbers_of_the_paper():
    assert paper_whole(4, 2, 8) == 28
    assert paper_cached(4, 2, 8) == 22
    assert paper_whole(4, 2, 4) == 14
    assert paper_cached(4, 2, 3) == Fraction(33, 4)
    assert of("mhc", 2, 2).paper == (None, None)
    assert of("attnres", 2, 2).n_blocks == 16


@pytest.mark.parametrize(("stages", "virtual"), [(2, 3), (3, 2)])
def test_a_rank_gets_a_value_once_and_has_what_it_needs(
    stages: int, virtual: int, subtests: pytest.Subtests
):
    for spec in SIMPLE[::2] if stages == 2 else SIMPLE[1::2]:
        plan = of(spec, stages, virtual, 3).cached
        had: list[set[int]] = [set() for _ in range(stages)]
        cached: list[set[int]] = [set() for _ in range(stages)]

        with subtests.test(spec=spec):
            for c in range(plan.n_chunks):
                rank = c % stages
                assert not had[rank] & set(plan.received(c))
                assert {*plan.received(c), *plan.known(c)} == {*plan.entering(c)}
                assert cached[rank] >= set(plan.known(c))
                had[rank] |= {*plan.entering(c), *plan.leaving(c)}
                cached[rank] |= {*plan.kept(c)}
            assert sum(plan.cuts.bytes_of[v] for v in cached[0]) == plan.cache(0)


@pytest.mark.parametrize(("stages", "virtual"), [(2, 2), (3, 1), (5, 1)])
def test_chunks_hold_every_sublayer_once(stages: int, virtual: int):
    plan = of("standard", stages, virtual, 3).whole
    chunks = [plan.sublayers(c) for c in range(plan.n_chunks)]

    assert [l for chunk in chunks for l in chunk] == [1, 2, 3, 4, 5, 6]
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1


@pytest.mark.parametrize(("stages", "virtual"), [(1, 1), (1, 4), (2, 0), (4, 2)])
def test_impossible_pipelines_are_refused(stages: int, virtual: int):
    with pytest.raises(ValueError, match="stages"):
        of("standard", stages, virtual, 3)


def test_a_state_of_one_tensor_is_sent_as_it_is_and_others_must_say_how():
    class Pair(Residual):
        def start(self, x):
            return x, x

        def write(self, state, l, y):
            return state[0] + y, state[1]

    token = torch.zeros(1, 1, 16)
    with pytest.raises(VariantError, match=r"^Pair cannot be cut between processes: its state is"):
        states_of(Pair(16, 6), token, token, token)
    for spec, sizes in (("standard", {64}), ("hc:n_streams=3", {192})):
        design = parse(spec).build(16, 6)
        cuts = states_of(design, token, token, token).cuts
        assert {len(state) for state in cuts.states} == {1}
        assert {cuts.bytes_of[i] for state in cuts.states for i in state} == sizes
