"""Histories of few tokens: buffers that are written in place, and what must not show of it."""

from __future__ import annotations

import mixes
import pytest
import torch
from designs import build
from mixes import Case, draw_values, scoring_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnres_cli.nn.depthmix import few_tokens, reference
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.measure import vectors_held
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

CASES = {
    "full": Case(mixes.full(9)),
    "blocks": Case(mixes.blocks(13, 3), heads=2, added=frozenset({2, 3, 5, 6})),
    "window": Case(mixes.windows(12, 3), "sigmoid", 2),
    "gaps": Case(mixes.every_other(12, 3), "none", scored="table"),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def made(case: Case) -> tuple[History, list[Tensor]]:
    """The history before its first source, and the sources, in float64."""
    values = draw_values(case, torch.float64)
    return History(scoring_of(case, values)), [v.detach() for v in values.sources]


def grown(history: History, case: Case, number: int, v: Tensor) -> History:
    return history.accumulate(v) if number in case.added else history.append(v)


def expected(history: History, case: Case, sources: list[Tensor], site: int) -> Tensor:
    whole = list(sources)
    for i in sorted(case.added):
        whole[i] = whole[i - 1] + whole[i]
    return reference.mix(history.scoring, whole[: site + 1], site).detach()


@EACH
@torch.no_grad()
def test_every_history_of_a_chain_reads_its_own_site_when_all_are_made(case: Case):
    history, sources = made(case)
    chain = []
    for site, v in enumerate(sources):
        history = grown(history, case, site, v)
        history.read(site)
        chain.append(history)

    for site, each in enumerate(chain):
        theirs = expected(history, case, sources, site)
        torch.testing.assert_close(each.read(site)[0], theirs, rtol=1e-9, atol=1e-9)


@EACH
@torch.no_grad()
def test_one_history_goes_on_twice(case: Case):
    history, sources = made(case)
    n, middle = len(sources), 5
    for site in range(middle):
        history = grown(history, case, site, sources[site])
        history.read(site)

    for other in (sources, [*sources[:middle], *(-v for v in sources[middle:])]):
        branch = history
        for site in range(middle, n):
            branch = grown(branch, case, site, other[site])
            found = branch.read(site)[0]
            torch.testing.assert_close(
                found, expected(history, case, other, site), rtol=1e-9, atol=1e-9
            )


@torch.no_grad()
def test_buffers_serve_the_next_history_when_none_has_them():
    first, sources = made(CASES["full"])
    one = first.append(sources[0])
    other = first.append(sources[1])
    used = one.few
    assert other.few is not used
    last = other.few
    del other

    again = first.append(sources[2])

    assert again.few is last
    assert torch.equal(one.read(0)[0], sources[0])


def test_few_tokens_are_left_to_an_engine_where_gradients_types_or_queries_ask_for_it():
    history, sources = made(CASES["full"])
    assert history.append(sources[0]).few is None
    with torch.no_grad():
        few = history.append(sources[0])
    leaf = sources[1].clone().requires_grad_()

    h, _ = few.append(leaf).read(1)
    h.sum().backward()
    with torch.inference_mode():
        inside = history.append(sources[0])
    with torch.no_grad():
        outside = inside.append(sources[1])
        own, _ = few.append(sources[1]).read(1, torch.zeros_like(sources[1]))
        with pytest.raises((KeyError, IndexError)):
            few.read(3)

    assert few.few is not None
    assert outside.few is None
    assert leaf.grad is not None
    torch.testing.assert_close(own, (sources[0] + sources[1]) / 2, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_sources_are_handed_to_an_engine_with_the_type_of_the_first(dtype: torch.dtype):
    values = draw_values(CASES["full"], dtype)
    history = History(scoring_of(CASES["full"], values))
    for v in values.sources[:3]:
        history = history.append(v)

    few, by_engine = history.read(2)[0], history._by_engine().read(2)[0]

    assert few.dtype is by_engine.dtype is dtype
    torch.testing.assert_close(few, by_engine)


class Calls(TorchDispatchMode):
    """Counts operations, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("spec", "most"), [("attnres", 6), ("attnres:block_size=4", 6), ("denseformer", 2)]
)
def test_a_site_takes_few_calls(spec: str, most: int):
    counts = []
    for n_sublayers in (8, 16):
        design, v = parse(spec).build(16, n_sublayers), torch.randn(1, 1, 16)
        with torch.inference_mode():
            for _ in range(2):  # the first makes the buffers
                with Calls() as calls:
                    state = design.start(v)
                    for l in range(1, n_sublayers + 1):
                        state = design.write(design.read(state, l)[1], l, v)
                    design.finish(state)
        counts.append(calls.n)

    assert counts[1] - counts[0] <= 8 * most


def test_in_generation_too_a_block_holds_the_sources_that_are_read():
    """Finished blocks and two, and a place where the next running sum is made; scores beside."""
    held = vectors_held(parse("attnres:block_size=4").build(256, 16), 64, 1, torch.device("cpu"))

    assert max(held) <= 4 + 2 + 2 + 1


def test_a_model_computes_the_same_in_buffers_and_without(tiny_shape: Shape):
    model = build("attnres:block_size=2", tiny_shape).double()
    tokens = torch.arange(12).view(2, 6) % tiny_shape.vocab_size

    with torch.inference_mode():
        found = model(tokens), model(tokens.flip(1)), model(tokens)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(few_tokens, "FEW", 0)
            theirs = model(tokens)

    torch.testing.assert_close(found[0], theirs, rtol=1e-10, atol=1e-10)
    assert torch.equal(found[0], found[2])
