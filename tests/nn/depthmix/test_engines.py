"""Every engine against the formula: values and every gradient, over shapes, patterns and types."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import mixes
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mixes import DEVICE, EVERY, PULLED, TRITON, Case, assert_near, draw_values, outcome
from torch import Tensor

from attnres_cli.nn.depthmix import engines, reference
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

LONG = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
SHORT = settings(LONG, max_examples=6)
"""For Triton's interpreter, which takes milliseconds a kernel."""

needs_triton = pytest.mark.skipif(not engines.has_triton(), reason="needs triton")

SINGLE = 2e-4
"""In float32, of the largest number of a tensor. Up to 70 sites feed each other, and gradients are
sums over 70 sites of terms that cancel: 1000 roundings of 1.2e-7."""


def exact(case: Case, values: mixes.Values) -> dict[str, Tensor]:
    return outcome("reference", case, values.to(torch.float64))


@pytest.mark.parametrize("engine", ["eager", "compile"])
@LONG
@given(case=mixes.cases())
def test_in_float64_reads_and_gradients_are_the_formulas(engine: str, case: Case):
    values = draw_values(case, torch.float64)

    assert_near(outcome(engine, case, values), exact(case, values), 1e-9, least=1e-3)


@pytest.mark.parametrize("engine", ["reference", "eager", "compile"])
@settings(LONG, max_examples=5)
@given(case=mixes.cases())
def test_in_float32_reads_and_gradients_are_the_formulas(engine: str, case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome(engine, case, values), exact(case, values), SINGLE, least=1e-1)


