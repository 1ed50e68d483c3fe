"""Every engine reads and differentiates as the formula says, for all shapes, patterns and types."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import mixes
import pytest
import torch
from designs import computed_by
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import DEVICE, EVERY, NAMES, NEEDS_TRITON, Case, draw_values, exact, outcome, small
from oracles import public
from sampling import in_pairs
from torch import Tensor

from attnres_cli.nn.depthmix import engines, few_tokens, reference
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.reference import Reference
from attnres_cli.nn.depthmix.scoring import Scoring

FEW = settings(max_examples=min(20, settings().max_examples))
"""For Triton's interpreter, which takes milliseconds per kernel."""

SINGLE = 2e-4
"""In float32, of the largest number of a tensor. Up to 70 sites feed each other, and gradients are
sums over 70 sites of terms that cancel: 1000 roundings of 1.2e-7."""


def assert_exact(engine: str, case: Case, values: mixes.Values, near: float = SINGLE) -> None:
    mixes.assert_near(outcome(engine, case, values), exact(case, values), near, least=1e-1)


# Any history


@pytest.mark.parametrize(
    ("engine", "dtype", "near"),
    [
        ("eager", torch.float64, 1e-9),
        ("compile", torch.float64, 1e-9),
        ("reference", torch.float32, SINGLE),
        ("eager", torch.float32, SINGLE),
        ("compile", torch.float32, SINGLE),
        pytest.param("triton", torch.float32, SINGLE, marks=NEEDS_TRITON),
    ],
)
@given(data=st.data())
def test_reads_and_gradients_equal_the_formula(
    engine: str, dtype: torch.dtype, near: float, data: st.DataObject
):
    most, widest = (7, 80) if engine == "triton" else (mixes.MOST, mixes.WIDEST)
    own = mixes.cases(min(most, 12), min(widest, 40), own=True)
    case = data.draw(mixes.cases(most, widest) | own)

    assert_exact(engine, case, draw_values(case, dtype), near)


@NEEDS_TRITON
@pytest.mark.parametrize(
    "case",
    [
        Case(mixes.full(1), "sigmoid", 1, 1, size=(1, 1)),
        Case(mixes.full(2), "softmax", 1, 300, size=(1, 1)),
        Case(mixes.full(2), "softmax", 3, 100, size=(1, 2)),
        Case(mixes.every_other(7, 3), "softmax", 2, 5, size=(1, 3)),
        Case(mixes.windows(4, 3), "sigmoid", 1, 5, "table", size=(1, 17)),
        Case(mixes.blocks(6, 3), "none", 2, 5, "query", (1, 16), frozenset({2, 4})),
        pytest.param(Case(mixes.full(23), "softmax", 2, 3, size=(1, 17)), marks=pytest.mark.slow),
        pytest.param(Case(mixes.full(70), "softmax", 2, 4, size=(1, 3)), marks=pytest.mark.slow),
    ],
)
def test_the_kernels_are_right_at_the_edges_of_their_tiles_and_over_many_sources(case: Case):
    assert_exact("triton", case, draw_values(case, torch.float32))


@mixes.GATHERED
@FEW
@given(case=mixes.cases(most=7, widest=20), many=st.booleans())
def test_reads_without_gradients_equal_the_formula(engine: str, case: Case, many: bool):
    values = draw_values(case, torch.float32)
    expected = mixes.reads("reference", case, values.to(torch.float64))

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(few_tokens, "FEW", 0)
        found = mixes.reads(engine, case, values)

    mixes.assert_near(dict(enumerate(found)), dict(enumerate(expected)), SINGLE, least=1e-1)


@pytest.mark.parametrize("engine", ["reference", "compile", *mixes.CUSTOM[-1:]])
@pytest.mark.parametrize("scored", [*mixes.SCORED, *mixes.PLAIN, "own keys", "own+table"])
def test_the_weights_of_a_history_are_those_of_its_reads(engine: str, scored: str):
    case = Case(mixes.blocks(5, 2), "softmax", 2, 6, scored)
    values = draw_values(case, torch.float32)
    double = values.to(torch.float64)
    scoring = mixes.scoring_of(case, double)
    with use(engine):
        history = mixes.filled(case, values)

    for site, query in enumerate(values.own or [None] * 5):
        found = history.weights(site, query)
        own = None if query is None else query.double()
        theirs = reference.scores(scoring, double.sources, site, own).softmax(dim=0)
        theirs = theirs.permute(1, 2, 0, 3)
        torch.testing.assert_close(found.double().expand_as(theirs), theirs, rtol=1e-4, atol=1e-6)


# Types


HALF = [torch.bfloat16, torch.float16]
TWO = (torch.bfloat16, torch.float32)


def rounding(engine: str, dtype: torch.dtype) -> float:
    """The largest rounding error of a number near 1.

    It is twice as large for bfloat16 in Triton's interpreter, which cuts bits off when it casts.
    """
    cut = engine == "triton" and dtype == torch.bfloat16 and engines.interprets_triton()
    return torch.finfo(dtype).eps / (1 if cut else 2)


