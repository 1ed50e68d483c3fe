"""All shapes of a trunk that a budget has: one enumeration, in order of depth, then of heads.

Depth, heads and the MLP's ratio are free, the width follows from the budget: the d_model = n_heads
d_head, d_head even, at which the trunk with that ratio has the budget's parameters; d_ff takes up
what remains of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attnres_cli.errors import UsageError
from attnres_cli.lab.search.space import RATIOS, Dimension, Space
from attnres_cli.nn.shape import Shape

SLACK = 0.1
"""The share by which d_ff / d_model of the trunk may leave its ratio to hold the budget."""

MOST_SHAPES = 5_000
"""Of one size. More are refused: nobody could try them, and listing them would take minutes."""

_MOST_NAMED = 10
_EIGHTS = 8  # widths of heads that GPUs like, taken where the slack allows


@dataclass(frozen=True)
class Trunk:
    """One shape. d_ff of a model is what holds its variant to the budget; here the trunk's own.

    Attributes:
        mlp_ratio: what d_ff / d_model aims at.
        params: the budget it was made for.

    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    mlp_ratio: float
    params: int

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads

    @property
    def aspect(self) -> float:
        """Width over depth, d_model / n_layers."""
        return float(f"{self.d_model / self.n_layers:.6g}")

    @property
    def heads_per_layer(self) -> float:
        """n_heads / n_layers."""
        return float(f"{self.n_heads / self.n_layers:.6g}")


def shapes(space: Space, sizes: tuple[int, ...], recipe: Shape) -> list[Trunk]:
    """The trunks of the space, of each size; for a listed ratio the one that is nearest to it.

    Args:
        space: of which the trunk's dimensions are read.
        sizes: parameters of the budget.
        recipe: what is not searched, with the ratio of the MLP where the space has none.

    """
    ratios = space.trunk.get("mlp_ratio")
    found = []
    for params in sizes:
        for ratio in ratios.values if ratios else (recipe.d_ff / recipe.d_model,):
            assert isinstance(ratio, int | float)
            found += _nearest(space, list(_of_size(space, params, float(ratio), recipe)))
    return found


