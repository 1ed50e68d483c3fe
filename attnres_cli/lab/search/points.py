"""What a search may try: every shape with every choice of a variant's options, held to the budget.

A point is a run but for its seed: a recipe and a variant. The width of its MLPs (d_ff) takes up
what the design's own parameters change, so that all variants have the budget at every shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from attnres_cli.config.as_typed import searched_name
from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Base
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab import match
from attnres_cli.lab.grid import check_transfer, counted
from attnres_cli.lab.search.budget import TOLERANCE, Budget
from attnres_cli.lab.search.space import Space
from attnres_cli.lab.search.trunk_grid import Trunk, shapes
from attnres_cli.nn.model import check_open, n_params
from attnres_cli.nn.proofs.prove import admit
from attnres_cli.nn.residual import Residual, Value
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.transfer import undefined
from attnres_cli.nn.variant import Variant, parse, write_value
from attnres_cli.records.search_records import Value as Found

MOST_POINTS = 20_000
"""Of one variant. A space of more is refused: its enumeration would take minutes."""

Options = tuple[tuple[str, Value], ...]

_LEAST_D_FF = 0.5  # of the trunk's: what a design may take from the MLPs at most


@dataclass(frozen=True, eq=False)
class Point:
    """One feasible proposal; there is one object of each in a process. `options` are those that are
    searched, as typed. `lr` is None where it is not searched.
    """

    trunk: Trunk
    variant: str
    options: tuple[tuple[str, Found], ...]
    lr: float | None
    d_ff: int
    steps: int
    n_params: int
    flops_per_token: int
    base: Recipe

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with these sizes."""
        trunk, base = self.trunk, self.base
        sizes = {"n_layers": trunk.n_layers, "d_model": trunk.d_model, "n_heads": trunk.n_heads}
        free: dict[str, None] = {"d_head": None}
        if base.model.n_kv_heads == base.model.n_heads:
            free["n_kv_heads"] = None  # as many as heads, of which there are others here
        model = base.model.model_copy(update={**sizes, **free, "d_ff": self.d_ff})
        optim = base.optim.model_copy(update=_rates(base, trunk.d_model) | {"lr": self.rate})
        parts = {"name": searched_name(base.name), "model": model, "optim": optim, "slope": None}
        if self.steps != base.steps:
            parts["train"] = base.train.model_copy(update={"tokens": self.tokens})
        return base.model_copy(update=parts)

    @property
    def tokens(self) -> int:
        """Of the whole training."""
        return self.steps * self.base.tokens_per_step

    @property
    def rate(self) -> float:
        """The learning rate: its own, or what the recipe's comes to."""
        rates = {"lr": self.base.optim.lr} | _rates(self.base, self.trunk.d_model)
        return float(rates["lr"]) if self.lr is None else self.lr

    @property
    def flops(self) -> float:
        """Of the whole training."""
        return float(self.flops_per_token) * self.tokens

    @property
    def dimensions(self) -> dict[str, Found]:
        """What `trials.Trial` says of it."""
        trunk = self.trunk
        return {
            "n_layers": trunk.n_layers,
            "d_model": trunk.d_model,
            "n_heads": trunk.n_heads,
            "d_ff": self.d_ff,
            "aspect": trunk.aspect,
            "heads_per_layer": trunk.heads_per_layer,
            "tokens": self.tokens,
            "mlp_ratio": trunk.mlp_ratio,
            "params": trunk.params,
            "lr": self.rate,
            **dict(self.options),
        }


def _rates(recipe: Recipe, d_model: int) -> dict[str, Any]:
    """What another width than the recipe's changes of `optim`, where the recipe does not say it."""
    if recipe.optim.base is not None or d_model == recipe.model.d_model:
        return {}
    if undefined(recipe.model.shape(vocab_size=1)):
        return {"lr": float(f"{recipe.optim.lr * recipe.model.d_model / d_model:.3g}")}
    size = Base(d_model=recipe.model.d_model, n_layers=recipe.model.n_layers)
    return {"transfer": "mup", "base": size}


def lr_rule(space: Space, recipe: Recipe) -> str:
    """Where the learning rates of a search come from, in words."""
    lr, width = f"{recipe.optim.lr:g}", recipe.model.d_model
    if "lr" in space.trunk:
        lr = f"searched, lr={space.trunk['lr'].text}"
        if undefined(recipe.model.shape(vocab_size=1)):
            return f"{lr}, the same at every width"
    elif undefined(recipe.model.shape(vocab_size=1)):
        return f"{lr} x {width} / d_model; not tuned for each shape"
    if (base := recipe.optim.base) is not None:
        at, by = f"width {base.d_model} and {base.n_layers} layers", recipe.optim.transfer
        return f"{lr} at {at}, carried over to each shape by {by}"
    return f"{lr} at width {width}, carried over to other widths by mup"


