"""Every engine against the formula: values and every gradient, over shapes, patterns and types."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import mixes
import pytest
import torch
from designs import computed_by
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import (
    CUSTOM,
    DEVICE,
    EVERY,
    GATHERED,
    NAMES,
    NEEDS_TRITON,
    OPTIONS,
    Case,
    assert_near,
    draw_values,
    outcome,
    small,
)  # fmt: skip
from sampling import in_pairs
from torch import Tensor

from attnres_cli.nn.depthmix import engines, reference
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.reference import Reference
from attnres_cli.nn.depthmix.scoring import Scoring

FEW = settings(max_examples=min(20, settings().max_examples))
"""For Triton's interpreter, which takes milliseconds a kernel."""

SINGLE = 2e-4
"""In float32, of the largest number of a tensor. Up to 70 sites feed each other, and gradients are
sums over 70 sites of terms that cancel: 1000 roundings of 1.2e-7."""


def exact(case: Case, values: mixes.Values) -> dict[str, Tensor]:
    return outcome("reference", case, values.to(torch.float64))


@pytest.mark.parametrize("engine", ["eager", "compile"])
@given(case=mixes.cases())
def test_in_float64_reads_and_gradients_are_the_formulas(engine: str, case: Case):
    values = draw_values(case, torch.float64)

    assert_near(outcome(engine, case, values), exact(case, values), 1e-9, least=1e-3)


@pytest.mark.parametrize("engine", ["reference", "eager", "compile"])
@given(case=mixes.cases())
def test_in_float32_reads_and_gradients_are_the_formulas(engine: str, case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome(engine, case, values), exact(case, values), SINGLE, least=1e-1)


