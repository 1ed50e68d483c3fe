"""Reads without gradients, in two phases: groups, branches, sources that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import mixes
import pytest
import torch
from designs import BRIEF, perturbed, tokens_of, uses_an_engine
from hypothesis import example, given, settings
from mixes import DEVICE, Case, draw_values, scoring_of
from sampling import in_pairs
from torch import Tensor

from attnres_cli.nn.depthmix import eager, few_tokens, grouped_reads, reference
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.shape import Shape

MORE = settings(max_examples=3 * settings().max_examples)
"""The tests are cheap, and the edges many."""


@pytest.fixture(params=[few_tokens.FEW, 0], ids=["few", "many"], autouse=True)
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test in buffers of few tokens, and in the phases that kernels use."""
    with (
        mock.patch.object(few_tokens, "FEW", request.param),
        mock.patch.object(eager.Eager, "trains_in_groups", True),
        use("eager"),
        torch.no_grad(),
    ):
        yield


def close(ours: Tensor, scoring: Scoring, sources: list[Tensor], site: int) -> None:
    theirs = reference.mix(scoring, sources, site)
    scale = theirs.abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * max(scale, 1.0))


@MORE
@given(case=mixes.cases(most=40, widest=12))
@example(Case(mixes.some(24, 0.8, 0), heads=2))
@example(Case(mixes.some(24, 0.8, 1), "sigmoid", scored="table"))
@example(Case(mixes.blocks(24, 4)))
@example(Case(mixes.windows(24, 9), "none", scored="query"))
def test_every_site_in_turn_reads_as_the_reference(case: Case):
    values = draw_values(case, torch.float64)
    scoring = scoring_of(case, values)
    history, sources = History(scoring), []

    for site, v in enumerate(values.sources):
        added = site in case.added
        sources.append(sources[-1] + v if added else v)
        h, history = (history.accumulate(v) if added else history.append(v)).read(site)
        close(h, scoring, sources, site)


@MORE
@given(case=mixes.cases(widest=12))
def test_sites_may_be_skipped_and_read_again_later_or_in_branches(case: Case):
    values = draw_values(case, torch.float64)
    scoring = scoring_of(case, values)
    order = torch.Generator().manual_seed(case.seed)
    branches: list[tuple[list[Tensor], History]] = [([], History(scoring))]

    for n_made, v in enumerate(values.sources, 1):
        if n_made > 1 and torch.rand((), generator=order) < 0.2:
            branches = [*branches[-1:], branches[-1]]
        for number, (sources, history) in enumerate(branches):
            sources, history = [*sources, v / (1 + number)], history.append(v / (1 + number))
            for site in torch.randint(0, n_made, (2,), generator=order).tolist():
                few, state = history.few, history.state
                if site >= (few.sites[history.number] if few else state.site):
                    for _ in range(2):
                        h, history = history.read(site)
                        close(h, scoring, sources, site)
            branches[number] = (sources, history)


def test_a_read_of_a_source_that_is_gone_is_refused():
    case = Case(mixes.windows(6, 2))
    values = draw_values(case, torch.float32)
    history = mixes.history_of(case, values)
    for site, v in enumerate(values.sources):
        _, history = history.append(v).read(site)

    with pytest.raises(ValueError, match="site 2 sees a source that is gone"):
        history.read(2)
    assert history.read(0)[0].shape == values.sources[0].shape  # the first source is there


def test_a_group_begins_about_every_two_square_roots_of_the_number_of_sites():
    case = Case(mixes.full(36), d_head=4, size=(1, 2))
    values = draw_values(case, torch.float32)
    history = mixes.history_of(case, values)
    noted = mock.patch.object(grouped_reads, "_shared", wraps=grouped_reads._shared)

    with noted as shared, mock.patch.object(few_tokens, "FEW", 0):
        for site, v in enumerate(values.sources):
            _, history = history.append(v).read(site)

    begun = [call.args[1] for call in shared.call_args_list]
    assert begun == [1, 13, 25]  # the first site has one source, which it sees as it is


@in_pairs({"score": [1e4, -1e4], "norm": mixes.NORMS})
def test_scores_of_ten_thousand_give_finite_reads(norm: str, score: float):
    case = Case(mixes.full(20), norm, 1, 8, "table", (1, 3))
    values = draw_values(case, torch.float32)
    values.table = score * values.table
    history, exact = mixes.history_of(case, values), values.to(torch.float64)

    for site, v in enumerate(values.sources):
        h, history = history.append(v).read(site)
        expected = reference.mix(scoring_of(case, exact), exact.sources[: site + 1], site)
        assert torch.isfinite(h).all()
        # the sources' own size is 1
        torch.testing.assert_close(h.double(), expected, rtol=2e-3, atol=1e-3)


def test_sources_of_two_types_are_mixed_in_float32_and_read_in_the_first_ones_type():
    case = Case(mixes.full(12), "softmax", 2, 4, "query", (1, 3))
    values = draw_values(case, torch.bfloat16)
    scoring = scoring_of(case, values)
    history = History(scoring).append(values.sources[0])

    for site, v in enumerate(values.sources[1:], 1):
        h, history = (history.accumulate(v) if site % 3 else history.append(v)).read(site)

        assert h.dtype == torch.bfloat16
        if history.few is None:
            assert history.state.group.mixed.dtype == torch.float32
        expected = reference.mix(scoring, [v.float() for v in history.sources.values()], site)
        torch.testing.assert_close(h.float(), expected, rtol=1e-2, atol=1e-2)


def test_a_design_computes_the_same_with_and_without_gradients(
    tiny_shape: Shape, subtests: pytest.Subtests
):
    tokens = tokens_of().to(DEVICE)
    for spec in filter(uses_an_engine, BRIEF):
        with subtests.test(spec=spec):
            model = perturbed(spec, tiny_shape).to(DEVICE)

            reading = model(tokens)
            with torch.enable_grad():
                learning = model(tokens)

            assert learning.requires_grad
            assert not reading.requires_grad
            torch.testing.assert_close(reading, learning.detach(), rtol=1e-9, atol=1e-11)