@in_pairs({"engine": NAMES, "dtype": HALF} | mixes.OPTIONS)
def test_in_half_precision_reads_are_rounded_once_and_gradients_a_few_times(
    engine: str, dtype: torch.dtype, norm: str, heads: int, scored: str
):
    """A gradient is rounded itself, and computed from a sum h that was: g . h is off by less than
    a rounding of |g| |h|, which the largest gradient bounds up to a small factor.
    """
    case = small(norm, heads, scored, chained=False)
    values = draw_values(case, dtype)
    found, expected = outcome(engine, case, values), exact(case, values)

    for name, h in found.items():
        if name.startswith("read"):
            assert h.dtype == dtype
            theirs = expected[name]
            allowed = rounding(engine, dtype) * theirs.abs() + 2e-6 * theirs.abs().max()
            assert torch.all((h.double() - theirs).abs() <= allowed + torch.finfo(dtype).tiny)
    assert found["d source 0"].dtype == dtype
    mixes.assert_near(found, expected, 4 * rounding(engine, dtype), least=1e-1)


@in_pairs({"engine": NAMES, "dtype,first": [TWO, TWO[::-1]], "norm": mixes.NORMS, "heads": [1, 2]})
def test_sources_of_two_types_are_read_in_the_first_ones_type(
    engine: str, dtype: torch.dtype, first: torch.dtype, norm: str, heads: int
):
    case = Case(((0,), (1,), (0, 2), (0, 1, 3)), norm, heads, 3, chained=False)
    values = draw_values(case, dtype, first)
    found = outcome(engine, case, values)

    assert found["read 1"].dtype == found["read 3"].dtype == found["d source 0"].dtype == first
    assert found["d source 1"].dtype == dtype
    mixes.assert_near(found, exact(case, values), 4 * rounding(engine, TWO[0]), least=1e-1)


def test_scores_are_float32_when_sources_are_bfloat16_even_under_autocast():
    scoring = Scoring(((0, 1),), "softmax", query=torch.ones(1, 8), gain=torch.ones(1, 8))
    history = History(scoring)

    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            history = history.append(torch.randn(1, 2, 8).bfloat16())
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


# Queries of a read's own


@EVERY
def test_a_history_may_use_the_scorings_query_and_a_reads_own(engine: str):
    case = Case(mixes.full(5), heads=2)
    values = draw_values(case, torch.float32)
    query = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def gradients(engine: str, values: mixes.Values, query: Tensor) -> list[Tensor]:
        query = query.requires_grad_()
        found = []
        with use(engine):
            history = mixes.filled(case, values)
            for site, own in ((4, None), (3, query), (2, None), (4, query)):
                h, history = history.read(site, own)
                found.append(h)
        return torch.autograd.grad(mixes.total(found), [*values.leaves().values(), query])

    theirs = gradients("reference", values.to(torch.float64), query.double())
    ours = gradients(engine, values, query.clone())

    mixes.assert_near(dict(enumerate(ours)), dict(enumerate(theirs)), SINGLE, least=1e-1)


# Extreme values


@in_pairs({"engine": mixes.CUSTOM} | mixes.OPTIONS)
def test_a_second_run_gives_the_same_bits_and_leaves_no_number_of_a_buffer_unwritten(
    engine: str, norm: str, heads: int, scored: str
):
    case = replace(small(norm, heads, scored), size=(1, 5), added=frozenset({3}))
    values = draw_values(case, torch.float32)
    expected = outcome(engine, case, values)

    mixes.assert_equal_bits(outcome(engine, case, values), expected)
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
def test_logits_of_ten_thousand_give_finite_and_correct_reads(
    engine: str, sign: float, norm: str, heads: int
):
    case = Case(mixes.full(4), norm, heads, 8, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        values.query.mul_(sign * 1e4)

    found, expected = outcome(engine, case, values), exact(case, values)

    assert all(x.isfinite().all() for x in found.values())
    for name in ("read 1", "read 2", "read 3"):
        # a logit of 1e4 is off by 1e-3 in float32, and its weight by as much
        torch.testing.assert_close(found[name].double(), expected[name], rtol=2e-2, atol=2e-2)


@EVERY
def test_zeros_and_numbers_near_eps_are_read_as_the_formula_says_and_no_tokens_as_no_tokens(
    engine: str,
):
    case = Case(mixes.full(4), "softmax", 2, 4, chained=False)
    values = draw_values(case, torch.float32)
    with torch.no_grad():
        for v, scale in zip(values.sources, (0, 3e-3, 0, 1), strict=True):
            v.mul_(scale)
    none = Case(mixes.full(3), "softmax", 2, 4, size=(0, 3))

    found = outcome(engine, none, draw_values(none, torch.float32))

    assert_exact(engine, case, values)
    assert found["read 2"].shape == (0, 3, 8)
    assert torch.all(found["d query"] == 0)


@in_pairs({"engine": NAMES, "scored": ["keys", "table", "own"], "norm": mixes.NORMS})
def test_a_nan_of_a_token_or_parameter_is_not_hidden_and_spoils_no_other_token(
    engine: str, scored: str, norm: str
):
    """A run that has diverged must show it: no maximum or minimum may drop a NaN."""
    case = Case(mixes.full(3), norm, 2, 3, scored, (1, 5))
    values, sick = draw_values(case, torch.float32), draw_values(case, torch.float32)
    healthy = outcome(engine, case, values)
    with torch.no_grad():
        values.sources[1][0, 2, 3] = torch.nan
        for learned in (sick.query, sick.table, *sick.own):
            if learned is not None:
                learned.fill_(torch.nan)

    found = outcome(engine, case, values)
    of_parameters = outcome(engine, replace(case, chained=False), sick)

    others = torch.ones(1, 5, dtype=torch.bool, device=DEVICE)
    others[0, 2] = False
    for name, x in found.items():
        if name.startswith(("read", "d source", "d own")):
            assert torch.equal(x[others], healthy[name][others]), name
    for site in (1, 2):
        assert found[f"read {site}"][0, 2].isnan().any()
    for name in ("read 2", "d source 0"):
        assert of_parameters[name].isnan().all()


# Memory layouts


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: torch.cat((x, x), dim=-1)[..., : x.shape[-1]],  # rows of a wider tensor
    lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),  # columns
    lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],  # every second channel
    lambda x: x[:1, :1].expand_as(x),  # one token
    lambda x: x[:1, :1, :1].expand_as(x),  # one number
]