def _of_size(space: Space, params: int, ratio: float, recipe: Shape) -> Iterator[Trunk]:
    depth, heads = space.trunk.get("n_layers"), space.trunk.get("n_heads")
    n_found = 0
    for n_layers in _whole(depth, 1000):
        widest = _width(n_layers, 1.0, params, ratio, recipe)
        if widest < 2:
            return
        if not _is_near(space, n_layers, widest):
            continue
        for n_heads in _whole(heads, int(widest * (1 + SLACK)) // 2):
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
    products = 3 if recipe.mlp == "swiglu" else 2
    squared = n_layers * (2 + 2 * share + products * ratio)
    linear = 2 * n_layers + 1 + recipe.vocab_size * (1 if recipe.tie_embeddings else 2)
    return (-linear + math.sqrt(linear**2 + 4 * squared * params)) / (2 * squared)


def _trunk(
    space: Space, n_layers: int, n_heads: int, params: int, ratio: float, recipe: Shape
) -> Trunk | None:
    """The trunk of this depth and these heads that comes nearest to the ratio, None if none may."""
    n_kv_heads = kv_heads(n_heads, recipe)
    if n_heads % n_kv_heads or not _may_be(space, "heads_per_layer", n_heads / n_layers):
        return None
    exact = _width(n_layers, n_kv_heads / n_heads, params, ratio, recipe)
    best: tuple[tuple[bool, float], Trunk] | None = None
    for d_head in _heads_about(exact, exact, n_heads):
        d_model = n_heads * d_head
        if not _fits(space, n_layers, d_model, d_head):
            continue
        d_ff = _d_ff(n_layers, d_model, n_heads, params, recipe)
        off = abs(d_ff / d_model / ratio - 1)
        if d_ff < 1 or off > SLACK:
            continue
        rank = (d_head % _EIGHTS != 0, off)
        if best is None or rank < best[0]:
            best = rank, Trunk(n_layers, d_model, n_heads, d_ff, ratio, params)
    return best[1] if best else None


def _heads_about(low: float, high: float, n_heads: int) -> range:
    """Even widths of heads with which a model is about so wide."""
    least = 2 * int(low * (1 - SLACK) / n_heads / 2)
    return range(max(2, least), int(high * (1 + SLACK) / n_heads) + 3, 2)


def spans(
    space: Space, low: float, high: float, recipe: Shape
) -> Iterator[tuple[float, float, float]]:
    """Of each depth, heads and width that the space may have between two sizes: the parameters from
    which and up to which its d_ff is near enough to the ratio, and those of one more of d_ff.
    """
    ratios = space.trunk.get("mlp_ratio")
    for ratio in ratios.values if ratios else (recipe.d_ff / recipe.d_model,):
        assert isinstance(ratio, int | float)
        for n_layers in _whole(space.trunk.get("n_layers"), 1000):
            widths = [_width(n_layers, 1.0, size, ratio, recipe) for size in (low, high)]
            if widths[1] < 2:
                break
            if any(_is_near(space, n_layers, width) for width in widths):
                found = _spans(space, n_layers, low, high, float(ratio), recipe)
                yield from (span for span in found if span[0] <= high and span[1] >= low)


def _spans(
    space: Space, n_layers: int, low: float, high: float, ratio: float, recipe: Shape
) -> Iterator[tuple[float, float, float]]:
    products = 3 if recipe.mlp == "swiglu" else 2
    widest = _width(n_layers, 1.0, high, ratio, recipe)
    for n_heads in _whole(space.trunk.get("n_heads"), int(widest * (1 + SLACK)) // 2):
        n_kv_heads = kv_heads(n_heads, recipe)
        if n_heads % n_kv_heads or not _may_be(space, "heads_per_layer", n_heads / n_layers):
            continue
        share = n_kv_heads / n_heads
        narrow, wide = (_width(n_layers, share, size, ratio, recipe) for size in (low, high))
        for d_head in _heads_about(narrow, wide, n_heads):
            d_model = n_heads * d_head
            least = max(1, math.ceil(d_model * ratio * (1 - SLACK) - 1e-9))
            most = math.floor(d_model * ratio * (1 + SLACK) + 1e-9)
            if most >= least and _fits(space, n_layers, d_model, d_head):
                rest, unit = (
                    _rest(n_layers, d_model, n_heads, recipe),
                    n_layers * products * d_model,
                )
                yield rest + (least - 0.5) * unit, rest + (most + 0.5) * unit, unit


def kv_heads(n_heads: int, recipe: Shape) -> int:
    """Key-value heads: as many as heads, or the recipe's number where it has fewer."""
    return n_heads if recipe.n_kv_heads == recipe.n_heads else recipe.n_kv_heads


def _d_ff(n_layers: int, d_model: int, n_heads: int, params: int, recipe: Shape) -> int:
    """The width of the MLPs with which the trunk comes nearest to the parameters."""
    products = 3 if recipe.mlp == "swiglu" else 2
    rest = params - _rest(n_layers, d_model, n_heads, recipe)
    return round(rest / (n_layers * products * d_model))


def _rest(n_layers: int, d_model: int, n_heads: int, recipe: Shape) -> float:
    """The parameters of a trunk beside its MLPs."""
    tables = recipe.vocab_size * d_model * (1 if recipe.tie_embeddings else 2)
    attention = d_model * d_model * (2 + 2 * kv_heads(n_heads, recipe) / n_heads)
    return tables + (2 * n_layers + 1) * d_model + n_layers * attention


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


def _nearest(space: Space, trunks: list[Trunk]) -> list[Trunk]:
    """Of trunks that stand for the same listed ratios only the one that is nearest to them."""
    listed = [name for name in ("aspect", "heads_per_layer") if _is_listed(space, name)]
    best: dict[tuple[object, ...], tuple[float, Trunk]] = {}
    for trunk in trunks:
        own = {"aspect": trunk.aspect, "heads_per_layer": trunk.heads_per_layer}
        key: dict[str, object] = {"aspect": trunk.n_layers, "heads_per_layer": trunk.n_heads}
        off = 0.0
        for name in listed:
            nearest = space.trunk[name].nearest(own[name])
            assert nearest is not None
            key[name] = nearest
            off += abs(math.log(own[name] / nearest))
        held = best.get(tuple(key.values()))
        if held is None or off < held[0]:
            best[tuple(key.values())] = off, trunk
    return [trunk for _, trunk in best.values()]


def _is_listed(space: Space, name: str) -> bool:
    return name in space.trunk and bool(space.trunk[name].values)


def absent(space: Space, trunks: Iterable[Trunk]) -> str:
    """What the space lists and none of these trunks stands for, with how much of it that is:
    `2 of 25 listed have no shape within the budget: aspect=60,heads_per_layer=0.3|0.4`.

    Of many the first few are named. Empty where all that is listed has a trunk.
    """
    listed = {n: d.values for n, d in space.trunk.items() if n != "lr" and len(d.values) > 1}
    held = {tuple(_stands_for(space.trunk[n], trunk) for n in listed) for trunk in trunks}
    n_listed = math.prod(len(values) for values in listed.values())
    n_absent = n_listed - len(held)
    if not n_absent:
        return ""
    missing = (cell for cell in itertools.product(*listed.values()) if cell not in held)
    named: dict[str, list[str]] = {}
    for *others, last in itertools.islice(missing, _MOST_NAMED):
        fixed = [
            f"{name}={float(str(value)):.9g}," for name, value in zip(listed, others, strict=False)
        ]
        named.setdefault("".join(fixed), []).append(f"{float(str(last)):.9g}")
    texts = [f"{fixed}{[*listed][-1]}={'|'.join(values)}" for fixed, values in named.items()]
    more = [f"{n_absent - _MOST_NAMED:,} more"] if n_absent > _MOST_NAMED else []
    verb = "has" if n_absent == 1 else "have"
    return f"{n_absent:,} of {n_listed:,} listed {verb} no shape within the budget: " + "; ".join(
        texts + more
    )


def _stands_for(dimension: Dimension, trunk: Trunk) -> float | None:
    """The listed value that a trunk has, or is the nearest to."""
    value = float(getattr(trunk, dimension.name))
    return dimension.nearest(value) if dimension.name in RATIOS else value
