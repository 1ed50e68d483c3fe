"""The custom backward under everything that autograd may do with it: order, leftovers, branches,
recomputation, threads and processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce

import mixes
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from designs import perturbed
from mixes import CUSTOM, DEVICE, GATHERED, Case, assert_equal_bits, draw_values
from sampling import in_pairs
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

TINY = Shape(
    n_layers=2, d_model=8, n_heads=2, n_kv_heads=2, d_head=4, d_ff=8, vocab_size=11, seq_len=5
)
DESIGNS = pytest.mark.parametrize("spec", ["attnres", "attnres:block_size=2,heads=2"])
CASE = Case(mixes.full(5), "softmax", 2, 4)
HAS_THREADS = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has one thread")
IN_THREADS = pytest.mark.parametrize("engine", ["eager", pytest.param("triton", marks=HAS_THREADS)])
NEAR = 1e-5
"""In float32: two orders of adding up a few numbers differ by some roundings of 1e-7."""


def model_of(spec: str) -> Transformer:
    return perturbed(spec, TINY).float().to(DEVICE)


def tokens_of(batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (batch, 5), generator=generator).to(DEVICE)


def loss_of(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    return next_token_loss(model(tokens), tokens.roll(-1, dims=1))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def learned(engine: str, model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Gradients of a pass through a model."""
    model.zero_grad()
    with use(engine):
        loss_of(model, tokens).backward()
    return gradients(model)


def graph(engine: str, case: Case = CASE) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """A loss on all reads, its leaves, and the reads."""
    values = draw_values(case, torch.float32)
    found = mixes.reads(engine, case, values)
    return mixes.total(found), list(values.leaves().values()), found


def grads(loss: Tensor, inputs: list[Tensor], *, keep: bool = False) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=keep, materialize_grads=True))


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    mixes.assert_near(dict(enumerate(ours)), dict(enumerate(theirs)), NEAR, least=0.1)


def in_two_threads(function: Callable[[int], object]) -> list[object]:
    """What a function of the thread's number returns in two threads that begin together."""
    start = threading.Barrier(2, timeout=60)

    def run(number: int) -> object:
        start.wait()
        return function(number)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


# Histories that are not read once in order


def _backwards_and_again(history: History, sources: list[Tensor]) -> list[Tensor]:
    history, found = reduce(History.append, sources, history), []
    for site in (4, 2, 4, 2, 3, 1, 0):
        h, history = history.read(site)
        found.append(h)
    return found


