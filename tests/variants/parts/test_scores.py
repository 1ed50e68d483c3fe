"""Scores and weights alone, on tensors of their own."""

from __future__ import annotations

import math

import pytest
import torch
from attnres_variants.parts.scores import Count, Dots, InputQuery, Keys, Recency, Static
from attnres_variants.parts.sources import Blocks, State
from attnres_variants.parts.weights import WEIGHTS

from attnres_cli.errors import VariantError
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

BLOCKS = Blocks(16, 4, 2)  # sites see (0), (0 1), (0 2), (0 2 3), (0 2 4)
SOFTMAX = WEIGHTS["softmax"]
X = torch.zeros(1, 1, 16)


def keys(heads: int = 1, rank: int | None = None, *, norm: bool = True, head_norm: bool = False):
    return Keys(16, heads, rank, norm=norm, head_norm=head_norm)


@pytest.mark.parametrize("norm", ["softmax", "sigmoid", "none"])
def test_static_scores_start_where_all_sources_weigh_the_same(norm: str):
    scores = Static(BLOCKS, WEIGHTS[norm], heads=2)
    at = scores.tensors()

    scoring = scores.scoring(at, X)

    assert at["table"].shape == (11, 2)
    weights = scoring.weights(scoring.squash(at["table"][:1]), dim=0)
    assert (weights == {"softmax": 1.0, "sigmoid": 0.5, "none": 1.0}[norm]).all()
    assert (scores.flops(), scores.numbers()) == (0, 0)


def test_queries_start_at_zero_and_gains_at_one():
    at = Dots(BLOCKS, SOFTMAX, keys()).tensors()

    assert {name: (t.shape, t.unique().tolist()) for name, t in at.items()} == {
        "query": ((5, 16), [0.0]),
        "gain": ((5, 16), [1.0]),
    }


def test_keys_of_low_rank_and_raw_ones_have_no_gain_to_learn():
    assert keys(rank=4).tensors(5) == keys(norm=False).tensors(5) == {}
    gain = keys(rank=4).gain({}, 5, X)
    assert gain is not None
    assert torch.equal(gain, torch.ones(5, 4))
    assert keys(norm=False).gain({}, 5, X) is None


def test_recency_is_added_to_the_newest_source_of_each_site():
    at = {**Recency(BLOCKS).tensors(), "recency": torch.arange(1.0, 6.0)}

    biases = Recency(BLOCKS).biases(at, X)

    assert biases.tolist() == [1, 0, 2, 0, 3, 0, 0, 4, 0, 0, 5]


def test_count_is_the_log_of_the_outputs_in_each_source():
    biases = Count(BLOCKS).biases(Count(BLOCKS).tensors(), X)

    expected = [1, 1, 1, 1, 2, 1, 2, 1, 1, 2, 2]
    assert biases.tolist() == pytest.approx([math.log(n) for n in expected])


@pytest.mark.parametrize("of", ["input", "stream"])
def test_a_query_is_made_of_the_newest_source_or_of_the_stream(of: str):
    draw = torch.Generator().manual_seed(0)
    x, y, stream = torch.randn(3, 1, 1, 16, generator=draw)
    at = {"query": torch.randn(5, 16, generator=draw)}
    at["project"] = torch.randn(5, 16, 16, generator=draw)
    history = History(Scoring(BLOCKS.visible, "softmax")).append(x).append(y)

    found = InputQuery(keys(), of).at_site(
        at, State(history, stream=stream if of == "stream" else None), 1
    )

    u = (y if of == "input" else stream)[0, 0]
    unit = u / math.sqrt(u.square().mean() + 1e-6)
    torch.testing.assert_close(found[0, 0], at["query"][1] + at["project"][1] @ unit / 4)


def test_costs_counted_by_hand():
    plain, made = Dots(BLOCKS, SOFTMAX, keys()), InputQuery(keys(), "input")

    assert plain.flops() == 2 * 16 * (11 + 5)  # a score per pair, an rms per source
    assert plain.numbers() == 16 * 5
    assert Dots(BLOCKS, SOFTMAX, keys(rank=4)).flops() == 2 * 4 * (11 + 5)
    assert Dots(BLOCKS, SOFTMAX, keys(norm=False)).flops() == 2 * 16 * 11
    assert Dots(BLOCKS, SOFTMAX, keys(), prior=Recency(BLOCKS)).flops() == plain.flops() + 11
    assert made.flops(5) == 5 * 2 * 16 * 17
    assert InputQuery(keys(), "stream").numbers(5) == made.numbers(5) + 16 * (3 * 4 + 5)


def test_normalised_sigmoids_are_a_softmax_of_their_logarithms():
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    scoring = Dots(BLOCKS, WEIGHTS["sigmoid_normalised"], keys()).scoring({"query": X}, X)

    weights = scoring.weights(scoring.squash(scores), dim=0)

    torch.testing.assert_close(weights, scores.sigmoid() / scores.sigmoid().sum(dim=0))
    assert WEIGHTS["sigmoid_normalised"].sum_to_one
    assert not WEIGHTS["sigmoid"].sum_to_one


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: keys(rank=17), r"in 1\.\.16"),
        (lambda: keys(heads=2, rank=3), "do not divide rank 3"),
        (lambda: keys(rank=4, norm=False), "always normalised"),
        (lambda: keys(head_norm=True), "set heads"),
        (lambda: keys(heads=2, rank=4, head_norm=True), "full width"),
        (lambda: InputQuery(keys(rank=4), "stream"), "drop query=stream"),
        (lambda: Count(Blocks(16, 4)), "log 1 = 0"),
        (lambda: Dots(BLOCKS, WEIGHTS["sigmoid"], keys(), prior=Count(BLOCKS)), "not under"),
        (lambda: Dots(BLOCKS, WEIGHTS["none"], keys()), "queries need one"),
        (lambda: Static(BLOCKS, WEIGHTS["sigmoid_normalised"], 1), "by softmax, or not"),
    ],
)
def test_parts_refuse_what_has_no_meaning_for_them(make, reason: str):
    with pytest.raises(VariantError, match=reason):
        make()
