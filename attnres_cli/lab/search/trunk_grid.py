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
from attnres_cli.lab.search.space import SLACK, Space
from attnres_cli.nn.shape import Shape

MOST_SHAPES = 5_000
"""Of one size. More are refused: nobody could try them, and listing them would take minutes."""

_EIGHTS = 8  # widths of heads that GPUs like, taken where the slack allows
_DENSE = {"softmax", "swiglu", "gelu", "relu2"}


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

    def filled(self, recipe: Shape) -> Trunk:
        """With the width of the MLPs that brings it nearest to the parameters."""
        none, one = (replace(self, d_ff=n).shape(recipe).n_params() for n in (0, 1))
        return replace(self, d_ff=round((self.params - none) / (one - none)))


def shapes(space: Space, sizes: Sequence[int], recipe: Shape) -> list[Trunk]:
    """The trunks of the space, of each size (parameters); for a listed ratio the nearest one. What
    is not searched, as the MLP's ratio may be, is the recipe's.
    """
    if {*recipe.attentions, *recipe.mlps} - _DENSE:
        raise UsageError(
            "shapes are searched of softmax attention and dense MLPs, not of "
            f"{', '.join(dict.fromkeys((*recipe.attentions, *recipe.mlps)))}"
        )
    ratios = space.size("mlp_ratio").values or (recipe.d_ff / recipe.d_model,)
    found = []
    for params, ratio in itertools.product(sizes, ratios):
        trunks = list(
            itertools.islice(_of_size(space, params, float(ratio), recipe), MOST_SHAPES + 1)
        )
        if len(trunks) > MOST_SHAPES:
            raise UsageError(
                f"--space: more than {MOST_SHAPES:,} shapes of {params:,} parameters: "
                "narrow a range, or give it a step"
            )
        found += _nearest_to_listed(space, trunks)
    return found


def _of_size(space: Space, params: int, ratio: float, recipe: Shape) -> Iterator[Trunk]:
    for n_layers in space.size("n_layers").whole(1000):
        widest = _width(n_layers, 1.0, params, ratio, recipe)
        if widest < 2:
            return
        sizes = {"d_model": widest, "aspect": widest / n_layers}
        if all(space.size(name).is_near(value) for name, value in sizes.items()):
            for n_heads in space.size("n_heads").whole(int(widest * (1 + SLACK)) // 2):
                trunk = Trunk(n_layers, 0, n_heads, 0, ratio, params)
                yield from _widened(trunk, space, recipe)


def _width(n_layers: int, share: float, params: float, ratio: float, recipe: Shape) -> float:
    """The d_model at which a trunk has the parameters; `share`: key-value heads over heads."""
    products = 2 + recipe.mlps.count("swiglu") / recipe.n_layers
    squared = n_layers * (2 + 2 * share + products * ratio)
    linear = 2 * n_layers + 1 + recipe.vocab_size * (1 if recipe.tie_embeddings else 2)
    return (-linear + math.sqrt(linear**2 + 4 * squared * params)) / (2 * squared)


def _widened(of: Trunk, space: Space, recipe: Shape) -> list[Trunk]:
    """The trunk of this depth and these heads that comes nearest to the ratio; [] if none may."""
    n_kv_heads, ratio = _kv_heads(of.n_heads, recipe), of.n_heads / of.n_layers
    if of.n_heads % n_kv_heads or not space.size("heads_per_layer").holds(ratio):
        return []
    exact = _width(of.n_layers, n_kv_heads / of.n_heads, of.params, of.mlp_ratio, recipe)
    least = max(2, 2 * int(exact * (1 - SLACK) / of.n_heads / 2))
    widths = range(least, int(exact * (1 + SLACK) / of.n_heads) + 3, 2)
    for every in (_EIGHTS, 2):  # the others only where none of these is in the space
        best: dict[float, Trunk] = {}
        for d_head in (width for width in widths if width % every == 0):
            d_model = of.n_heads * d_head
            sizes = {"d_model": d_model, "d_head": d_head, "aspect": d_model / of.n_layers}
            if all(space.size(name).holds(value) for name, value in sizes.items()):
                trunk = replace(of, d_model=d_model).filled(recipe)
                off = abs(trunk.d_ff / d_model / of.mlp_ratio - 1)
                if trunk.d_ff >= 1 and off <= SLACK:
                    best.setdefault(off, trunk)
        if best:
            return [best[min(best)]]
    return []


def _kv_heads(n_heads: int, recipe: Shape) -> int:
    """Key-value heads: as many as heads, or the recipe's number where it has fewer."""
    return n_heads if recipe.n_kv_heads == recipe.n_heads else recipe.n_kv_heads


def _nearest_to_listed(space: Space, trunks: list[Trunk]) -> list[Trunk]:
    """Of trunks that stand for the same listed ratios only the one that is nearest to them."""
    best: dict[tuple[float, ...], tuple[float, Trunk]] = {}
    for trunk in trunks:
        key, off = [], 0.0
        for name, size in (("aspect", trunk.n_layers), ("heads_per_layer", trunk.n_heads)):
            value = float(getattr(trunk, name))
            listed = space.size(name).nearest(value)
            key.append(size if listed is None else listed)
            off += 0.0 if listed is None else abs(math.log(value / listed))
        held = best.setdefault(tuple(key), (off, trunk))
        if off < held[0]:
            best[tuple(key)] = off, trunk
    return [trunk for _, trunk in best.values()]