def _twice_as_it_grows(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, v in enumerate(sources):
        history = history.append(v)
        for earlier in range(max(0, site - 1), site + 1):
            h, history = history.read(earlier)
            found.append(h)
    return found


def _branches(at: int, history: History, sources: list[Tensor]) -> list[Tensor]:
    """Two histories that share `at` sources; both go on, and are read in turn."""
    history = reduce(History.append, sources[:at], history)
    found, branches = [], [history, history]
    for site in range(at, len(sources)):
        for number, branch in enumerate(branches):
            h, branches[number] = branch.append((1 + number) * sources[site]).read(site)
            found.append(h)
    return [*found, history.read(at - 1)[0]]


def _one_branch_unread(history: History, sources: list[Tensor]) -> list[Tensor]:
    history = reduce(History.append, sources[:3], history)
    unread = history.append(3 * sources[3])
    history = reduce(History.append, sources[3:], history)
    return [unread.sources[3], history.read(4)[0], history.read(3)[0]]


def _unseen_reads(history: History, sources: list[Tensor]) -> list[Tensor]:
    found = []
    for site, x in enumerate(sources):
        history = history.append(x + found[-1].sin() / (site + 1) if found else x)
        found.append(history.read(site)[0])
        history.read(site // 2)
    return [found[3]]


FOLLOWED = {
    "backwards and again": _backwards_and_again,
    "twice as it grows": _twice_as_it_grows,
    "branches after 1": partial(_branches, 1),
    "branches after 4": partial(_branches, 4),
    "an unread branch": _one_branch_unread,
    "reads that no loss sees": _unseen_reads,
}


@in_pairs(
    {"engine": CUSTOM, "name": list(FOLLOWED), "scored": ["keys", "keys+table"]}
    | {"norm": ["softmax", "sigmoid"]}
)
def test_histories_that_are_not_read_once_in_order_learn_as_the_formula_says(
    engine: str, name: str, scored: str, norm: str
):
    case = replace(CASE, scored=scored, norm=norm)

    def learn(engine: str, values: mixes.Values) -> list[Tensor]:
        with use(engine):
            found = FOLLOWED[name](mixes.history_of(case, values), values.sources)
        return grads(mixes.total(found), list(values.leaves().values()))

    values = draw_values(case, torch.float32)
    close(learn(engine, values), learn("reference", values.to(torch.float64)))


@GATHERED
def test_a_history_without_gradients_can_be_continued_with_them(engine: str):
    def run(engine: str, values: mixes.Values) -> list[Tensor]:
        with use(engine):
            history = mixes.history_of(CASE, values)
            with torch.no_grad():
                _, history = reduce(History.append, values.sources[:2], history).read(1)
            h, _ = reduce(History.append, values.sources[2:4], history).read(3)
            return grads(h.sin().sum(), values.sources[2:4])

    values = draw_values(CASE, torch.float32)
    close(run(engine, values), run("reference", values.to(torch.float64)))


# Gradients of some inputs, again, and of nothing


@GATHERED
@pytest.mark.parametrize("some", ["source 2", "source 4", "query", "gain", "a read", "own query 3"])
def test_gradients_of_one_input_are_those_of_all_and_leave_nothing_behind(engine: str, some: str):
    case = replace(CASE, scored="own" if some.startswith("own") else "keys")
    values = draw_values(case, torch.float32)
    double = values.to(torch.float64)

    def prepared(engine: str, values: mixes.Values) -> tuple[Tensor, dict[str, Tensor]]:
        found = mixes.reads(engine, case, values)
        return mixes.total(found), values.leaves() | {"a read": found[2]}

    loss, inputs = prepared(engine, values)
    theirs_loss, theirs = prepared("reference", double)
    expected = dict(zip(theirs, grads(theirs_loss, [*theirs.values()]), strict=True))

    alone = grads(loss, [inputs[some]], keep=True)
    every = [grads(loss, [*inputs.values()], keep=True) for _ in range(2)]
    again = grads(loss, [inputs[some]], keep=True)

    close(alone, [expected[some]])
    close(every[0], [*expected.values()])
    assert all(map(torch.equal, *every))
    assert torch.equal(alone[0], again[0])


FROZEN: dict[str, Callable[[mixes.Values], list[Tensor | None]]] = {
    "first source": lambda v: v.sources[:1],
    "a middle source": lambda v: [v.sources[2]],
    "every source": lambda v: v.sources,
    "query": lambda v: [v.query],
    "parameters": lambda v: [v.query, v.gain, v.table],
    "parameters and first sources": lambda v: [v.query, v.gain, *v.sources[:2]],
    "everything": lambda v: [*v.leaves().values()],
}


FROZEN_SCORES = ["keys", "keys+table", "rank keys", "own", "own head keys"]


@in_pairs({"engine": CUSTOM, "frozen": list(FROZEN), "scored": FROZEN_SCORES})
def test_frozen_tensors_get_no_gradient_and_the_rest_get_theirs(
    engine: str, frozen: str, scored: str
):
    def run(engine: str, dtype: torch.dtype) -> list[Tensor]:
        case = replace(CASE, scored=scored, chained=False)
        values = draw_values(case, torch.float32).to(dtype)
        for x in filter(lambda x: x is not None, FROZEN[frozen](values)):
            x.requires_grad_(False)
        leaves, found = values.leaves().values(), mixes.reads(engine, case, values)
        assert found[-1].requires_grad == any(x.requires_grad for x in leaves)
        if found[-1].requires_grad:
            mixes.total(found).backward()
        assert all(x.grad is None for x in leaves if not x.requires_grad)
        return [
            torch.zeros_like(x) if x.grad is None else x.grad for x in leaves if x.requires_grad
        ]

    close(run(engine, torch.float32), run("reference", torch.float64))


@GATHERED
@pytest.mark.parametrize("scored", ["keys", "table", "own", "rank keys"])
@pytest.mark.parametrize("linear", [False, True])
def test_a_gradient_of_a_gradient_is_refused(engine: str, scored: str, linear: bool):
    """Also where the loss is linear in the reads, though its own gradient is then a constant."""
    loss, inputs, found = graph(engine, replace(CASE, scored=scored, chained=False))
    if linear:
        loss = sum(h.sum() for h in found)

    def penalised() -> None:
        first = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
        (loss + sum(g.square().sum() for g in first)).backward()

    with pytest.raises(RuntimeError, match="differentia"):
        penalised()


@GATHERED
def test_a_backward_that_fails_halfway_does_not_spoil_the_next(engine: str):
    def run(engine: str, dtype: torch.dtype, failures: list[ArithmeticError]) -> list[Tensor]:
        def fail(g: Tensor) -> None:
            if failures:
                raise failures.pop()

        values = draw_values(CASE, torch.float32).to(dtype)
        inputs = list(values.leaves().values())
        values.sources[2] = 2 * values.sources[2]
        values.sources[2].register_hook(fail)
        loss = mixes.total(mixes.reads(engine, CASE, values))
        if failures:
            with pytest.raises(ArithmeticError, match="broken on purpose"):
                grads(loss, inputs, keep=True)
        return grads(loss, inputs)

    broken = [ArithmeticError("broken on purpose")]
    close(run(engine, torch.float32, broken), run("reference", torch.float64, []))


# Whole models: recomputation, autocast, threads, processes


@GATHERED
@DESIGNS
@pytest.mark.parametrize("layers", [1, 4])
def test_sublayers_recomputed_in_backward_learn_the_same_each_time(
    engine: str, spec: str, layers: int
):
    model, tokens = model_of(spec), tokens_of()
    expected = learned(engine, model, tokens)
    parameters = [p for name, p in model.named_parameters() if name in expected]

    def some(state: object, start: int) -> object:
        for l in range(start + 1, start + 1 + layers):
            h, state = model.residual.read(state, l)
            state = model.residual.write(state, l, model.sublayers[l - 1](h))
        return state

    def recomputing(tokens: Tensor) -> Tensor:
        state = model.residual.start(model.embed(tokens))
        for start in range(0, len(model.sublayers), layers):
            state = checkpoint(some, state, start, use_reentrant=False)
        return model.head(model.norm(model.residual.finish(state)))

    with use(engine):
        loss = loss_of(recomputing, tokens)
        found = [grads(loss, parameters, keep=True) for _ in range(2)]

    for each in found:
        assert_equal_bits(dict(zip(expected, each, strict=True)), expected)


@GATHERED
@DESIGNS
def test_bfloat16_autocast_learns_within_its_rounding_of_float32(engine: str, spec: str):
    model, tokens = model_of(spec), tokens_of()
    expected = learned("reference", model, tokens)

    model.zero_grad()
    with use(engine), torch.autocast(DEVICE, torch.bfloat16):
        loss = loss_of(model, tokens)
    loss.backward()  # outside of autocast, as PyTorch recommends

    # eight bits in every product of four sublayers, there and back
    mixes.assert_near(gradients(model), expected, 0.1, least=1e-2)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@IN_THREADS
def test_models_that_learn_in_two_threads_do_not_mix(engine: str):
    models = [model_of("attnres") for _ in range(2)]
    expected = [learned(engine, models[seed], tokens_of(seed=seed)) for seed in range(2)]

    found = in_two_threads(
        lambda seed: [learned(engine, models[seed], tokens_of(seed=seed)) for _ in range(3)]
    )

    for number in range(2):
        for each in found[number]:
            assert_equal_bits(each, expected[number])


@IN_THREADS
def test_one_graph_differentiated_in_two_threads_gives_each_all(engine: str):
    loss, inputs, _ = graph(engine)
    expected = grads(loss, inputs, keep=True)

    found = in_two_threads(lambda _: [grads(loss, inputs, keep=True) for _ in range(3)])

    for each in (*found[0], *found[1]):
        assert all(map(torch.equal, each, expected))


def _worker(rank: int, engine: str, spec: str, address: str, found: object) -> None:
    dist.init_process_group("gloo", f"file://{address}", world_size=2, rank=rank)
    parallel = DistributedDataParallel(model_of(spec).cpu())
    for _ in range(2):  # the second with the buckets that the first has found
        learned(engine, parallel, tokens_of(4).cpu().chunk(2)[rank])
    if rank == 0:
        torch.save(gradients(parallel.module), found)
    dist.barrier()  # neither leaves while the other still talks to it
    os._exit(0)  # gloo's threads, still running at a normal exit, can abort the process


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("triton", marks=[mixes.NEEDS_TRITON, pytest.mark.nightly]),
    ],
)
def test_two_processes_learn_the_same_as_one(engine: str, tmp_path):
    spec, found = "attnres:block_size=2,heads=2", tmp_path / "found.pt"
    expected = learned(engine, model_of(spec), tokens_of(4))

    arguments = (engine, spec, str(tmp_path / "rendezvous"), found)
    mp.spawn(_worker, args=arguments, nprocs=2, join=True)

    expected = {name: g.cpu() for name, g in expected.items()}
    mixes.assert_near(torch.load(found), expected, NEAR, least=0.1)
