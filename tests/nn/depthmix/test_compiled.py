"""Engines under torch.compile: whole graphs, the same gradients, and what is in the graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mixes
import pytest
import torch
from designs import MIXING, build
from functorch.compile import make_boxed_func
from mixes import DEVICE, NEEDS_TRITON, TRITON, Case, assert_near, draw_values
from sampling import pairwise
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

pytestmark = pytest.mark.filterwarnings(
    # by torch, tracing any autograd function
    r"ignore:.*should not be instantiated.*:DeprecationWarning"
)
COMPILED = pytest.mark.parametrize("engine", ["reference", "compile", TRITON])
NAMES = [name for name in mixes.NAMES if name != "eager"]
SLOW = pytest.mark.slow
BY_OPERATORS = pytest.mark.parametrize("engine", [TRITON])
TINY = Shape(
    n_layers=3, d_model=8, n_heads=2, n_kv_heads=2, d_head=4, d_ff=8, vocab_size=11, seq_len=5
)
NEAR = 1e-4


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def model_of(spec: str, shape: Shape = TINY) -> Transformer:
    model = build(spec, shape)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.to(DEVICE)


def learned(model: nn.Module, parameters: nn.Module) -> dict[str, Tensor]:
    tokens = torch.arange(10, device=DEVICE).view(2, 5)
    parameters.zero_grad()
    next_token_loss(model(tokens), tokens.roll(-1, dims=1)).backward()
    return {name: p.grad.clone() for name, p in parameters.named_parameters()}


def compare(engine: str, spec: str, backend: str, shape: Shape = TINY) -> None:
    model = model_of(spec, shape)
    with use("reference"):
        expected = learned(model, model)
    with use(engine):
        compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
        found = learned(compiled, model)
        again = learned(compiled, model)

    assert_near(found, expected, NEAR, least=1e-2)
    mixes.assert_equal_bits(found, again)


@pytest.mark.parametrize("engine", [pytest.param("reference", marks=SLOW), "compile", TRITON])
def test_a_model_compiles_whole_and_learns_the_same(engine: str):
    compare(engine, "attnres:block_size=2,heads=2", "aot_eager")


@pytest.mark.slow
@BY_OPERATORS
@pytest.mark.parametrize("spec", MIXING)
def test_every_design_compiles_whole_and_learns_the_same(engine: str, spec: str):
    """With `compile`, the contract's tests show it."""
    compare(engine, spec, "aot_eager", replace(TINY, n_layers=2))


@pytest.mark.slow
@BY_OPERATORS
def test_inductor_compiles_it_too(engine: str):
    """With `compile`, the contract's tests show it."""
    compare(engine, "attnres:block_size=2,heads=2", "inductor", replace(TINY, n_layers=2))


class Mixer(nn.Module):
    """A history that something follows, as a module: what is learned, and v_0..v_n in."""

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
    values = draw_values(case, torch.float32)
    module: Any = Mixer(case, way)
    if compiled:
        module = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
    with use(engine):
        found = module(values.query, values.gain, values.sources, values.table)
    inputs = list(values.leaves().values())
    gradients = torch.autograd.grad(mixes.total(found), inputs, materialize_grads=True)
    return dict(enumerate((*(h.detach() for h in found), *gradients)))