@in_pairs({"engine": NAMES, "at": range(len(LAYOUTS)), "scored": ["keys", "table", "own"]})
def test_sources_and_gradients_may_have_any_layout_in_memory(engine: str, at: int, scored: str):
    layout, of_gradients = LAYOUTS[at], LAYOUTS[at - 1]
    case = Case(mixes.full(3), "softmax", 2, 3, scored, chained=False)
    values = draw_values(case, torch.float32)

    def laid_out(engine: str, values: mixes.Values) -> dict[str, Tensor]:
        moved = replace(values, sources=[layout(v) for v in values.sources])
        # autograd hands these on as they are: nothing else uses the reads
        values.cotangents = [of_gradients(g) for g in values.cotangents]
        return mixes.gradients_of(mixes.reads(engine, case, moved), values)

    expected = laid_out("reference", values.to(torch.float64))
    mixes.assert_near(laid_out(engine, values), expected, SINGLE, least=1e-1)


# The authors' public operator


NEEDS_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="their kernels need a GPU")


@pytest.mark.oracle
@EVERY
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("fla.ops.attnres.naive", "naive_attnres"),
        pytest.param("fla.ops.attnres", "fused_attnres", marks=NEEDS_GPU),
    ],
)
def test_reads_and_gradients_equal_those_of_the_authors_formula_and_kernels(
    engine: str, module: str, name: str
):
    operator = getattr(public(module), name)
    values = draw_values(Case(mixes.full(6), d_head=32, size=(2, 5)), torch.float32)
    inputs = [*values.sources, values.query, values.gain]
    scoring = Scoring((tuple(range(6)),), "softmax", 1, values.query[-1:], values.gain[-1:])
    with use(engine):
        ours, _ = reduce(History.append, values.sources, History(scoring)).read(0)
    theirs = operator(values.query[-1], values.sources, values.gain[-1], rms_eps=1e-6)

    outcomes = []
    for h in (ours, theirs):
        gradients = torch.autograd.grad((h * values.cotangents[0]).sum(), inputs)
        outcomes.append(dict(enumerate((h.detach(), *gradients))))

    mixes.assert_near(*outcomes, 2e-5, least=1e-1)


# The choice of an engine


def test_a_history_keeps_the_engine_that_it_was_started_with_which_must_be_known():
    kinds = {"reference": "Reference", "eager": "Eager", "compile": "Unrolled", "triton": "Triton"}
    v, table = torch.ones(1, 1, 4, device=DEVICE), torch.ones(1, 1, device=DEVICE)
    for engine in NAMES:
        with use(engine):
            history = History(Scoring(((0,),), "none", table=table)).append(v)

        assert computed_by(history.engine) == kinds[engine]
        assert history.append(v).engine is history.engine
    with pytest.raises(ValueError, match="no engine 'fast'"), use("fast"):
        pass


def test_an_engine_is_chosen_for_one_thread_only():
    """A compiled function asks again in every thread."""
    scoring = Scoring(((0,),), "none", table=torch.ones(1, 1))

    def started() -> str:
        return computed_by(History(scoring).append(torch.ones(1, 1, 4)).engine)

    def is_reference(x: Tensor) -> Tensor:
        return x + isinstance(engines.choose(x, scoring), Reference)

    compiled = torch.compile(is_reference, backend="eager", fullgraph=True)
    both_inside = threading.Barrier(2, timeout=60)

    def choose(engine: str) -> tuple[str, float]:
        with use(engine):
            both_inside.wait()
            name = started()
            both_inside.wait()
            return name, compiled(torch.zeros(1, 1, 1)).item()

    with use("eager"), ThreadPoolExecutor(2) as threads:
        found = list(threads.map(choose, ("reference", "compile")))
        assert started() == "Eager"

    assert found == [("Reference", 1.0), ("Unrolled", 0.0)]
