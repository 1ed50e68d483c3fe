"""Every registered design with its options, and how tests compare models of them."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterator, Mapping

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


def _changes(name: str) -> list[Options]:
    """Each option by itself, at each value that is not its default."""
    values: dict[object, list[object]] = {bool: [True, False], int: [2, 3]}
    return [
        {option.name: value}
        for option in variant.options_of(registry()[name]).values()
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


def _pairs(name: str) -> Iterator[Options]:
    """Two options changed, where a design allows it."""
    for a, b in itertools.combinations(_changes(name), 2):
        if a.keys() != b.keys() and _is_built(name, a | b):
            yield a | b


def _together(name: str, sets: list[Options]) -> list[str]:
    """A few specs with many options changed. Each of the sets is in one of them."""
    missing, found = [set(options.items()) for options in sets], []
    while missing:
        row: Options = {}
        for options in missing:
            joined = row | dict(options)
            if row.items() <= joined.items() and _is_built(name, joined):
                row = joined
        missing = [options for options in missing if not options <= set(row.items())]
        found.append(_spec(name, row))
    return found


DEFAULTS = list(registry())
SIMPLE = [_spec(n, o) for n in DEFAULTS for o in ({}, *_changes(n)) if _is_built(n, o)]
"""Each design with its defaults, and with at most one option changed."""
BRIEF = [spec for spec in SIMPLE if not spec.endswith("=3")]
"""The same with only one value of each whole number, for tests that take seconds each."""


def every_pair(name: str) -> list[str]:
    return [_spec(name, options) for options in _pairs(name)]


def every_value_together(name: str) -> list[str]:
    """The fewest specs that hold each value of each option, with one value of whole numbers."""
    changes = [options for options in _changes(name) if 3 not in options.values()]
    return _together(name, [options for options in changes if _is_built(name, options)])


def every_pair_together(name: str) -> list[str]:
    """The fewest specs that hold each pair of values, with one value of whole numbers."""
    return _together(name, [options for options in _pairs(name) if 3 not in options.values()])


def uses_an_engine(spec: str) -> bool:
    """Whether a depth-mixing engine computes a design: part of its state is a History."""
    design = variant.parse(spec).build(D_MODEL, N_SUBLAYERS)
    state = design.start(torch.zeros(1, 1, D_MODEL))
    return any(isinstance(part, History) for part in (state if isinstance(state, tuple) else ()))


TRUNKS = {
    "swiglu": {},
    "gelu": {"mlp": "gelu"},
    "tied": {"tie_embeddings": True},
    "grouped": {"n_kv_heads": 1},
    "wide heads": {"d_head": 12},
    "no positions": {"positions": "none"},
    "normed and capped": {"qk_norm": True, "n_kv_heads": 1, "softcap": 15.0},
    "mla": {"attention": "mla", "positions": "none", "d_latent": 12},
    "moe": {"mlp": ("gelu", "moe"), "d_ff": 8, "n_experts": 6, "top_k": 2, "n_shared_experts": 1},
    "patterns": {
        "attention": ("softmax", "mla"),
        "positions": "none",
        "d_latent": 12,
        "mlp": ("relu2", "gelu", "swiglu"),
    },
}
"""Changes of a shape that make every kind of trunk."""


def computed_by(engine: Engine | None) -> str:
    """Name of the class that computes a history: Reference, Unrolled, Eager or Triton."""
    return type(getattr(engine, "arithmetic", engine)).__name__


def build(spec: str, shape: Shape, seed: int = 0) -> Transformer:
    """An untrained model around a design, its shared weights drawn from the seed."""
    design = variant.parse(spec).build(shape.d_model, shape.n_sublayers)
    model = Transformer(shape, design)
    init_weights(model, seed)
    return model


def perturbed(spec: str, shape: Shape, scale: float = 0.5) -> Transformer:
    """A float64 model whose design has left its initial values."""
    model = build(spec, shape).double()
    perturb(model.residual, scale)
    return model


def tokens_of(batch: int = 2, time: int = 8, vocab_size: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab_size, (batch, time), generator=generator)


def close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    """Assert that the norm of the difference is small beside that of what is expected."""
    off = (found - expected).norm().item()
    assert off <= rtol * expected.norm().item(), f"off by {off:.3g} of {expected.norm():.3g}"


def equals_slow_loop(
    model: Transformer, tokens: Tensor, slow: Callable[[Transformer, Tensor], Tensor]
) -> None:
    """Assert that logits and gradients equal those of a slow loop from embedding to output norm."""
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