def grid(
    specs: Sequence[Variant], space: Space, budget: Budget, recipe: Recipe, vocab_size: int
) -> dict[Variant, list[Point]]:
    """The points of each variant, at the shapes that all of them can have, in one order. Raises
    UsageError where no shape holds the budget or fits the options, or points are too many;
    VariantError for a design that cannot be trained fairly (`admit`).
    """
    base = recipe.model.shape(vocab_size)
    if "params" in space.trunk and budget.params is not None:
        raise UsageError(
            f"--space params: --budget {budget.text} says how many; leave params out of --space, "
            "or search them under FLOPs alone, as --budget flops=1e15"
        )
    trunks = shapes(space, space.size("params").values or budget.sizes(), base)
    makers = [_Maker(spec, space, budget, recipe, base) for spec in specs]
    made = [maker.points(trunks) for maker in makers]
    shared = [trunk for trunk in trunks if all(points[trunk] for points in made)]
    if shared:
        return {
            spec: [point for trunk in shared for point in points[trunk]]
            for spec, points in zip(specs, made, strict=True)
        }
    for maker in makers:
        if maker.refused is not None:
            raise UsageError(
                f"--space: no shape of the budget fits {maker.refused}; leave {maker.spec} out, or "
                "search widths that it fits, as d_model=64..256..32"
            )
    instead = "another budget, as params=2M"
    if budget.flops is not None:
        instead = "more FLOPs, since a run has whole steps, of which 100 fit any budget"
    raise UsageError(
        f"no shape of the space has --budget {budget.text} within {TOLERANCE:.1%} ({space.text}): "
        f"widen a range, or take {instead}"
    )


class _Maker:
    """Makes the points of one variant. `refused` is why the last one of its designs was."""

    def __init__(
        self, spec: Variant, space: Space, budget: Budget, recipe: Recipe, base: Shape
    ) -> None:
        self.spec, self.budget, self.recipe, self.base = spec, budget, recipe, base
        self.searched = space.of(spec)
        self.rates = space.size("lr").values or (None,)
        self.refused: VariantError | None = None
        self._accepted: set[Options] = set()
        self._designs: dict[tuple[Options, int, int], tuple[str, Residual | None]] = {}

    def points(self, trunks: Sequence[Trunk]) -> dict[Trunk, list[Point]]:
        """Its points at each shape, equal designs once. Raises UsageError where there would be too
        many, or the least or most of an option fits no shape.
        """
        values = itertools.product(*(each.values for each in self.searched.values()))
        choices = [tuple(zip(self.searched, each, strict=True)) for each in values]
        n = len(trunks) * len(choices) * len(self.rates)
        if n > MOST_POINTS:
            raise UsageError(
                f"--space: {n:,} points of {self.spec}, at most {MOST_POINTS:,} are searched: "
                "narrow a range, or give it a step"
            )
        found = {trunk: self._at(trunk, choices) for trunk in trunks}
        for name, dimension in self.searched.items() if trunks else ():
            for end in (dimension.values[0], dimension.values[-1]):
                if all((name, end) not in options for options in self._accepted):
                    raise UsageError(
                        f"--space {name}={dimension.text}: {write_value(end)} fits no shape of the "
                        f"budget: {self.refused}"
                    )
        return found

    def _at(self, trunk: Trunk, choices: Sequence[Options]) -> list[Point]:
        found: dict[str, list[Point]] = {}
        for options in choices:
            name, design = self._built(options, trunk.d_model, 2 * trunk.n_layers)
            if design is None:
                continue
            if not self._accepted:  # the first that is built: nothing of it is counted before
                check_open(design, trunk.shape(self.base))
                admit(parse(name), trunk.shape(self.base))
            self._accepted.add(options)
            if name not in found:
                found[name] = self._points(trunk, design, name, options)
        return [point for points in found.values() for point in points]

    def _built(
        self, options: Options, d_model: int, n_sublayers: int
    ) -> tuple[str, Residual | None]:
        """The canonical name and the design, once for shapes that differ in their heads alone."""
        key = (options, d_model, n_sublayers)
        if key not in self._designs:
            kept = {**dict(self.spec.options), **dict(options)}
            typed = replace(self.spec, options=tuple(sorted(kept.items())))
            try:
                with torch.device("meta"):
                    design = typed.build(d_model, n_sublayers)
                check_transfer(design, self.base, self.recipe)
                self._designs[key] = str(typed.at_depth(n_sublayers)), design
            except VariantError as error:
                self.refused = error
                self._designs[key] = str(typed), None
        return self._designs[key]

    def _points(self, trunk: Trunk, design: Residual, name: str, options: Options) -> list[Point]:
        shape = trunk.shape(self.base)
        d_ff = match.width(
            lambda d_ff: n_params(replace(shape, d_ff=d_ff), design), shape, trunk.params
        )
        count, flops_per_token = counted(design, replace(shape, d_ff=d_ff))
        steps = exact = float(self.recipe.steps)
        if self.budget.flops is not None:
            exact = self.budget.flops / (flops_per_token * self.recipe.tokens_per_step)
            steps = round(exact)
        misses = abs(count / trunk.params - 1), abs(steps / exact - 1)
        if d_ff < _LEAST_D_FF * trunk.d_ff or not steps or max(misses) > TOLERANCE:
            return []
        typed = tuple((key, _typed(value)) for key, value in options)
        sizes = (d_ff, int(steps), count, flops_per_token)
        return [Point(trunk, name, typed, lr, *sizes, self.recipe) for lr in self.rates]


def _typed(value: Value) -> Found:
    """A value of an option as a number or as it is typed: `on`, `none`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return write_value(value)
