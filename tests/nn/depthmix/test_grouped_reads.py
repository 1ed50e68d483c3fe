"""Reads in two phases against the reference: groups, heads, tables, branches, extreme scores."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from designs import MIXING, build
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_cli.nn.depthmix import eager, grouped_reads, reference
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.shape import Shape

FULL = tuple(tuple(range(site + 1)) for site in range(70))


@pytest.fixture(params=[grouped_reads.FEW, 0], ids=["few", "many"], autouse=True)
def few(request: pytest.FixtureRequest):
    """Each test by calls, and by tiles."""
    with (
        mock.patch.object(grouped_reads, "FEW", request.param),
        mock.patch.object(eager, "TILE", 3),
    ):
        yield


@st.composite
def visibles(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Sources 0..l of site l: all, in uneven blocks, in a window, every k-th, or any."""
    n_sites, kind = (
        draw(st.integers(1, 70)),
        draw(st.sampled_from(["full", "block", "window", "kth", "any"])),
    )
    if kind == "full":
        return FULL[:n_sites]
    if kind == "window":
        window = draw(st.integers(1, 20))
        return tuple(
            tuple(sorted({0, *range(max(0, l + 1 - window), l + 1)})) for l in range(n_sites)
        )
    if kind == "kth":
        k = draw(st.integers(2, 4))
        return tuple(tuple(range(l % k, l + 1, k)) for l in range(n_sites))
    if kind == "block":
        ends = sorted(draw(st.sets(st.integers(0, n_sites - 1))))
        return tuple(tuple(sorted({0, l, *(e for e in ends if e < l)})) for l in range(n_sites))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    share = draw(st.floats(0.1, 0.95))
    kept = torch.rand(n_sites, n_sites, generator=generator) < share
    return tuple(tuple(i for i in range(l + 1) if kept[l, i] or i == l) for l in range(n_sites))


def scoring_of(visible: tuple[tuple[int, ...], ...], norm: str, heads: int, score: str, seed: int):
    """A scoring of random parameters, sources of width 4 heads, and its generator."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    table = draw(sum(map(len, visible)), heads) if "table" in score else None
    if score == "table":
        return Scoring(visible, norm, heads, table=table), draw
    rank = 3 * heads if score == "rank" else None
    gain = draw(len(visible), rank or 4 * heads) if score != "query" else None
    query = draw(len(visible), rank or 4 * heads)
    return Scoring(visible, norm, heads, query, gain, table, rank=rank), draw


drawn = given(
    visible=visibles(),
    norm=st.sampled_from(["softmax", "sigmoid", "none"]),
    heads=st.integers(1, 3),
    score=st.sampled_from(["keys", "query", "table", "keys+table", "rank"]),
    size=st.sampled_from([(1, 1), (3, 1), (1, 2), (2, 5)]),
    seed=st.integers(0, 2**31),
)


def close(ours: Tensor, scoring: Scoring, sources: list[Tensor], site: int) -> None:
    theirs = reference.mix(scoring, sources, site)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@drawn
def test_every_site_in_turn_reads_what_the_reference_says(
    visible, norm: str, heads: int, score: str, size: tuple[int, int], seed: int
):
    scoring, draw = scoring_of(visible, norm, heads, score, seed)
    sources, history = [], History(scoring)

    with torch.no_grad():
        for site in range(len(visible)):
            sources.append(draw(*size, 4 * heads))
            h, history = history.append(sources[-1]).read(site)
            close(h, scoring, sources, site)


@settings(max_examples=30, deadline=None)
@drawn
def test_sites_may_be_skipped_read_again_out_of_order_and_in_branches(
    visible, norm: str, heads: int, score: str, size: tuple[int, int], seed: int
):
    scoring, draw = scoring_of(visible, norm, heads, score, seed)
    order = torch.Generator().manual_seed(seed)
    branches = [([], History(scoring))]

    with torch.no_grad():
        for n_made in range(1, len(visible) + 1):
            sources, history = branches[-1]
            if n_made > 1 and torch.rand((), generator=order) < 0.2:
                branches.append((list(sources), history))
            if len(branches) > 2:
                branches.pop(0)
            for number, (sources, history) in enumerate(branches):
                sources.append(draw(*size, 4 * heads))
                history = history.append(sources[-1])
                for site in torch.randint(0, n_made, (2,), generator=order).tolist():
                    if visible[site][-1] < len(sources):
                        h, history = history.read(site)
                        close(h, scoring, sources, site)
                branches[number] = (sources, history)


def count(sources_per_read: list[int], history: History, draws: list[Tensor]) -> None:
    """Read every site in turn, and note how many sources its group's sums are of."""
    for site, v in enumerate(draws):
        _, history = history.append(v).read(site)
        sources_per_read.append(len(history.ledger.partial.done) if history.ledger.partial else 0)


def test_a_group_is_begun_about_every_two_square_roots_of_the_sites():
    scoring, draw = scoring_of(FULL[:36], "softmax", 1, "keys", 0)
    begun = []
    group = grouped_reads._group

    with mock.patch.object(
        grouped_reads, "_group", lambda _, site, size: begun.append(site) or group(_, site, size)
    ):
        count([], History(scoring), [draw(1, 2, 4) for _ in range(36)])

    assert begun == [1, 13, 25]  # the first site has one source, which it sees as it is


@pytest.mark.parametrize("score", [1e4, -1e4])
@pytest.mark.parametrize("norm", ["softmax", "sigmoid", "none"])
def test_scores_of_ten_thousand_stay_finite(norm: str, score: float):
    generator = torch.Generator().manual_seed(0)
    table = score * torch.randn(sum(map(len, FULL[:20])), 1, generator=generator)
    scoring, sources, history = Scoring(FULL[:20], norm, table=table), [], None

    for site in range(20):
        sources.append(torch.randn(1, 3, 8, generator=generator))
        history = (history or History(scoring)).append(sources[-1])
        h, history = history.read(site)

        assert torch.isfinite(h).all()
        wide = [v.double() for v in sources]
        expected = reference.mix(Scoring(FULL[:20], norm, table=table.double()), wide, site)
        torch.testing.assert_close(
            h.double(), expected, rtol=2e-3, atol=1e-3 * expected.abs().max()
        )


@pytest.mark.parametrize("heads", [1, 2])
def test_sources_of_two_types_are_mixed_in_float32_and_read_in_the_first_ones_type(heads: int):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(12, 8, generator=generator)
    scoring = Scoring(FULL[:12], "softmax", heads, query=query)
    history = History(scoring).append(torch.randn(1, 3, 8, generator=generator).bfloat16())

    for site in range(1, 12):
        v = torch.randn(1, 3, 8, generator=generator).bfloat16()
        h, history = (history.accumulate(v) if site % 3 else history.append(v)).read(site)

        assert h.dtype == torch.bfloat16
        assert history.ledger.partial is not None
        assert history.ledger.partial.mixed.dtype == torch.float32
        expected = reference.mix(scoring, [v.float() for v in history.sources], site)
        torch.testing.assert_close(h.float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("spec", MIXING)
def test_a_design_computes_the_same_with_and_without_gradients(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    tokens = torch.randint(0, tiny_shape.vocab_size, (2, 8), generator=generator)

    with use("eager"):
        learning = model(tokens)
        with torch.no_grad():
            reading = model(tokens)

    assert learning.requires_grad
    assert not reading.requires_grad
    torch.testing.assert_close(reading, learning.detach(), rtol=1e-9, atol=1e-11)
