"""The list form against the reference, over random shapes, types and extreme values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_cli.nn.depthmix import reference
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring


def scoring_for(
    norm: str, heads: int, d_model: int, n_sources: int, *, static: bool, gain: bool, seed: int
) -> Scoring:
    generator = torch.Generator().manual_seed(seed)
    visible = (tuple(range(n_sources)), tuple(range(0, n_sources, 2)))

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    if static:
        pairs = sum(map(len, visible))
        return Scoring(visible, norm, heads, table=draw(pairs, heads))
    return Scoring(
        visible, norm, heads, query=draw(2, d_model), gain=draw(2, d_model) if gain else None
    )


def history_of(scoring: Scoring, sources: list[Tensor]) -> History:
    history = History(scoring)
    for v in sources:
        history = history.append(v)
    return history


@settings(max_examples=60, deadline=None)
@given(
    norm=st.sampled_from(["softmax", "sigmoid", "none"]),
    heads=st.integers(1, 3),
    d_slice=st.integers(1, 7),
    n_sources=st.integers(1, 12),
    time=st.integers(1, 5),
    static=st.booleans(),
    gain=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_reads_and_gradients_equal_the_reference(
    norm: str,
    heads: int,
    d_slice: int,
    n_sources: int,
    time: int,
    static: bool,
    gain: bool,
    seed: int,
):
    d_model = heads * d_slice
    scoring = scoring_for(norm, heads, d_model, n_sources, static=static, gain=gain, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    sources = [
        torch.randn(2, time, d_model, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(n_sources)
    ]
    learned = [p for p in (scoring.query, scoring.gain, scoring.table) if p is not None]
    history = history_of(scoring, sources)

    for site in (0, 1):
        ours, _ = history.read(site)
        theirs = reference.mix(scoring, sources, site)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        a, b = (
            torch.autograd.grad(
                h.sin().sum(), [*sources, *learned], retain_graph=True, materialize_grads=True
            )
            for h in (ours, theirs)
        )
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_logits_of_ten_thousand_stay_finite_with_their_gradients(sign: float):
    sources = [torch.randn(1, 4, 8).requires_grad_() for _ in range(5)]
    query = torch.full((1, 8), sign * 1e4).requires_grad_()
    scoring = Scoring((tuple(range(5)),), "softmax", query=query, gain=torch.ones(1, 8))

    h, _ = history_of(scoring, sources).read(0)
    h.sum().backward()

    assert torch.isfinite(h).all()
    assert all(torch.isfinite(v.grad).all() for v in sources)


def test_zero_vectors_as_sources_have_finite_gradients():
    sources = [torch.zeros(1, 2, 8).requires_grad_() for _ in range(3)]
    scoring = Scoring(((0, 1, 2),), "softmax", query=torch.ones(1, 8), gain=torch.ones(1, 8))

    h, _ = history_of(scoring, sources).read(0)
    h.sum().backward()

    assert all(torch.isfinite(v.grad).all() for v in sources)


def test_scores_are_float32_when_sources_are_bfloat16_even_under_autocast():
    sources = [torch.randn(1, 2, 8).bfloat16() for _ in range(3)]
    scoring = Scoring(((0, 1, 2),), "softmax", query=torch.ones(1, 8), gain=torch.ones(1, 8))

    with torch.autocast("cpu", torch.bfloat16):
        history = history_of(scoring, sources)
        weights, (h, _) = history.weights(0), history.read(0)

    assert weights.dtype == torch.float32
    assert h.dtype == torch.bfloat16


def test_accumulate_adds_to_the_newest_source_in_float32_and_keeps_the_old_history():
    scoring = Scoring(((0,), (0, 1)), "none", table=torch.ones(3, 1))
    one = torch.ones(1, 1, 4).bfloat16()
    history = history_of(scoring, [one])

    longer = history.accumulate(one / 512)

    assert len(history.sources) == 1
    assert longer.sources[1].dtype == torch.float32
    assert torch.equal(longer.sources[1], torch.full((1, 1, 4), 1 + 1 / 512))
