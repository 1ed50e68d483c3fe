"""`attnres bench prefill`: on real ranks the numbers are those of one process."""

from __future__ import annotations

import pytest
from commands import Attnres

TINY = ("bench", "prefill", "--recipe", "smoke", "--set", "model.n_heads=4")


def test_two_ranks_find_what_one_process_does(attnres: Attnres):
    arms = ("attnres:block_size=2", "sandwich")
    sizes = ("--set", "model.d_model=128", "--tokens", "1024", "--chunk", "512")
    found = attnres.json(*TINY, *arms, *sizes)

    block, sandwich = found["arms"]
    assert max(*block["off"], *sandwich["off"]) < 1e-12
    assert min(block["off"]) > 0  # another order of sums
    assert block["held"] == block["counted"]
    assert block["held"][0] == 2 * block["held"][1] == 4 * block["held"][2]
    assert sandwich["counted"] == []


def test_sizes_that_the_ranks_cannot_share_are_refused(attnres: Attnres):
    heads = attnres.refuses(*TINY, "--ranks", "3")
    chunk = attnres.refuses(*TINY, "--ranks", "2", "--chunk", "7")
    assert "--ranks 3 does not divide n_heads 4" in heads
    assert "--chunk 7 must be divided by --ranks 2" in chunk


def test_designs_that_ranks_have_no_parts_of_are_refused(attnres: Attnres):
    values = attnres.refuses(*TINY, "standard", "attnres+vres")
    experts = attnres.refuses(*TINY, "--set", "model.mlp=moe")
    assert "bench prefill: attnres+vres changes values" in values
    assert "bench prefill has no parts of moe for ranks: take another recipe" in experts


@pytest.mark.slow
def test_four_ranks_and_every_kind_of_design(attnres: Attnres):
    arms = ("standard", "attnres", "attnres:block_size=4", "mhc", "denseformer", "sandwich")
    sizes = ("--ranks", "4", "--set", "model.mlp=gelu", "--tokens", "512")
    out = attnres.prints(*TINY, *arms, *sizes)
    for size in ("15.03 GB", "1.88 GB", "0.23 GB"):
        assert size in out
