"""Designs are proposed once each, only legal ones, and better ones the more is seen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import mean

import pytest

from attnres_cli.lab.search.design_proposals import TOP, Proposer, Seen, proposed, tpe
from attnres_cli.lab.search.designs import Choices, parse, spec_of

Make = Callable[..., Proposer] | None
MAKERS = [tpe, None]
SPACE = parse(
    "attnres:norm=*,heads=1|2|4|8,agg=*,prior=*;delta:gate=*,block_size=*,null=*;+vres:weights=*|+x0"
)


def name_of(choices: Choices) -> str | None:
    """Every design but those with mean aggregation, whichever way round its add-ons are."""
    if (
        choices.get("attnres.agg") == "mean"
        or choices.get("addon 2") == choices["addon 1"] != "none"
    ):
        return None
    stream, *addons = spec_of(choices).split("+")
    return "+".join([stream, *sorted(addons)])


def loss(choices: Choices) -> float:
    """Best: delta, gate vector, with x0."""
    found = 1.0 if choices["stream"] == "attnres" else 0.0
    found += {"vector": 0.0, "scalar": 0.3}.get(str(choices.get("delta.gate")), 0.6)
    return found + (0.0 if "x0" in choices.values() else 0.4)


def search(make: Make, n: int, seed: int, every: int = 4) -> list[Seen]:
    """n designs, of which each `every`th has all its tokens."""
    seen: list[Seen] = []
    for number in range(n):
        found = proposed(SPACE, name_of, seen, 1000 * seed + number, make)
        assert found is not None
        seen.append(Seen(found[0], TOP if number % every == 0 else 0, loss(found[0])))
    return seen


@pytest.mark.parametrize("make", MAKERS)
def test_proposals_are_legal_new_and_follow_from_the_seed(make):
    one, other = search(make, 16, seed=1), search(make, 16, seed=1)
    assert one == other
    names = [name_of(dict(each.choices)) for each in one]
    assert None not in names
    assert len(set(names)) == 16
    assert search(make, 16, seed=2) != one


def test_tpe_proposes_better_designs_than_chance():
    def later(make: Make) -> float:
        return mean(loss(dict(each.choices)) for each in search(make, 40, seed=1, every=1)[20:])

    assert later(tpe) < later(None) - 0.2


@pytest.mark.parametrize("make", MAKERS)
def test_trials_that_train_and_that_diverged_stop_nobody(make):
    seen = search(make, 14, seed=3)
    odd = [Seen(seen[0].choices, TOP, math.inf), Seen(seen[1].choices, 0, None)]
    assert proposed(SPACE, name_of, [*odd, *seen[2:]], 5, make) is not None


@pytest.mark.parametrize("make", MAKERS)
def test_a_space_is_exhausted_and_then_nothing_is_proposed(make):
    small, seen = parse("standard;delta:gate=*,null=*;attnres:heads=1|2;+x0"), []
    while (found := proposed(small, spec_of, seen, len(seen), make)) is not None:
        seen.append(Seen(found[0], 0, random.Random(len(seen)).random()))
    assert len({spec_of(each.choices) for each in seen}) == small.size == 18


@pytest.mark.parametrize("make", MAKERS)
def test_a_stream_whose_options_exclude_each_other_is_tried_as_often_as_others(make):
    space = parse("attnres:*;delta:gate=*,null=*,block_size=*")
    (stream,) = (part for name, part in space.streams.items() if name == "attnres")

    def alone(choices: Choices) -> str | None:
        """Attention Residuals with at most one option away from its default."""
        typed = {k.partition(".")[2]: v for k, v in choices.items() if k.startswith("attnres.")}
        away = [key for key, value in typed.items() if value != stream.defaults[key]]
        return spec_of(choices) if len(away) < 2 else None

    seen: list[Seen] = []
    for seed in range(20):
        found = proposed(space, alone, seen, seed, make)
        assert found is not None
        seen.append(Seen(found[0], TOP, 1.0 + seed % 2))
    assert 5 <= sum(each.choices["stream"] == "attnres" for each in seen) <= 15


def test_a_space_that_is_refused_as_a_whole_proposes_nothing():
    assert proposed(SPACE, lambda _choices: None, [], 0) is None
