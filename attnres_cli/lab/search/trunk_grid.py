"""All shapes of a trunk that a budget has: one enumeration, in order of depth, then of heads.

Depth, heads and the MLP's ratio are free. The width follows from the budget: the d_model = n_heads
d_head, d_head even, at which the trunk with that ratio has the budget's parameters. d_ff takes up
what remains.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnres_cli.errors import UsageError
from attnres_cli.lab.search.space import RATIOS, Dimension, Space
from attnres_cli.nn.shape import Shape

SLACK = 0.1
"""The share by which d_ff / d_model of the trunk may leave its ratio to hold the budget."""

MOST_SHAPES = 5_000
"""Of one size. More are refused: nobody could try them, and listing them would take minutes."""

_EIGHTS = 8  # widths of heads that GPUs like, taken where the slack allows


@dataclass(frozen=True)
class Trunk:
    """One shape. Its d_ff is the trunk's own; that of a model is what holds its variant to the
    budget. `mlp_ratio` is what d_ff / d_model aims at, `params` the budget.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    mlp_ratio: float
    params: int

    @property
    def aspect(self) -> float:
        """Width over depth, d_model / n_layers."""
        return float(f"{self.d_model / self.n_layers:.6g}")

    @property
    def heads_per_layer(self) -> float:
        """n_heads / n_layers."""
        return float(f"{self.n_heads / self.n_layers:.6g}")

    def shape(self, recipe: Shape) -> Shape:
        """The sizes of a model; what is not searched is the recipe's."""
        return replace(
            recipe,
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=_kv_heads(self.n_heads, recipe),
            d_head=self.d_model // self.n_heads,
            d_ff=self.d_ff,
        )


def shapes(space: Space, sizes: Sequence[int], recipe: Shape) -> list[Trunk]:
    """The trunks of the space, of each size (parameters); for a listed ratio the nearest one. What
    is not searched, as the MLP's ratio may be, is the recipe's.
    """
    if {*recipe.attentions, *recipe.mlps} - {"softmax", "swiglu", "gelu", "relu2"}:
        raise UsageError(
            "shapes are searched of softmax attention and dense MLPs, not of "
            f"{', '.join(dict.fromkeys((*recipe.attentions, *recipe.mlps)))}"
        )
    searched = space.trunk.get("mlp_ratio")
    ratios = searched.values if searched else (recipe.d_ff / recipe.d_model,)
    found = []
    for params, ratio in itertools.product(sizes, ratios):
        trunks = list(_of_size(space, params, float(str(ratio)), recipe))
        found += _nearest_to_listed(space, trunks)
    return found


