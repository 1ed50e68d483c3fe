"""What a custom backward can get wrong: order, leftovers, branches, recomputation, threads."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from functools import partial

import mixes
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from designs import build
from mixes import (
    CUSTOM,
    DEVICE,
    GATHERED,
    OPTIONS,
    Case,
    assert_equal_bits,
    assert_near,
    draw_values,
    small,
)  # fmt: skip
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
IN_THREADS = pytest.mark.parametrize(
    "engine",
    [
        "eager",
        pytest.param(
            "triton",
            marks=pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has one thread"),
        ),
    ],
)
NEAR = 1e-5
"""In float32: two orders of adding up a few numbers differ by some roundings of 1e-7."""


def model_of(spec: str, shape: Shape = TINY) -> Transformer:
    """A model whose design has left its initial values."""
    model = build(spec, shape)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.to(DEVICE)


def tokens_of(batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 11, (batch, 5), generator=generator).to(DEVICE)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return next_token_loss(model(tokens), tokens.roll(-1, dims=1))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def learned(engine: str, model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    with use(engine):
        loss_of(model, tokens).backward()
    return gradients(model)


def graph(engine: str, case: Case = CASE) -> tuple[mixes.Values, list[Tensor]]:
    values = draw_values(case, torch.float32)
    return values, mixes.reads(engine, case, values)


def grads(loss: Tensor, inputs: list[Tensor], *, keep: bool = False) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs, retain_graph=keep, materialize_grads=True))


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert_near(dict(enumerate(ours)), dict(enumerate(theirs)), NEAR, least=0.1)


@in_pairs({"engine": CUSTOM} | OPTIONS)
def test_two_runs_give_equal_bits(engine: str, norm: str, heads: int, scored: str):
    case = small(norm, heads, scored)
    first, second = (
        mixes.outcome(engine, case, draw_values(case, torch.float32)) for _ in range(2)
    )

    assert_equal_bits(first, second)


def _read_in(engine: str, follow: Callable[[History, list[Tensor]], list[Tensor]], case=CASE):
    """Gradients of a loss on what `follow` reads in a history without sources."""
    values = draw_values(case, torch.float32 if engine != "reference" else torch.float64)
    values.sources = [v.detach().requires_grad_() for v in values.sources]
    with use(engine):
        found = follow(History(mixes.scoring_of(case, values)), values.sources)
    return grads(mixes.total(found), list(values.leaves().values()))


def _twice(history: History, sources: list[Tensor]) -> list[Tensor]:
    for v in sources:
        history = history.append(v)
    found = []
    for site in (4, 2, 4, 2, 3):
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


def _branches(at: int) -> Callable[[History, list[Tensor]], list[Tensor]]:
    """Two histories with `at` sources in common; both go on, and are read, also in turn."""

    def follow(history: History, sources: list[Tensor]) -> list[Tensor]:
        for v in sources[:at]:
            history = history.append(v)
        found, branches = [], [history, history]
        for site in range(at, len(sources)):
            for number, branch in enumerate(branches):
                branch = branch.append((1 + number) * sources[site])
                h, branches[number] = branch.read(site)
                found.append(h)
        found.append(history.read(at - 1)[0])
        return found

    return follow


def _one_branch_unread(history: History, sources: list[Tensor]) -> list[Tensor]:
    for v in sources[:3]:
        history = history.append(v)
    unread = history.append(3 * sources[3])
    found = [unread.sources[3]]
    for v in sources[3:]:
        history = history.append(v)
    return [*found, history.read(4)[0], history.read(3)[0]]


FOLLOWED = {
    "twice": _twice,
    "twice as it grows": _twice_as_it_grows,
    "branches after 1": _branches(1),
    "branches after 3": _branches(3),
    "branches after 4": _branches(4),
    "an unread branch": _one_branch_unread,
}


@in_pairs({"engine": CUSTOM, "name": list(FOLLOWED), "scored": [*mixes.SCORED, "keys+table"]})
def test_sites_read_twice_and_branches_learn_as_the_formula_says(
    engine: str, name: str, scored: str
):
    case = dataclasses.replace(CASE, scored=scored)
    ours = _read_in(engine, FOLLOWED[name], case)

    close(ours, _read_in("reference", FOLLOWED[name], case))


@GATHERED
def test_a_second_backward_through_the_same_graph_gives_the_same(engine: str):
    values, found = graph(engine)
    loss, inputs = mixes.total(found), list(values.leaves().values())

    first, second = grads(loss, inputs, keep=True), grads(loss, inputs, keep=True)

    assert all(map(torch.equal, first, second))


@GATHERED
@pytest.mark.parametrize(
    "some", ["middle source", "newest source", "query", "gain", "a read", "an own query"]
)
def test_gradients_of_some_inputs_are_those_of_all_and_leave_nothing_behind(engine: str, some: str):
    case = dataclasses.replace(CASE, scored="own" if some == "an own query" else "keys")
    values, found = graph(engine, case)
    loss = mixes.total(found)
    one = {
        "middle source": values.sources[2],
        "newest source": values.sources[4],
        "query": values.query,
        "gain": values.gain,
        "a read": found[2],
        "an own query": values.own[3] if values.own else None,
    }[some]
    double = draw_values(case, torch.float32).to(torch.float64)
    expected = mixes.reads("reference", case, double)
    names = list(values.leaves())
    theirs = grads(mixes.total(expected), [*double.leaves().values(), expected[2]])
    at = {"middle source": "source 2", "newest source": "source 4", "an own query": "own query 3"}
    where = -1 if some == "a read" else names.index(at.get(some, some))

    alone = grads(loss, [one], keep=True)
    every = grads(loss, [*values.leaves().values(), found[2]], keep=True)
    again = grads(loss, [one], keep=True)

    close(alone, [theirs[where]])
    close(every, theirs)
    assert torch.equal(alone[0], again[0])


@GATHERED
def test_a_read_that_no_loss_sees_changes_nothing(engine: str):
    values = draw_values(CASE, torch.float32)
    inputs = list(values.leaves().values())

    alone = grads(mixes.reads(engine, CASE, values)[3].sum(), inputs)
    with use(engine):
        history = History(mixes.scoring_of(CASE, values))
        found = []
        for site, x in enumerate(values.sources):
            v = x + found[-1].sin() / (site + 1) if found else x
            history = history.append(v)
            found.append(history.read(site)[0])
            history.read(site // 2)
    beside = grads(found[3].sum(), inputs)

    close(beside, alone)


class Checkpointed(nn.Module):
    """The trunk with every sublayer recomputed in backward, its read and write among it."""

    def __init__(self, model: Transformer, layers: int = 1) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, tokens: Tensor) -> Tensor:
        model = self.model
        state = model.residual.start(model.embed(tokens))
        for start in range(0, len(model.sublayers), self.layers):
            state = checkpoint(self._some, state, start, use_reentrant=False)
        return model.head(model.norm(model.residual.finish(state)))

    def _some(self, state: object, start: int) -> object:
        for l in range(start + 1, start + 1 + self.layers):
            h, state = self.model.residual.read(state, l)
            state = self.model.residual.write(state, l, self.model.sublayers[l - 1](h))
        return state


@GATHERED
@DESIGNS
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_sublayers_recomputed_in_backward_learn_the_same(engine: str, spec: str, layers: int):
    model, tokens = model_of(spec), tokens_of()
    expected = learned(engine, model, tokens)

    model.zero_grad()
    with use(engine):
        loss_of(Checkpointed(model, layers), tokens).backward()

    assert_equal_bits(gradients(model), expected)


@GATHERED
@DESIGNS
def test_recomputation_repeats_with_a_graph_that_is_kept(engine: str, spec: str):
    model, tokens = model_of(spec), tokens_of()
    expected = learned(engine, model, tokens)
    parameters = [p for name, p in model.named_parameters() if name in expected]

    with use(engine):
        loss = loss_of(Checkpointed(model), tokens)
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
    assert_near(gradients(model), expected, 0.1, least=1e-2)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@in_pairs({"engine": CUSTOM, "mode": [torch.no_grad, torch.inference_mode]} | OPTIONS)
def test_nothing_is_kept_for_a_backward_that_cannot_come(
    engine: str, mode: Callable[[], torch.no_grad], norm: str, heads: int, scored: str
):
    case = small(norm, heads, scored)
    values = draw_values(case, torch.float32)
    expected = mixes.reads(engine, case, values)

    with use(engine), mode():
        history, found = History(mixes.scoring_of(case, values)), []
        for site, x in enumerate(values.sources):
            v = x + found[-1].sin() / (site + 1) if found else x
            h, history = history.append(v).read(site)
            found.append(h)

    records = {} if history.state is None else history.state.records
    assert all(each.token is None and each.buffer is None for each in records.values())
    assert all(h.grad_fn is None for h in found)
    for h, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(h, theirs.detach(), rtol=1e-5, atol=1e-5)


@GATHERED
def test_a_history_without_gradients_can_be_continued_with_them(engine: str):
    values = draw_values(CASE, torch.float32)
    double = values.to(torch.float64)

    def run(engine: str, values: mixes.Values) -> list[Tensor]:
        with use(engine):
            history = History(mixes.scoring_of(CASE, values))
            with torch.no_grad():
                for v in values.sources[:2]:
                    history = history.append(v)
                _, history = history.read(1)
            for v in values.sources[2:4]:
                history = history.append(v)
            h, history = history.read(3)
            return grads(h.sin().sum(), values.sources[2:4])

    close(run(engine, values), run("reference", double))


FROZEN = {
    "first source": lambda v: v.sources[:1],
    "first sources": lambda v: v.sources[:3],
    "a middle source": lambda v: [v.sources[2]],
    "every source": lambda v: v.sources,
    "query": lambda v: [v.query],
    "what is learned": lambda v: [v.query, v.gain, v.table],
    "what is learned, first sources": lambda v: [v.query, v.gain, *v.sources[:2]],
}


@in_pairs({"engine": CUSTOM, "frozen": list(FROZEN), "scored": ["keys", "keys+table", "rank keys"]})
def test_what_is_frozen_gets_nothing_and_the_rest_what_it_should(
    engine: str, frozen: str, scored: str
):
    def run(engine: str, dtype: torch.dtype) -> list[Tensor]:
        case = mixes.unchained(dataclasses.replace(CASE, scored=scored))
        values = draw_values(case, torch.float32).to(dtype)
        for x in FROZEN[frozen](values):
            if x is not None:
                x.requires_grad_(False)
        mixes.total(mixes.reads(engine, case, values)).backward()
        leaves = values.leaves().values()
        assert all(x.grad is None for x in leaves if not x.requires_grad)
        return [
            torch.zeros_like(x) if x.grad is None else x.grad for x in leaves if x.requires_grad
        ]

    close(run(engine, torch.float32), run("reference", torch.float64))


@GATHERED
def test_a_history_of_frozen_things_has_no_gradient(engine: str):
    values = draw_values(CASE, torch.float32)
    for x in values.leaves().values():
        x.requires_grad_(False)
    expected = mixes.reads("reference", CASE, values)

    found = mixes.reads(engine, CASE, values)

    assert not any(h.requires_grad for h in found)
    close(found, expected)


@GATHERED
@pytest.mark.parametrize("scored", ["keys", "table", "own", "rank keys"])
@pytest.mark.parametrize("linear", [False, True])
def test_a_gradient_of_a_gradient_is_refused(engine: str, scored: str, linear: bool):
    """Where the loss is linear in what is read too, though its own gradient is then a constant."""
    case = mixes.unchained(dataclasses.replace(CASE, scored=scored))
    values, found = graph(engine, case)
    inputs = list(values.leaves().values())
    loss = sum(h.sum() for h in found) if linear else mixes.total(found)

    def penalised() -> None:
        first = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
        (loss + sum(g.square().sum() for g in first)).backward()

    with pytest.raises(RuntimeError, match="differentia"):
        penalised()


class Fails(torch.autograd.Function):
    """The identity, whose backward fails while `broken` is set."""

    broken = False

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        if Fails.broken:
            raise ArithmeticError("broken on purpose")
        return g


@GATHERED
def test_a_backward_that_fails_halfway_does_not_spoil_the_next(
    engine: str, monkeypatch: pytest.MonkeyPatch
):
    def run(engine: str, dtype: torch.dtype, *, fails: bool) -> list[Tensor]:
        values = draw_values(CASE, torch.float32).to(dtype)
        inputs, middle = list(values.leaves().values()), values.sources[2]
        values.sources[2] = Fails.apply(2 * middle)
        loss = mixes.total(mixes.reads(engine, CASE, values))
        if fails:
            monkeypatch.setattr(Fails, "broken", True)
            with pytest.raises(ArithmeticError, match="broken on purpose"):
                grads(loss, inputs, keep=True)
            monkeypatch.setattr(Fails, "broken", False)
        return grads(loss, inputs)

    ours = run(engine, torch.float32, fails=True)

    close(ours, run("reference", torch.float64, fails=False))


@IN_THREADS
def test_models_that_learn_in_two_threads_do_not_mix(engine: str):
    seeds = range(2)
    expected = [learned(engine, model_of("attnres"), tokens_of(seed=seed)) for seed in seeds]
    models, found, failed = [model_of("attnres") for _ in seeds], {}, []
    start = threading.Barrier(2, timeout=60)

    def train(number: int) -> None:
        try:
            start.wait()
            for _ in range(3):
                models[number].zero_grad()
                with use(engine):
                    loss = loss_of(models[number], tokens_of(seed=number))
                loss.backward()
                found.setdefault(number, []).append(gradients(models[number]))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=train, args=(number,)) for number in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed
    for number in seeds:
        assert len(found[number]) == 3
        for each in found[number]:
            assert_equal_bits(each, expected[number])


@IN_THREADS
def test_one_graph_differentiated_in_two_threads_gives_each_all(engine: str):
    values, found = graph(engine)
    loss, inputs = mixes.total(found), list(values.leaves().values())
    expected = grads(loss, inputs, keep=True)
    results, start = {}, threading.Barrier(2, timeout=60)

    def differentiate(number: int) -> None:
        start.wait()
        results[number] = [grads(loss, inputs, keep=True) for _ in range(3)]

    threads = [threading.Thread(target=differentiate, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number in range(2):
        assert all(all(map(torch.equal, each, expected)) for each in results[number])


def _worker(rank: int, engine: str, spec: str, address: str, found: object) -> None:
    dist.init_process_group("gloo", f"file://{address}", world_size=2, rank=rank)
    model = model_of(spec).cpu()
    parallel = DistributedDataParallel(model)
    with use(engine):
        for _ in range(2):  # the second with the buckets that the first has found
            parallel.zero_grad()
            loss_of(parallel, tokens_of(4).cpu().chunk(2)[rank]).backward()
    if rank == 0:
        torch.save(gradients(model), found)
    dist.barrier()  # neither leaves while the other still talks to it
    os._exit(0)  # gloo's threads, still running at a normal exit, can abort the process


@pytest.mark.slow
@GATHERED
@DESIGNS
def test_two_processes_learn_what_one_does(engine: str, spec: str, tmp_path):
    expected = learned(engine, model_of(spec), tokens_of(4))
    run = partial(mp.spawn, nprocs=2, join=True)

    run(_worker, args=(engine, spec, str(tmp_path / "rendezvous"), tmp_path / "found.pt"))

    found = torch.load(tmp_path / "found.pt")
    assert_near(found, {name: g.cpu() for name, g in expected.items()}, NEAR, least=0.1)