@needs_triton
@SHORT
@given(case=mixes.cases(most=9, widest=150))
def test_the_kernels_read_and_differentiate_as_the_formula_says(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@needs_triton
@pytest.mark.parametrize(
    "case",
    [
        Case(mixes.full(1), "sigmoid", 1, 1, size=(1, 1)),
        Case(mixes.full(2), "softmax", 1, 300, size=(1, 1)),
        Case(mixes.full(2), "softmax", 3, 100, size=(1, 2)),
        Case(mixes.full(23), "softmax", 2, 3, size=(1, 17)),
        Case(mixes.every_other(12, 3), "softmax", 2, 5, size=(1, 3)),
        Case(mixes.windows(12, 3), "sigmoid", 1, 5, "table", size=(1, 33)),
        Case(mixes.blocks(13, 4), "none", 2, 5, "query", (1, 16), frozenset({2, 3, 4, 6, 7, 8})),
    ],
)
def test_the_kernels_agree_at_the_edges_of_their_tiles(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("scored", ["keys", "table"])
def test_the_kernels_agree_over_seventy_sources(scored: str):
    case = Case(mixes.full(70), "softmax", 2, 4, scored, (1, 3))
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@EVERY
@pytest.mark.parametrize("visible", [mixes.full(6), mixes.ones(5), mixes.every_other(9, 2)])
@pytest.mark.parametrize("norm", mixes.NORMS)
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


HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


@EVERY
@HALF
@mixes.EACH_OPTION
def test_reads_of_half_width_are_the_exact_sum_rounded_once(
    engine: str, dtype: torch.dtype, case: Case
):
    case = mixes.unchained(case)
    values = draw_values(case, dtype)
    found = mixes.reads(engine, case, values)
    expected = mixes.reads("reference", case, values.to(torch.float64))

    for h, theirs in zip(found, expected, strict=True):
        assert h.dtype == dtype
        allowed = rounding(engine, dtype) * theirs.abs() + 2e-6 * theirs.abs().max()
        assert torch.all((h.double() - theirs).abs() <= allowed + torch.finfo(dtype).tiny)


@EVERY
@HALF
@mixes.EACH_OPTION
def test_gradients_of_half_width_are_a_few_roundings_from_the_exact_ones(
    engine: str, dtype: torch.dtype, case: Case
):
    """The gradient is rounded itself, and computed from a sum h that was: g . h is off by less
    than a rounding of |g| |h|, which the largest gradient bounds up to a small factor.
    """
    case = mixes.unchained(case)
    values = draw_values(case, dtype)
    found = outcome(engine, case, values)

    assert found["d source 0"].dtype == dtype
    assert_near(found, exact(case, values), 4 * rounding(engine, dtype), least=1e-1)


@EVERY
@pytest.mark.parametrize(
    ("dtype", "first"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
@pytest.mark.parametrize("case", mixes.OPTIONS[::4], ids=mixes.named)
def test_sources_of_two_types_are_mixed_as_their_values_say(
    engine: str, dtype: torch.dtype, first: torch.dtype, case: Case
):
    case = mixes.unchained(case)
    values = draw_values(case, dtype, first)
    found = outcome(engine, case, values)

    assert found["read 4"].dtype == first
    assert found["d source 0"].dtype == first
    assert found["d source 1"].dtype == dtype
    assert_near(found, exact(case, values), 4 * rounding(engine, torch.bfloat16), least=1e-1)


@EVERY
def test_running_sums_over_bfloat16_sources_stay_in_float32(engine: str):
    case = Case(mixes.blocks(7, 3), heads=2, added=frozenset({2, 3, 5, 6}), chained=False)
    values = draw_values(case, torch.bfloat16)
    found = outcome(engine, case, values)

    assert found["read 6"].dtype == torch.bfloat16
    assert_near(found, exact(case, values), 4 * rounding(engine, torch.bfloat16), least=1e-1)


@EVERY
def test_a_site_of_one_source_reads_it_in_the_type_of_the_first(engine: str):
    scoring = Scoring(((0,), (1,)), "softmax", query=torch.ones(2, 8, device=DEVICE))
    v = torch.randn(1, 2, 8, device=DEVICE)

    with use(engine):
        history = History(scoring).append(v.bfloat16()).append(v)
        h, _ = history.read(1)

    assert h.dtype == torch.bfloat16


@pytest.mark.parametrize("case", mixes.OPTIONS, ids=mixes.named)
def test_the_custom_backward_equals_numeric_differences(case: Case):
    case = replace(case, size=(1, 2), added=frozenset({2}))
    values = draw_values(case, torch.float64)
    leaves = values.leaves()

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        renamed = dict(zip(leaves, tensors, strict=True))
        sources = [renamed[f"source {i}"] for i in range(len(values.sources))]
        learned = (renamed.get(name) for name in ("query", "gain", "table"))
        return tuple(mixes.reads("eager", case, mixes.Values(sources, [], *learned, [])))

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("norm", mixes.NORMS)
@pytest.mark.parametrize("scored", ["own", "own keys"])
def test_the_backward_of_own_queries_equals_numeric_differences(norm: str, scored: str):
    case = Case(mixes.full(3), norm, 2, 2, scored, (1, 2))
    values = draw_values(case, torch.float64)
    n = len(values.sources)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        gain = tensors[2 * n] if scored == "own keys" else None
        inputs = mixes.Values(list(tensors[:n]), list(tensors[n : 2 * n]), None, gain, None, [])
        return tuple(mixes.reads("eager", case, inputs))

    assert torch.autograd.gradcheck(function, tuple(values.leaves().values()))


@pytest.mark.parametrize("engine", ["eager", "compile"])
@settings(LONG, max_examples=15)
@given(case=mixes.cases(most=12, widest=40, own=True))
def test_own_queries_read_and_differentiate_as_the_formula_says(engine: str, case: Case):
    values = draw_values(case, torch.float64)

    assert_near(outcome(engine, case, values), exact(case, values), 1e-9, least=1e-3)


@needs_triton
@SHORT
@given(case=mixes.cases(most=6, widest=24, own=True))
def test_own_queries_among_kernels_are_the_formulas(case: Case):
    values = draw_values(case, torch.float32)

    assert_near(outcome("triton", case, values), exact(case, values), SINGLE, least=1e-1)


@EVERY
@HALF
@pytest.mark.parametrize("heads", [1, 2])
def test_own_queries_over_half_width_sources_are_a_few_roundings_away(
    engine: str, dtype: torch.dtype, heads: int
):
    case = Case(mixes.full(4), "softmax", heads, 6, "own keys", chained=False)
    values = draw_values(case, dtype)

    found = outcome(engine, case, values)

    # for a softmax h . g is taken after h is rounded, and every source's slope is off with it
    assert_near(found, exact(case, values), 8 * rounding(engine, dtype), least=1e-1)


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
def test_own_queries_may_be_given_to_some_reads_of_sources_that_others_read_too(engine: str):
    scorings = [Case(mixes.full(4), heads=2, scored=scored) for scored in ("keys", "own")]
    keys, own = (draw_values(case, torch.float32) for case in scorings)

    def gradients(engine: str, keys: mixes.Values, queries: list[Tensor]) -> list[Tensor]:
        with use(engine):
            histories = [History(Scoring(mixes.full(4), "softmax", 2, keys.query, keys.gain))]
            histories.append(History(Scoring(mixes.full(4), "softmax", 2)))
            for v in keys.sources:
                histories = [history.append(v) for history in histories]
            found = [histories[0].read(3)[0], histories[1].read(3, queries[3])[0]]
            found += [histories[0].read(2)[0], histories[1].read(2, queries[2])[0]]
        inputs = [*keys.sources, keys.query, keys.gain, queries[2], queries[3]]
        return torch.autograd.grad(mixes.total(found), inputs)

    double = keys.to(torch.float64), own.to(torch.float64).own
    theirs = gradients("reference", *double)
    ours = gradients(engine, keys, own.own)

    assert_near(dict(enumerate(ours)), dict(enumerate(theirs)), SINGLE, least=1e-1)


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


@PULLED
@mixes.EACH_OPTION
def test_no_number_of_a_buffer_is_left_unwritten(engine: str, case: Case):
    case = replace(case, size=(1, 5), added=frozenset({3}))
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


@EVERY
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("norm", ["softmax", "sigmoid"])
@pytest.mark.parametrize("heads", [1, 2])
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


@EVERY
@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scored", ["keys", "table", "own"])
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


@EVERY
@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scored", ["keys", "table", "own"])
def test_gradients_may_lie_in_memory_as_they_like(
    engine: str, heads: int, layout: Callable[[Tensor], Tensor], scored: str
):
    case = Case(mixes.full(4), "softmax", heads, 6, scored, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        values.cotangents = [layout(g) for g in values.cotangents]

    # autograd hands these on as they are: nothing else uses what is read
    assert_near(outcome(engine, case, values), exact(case, values), SINGLE, least=1e-1)


@EVERY
@pytest.mark.parametrize("scored", ["keys", "table", "own", "rank keys"])
@pytest.mark.parametrize("norm", mixes.NORMS)
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


@EVERY
@pytest.mark.parametrize("norm", mixes.NORMS)
@pytest.mark.parametrize("scored", ["keys", "table"])
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


@EVERY
@settings(SHORT, max_examples=5)
@given(case=mixes.cases(most=7, widest=20), many=st.booleans())
def test_without_gradients_every_engine_reads_what_it_reads_with_them(
    engine: str, case: Case, many: bool
):
    from attnres_cli.nn.depthmix import grouped_reads

    values = draw_values(case, torch.float32)
    expected = mixes.reads("reference", case, values.to(torch.float64))

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(grouped_reads, "FEW", 0)
        found = mixes.reads(engine, case, values)

    assert_near(dict(enumerate(found)), dict(enumerate(expected)), SINGLE, least=1e-1)


@EVERY
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


@pytest.mark.parametrize("engine", ["reference", "eager", "compile", TRITON])
def test_a_history_keeps_the_engine_that_it_was_started_with(engine: str):
    with use(engine):
        history = History(Scoring(((0,),), "none", table=torch.ones(1, 1, device=DEVICE)))
        history = history.append(torch.ones(1, 1, 4, device=DEVICE))

    assert history.engine.name == engine
    assert history.append(torch.ones(1, 1, 4, device=DEVICE)).engine is history.engine


def test_an_engine_is_chosen_for_one_thread_alone():
    """Also by a compiled function, which asks again in every thread."""

    def started(x: Tensor) -> History:
        return History(Scoring(((0,),), "none", table=torch.ones(1, 1))).append(x)

    compiled = torch.compile(
        lambda x: x + (engines.choose(x).name == "reference"), backend="eager", fullgraph=True
    )
    found: dict[str, list[str | float]] = {}
    both_inside = threading.Barrier(2, timeout=60)

    def choose(engine: str) -> None:
        with use(engine):
            both_inside.wait()
            names: list[str | float] = [started(torch.ones(1, 1, 4)).engine.name]
            both_inside.wait()
            found[engine] = [*names, compiled(torch.zeros(1, 1, 1)).item()]
        both_inside.wait()

    threads = [threading.Thread(target=choose, args=(name,)) for name in ("reference", "compile")]
    for thread in threads:
        thread.start()
    with use("eager"):
        for thread in threads:
            thread.join()
        assert started(torch.ones(1, 1, 4)).engine.name == "eager"

    assert found == {"reference": ["reference", 1.0], "compile": ["compile", 0.0]}