def _of_size(space: Space, params: int, ratio: float, recipe: Shape) -> Iterator[Trunk]:
    n_found = 0
    for n_layers in _whole(space.trunk.get("n_layers"), 1000):
        widest = _width(n_layers, 1.0, params, ratio, recipe)
        if widest < 2:
            return
        if not _is_near(space, n_layers, widest):
            continue
        for n_heads in _whole(space.trunk.get("n_heads"), int(widest * (1 + SLACK)) // 2):
            trunk = _trunk(space, n_layers, n_heads, params, ratio, recipe)
            if trunk is not None:
                n_found += 1
                if n_found > MOST_SHAPES:
                    raise UsageError(
                        f"--space: more than {MOST_SHAPES:,} shapes of {params:,} parameters: "
                        "narrow a range, or give it a step"
                    )
                yield trunk


def _is_near(space: Space, n_layers: int, widest: float) -> bool:
    """Whether a width about this one may be in the space: a look before each is looked at."""
    for name, value in (("d_model", widest), ("aspect", widest / n_layers)):
        dimension = space.trunk.get(name)
        if dimension is None:
            continue
        low, high = dimension.low, dimension.high
        if dimension.values:
            numbers = [float(str(number)) for number in dimension.values]
            low, high = min(numbers) / 2, max(numbers) * 2
        if not low * (1 - 2 * SLACK) <= value <= high * (1 + 2 * SLACK):
            return False
    return True


def _whole(dimension: Dimension | None, most: int) -> Iterator[int]:
    """The whole numbers from 1 that a dimension allows."""
    if dimension is not None and dimension.values:
        yield from (int(str(value)) for value in dimension.values if int(str(value)) <= most)
        return
    low, high = (1, most) if dimension is None else (dimension.low, min(most, dimension.high))
    yield from range(math.ceil(low), math.floor(high) + 1)


def _width(n_layers: int, share: float, params: float, ratio: float, recipe: Shape) -> float:
    """The d_model at which a trunk has the parameters; `share`: key-value heads over heads."""
    products = 2 + recipe.mlps.count("swiglu") / recipe.n_layers
    squared = n_layers * (2 + 2 * share + products * ratio)
    linear = 2 * n_layers + 1 + recipe.vocab_size * (1 if recipe.tie_embeddings else 2)
    return (-linear + math.sqrt(linear**2 + 4 * squared * params)) / (2 * squared)


def _trunk(
    space: Space, n_layers: int, n_heads: int, params: int, ratio: float, recipe: Shape
) -> Trunk | None:
    """The trunk of this depth and these heads that comes nearest to the ratio, None if none may."""
    n_kv_heads = _kv_heads(n_heads, recipe)
    if n_heads % n_kv_heads or not _may_be(space, "heads_per_layer", n_heads / n_layers):
        return None
    exact = _width(n_layers, n_kv_heads / n_heads, params, ratio, recipe)
    least = max(2, 2 * int(exact * (1 - SLACK) / n_heads / 2))
    widths = range(least, int(exact * (1 + SLACK) / n_heads) + 3, 2)
    for every in (_EIGHTS, 2):  # the others only where none of these is in the space
        best: tuple[float, Trunk] | None = None
        for d_head in (width for width in widths if width % every == 0):
            d_model = n_heads * d_head
            if not _fits(space, n_layers, d_model, d_head):
                continue
            d_ff = _d_ff(Trunk(n_layers, d_model, n_heads, 0, ratio, params), recipe)
            off = abs(d_ff / d_model / ratio - 1)
            if d_ff >= 1 and off <= SLACK and (best is None or off < best[0]):
                best = off, Trunk(n_layers, d_model, n_heads, d_ff, ratio, params)
        if best is not None:
            return best[1]
    return None


def _kv_heads(n_heads: int, recipe: Shape) -> int:
    """Key-value heads: as many as heads, or the recipe's number where it has fewer."""
    return n_heads if recipe.n_kv_heads == recipe.n_heads else recipe.n_kv_heads


def _d_ff(trunk: Trunk, recipe: Shape) -> int:
    """The width of the MLPs with which a trunk comes nearest to the parameters."""
    without = trunk.shape(recipe).n_params()
    per_unit = replace(trunk, d_ff=1).shape(recipe).n_params() - without
    return round((trunk.params - without) / per_unit)


def _fits(space: Space, n_layers: int, d_model: int, d_head: int) -> bool:
    """Whether the dimensions that follow from the width allow it."""
    for name, value in (("d_model", d_model), ("d_head", d_head)):
        if name in space.trunk and not space.trunk[name].holds(value):
            return False
    return _may_be(space, "aspect", d_model / n_layers)


def _may_be(space: Space, name: str, value: float) -> bool:
    """Whether a ratio is in its range, or stands for one of those listed."""
    dimension = space.trunk.get(name)
    if dimension is None:
        return True
    if dimension.values:
        return dimension.nearest(value) is not None
    return dimension.low * (1 - 1e-9) <= value <= dimension.high * (1 + 1e-9)


def _nearest_to_listed(space: Space, trunks: list[Trunk]) -> list[Trunk]:
    """Of trunks that stand for the same listed ratios only the one that is nearest to them."""
    best: dict[tuple[float, ...], tuple[float, Trunk]] = {}
    for trunk in trunks:
        key, off = [], 0.0
        for name, size in (("aspect", trunk.n_layers), ("heads_per_layer", trunk.n_heads)):
            listed = _stands_for(space, name, trunk) if name in space.trunk else None
            key.append(size if listed is None else listed)
            off += 0.0 if listed is None else abs(math.log(float(getattr(trunk, name)) / listed))
        held = best.get(tuple(key))
        if held is None or off < held[0]:
            best[tuple(key)] = off, trunk
    return [trunk for _, trunk in best.values()]


def _stands_for(space: Space, name: str, trunk: Trunk) -> float | None:
    """The listed value that a trunk has, or is the nearest to; None where there is a range."""
    dimension = space.trunk[name]
    if not dimension.values:
        return None
    value = float(getattr(trunk, name))
    return dimension.nearest(value) if name in RATIOS else value