def _twice(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, v in enumerate(sources):
        history = history.append(v)
        for earlier in dict.fromkeys((site, site // 2)):
            h, history = history.read(earlier)
            found += [h, 2 * h]
    h, _ = history.read(2)
    return [*found, h]


def _own(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, v in enumerate(sources):
        history = history.append(v)
        h, history = history.read(site, v.sin())
        found.append(h)
        h, history = history.read(site)
        found.append(h)
    return found


def _some_unread(history: History, sources: list[Tensor]) -> list[Tensor]:
    for v in sources:
        history = history.append(v)
    return [history.read(2)[0]]


WAYS = {"twice": _twice, "own queries": _own, "sites that nobody reads": _some_unread}


@pytest.mark.parametrize(
    ("engine", "way", "norm"),
    [
        pytest.param("triton", "twice", "softmax", marks=NEEDS_TRITON),
        pytest.param("triton", "own queries", "sigmoid", marks=NEEDS_TRITON),
        pytest.param("compile", "sites that nobody reads", "softmax"),
        *(pytest.param(*row, marks=SLOW) for row in pairwise([NAMES, list(WAYS), mixes.NORMS])),
    ],
)
def test_reads_of_any_kind_work_in_a_compiled_graph(engine: str, way: str, norm: str):
    case = Case(mixes.full(5), norm, 2, 4)
    expected = follow("reference", WAYS[way], compiled=False, case=case)

    assert_near(follow(engine, WAYS[way], compiled=True, case=case), expected, NEAR, least=1e-1)


@SLOW
@COMPILED
@pytest.mark.parametrize("scored", ["keys+table", "rank keys"])
def test_plain_scores_are_read_and_learned_in_a_compiled_graph(engine: str, scored: str):
    case = Case(mixes.full(4), "softmax", 2, 4, scored)
    expected = follow("reference", _twice, compiled=False, case=case)

    assert_near(follow(engine, _twice, compiled=True, case=case), expected, NEAR, least=1e-1)


@pytest.mark.parametrize("engine", [pytest.param("compile", marks=SLOW), TRITON])
def test_a_site_that_nobody_reads_spoils_nothing_whatever_its_scores(engine: str):
    case = Case(mixes.full(4), "softmax", 1, 4)

    def way(history: History, sources: list[Tensor]) -> list[Tensor]:
        for v in sources:
            history = history.append(100 * v)
        return [history.read(2)[0]]

    def loud(engine: str, *, compiled: bool) -> dict[int, Tensor]:
        def scaled(history: History, sources: list[Tensor]) -> list[Tensor]:
            scoring = history.scoring
            quiet = torch.ones_like(scoring.query)
            quiet[3] = 1e4
            return way(
                History(Scoring(scoring.visible, scoring.norm, 1, scoring.query * quiet)), sources
            )

        return follow(engine, scaled, compiled=compiled, case=case)

    expected = loud("reference", compiled=False)
    found = loud(engine, compiled=True)

    assert all(x.isfinite().all() for x in found.values())
    assert_near(found, expected, 1e-3, least=1e-1)


@BY_OPERATORS
def test_a_history_that_branches_is_refused_by_name(engine: str):
    def branches(history: History, sources: list[Tensor]) -> list[Tensor]:
        history = history.append(sources[0])
        one, other = history.append(sources[1]), history.append(sources[2])
        return [one.read(1)[0], other.read(1)[0]]

    with pytest.raises(Exception, match="branches cannot be compiled"):
        follow(engine, branches, compiled=True, case=Case(mixes.full(3)))


def graphs_of(engine: str, case: Case) -> list[fx.GraphModule]:
    """The forward and backward graph of a history, as a compiler gets them."""
    found: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        found.append(graph)
        return make_boxed_func(graph.forward)

    def way(history: History, sources: list[Tensor]) -> list[Tensor]:
        reads = []
        for site, v in enumerate(sources):
            history = history.append(v + reads[-1].sin() if reads else v)
            h, history = history.read(site)
            reads.append(h)
        return reads

    values = draw_values(case, torch.float32)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    module = torch.compile(Mixer(case, way), backend=backend, fullgraph=True, dynamic=False)
    with use(engine):
        reads = module(values.query, values.gain, values.sources)
    torch.autograd.grad(mixes.total(reads), list(values.leaves().values()))
    return found


def adds_of_full_width(graph: fx.GraphModule, width: int) -> int:
    adds = {torch.ops.aten.add.Tensor, torch.ops.aten.addcmul.default, torch.ops.aten.mul.Tensor}
    nodes = (node for node in graph.graph.nodes if node.target in adds)
    return sum(node.meta["val"].shape[-1:] == (width,) for node in nodes)


@BY_OPERATORS
def test_the_graph_is_of_operators_without_a_sum_of_vectors_per_pair(engine: str):
    counted = {}
    for n in (5, 10):
        forward, backward = graphs_of(engine, Case(mixes.full(n), "softmax", 1, 8))
        names = [Counter(str(node.target) for node in g.graph.nodes) for g in (forward, backward)]
        assert sum(c for name, c in names[0].items() if name.startswith("attnres.mix.")) == n - 1
        assert sum(c for name, c in names[1].items() if name.startswith("attnres.gather")) > 0
        counted[n] = sum(adds_of_full_width(g, 8) for g in (forward, backward))

    assert counted[10] <= 2.2 * counted[5]


@NEEDS_TRITON
@pytest.mark.parametrize("name", ["scores", "mix", "mix_group", "gather", "finish"])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=SLOW), torch.bfloat16])
def test_an_operators_fake_and_schema_are_true(name: str, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, generator=generator).to(DEVICE, kind)

    n, width, heads = 16, 6, 2  # 16, for beyond the tokens scores are not defined
    v, other = draw(n, width, kind=dtype), draw(n, width, kind=dtype)
    z, w = draw(3, n, heads), draw(3, width)
    pair, delta = draw(2, n, heads), draw(n, heads)
    arguments = {
        "scores": [(v, w, heads, True, 1e-6), (v.t().contiguous().t(), w, heads, False, 1e-6)],
        "mix": [
            ([v, other], [z[0], z[1]], norm, kind)
            for norm in (0, 1, 2)
            for kind in (dtype, z.dtype)
        ],
        "mix_group": [([v, other], [z, z], 0), ([v], [draw(3, 1, heads)], 1)],
        "gather": [
            (v, z, [v, other, v], [pair] * 3, [delta] * 3, None, 0),
            (v, z[:1], [other], [], [], draw(n, width), 1),
        ],
        "finish": [
            (draw(n, width), v, draw(n).abs(), w, z, delta),
            (draw(n, width), v, None, w, z, delta),
        ],
    }[name]
    from attnres_cli.nn.depthmix.fused import ops

    for each in arguments:
        torch.library.opcheck(
            getattr(ops, name),
            each,
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )
    if name in {"scores", "mix"}:  # their outputs have nothing that is not written
        torch.library.opcheck(
            getattr(ops, name), arguments[0], test_utils="test_aot_dispatch_dynamic"
        )
