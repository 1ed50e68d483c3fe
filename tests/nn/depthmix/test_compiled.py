"""Engines under torch.compile: whole graphs, the same gradients, and what the graphs hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import mixes
import pytest
import torch
from designs import BRIEF, perturbed, tokens_of, uses_an_engine
from functorch.compile import make_boxed_func
from mixes import DEVICE, NEEDS_TRITON, TRITON, Case, assert_near, draw_values
from sampling import pairwise
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.proofs.subject import gradients
from attnres_cli.nn.shape import Shape

NAMES = [name for name in mixes.NAMES if name != "eager"]
TINY = Shape(
    n_layers=2, d_model=8, n_heads=2, n_kv_heads=2, d_head=4, d_ff=8, vocab_size=11, seq_len=5
)
NEAR = 1e-4


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@NEEDS_TRITON
@pytest.mark.parametrize(
    ("specs", "backend"),
    [
        (["attnres:block_size=2,heads=2"], "aot_eager"),
        pytest.param(["attnres:block_size=2,heads=2"], "inductor", marks=pytest.mark.slow),
        pytest.param(BRIEF, "aot_eager", marks=pytest.mark.nightly),
    ],
    ids=["one design", "inductor", "every design"],
)
def test_a_model_with_kernels_compiles_whole_and_learns_the_same(
    specs: list[str], backend: str, subtests: pytest.Subtests
):
    """tests/nn/test_contract.py shows the same of the engine `compile`."""
    for spec in filter(uses_an_engine, specs):
        with subtests.test(spec=spec):
            torch.compiler.reset()
            model, tokens = perturbed(spec, TINY).float().to(DEVICE), tokens_of(time=5).to(DEVICE)
            with use("reference"):
                expected = gradients(model, tokens)
            with use("triton"):
                compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
                found, again = (gradients(model, tokens, compiled) for _ in range(2))

            assert_near(found, expected, NEAR, least=1e-2)
            mixes.assert_equal_bits(found, again)


class Mixer(nn.Module):
    """A history and a function that reads it, as a module: parameters and sources in, reads out."""

    def __init__(self, case: Case, follow: Callable[..., list[Tensor]]) -> None:
        super().__init__()
        self.case, self.follow = case, follow

    def forward(
        self, query: Tensor, gain: Tensor, sources: list[Tensor], table: Tensor | None = None
    ) -> list[Tensor]:
        case = self.case
        scoring = Scoring(case.visible, case.norm, case.heads, query, gain, table, rank=case.rank)
        return self.follow(History(scoring), sources)


def follow(engine: str, way: Callable[..., list[Tensor]], *, compiled: bool, case: Case):
    """Reads and gradients, by number."""
    values = draw_values(case, torch.float32)
    module: Any = Mixer(case, way)
    if compiled:
        module = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
    with use(engine):
        found = module(values.query, values.gain, values.sources, values.table)
    inputs = list(values.leaves().values())
    slopes = torch.autograd.grad(mixes.total(found), inputs, materialize_grads=True)
    return dict(enumerate((*(h.detach() for h in found), *slopes)))


def _twice(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, v in enumerate(sources):
        history = history.append(v)
        for earlier in dict.fromkeys((site, site // 2)):
            h, history = history.read(earlier)
            found += [h, 2 * h]
    return [*found, history.read(2)[0]]


def _own(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, v in enumerate(sources):
        h, history = history.append(v).read(site, v.sin())
        again, history = history.read(site)
        found += [h, again]
    return found


def _some_unread(history: History, sources: list[Tensor]) -> list[Tensor]:
    return [reduce(History.append, sources, history).read(2)[0]]


WAYS = {"twice": _twice, "own queries": _own, "sites that nobody reads": _some_unread}


@pytest.mark.parametrize(
    ("engine", "way", "norm", "scored"),
    [
        pytest.param("triton", "twice", "softmax", "keys", marks=[NEEDS_TRITON, pytest.mark.slow]),
        pytest.param("triton", "own queries", "sigmoid", "keys", marks=NEEDS_TRITON),
        ("compile", "sites that nobody reads", "softmax", "keys"),
        pytest.param("compile", "twice", "softmax", "rank keys", marks=pytest.mark.slow),
        *(
            pytest.param(*row, marks=pytest.mark.nightly)
            for row in (
                *((*row, "keys") for row in pairwise([NAMES, list(WAYS), mixes.NORMS])),
                *((name, "twice", "softmax", "keys+table") for name in NAMES),
            )
        ),
    ],
)
def test_reads_of_any_kind_work_in_a_compiled_graph(engine: str, way: str, norm: str, scored: str):
    case = Case(mixes.full(3), norm, 2, 4, scored)
    expected = follow("reference", WAYS[way], compiled=False, case=case)

    assert_near(follow(engine, WAYS[way], compiled=True, case=case), expected, NEAR, least=1e-1)


@pytest.mark.parametrize("engine", [pytest.param("compile", marks=pytest.mark.slow), TRITON])
def test_a_site_that_nobody_reads_spoils_nothing_whatever_its_scores(engine: str):
    case = Case(mixes.full(4), "softmax", 1, 4)

    def loud(history: History, sources: list[Tensor]) -> list[Tensor]:
        scoring = history.scoring
        quiet = torch.ones_like(scoring.query)
        quiet[3] = 1e4
        history = History(Scoring(scoring.visible, scoring.norm, 1, scoring.query * quiet))
        return _some_unread(history, [100 * v for v in sources])

    expected = follow("reference", loud, compiled=False, case=case)
    found = follow(engine, loud, compiled=True, case=case)

    assert all(x.isfinite().all() for x in found.values())
    assert_near(found, expected, 1e-3, least=1e-1)


@NEEDS_TRITON
def test_a_history_that_branches_is_refused_by_name():
    def branches(history: History, sources: list[Tensor]) -> list[Tensor]:
        history = history.append(sources[0])
        one, other = history.append(sources[1]), history.append(sources[2])
        return [one.read(1)[0], other.read(1)[0]]

    with pytest.raises(Exception, match="branches cannot be compiled"):
        follow("triton", branches, compiled=True, case=Case(mixes.full(3)))


def graphs_of(case: Case) -> list[fx.GraphModule]:
    """The forward and the backward graph of a history, as a compiler gets them."""
    found: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(graph)
        return make_boxed_func(graph.forward)

    def way(history: History, sources: list[Tensor]) -> list[Tensor]:
        reads: list[Tensor] = []
        for site, v in enumerate(sources):
            h, history = history.append(v + reads[-1].sin() if reads else v).read(site)
            reads.append(h)
        return reads

    values = draw_values(case, torch.float32)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    module = torch.compile(Mixer(case, way), backend=backend, fullgraph=True, dynamic=False)
    with use("triton"):
        reads = module(values.query, values.gain, values.sources)
    torch.autograd.grad(mixes.total(reads), list(values.leaves().values()))
    return found


@NEEDS_TRITON
def test_the_graph_is_of_operators_without_a_sum_of_vectors_per_pair():
    adds = {torch.ops.aten.add.Tensor, torch.ops.aten.addcmul.default, torch.ops.aten.mul.Tensor}
    counted = {}
    for n in (3, 6):
        graphs = graphs_of(Case(mixes.full(n), "softmax", 1, 8))
        forward, backward = (Counter(str(node.target) for node in g.graph.nodes) for g in graphs)
        assert sum(c for name, c in forward.items() if name.startswith("attnres.mix.")) == n - 1
        assert sum(c for name, c in backward.items() if name.startswith("attnres.gather")) > 0
        made = [node for g in graphs for node in g.graph.nodes if node.target in adds]
        counted[n] = sum(node.meta["val"].shape[-1:] == (8,) for node in made)

    assert counted[6] <= 2.5 * counted[3]
