"""Histories of few tokens lie in buffers that are written in place, and nobody can tell."""

from __future__ import annotations

from functools import reduce

import mixes
import pytest
import torch
from mixes import Case, draw_values
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.measure import vectors_held
from attnres_cli.nn.variant import parse

FULL = Case(mixes.full(9))


def made(dtype: torch.dtype = torch.float64) -> tuple[History, list[Tensor]]:
    """A history before its first source, and the sources."""
    values = draw_values(FULL, dtype)
    return mixes.history_of(FULL, values), [v.detach() for v in values.sources]


@torch.no_grad()
def test_buffers_that_no_history_uses_serve_the_next():
    first, sources = made()
    one = first.append(sources[0])
    other = first.append(sources[1])
    used = one.few
    assert other.few is not used
    last = other.few
    del other

    again = first.append(sources[2])

    assert again.few is last
    assert torch.equal(one.read(0)[0], sources[0])


def test_an_engine_takes_over_for_gradients_and_for_queries_of_a_reads_own():
    history, sources = made()
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
    history, sources = made(dtype)
    history = reduce(History.append, sources[:3], history)

    few, by_engine = history.read(2)[0], history._by_engine().read(2)[0]

    assert few.dtype is by_engine.dtype is dtype
    torch.testing.assert_close(few, by_engine)


class Calls(TorchDispatchMode):
    """Counts operations that are not views."""

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


def test_in_generation_too_a_block_holds_only_the_sources_that_are_read():
    """These are finished blocks and two more, a place for the next running sum, and scores."""
    held = vectors_held(parse("attnres:block_size=4").build(256, 16), 64, 1, torch.device("cpu"))

    assert max(held) <= 4 + 2 + 2 + 1
