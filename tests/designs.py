"""Every design that tests of the contract run over, found by itself; and how to compare models."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.depthmix.engines import Engine
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.proofs.subject import perturb, size
from attnres_cli.nn.residual import Value, VariantError, registry
from attnres_cli.nn.shape import Shape

D_MODEL, N_SUBLAYERS = 16, 6  # of conftest's tiny shape
Options = Mapping[str, Value]


def _changes(cls: type) -> list[Options]:
    """Each option alone at each value that is not its default."""
    values: dict[object, list[object]] = {bool: [True, False], int: [2, 3]}
    return [
        {option.name: value}
        for option in variant.options_of(cls).values()
        for part in typing.get_args(option.kind) or (option.kind,)
        for value in values.get(part, [part])
        if value != option.default and not isinstance(value, type)
    ]


def _is_built(name: str, options: Options) -> bool:
    with torch.device("meta"):
        try:
            variant.Variant(name, tuple(options.items())).build(D_MODEL, N_SUBLAYERS)
        except VariantError:
            return False
    return True


def _spec(name: str, options: Options) -> str:
    return str(variant.Variant(name, tuple(sorted(options.items()))))


def _pairs(name: str, changes: Iterable[Options]) -> list[Options]:
    """Two options changed, where a design allows it."""
    both = [a | b for a, b in itertools.combinations(changes, 2) if a.keys() != b.keys()]
    return [options for options in both if _is_built(name, options)]


def _covering(name: str, pairs: list[Options]) -> list[Options]:
    """Few combinations of many options in which each of the pairs occurs."""
    brief = [pair for pair in pairs if 3 not in pair.values()]  # one value of whole numbers
    missing, found = [set(pair.items()) for pair in brief], []
    while missing:
        options: Options = {}
        for pair in missing:
            joined = options | dict(pair)
            if options.items() <= joined.items() and _is_built(name, joined):
                options = joined
        missing = [pair for pair in missing if not pair <= set(options.items())]
        found.append(options)
    return found


def _with_history(spec: str) -> bool:
    """Whether the engine computes a design: a part of its state is a History."""
    design = variant.parse(spec).build(D_MODEL, N_SUBLAYERS)
    state = design.start(torch.zeros(1, 1, D_MODEL))
    return any(isinstance(part, History) for part in (state if isinstance(state, tuple) else ()))


_CHANGES = {name: _changes(cls) for name, cls in registry().items()}
_PAIRS = {name: _pairs(name, changes) for name, changes in _CHANGES.items()}

SIMPLE = [
    _spec(name, options)
    for name, changes in _CHANGES.items()
    for options in ({}, *changes)
    if _is_built(name, options)
]
"""Each design with its defaults, and with at most one option changed."""
DEFAULTS = list(registry())
BRIEF = [spec for spec in SIMPLE if not spec.endswith("=3")]
"""And of whole numbers one value: for what takes seconds each."""
COVERING = [_spec(name, row) for name, pairs in _PAIRS.items() for row in _covering(name, pairs)]
"""Several options changed: each pair of values that a design allows is in one of them."""
SPECS = [*SIMPLE, *COVERING]
ALL_PAIRS = [_spec(name, pair) for name, pairs in _PAIRS.items() for pair in pairs]
MIXING = [spec for spec in BRIEF if _with_history(spec)]
"""Those that a depth-mixing engine computes."""


def computed_by(engine: Engine | None) -> str:
    """The class that computes a history: Reference, Unrolled, Eager or Triton."""
    return type(getattr(engine, "arithmetic", engine)).__name__


def build(spec: str, shape: Shape, seed: int = 0) -> Transformer:
    """An untrained model around a design, its shared weights drawn from the seed."""
    design = variant.parse(spec).build(shape.d_model, shape.n_sublayers)
    model = Transformer(shape, design)
    init_weights(model, seed)
    return model


def perturbed(spec: str, shape: Shape, scale: float = 0.5) -> Transformer:
    """A model in float64 whose design has left its initial values."""
    model = build(spec, shape).double()
    perturb(model.residual, scale)
    return model


def tokens_of(batch: int = 2, time: int = 8, vocab_size: int = 11) -> Tensor:
    """Always the same random tokens (B, T)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab_size, (batch, time), generator=generator)


def close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    """The difference is small beside the size of what is compared, entry by entry or not."""
    off = (found - expected).norm().item()
    assert off <= rtol * expected.norm().item(), f"off by {off:.3g} of {expected.norm():.3g}"


def equals_slow_loop(
    model: Transformer, tokens: Tensor, slow: Callable[[Transformer, Tensor], Tensor]
) -> None:
    """Logits and all gradients are those of a loop from the embedding to what the norm sees."""
    weight = torch.randn(11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fast, expected = model(tokens), model.head(model.norm(slow(model, model.embed(tokens))))
    parameters = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad((logits * weight).sum(), parameters, materialize_grads=True)
        for logits in (fast, expected)
    )
    close(fast, expected)
    scale = size(theirs)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        off = (a - b).norm().item()
        assert off <= 1e-10 * scale, f"gradient of {name} off by {off:.3g} of {scale:.3g}"
