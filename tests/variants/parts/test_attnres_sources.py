"""Sources without a model: which there are, what is in them, and what they cost."""

from __future__ import annotations

import pytest
from attnres_variants.parts.sources import Blocks, UnitSums, Window


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (Blocks(16, 4), [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)]),
        (Blocks(16, 4, 2), [(0,), (0, 1), (0, 2), (0, 2, 3), (0, 2, 4)]),  # drawn in Fig. 9
        (Blocks(16, 5, 2), [(0,), (0, 1), (0, 2), (0, 2, 3), (0, 2, 4), (0, 2, 4, 5)]),
        (Blocks(16, 4, 4), [(0,), (0, 1), (0, 2), (0, 3), (0, 4)]),  # embedding and sum apart
        (Window(16, 4, 2), [(0,), (0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4)]),
    ],
)
def test_a_site_sees(sources: Blocks, expected: list[tuple[int, ...]]):
    assert list(sources.visible) == expected


@pytest.mark.parametrize(("block_size", "attention", "mlp"), [(4, 80, 88), (1, 256, 272)])
def test_source_counts_are_those_drawn_in_figure_8(block_size: int, attention: int, mlp: int):
    counts = [len(seen) for seen in Blocks(16, 32, block_size).visible[:-1]]

    assert sum(counts[0::2]) == attention
    assert sum(counts[1::2]) == mlp


def test_the_layouts_of_kimi_have_ten_and_nine_sources():
    assert max(map(len, Blocks(16, 54, 6).visible)) == 10  # 48B
    assert len(Blocks(16, 186, 24).visible[-1]) == 9  # K3, at the output


def test_costs_of_blocks_of_two_counted_by_hand():
    sums, units = Blocks(16, 4, 2), UnitSums(16, 4, 2)
    pairs = 1 + 2 + 2 + 3 + 3

    assert (sums.flops(), units.flops()) == (2 * 16 * pairs, 2 * 16 * pairs + 4 * 16 * 4)
