"""Every design that contract tests run over: found by itself, with nothing to add for a new one."""

from __future__ import annotations

import itertools
import sys
import typing

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.residual import VariantError, registry
from attnres_cli.nn.shape import Shape

D_MODEL, N_SUBLAYERS = 16, 6  # of conftest's tiny shape


def _other_values(option: variant.Option) -> list[object]:
    """Values of an option that are not its default."""
    values: list[object] = []
    for part in typing.get_args(option.kind) or (option.kind,):
        values += {bool: [True, False], int: [2, 3]}.get(part, [part])
    return [v for v in values if v != option.default and not isinstance(v, type)]


def _is_built(spec: str) -> bool:
    try:
        variant.parse(spec).build(D_MODEL, N_SUBLAYERS)
    except VariantError:
        return False
    return True


def all_specs() -> list[str]:
    """Each design with default options, with one option changed, and with two, where allowed."""
    specs = []
    for name, cls in registry().items():
        changes = [
            {option.name: value}
            for option in variant.options_of(cls).values()
            for value in _other_values(option)
        ]
        pairs = [a | b for a, b in itertools.combinations(changes, 2) if a.keys() != b.keys()]
        for options in [{}, *changes, *pairs]:
            specs.append(str(variant.Variant(name, tuple(sorted(options.items())))))
    return [spec for spec in specs if _is_built(spec)]


def _mixes(spec: str) -> bool:
    """Whether a design keeps a History: its module has the name."""
    cls = registry()[variant.parse(spec).name]
    return hasattr(sys.modules[cls.__module__], "History")


SPECS = all_specs()
SIMPLE = [spec for spec in SPECS if "," not in spec]
"""At most one option changed."""
BRIEF = [spec for spec in SIMPLE if not spec.endswith("=3")]
"""And of whole numbers one value: for what takes seconds each."""
MIXING = [spec for spec in BRIEF if _mixes(spec)]
"""Those of them that a depth-mixing engine computes."""


def build(spec: str, shape: Shape, seed: int = 0) -> Transformer:
    """An untrained model around a design, its shared weights drawn from the seed."""
    design = variant.parse(spec).build(shape.d_model, shape.n_sublayers)
    model = Transformer(shape, design)
    init_weights(model, seed)
    return model
