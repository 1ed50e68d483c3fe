"""Random histories, run as a model runs them, with their reads and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.engines import use
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring

DEVICE = "cuda" if torch.cuda.is_available() and not engines.interprets_triton() else "cpu"

NEEDS_TRITON = pytest.mark.skipif(not engines.has_triton(), reason="needs triton")
TRITON = pytest.param("triton", marks=NEEDS_TRITON)
GATHERED = pytest.mark.parametrize(
    "engine", ["eager", pytest.param("triton", marks=[NEEDS_TRITON, pytest.mark.nightly])]
)
"""The engines with a custom backward. They share its autograd; interpreted kernels are slow."""
EVERY = pytest.mark.parametrize("engine", ["reference", "eager", "compile", TRITON])
CUSTOM = ["eager", *(["triton"] if engines.has_triton() else [])]
NAMES = ["reference", "compile", *CUSTOM]

Visible = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """Options of a history. Site l reads when sources 0..l are made.

    Attributes:
        visible: the sources that each site reads.
        norm: norm of the weights.
        heads: number of heads.
        d_head: width of a head.
        scored: how scores are made: by `keys` (normalised), `query` (raw sources), `table` or
            `keys+table`; by a `rank` of last channels (`rank keys` normalised); by `head keys`
            normalised per head; `squashed` by a sigmoid; or by a query of each read's `own` (`own
            keys` normalised, `own+table` biased).
        size: batch and time.
        added: sources made by `accumulate`: the source before plus something.
        chained: whether each read goes into the next source.
        seed: seed of all values.
    """

    visible: Visible
    norm: str = "softmax"
    heads: int = 1
    d_head: int = 8
    scored: str = "keys"
    size: tuple[int, int] = (2, 3)
    added: frozenset[int] = frozenset()
    chained: bool = True
    seed: int = 0

    @property
    def width(self) -> int:
        return self.heads * self.d_head

    @property
    def rank(self) -> int | None:
        """About half of each head's share."""
        return self.heads * ((self.d_head + 1) // 2) if "rank" in self.scored else None


@dataclass
class Values:
    """The leaves from which a case is computed, and the gradients of its reads."""

    sources: list[Tensor]
    own: list[Tensor]
    query: Tensor | None
    gain: Tensor | None
    table: Tensor | None
    cotangents: list[Tensor]

    def leaves(self) -> dict[str, Tensor]:
        named = {f"source {i}": x for i, x in enumerate(self.sources)}
        named |= {f"own query {i}": x for i, x in enumerate(self.own)}
        named |= {"query": self.query, "gain": self.gain, "table": self.table}
        return {name: x for name, x in named.items() if x is not None}

    def to(self, dtype: torch.dtype) -> Values:
        """New leaves with the same values in one type."""

        def cast(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach().to(dtype).requires_grad_(x.requires_grad)

        sources, own = ([cast(x) for x in tensors] for tensors in (self.sources, self.own))
        learned = (cast(x) for x in (self.query, self.gain, self.table))
        return Values(sources, own, *learned, [x.to(dtype) for x in self.cotangents])


def full(n: int) -> Visible:
    return tuple(tuple(range(l + 1)) for l in range(n))


def windows(n: int, window: int) -> Visible:
    return tuple(tuple(sorted({0, *range(max(0, l + 1 - window), l + 1)})) for l in range(n))


def blocks(n: int, size: int) -> Visible:
    return tuple(tuple(sorted({0, l, *range(size, l, size)})) for l in range(n))


def every_other(n: int, step: int) -> Visible:
    """Each source is read by sites that do not follow each other."""
    return tuple(tuple(range(l % step, l + 1, step)) for l in range(n))


def ones(n: int) -> Visible:
    """Most sites see one source, and every third two."""
    return tuple((l,) if l % 3 else tuple(sorted({0, l})) for l in range(n))


def some(n: int, share: float, seed: int) -> Visible:
    """A site sees the newest source and a random share of the others."""
    kept = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < share
    return tuple((*(i for i in range(l) if kept[l, i]), l) for l in range(n))


def draw_values(case: Case, dtype: torch.dtype, first: torch.dtype | None = None) -> Values:
    """Values of a case. The first source may have another type; parameters are float32 or wider."""
    generator = torch.Generator().manual_seed(case.seed)
    wide = torch.promote_types(dtype, torch.float32)

    def draw(*size: int, kind: torch.dtype = wide, scale: float = 1.0) -> Tensor:
        drawn = scale * torch.randn(*size, generator=generator, dtype=torch.float64)
        return drawn.to(DEVICE, kind).requires_grad_()

    n, width, scale = len(case.visible), case.width, case.d_head**-0.5
    kinds = [first or dtype] + [dtype] * (n - 1)
    own, key_width = case.scored.startswith("own"), case.rank or width
    learned = not own and case.scored != "table"
    return Values(
        [draw(*case.size, width, kind=kind) for kind in kinds],
        [draw(*case.size, width, kind=kinds[0], scale=scale) for _ in range(n if own else 0)],
        draw(n, key_width, scale=scale) if learned else None,
        draw(n, key_width) if "keys" in case.scored else None,
        draw(sum(map(len, case.visible)), case.heads) if "table" in case.scored else None,
        [draw(*case.size, width, kind=kinds[0]).detach() for _ in range(n)],
    )


def drawer() -> Callable[..., Tensor]:
    """A function that draws normal numbers of a size, always the same ones."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, generator=generator).to(DEVICE, dtype)

    return draw


def scoring_of(case: Case, values: Values) -> Scoring:
    learned = (values.query, values.gain, values.table)
    options = {"head_norm": "head" in case.scored, "squashed": "squashed" in case.scored}
    return Scoring(case.visible, case.norm, case.heads, *learned, 1e-5, rank=case.rank, **options)


def history_of(case: Case, values: Values) -> History:
    """The history of a case before its first source."""
    return History(scoring_of(case, values))


def filled(case: Case, values: Values) -> History:
    """The history of a case with all its sources and no read yet."""
    return reduce(History.append, values.sources, history_of(case, values))


def reads(engine: str, case: Case, values: Values) -> list[Tensor]:
    """The read of each site. Each source is made from the read before it, as a model does."""
    with use(engine):
        history, found = history_of(case, values), []
        for site, x in enumerate(values.sources):
            v = x
            if found and case.chained:  # scaled so that gradients neither grow nor vanish
                v = x + (found[-1].sin() / (site + 1)).to(x.dtype)
            history = history.accumulate(v) if site in case.added else history.append(v)
            query = (values.own[site],) if values.own else ()
            h, history = history.read(site, *query)
            found.append(h)
        return found


def outcome(engine: str, case: Case, values: Values) -> dict[str, Tensor]:
    """Reads and gradients by name."""
    return gradients_of(reads(engine, case, values), values)


def exact(case: Case, values: Values) -> dict[str, Tensor]:
    """Reads and gradients by the formula in float64."""
    return outcome("reference", case, values.to(torch.float64))


def gradients_of(found: Sequence[Tensor], values: Values) -> dict[str, Tensor]:
    """Reads, and the gradients that the case's cotangents give them, by name."""
    leaves = values.leaves()
    gradients = torch.autograd.grad(
        found, list(leaves.values()), values.cotangents, allow_unused=True, materialize_grads=True
    )
    named = {f"read {l}": h.detach() for l, h in enumerate(found)}
    return named | {f"d {name}": g for name, g in zip(leaves, gradients, strict=True)}


def assert_equal_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_near(
    ours: dict[str, Tensor], exact: dict[str, Tensor], relative: float, least: float = 0.0
) -> None:
    """Every number within `relative` times the largest of its tensor (or `least`, if larger)."""
    assert ours.keys() == exact.keys()
    for name, theirs in exact.items():
        mine = ours[name].to(theirs.dtype)
        assert mine.shape == theirs.shape, name
        allowed = relative * max(theirs.abs().max().item(), least)
        error = (mine - theirs).abs().max().item()
        assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


@st.composite
def visibles(draw: st.DrawFn, most: int = 70) -> Visible:
    """Patterns of every kind, for 1 to `most` sites."""
    n = draw(st.integers(1, most))
    kind = draw(st.sampled_from(["full", "blocks", "window", "gaps", "ones", "any"]))
    if kind == "any":
        return some(n, draw(st.floats(0.1, 0.9)), draw(st.integers(0, 2**31)))
    if kind in {"full", "ones"}:
        return {"full": full, "ones": ones}[kind](n)
    size = draw(st.integers(2, 5))
    return {"blocks": blocks, "window": windows, "gaps": every_other}[kind](n, size)


MOST, WIDEST = (70, 300) if settings().max_examples > 50 else (20, 60)
"""Sites and width of random cases: more in the nightly profile."""


@st.composite
def cases(draw: st.DrawFn, most: int = MOST, widest: int = WIDEST, *, own: bool = False) -> Case:
    visible = draw(visibles(most))
    heads = draw(st.integers(1, 4))
    scored = ["own", "own keys", "own+table"] if own else [*SCORED, *PLAIN]
    added = draw(st.sets(st.integers(1, 70), max_size=4))
    return Case(
        visible,
        draw(st.sampled_from(["softmax", "sigmoid", "none"])),
        heads,
        draw(st.integers(1, widest // heads)),
        draw(st.sampled_from(scored)),
        draw(st.sampled_from([(1, 1), (1, 2), (2, 3), (1, 7), (3, 11)])),
        frozenset(added),
        seed=draw(st.integers(0, 2**31)),
    )


NORMS = ("softmax", "sigmoid", "none")
SCORED = ("keys", "query", "table")
PLAIN = ("keys+table", "rank", "rank keys", "head keys", "squashed keys")
"""Scores whose gradients are plain autograd's."""
OPTIONS: dict[str, Sequence[object]] = {
    "norm": NORMS,
    "heads": [1, 2],
    "scored": [*SCORED, "rank keys"],
}
"""Every norm with every kind of score, with one head and two, for `sampling.in_pairs`."""


def small(norm: str, heads: int, scored: str, *, chained: bool = True) -> Case:
    return Case(blocks(4, 2), norm, heads, 3, scored, chained=chained)


def total(tensors: Sequence[Tensor]) -> Tensor:
    """A loss in which no two of these tensors are interchangeable."""
    return torch.stack([((k + 1) * x.double()).sin().sum() for k, x in enumerate(tensors)]).sum()
