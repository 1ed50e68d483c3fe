"""Sources without a model: which there are, what is in them, and what they cost."""

from __future__ import annotations

import pytest
import torch
from attnres_variants.parts.sources import Blocks, Means, State, UnitSums, Window
from torch import Tensor

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

VALUES = list(torch.randn(7, 2, 3, 16, generator=torch.Generator().manual_seed(0)).double())


def made(sources: Blocks) -> list[Tensor]:
    """All sources, from the embedding and six outputs."""
    state = State(History(Scoring(sources.visible, "none")).append(VALUES[0]))
    for l, y in enumerate(VALUES[1:], 1):
        state = sources.append(state, l, y)
    return list(state.history.sources.values())


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


def test_sums_means_and_unit_sums_of_a_block_of_four_and_one_of_two():
    x, *v = VALUES
    rms = [torch.sqrt(each.square().mean(dim=-1, keepdim=True) + 1e-6) for each in v]
    unit = [each / size for each, size in zip(v, rms, strict=True)]

    torch.testing.assert_close(made(Blocks(16, 6, 4))[3], v[0] + v[1] + v[2])
    torch.testing.assert_close(made(Blocks(16, 6, 4))[6], v[4] + v[5])
    torch.testing.assert_close(made(Means(16, 6, 4))[4], sum(v[:4]) / 4)
    torch.testing.assert_close(made(UnitSums(16, 6, 4))[3], v[0] + v[1] + v[2])
    torch.testing.assert_close(made(UnitSums(16, 6, 4))[4], sum(unit[:4]))
    torch.testing.assert_close(made(UnitSums(16, 6, 4))[6], sum(unit[4:]))  # the last is finished
    assert all(torch.equal(made(kind(16, 6, 4))[0], x) for kind in (Blocks, Means, UnitSums))


@pytest.mark.parametrize("kind", [Blocks, Means, UnitSums])
def test_a_source_is_its_outputs_times_their_shares(kind: type[Blocks]):
    sources = kind(16, 6, 4)

    for j, source in enumerate(made(sources)):
        summed = sum(sources.share(VALUES[i], j) * VALUES[i] for i in sources.outputs(j))
        torch.testing.assert_close(source, summed)


def test_costs_of_blocks_of_two_counted_by_hand():
    sums, units = Blocks(16, 4, 2), UnitSums(16, 4, 2)
    pairs = 1 + 2 + 2 + 3 + 3

    assert (sums.flops(), units.flops()) == (2 * 16 * pairs, 2 * 16 * pairs + 4 * 16 * 4)