@NEEDS_TRITON
@FEW
@given(case=mixes.cases(most=9, widest=150))
def test_the_kernels_read_and_differentiate_as_the_formula_says(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@NEEDS_TRITON
@pytest.mark.parametrize(
    "case",
    [
        Case(mixes.full(1), "sigmoid", 1, 1, size=(1, 1)),
        Case(mixes.full(2), "softmax", 1, 300, size=(1, 1)),
        Case(mixes.full(2), "softmax", 3, 100, size=(1, 2)),
        pytest.param(Case(mixes.full(23), "softmax", 2, 3, size=(1, 17)), marks=pytest.mark.slow),
        Case(mixes.every_other(12, 3), "softmax", 2, 5, size=(1, 3)),
        Case(mixes.windows(12, 3), "sigmoid", 1, 5, "table", size=(1, 33)),
        Case(mixes.blocks(13, 4), "none", 2, 5, "query", (1, 16), frozenset({2, 3, 4, 6, 7, 8})),
    ],
)
def test_the_kernels_agree_at_the_edges_of_their_tiles(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.parametrize("scored", ["keys", "table"])
def test_the_kernels_agree_over_seventy_sources(scored: str):
    case = Case(mixes.full(70), "softmax", 2, 4, scored, (1, 3))
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@in_pairs(
    {
        "engine": NAMES,
        "visible": [mixes.full(6), mixes.ones(5), mixes.every_other(9, 2)],
        "norm": mixes.NORMS,
    }
)
def test_reads_after_all_sources_are_made_equal_the_formula(
    engine: str, visible: mixes.Visible, norm: str
):
    case = Case(visible, norm, 2, 5)
    values = draw_values(case, torch.float32)

    def all_then_read(engine: str, values: mixes.Values) -> dict[str, Tensor]:
        with use(engine):
            history = History(mixes.scoring_of(case, values))
            for v in values.sources:
                history = history.append(v)
            found = []
            for site in reversed(range(len(visible))):
                h, history = history.read(site)
                found.append(h)
        leaves = values.leaves()
        gradients = torch.autograd.grad(found, list(leaves.values()), values.cotangents)
        return dict(enumerate((*found, *gradients)))

    double = all_then_read("reference", values.to(torch.float64))
    assert_near(all_then_read(engine, values), double, SINGLE, least=1e-1)


def rounding(engine: str, dtype: torch.dtype) -> float:
    """How far the nearest number of a type may lie, for a number near 1.

    Twice as far for the one below: Triton's interpreter, unlike a GPU, cuts bits off when it casts
    to bfloat16.
    """
    cut = engine == "triton" and dtype == torch.bfloat16 and engines.interprets_triton()
    return torch.finfo(dtype).eps / (1 if cut else 2)


HALF = [torch.bfloat16, torch.float16]
TWO = (torch.bfloat16, torch.float32)


@in_pairs({"engine": NAMES, "dtype": HALF} | OPTIONS)
def test_reads_of_half_width_are_the_exact_sum_rounded_once(
    engine: str, dtype: torch.dtype, norm: str, heads: int, scored: str
):
    case = mixes.unchained(small(norm, heads, scored))
    values = draw_values(case, dtype)
    found = mixes.reads(engine, case, values)
    expected = mixes.reads("reference", case, values.to(torch.float64))

    for h, theirs in zip(found, expected, strict=True):
        assert h.dtype == dtype
        allowed = rounding(engine, dtype) * theirs.abs() + 2e-6 * theirs.abs().max()
        assert torch.all((h.double() - theirs).abs() <= allowed + torch.finfo(dtype).tiny)


@in_pairs({"engine": NAMES, "dtype": HALF} | OPTIONS)
def test_gradients_of_half_width_are_a_few_roundings_from_the_exact_ones(
    engine: str, dtype: torch.dtype, norm: str, heads: int, scored: str
):
    """The gradient is rounded itself, and computed from a sum h that was: g . h is off by less
    than a rounding of |g| |h|, which the largest gradient bounds up to a small factor.
    """
    case = mixes.unchained(small(norm, heads, scored))
    values = draw_values(case, dtype)
    found = outcome(engine, case, values)

    assert found["d source 0"].dtype == dtype
    assert_near(found, exact(case, values), 4 * rounding(engine, dtype), least=1e-1)


@in_pairs({"engine": NAMES, "dtype,first": [TWO, TWO[::-1]], "norm": mixes.NORMS, "heads": [1, 2]})
def test_sources_of_two_types_are_mixed_as_their_values_say(
    engine: str, dtype: torch.dtype, first: torch.dtype, norm: str, heads: int
):
    case = mixes.unchained(small(norm, heads, "keys"))
    values = draw_values(case, dtype, first)
    found = outcome(engine, case, values)

    assert found["read 4"].dtype == first
    assert found["d source 0"].dtype == first
    assert found["d source 1"].dtype == dtype
    assert_near(found, exact(case, values), 4 * rounding(engine, torch.bfloat16), least=1e-1)


@EVERY
def test_a_site_of_one_source_reads_it_in_the_type_of_the_first(engine: str):
    scoring = Scoring(((0,), (1,)), "softmax", query=torch.ones(2, 8, device=DEVICE))
    v = torch.randn(1, 2, 8, device=DEVICE)

    with use(engine):
        history = History(scoring).append(v.bfloat16()).append(v)
        h, _ = history.read(1)

    assert h.dtype == torch.bfloat16


@in_pairs(OPTIONS)
def test_the_custom_backward_equals_numeric_differences(norm: str, heads: int, scored: str):
    case = replace(small(norm, heads, scored), size=(1, 2), added=frozenset({2}))
    values = draw_values(case, torch.float64)
    leaves = values.leaves()

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        renamed = dict(zip(leaves, tensors, strict=True))
        sources = [renamed[f"source {i}"] for i in range(len(values.sources))]
        learned = (renamed.get(name) for name in ("query", "gain", "table"))
        return tuple(mixes.reads("eager", case, mixes.Values(sources, [], *learned, [])))

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("engine", ["eager", "compile"])
@given(case=mixes.cases(most=12, widest=40, own=True))
def test_own_queries_read_and_differentiate_as_the_formula_says(engine: str, case: Case):
    values = draw_values(case, torch.float64)

    assert_near(outcome(engine, case, values), exact(case, values), 1e-9, least=1e-3)


@NEEDS_TRITON
@FEW
@given(case=mixes.cases(most=6, widest=24, own=True))
def test_own_queries_among_kernels_are_the_formulas(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@EVERY
@pytest.mark.parametrize("norm", ["softmax", "sigmoid"])
def test_an_own_query_learns_where_no_source_does(engine: str, norm: str):
    case = Case(mixes.full(3), norm, 2, 4, "own", chained=False)
    values = draw_values(case, torch.float32)
    values.sources = [v.detach() for v in values.sources]

    def gradient(engine: str, values: mixes.Values) -> Tensor:
        h = mixes.reads(engine, case, values)[-1]
        assert h.requires_grad
        return torch.autograd.grad(h.sin().sum(), values.own[-1])[0]

    torch.testing.assert_close(
        gradient(engine, values), gradient("reference", values.to(torch.float64)).float()
    )


@EVERY
def test_scorings_own_query_and_a_reads_own_in_one_history(engine: str):
    case = Case(mixes.full(5), heads=2)
    values = draw_values(case, torch.float32)
    query = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def gradients(engine: str, values: mixes.Values, query: Tensor) -> list[Tensor]:
        query = query.requires_grad_()
        with use(engine):
            history = History(mixes.scoring_of(case, values))
            for v in values.sources:
                history = history.append(v)
            found = []
            for site, own in ((4, None), (3, query), (2, None), (4, query)):
                h, history = history.read(site, own)
                found.append(h)
        return torch.autograd.grad(mixes.total(found), [*values.leaves().values(), query])

    theirs = gradients("reference", values.to(torch.float64), query.double())
    ours = gradients(engine, values, query.clone())

    assert_near(dict(enumerate(ours)), dict(enumerate(theirs)), SINGLE, least=1e-1)


@in_pairs({"engine": CUSTOM} | OPTIONS)
def test_no_number_of_a_buffer_is_left_unwritten(engine: str, norm: str, heads: int, scored: str):
    case = replace(small(norm, heads, scored), size=(1, 5), added=frozenset({3}))
    values = draw_values(case, torch.float32)
    expected = outcome(engine, case, values)

    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns with NaN
    try:
        assert torch.empty(3, device=DEVICE).isnan().all()
        poisoned = outcome(engine, case, values)
        with torch.no_grad():
            unlearned = mixes.reads(engine, case, values)
    finally:
        torch.use_deterministic_algorithms(False)

    mixes.assert_equal_bits(poisoned, expected)
    assert all(h.isfinite().all() for h in unlearned)


@in_pairs({"engine": NAMES, "sign": [-1.0, 1.0], "norm": ["softmax", "sigmoid"], "heads": [1, 2]})
def test_logits_of_ten_thousand_stay_finite_and_right(
    engine: str, sign: float, norm: str, heads: int
):
    case = Case(mixes.full(5), norm, heads, 8, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        values.query.mul_(sign * 1e4)

    found = outcome(engine, case, values)

    assert all(x.isfinite().all() for x in found.values())
    expected = exact(case, values)
    for site in range(5):  # a logit of 1e4 is off by 1e-3 in float32, and its weight by as much
        torch.testing.assert_close(
            found[f"read {site}"].double(), expected[f"read {site}"], rtol=2e-2, atol=2e-2
        )


@EVERY
@pytest.mark.parametrize("norm", mixes.NORMS)
def test_zero_vectors_as_sources_are_read_and_differentiated_as_the_formula_says(
    engine: str, norm: str
):
    case = Case(mixes.full(4), norm, 2, 4, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        for v in values.sources[::2]:
            v.zero_()

    assert_near(outcome(engine, case, values), exact(case, values), SINGLE, least=1e-1)


@EVERY
def test_eps_counts_where_sources_are_small(engine: str):
    def read(engine: str, eps: float, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        query, *sources = (
            torch.randn(1, 4, 8, generator=generator, dtype=torch.float64) for _ in range(4)
        )
        gain = torch.ones(1, 8, device=DEVICE, dtype=dtype)
        query = query[0, :1].to(DEVICE, dtype)
        with use(engine):
            history = History(Scoring(((0, 1, 2),), "softmax", 1, query, gain, eps=eps))
            for v in sources:
                history = history.append((1e-2 * v).to(DEVICE, dtype))
            return history.read(0)[0]

    small, large = (read(engine, eps, torch.float32) for eps in (1e-8, 1e-2))

    assert not torch.allclose(small, large, rtol=1e-2)
    for h, eps in ((small, 1e-8), (large, 1e-2)):
        theirs = read("reference", eps, torch.float64).float()
        torch.testing.assert_close(h, theirs, rtol=1e-5, atol=1e-7)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _rows_of_wider(x: Tensor) -> Tensor:
    return torch.cat((x, x), dim=-1)[..., : x.shape[-1]]


def _columns(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _every_second_channel(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=-1)[..., ::2]


def _one_token(x: Tensor) -> Tensor:
    return x[:1, :1].expand_as(x)


def _one_number(x: Tensor) -> Tensor:
    return x[:1, :1, :1].expand_as(x)


LAYOUTS = [
    _transposed, _rows_of_wider, _columns, _every_second_channel, _one_token, _one_number,
]  # fmt: skip


@in_pairs({"engine": NAMES, "heads": [1, 2], "layout": LAYOUTS, "scored": ["keys", "table", "own"]})
def test_sources_may_lie_in_memory_as_they_like(
    engine: str, heads: int, layout: Callable[[Tensor], Tensor], scored: str
):
    case = Case(mixes.full(4), "softmax", heads, 6, scored, chained=False)
    values = draw_values(case, torch.float32)

    def laid_out(engine: str, values: mixes.Values) -> dict[str, Tensor]:
        moved = replace(values, sources=[layout(v) for v in values.sources])
        found, leaves = mixes.reads(engine, case, moved), values.leaves()
        gradients = torch.autograd.grad(
            found, list(leaves.values()), values.cotangents, materialize_grads=True
        )
        return dict(enumerate(gradients))

    expected = laid_out("reference", values.to(torch.float64))
    assert_near(laid_out(engine, values), expected, SINGLE, least=1e-1)


@in_pairs({"engine": NAMES, "heads": [1, 2], "layout": LAYOUTS, "scored": ["keys", "table", "own"]})
def test_gradients_may_lie_in_memory_as_they_like(
    engine: str, heads: int, layout: Callable[[Tensor], Tensor], scored: str
):
    case = Case(mixes.full(4), "softmax", heads, 6, scored, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        values.cotangents = [layout(g) for g in values.cotangents]

    # autograd hands these on as they are: nothing else uses what is read
    assert_near(outcome(engine, case, values), exact(case, values), SINGLE, least=1e-1)


@in_pairs({"engine": NAMES, "scored": ["keys", "table", "own"], "norm": mixes.NORMS})
def test_a_token_that_is_not_a_number_spoils_no_other(engine: str, scored: str, norm: str):
    case = Case(mixes.full(4), norm, 2, 6, scored, (2, 9))
    values = draw_values(case, torch.float32)
    healthy = outcome(engine, case, values)
    with torch.no_grad():
        values.sources[1][1, 4, 3] = torch.nan

    found = outcome(engine, case, values)

    others = torch.ones(2, 9, dtype=torch.bool, device=DEVICE)
    others[1, 4] = False
    for name, x in found.items():
        if name.startswith(("read", "d source", "d own")):
            assert torch.equal(x[others], healthy[name][others]), name
    for site in (1, 2, 3):
        assert found[f"read {site}"][1, 4].isnan().any()


@in_pairs({"engine": NAMES, "norm": mixes.NORMS, "scored": ["keys", "table"]})
def test_parameters_that_are_not_numbers_do_not_pass_for_numbers(
    engine: str, norm: str, scored: str
):
    """A run that has diverged must be seen to: no maximum or minimum may drop what is no number."""
    case = Case(mixes.full(3), norm, 2, 4, scored, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        (values.table if scored == "table" else values.query).fill_(torch.nan)

    found = outcome(engine, case, values)

    assert found["read 2"].isnan().all()
    assert found["d source 0"].isnan().all()


@EVERY
def test_no_tokens_are_read_as_no_tokens(engine: str):
    case = Case(mixes.full(3), "softmax", 2, 4, size=(0, 3))
    values = draw_values(case, torch.float32)

    found = outcome(engine, case, values)

    assert found["read 2"].shape == (0, 3, 8)
    assert torch.all(found["d query"] == 0)


@GATHERED
@FEW
@given(case=mixes.cases(most=7, widest=20), many=st.booleans())
def test_without_gradients_every_engine_reads_what_it_reads_with_them(
    engine: str, case: Case, many: bool
):
    from attnres_cli.nn.depthmix import few_tokens

    values = draw_values(case, torch.float32)
    expected = mixes.reads("reference", case, values.to(torch.float64))

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(few_tokens, "FEW", 0)
        found = mixes.reads(engine, case, values)

    assert_near(dict(enumerate(found)), dict(enumerate(expected)), SINGLE, least=1e-1)


@pytest.mark.parametrize("engine", ["reference", "compile", *CUSTOM[-1:]])
@pytest.mark.parametrize("scored", [*mixes.SCORED, *mixes.PLAIN, "own keys", "own+table"])
def test_weights_are_those_that_reads_mix_by(engine: str, scored: str):
    case = Case(mixes.blocks(5, 2), "softmax", 2, 6, scored)
    values = draw_values(case, torch.float32)
    exact = values.to(torch.float64)

    with use(engine):
        history = History(mixes.scoring_of(case, values))
        for v in values.sources:
            history = history.append(v)

    for site, query in enumerate(values.own or [None] * 5):
        found = history.weights(site, query)
        own = None if query is None else query.double()
        scoring = mixes.scoring_of(case, exact)
        theirs = reference.scores(scoring, exact.sources, site, own).softmax(dim=0)
        theirs = theirs.permute(1, 2, 0, 3)
        torch.testing.assert_close(found.double().expand_as(theirs), theirs, rtol=1e-4, atol=1e-6)


def test_no_engine_of_another_name_can_be_asked_for():
    with pytest.raises(ValueError, match="no engine 'fast'"), use("fast"):
        pass


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("reference", "Reference"),
        ("eager", "Eager"),
        ("compile", "Unrolled"),
        pytest.param("triton", "Triton", marks=NEEDS_TRITON),
    ],
)
def test_a_history_keeps_the_engine_that_it_was_started_with(engine: str, kind: str):
    with use(engine):
        history = History(Scoring(((0,),), "none", table=torch.ones(1, 1, device=DEVICE)))
        history = history.append(torch.ones(1, 1, 4, device=DEVICE))

    assert computed_by(history.engine) == kind
    assert history.append(torch.ones(1, 1, 4, device=DEVICE)).engine is history.engine


def test_an_engine_is_chosen_for_one_thread_alone():
    """Also by a compiled function, which asks again in every thread."""

    scoring = Scoring(((0,),), "none", table=torch.ones(1, 1))

    def started(x: Tensor) -> History:
        return History(scoring).append(x)

    def is_reference(x: Tensor) -> Tensor:
        return x + isinstance(engines.choose(x, scoring), Reference)

    compiled = torch.compile(is_reference, backend="eager", fullgraph=True)
    found: dict[str, list[str | float]] = {}
    both_inside = threading.Barrier(2, timeout=60)

    def choose(engine: str) -> None:
        with use(engine):
            both_inside.wait()
            names: list[str | float] = [computed_by(started(torch.ones(1, 1, 4)).engine)]
            both_inside.wait()
            found[engine] = [*names, compiled(torch.zeros(1, 1, 1)).item()]
        both_inside.wait()

    threads = [threading.Thread(target=choose, args=(name,)) for name in ("reference", "compile")]
    for thread in threads:
        thread.start()
    with use("eager"):
        for thread in threads:
            thread.join()
        assert computed_by(started(torch.ones(1, 1, 4)).engine) == "Eager"

    assert found == {"reference": ["Reference", 1.0], "compile": ["Unrolled", 0.0]}


def test_scores_are_float32_when_sources_are_bfloat16_even_under_autocast():
    sources = [torch.randn(1, 2, 8).bfloat16() for _ in range(3)]
    history = History(
        Scoring(((0, 1, 2),), "softmax", query=torch.ones(1, 8), gain=torch.ones(1, 8))
    )

    with torch.autocast("cpu", torch.bfloat16):
        for v in sources:
            history = history.append(v)
        weights, (h, _) = history.weights(0), history.read(0)

    assert weights.dtype == torch.float32
    assert h.dtype == torch.bfloat16


def test_accumulate_adds_to_the_newest_source_in_float32_and_keeps_the_old_history():
    one = torch.ones(1, 1, 4).bfloat16()
    history = History(Scoring(((0,), (0, 1)), "none", table=torch.ones(3, 1))).append(one)

    longer = history.accumulate(one / 512)

    assert len(history.sources) == 1
    assert longer.sources[1].dtype == torch.float32
    assert torch.equal(longer.sources[1], torch.full((1, 1, 4), 1 + 1 / 512))
