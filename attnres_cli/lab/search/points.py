"""What a search may try: every shape with every choice of a variant's options, held to the budget.

A point is a run but for its seed: a recipe and a variant. The width of its MLPs (d_ff) takes up
what the design's own parameters change, so that all variants have the budget at every shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from attnres_cli.config.as_typed import searched_name
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab import match
from attnres_cli.lab.grid import counted
from attnres_cli.lab.search.budget import TOLERANCE, Budget
from attnres_cli.lab.search.space import Space
from attnres_cli.lab.search.trunk_grid import Trunk, shapes
from attnres_cli.nn.model import n_params
from attnres_cli.nn.proofs.prove import admit
from attnres_cli.nn.residual import Residual, Value
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant, parse, write_value
from attnres_cli.records.search_records import Value as Found

MOST_POINTS = 20_000
"""Of one variant. A space of more is refused: its enumeration would take minutes."""

Options = tuple[tuple[str, Value], ...]

_LEAST_D_FF = 0.5  # of the trunk's: what a design may take from the MLPs at most


@dataclass(frozen=True, eq=False)
class Point:
    """One feasible proposal; there is one object of each in a process. `options` are those that are
    searched, as typed. `lr` is None where it follows from the width.
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
        sizes = {
            "n_layers": trunk.n_layers,
            "d_model": trunk.d_model,
            "n_heads": trunk.n_heads,
            "d_head": None,
            "d_ff": self.d_ff,
        }
        optim = base.optim.model_copy(update={"lr": self.rate})
        parts: dict[str, object] = {
            "name": searched_name(base.name),
            "model": base.model.model_copy(update=sizes),
            "optim": optim,
        }
        if self.steps != base.steps:
            tokens = {"tokens": self.steps * base.tokens_per_step}
            parts["train"] = base.train.model_copy(update=tokens)
        return base.model_copy(update=parts)

    @property
    def rate(self) -> float:
        """The learning rate: its own, or the recipe's times the recipe's width over this one."""
        if self.lr is not None:
            return self.lr
        return scaled_lr(self.base, self.trunk.d_model)

    @property
    def flops(self) -> float:
        """Of the whole training."""
        return float(self.flops_per_token) * self.steps * self.base.tokens_per_step

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
            "tokens": self.steps * self.base.tokens_per_step,
            "mlp_ratio": trunk.mlp_ratio,
            "params": trunk.params,
            "lr": self.rate,
            **dict(self.options),
        }


def scaled_lr(recipe: Recipe, d_model: int) -> float:
    """The recipe's learning rate at another width: as 1 / d_model (muP's rule for hidden matrices
    under Adam, Yang et al. 2022, arXiv 2203.03466), to three digits.
    """
    if d_model == recipe.model.d_model:
        return recipe.optim.lr
    return float(f"{recipe.optim.lr * recipe.model.d_model / d_model:.3g}")


def lr_rule(space: Space, recipe: Recipe) -> str:
    """Where the learning rates of a search come from, in words."""
    if "lr" in space.trunk:
        return f"searched, lr={space.trunk['lr'].text}, the same range at every width"
    return (
        f"{recipe.optim.lr:g} x {recipe.model.d_model} / d_model, the recipe's scaled with the "
        "width (muP); not tuned for each shape"
    )


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
    trunks = shapes(space, _sizes(space, budget), base)
    makers = {spec: _Maker(spec, space, budget, recipe, base) for spec in specs}
    for maker in makers.values():
        maker.check(trunks)
    made = {
        spec: {trunk: maker.points(trunk) for trunk in trunks} for spec, maker in makers.items()
    }
    for maker in makers.values() if trunks else ():
        maker.check_ends()
    shared = [trunk for trunk in trunks if all(points[trunk] for points in made.values())]
    if not shared:
        for maker in makers.values():
            maker.complain()
        raise UsageError(_impossible(space, budget))
    return {spec: [p for trunk in shared for p in points[trunk]] for spec, points in made.items()}


def _impossible(space: Space, budget: Budget) -> str:
    """What to type where no shape has the budget."""
    start = f"no shape of the space has --budget {budget.text} within {TOLERANCE:.1%}"
    if budget.flops is None:
        return f"{start} ({space.text}): widen a range, or take another budget, as params=2M"
    return (
        f"{start} ({space.text}): widen a range, or take more FLOPs, since a run has whole steps, "
        "of which 100 fit any budget"
    )


def _sizes(space: Space, budget: Budget) -> tuple[int, ...]:
    """Parameters that are tried: those that are searched, else the budget's own."""
    listed = space.trunk.get("params")
    return tuple(int(str(v)) for v in listed.values) if listed else budget.sizes()


class _Maker:
    """Makes the points of one variant."""

    def __init__(
        self, spec: Variant, space: Space, budget: Budget, recipe: Recipe, base: Shape
    ) -> None:
        self.spec, self.budget, self.recipe, self.base = spec, budget, recipe, base
        self.searched = space.of(spec)
        self.rates: tuple[float | None, ...] = (None,)
        if "lr" in space.trunk:
            self.rates = tuple(float(str(rate)) for rate in space.trunk["lr"].values)
        self.choices = [
            tuple(zip(self.searched, values, strict=True))
            for values in itertools.product(*(each.values for each in self.searched.values()))
        ]
        self.accepted: set[Options] = set()
        self.refused: VariantError | None = None
        self.designs: dict[tuple[Options, int, int], tuple[str, Residual | None]] = {}

    def check(self, trunks: Sequence[Trunk]) -> None:
        """Raise UsageError where there would be too many points."""
        n = len(trunks) * len(self.choices) * len(self.rates)
        if n > MOST_POINTS:
            raise UsageError(
                f"--space: {n:,} points of {self.spec}, at most {MOST_POINTS:,} are searched: "
                "narrow a range, or give it a step"
            )

    def check_ends(self) -> None:
        """Raise UsageError where the least or most of an option fits no shape."""
        for place, (name, dimension) in enumerate(self.searched.items()):
            for end in (dimension.values[0], dimension.values[-1]):
                if all(choice[place][1] != end for choice in self.accepted):
                    raise UsageError(
                        f"--space {name}={dimension.text}: {write_value(end)} fits no shape of the "
                        f"budget: {self.refused}"
                    )

    def complain(self) -> None:
        """Raise the design's own reason where it refused every choice of options."""
        if self.refused is not None:
            raise UsageError(
                f"--space: no shape of the budget fits {self.refused}; leave {self.spec} out, or "
                "search widths that it fits, as d_model=64..256..32"
            )

    def points(self, trunk: Trunk) -> list[Point]:
        """Its points at one shape, equal designs once."""
        found: dict[str, list[Point]] = {}
        for options in self.choices:
            name, design = self._built(options, trunk.d_model, 2 * trunk.n_layers)
            if design is not None:
                if not self.accepted:  # the first that is built: nothing of it is counted before
                    admit(parse(name), trunk.shape(self.base))
                self.accepted.add(options)
            if design is not None and name not in found:
                found[name] = self._points(trunk, design, name, options)
        return [point for points in found.values() for point in points]

    def _built(
        self, options: Options, d_model: int, n_sublayers: int
    ) -> tuple[str, Residual | None]:
        """The canonical name and the design, once for shapes that differ in their heads alone."""
        key = (options, d_model, n_sublayers)
        if key not in self.designs:
            kept = {**dict(self.spec.options), **dict(options)}
            typed = replace(self.spec, options=tuple(sorted(kept.items())))
            try:
                with torch.device("meta"):
                    design = typed.build(d_model, n_sublayers)
                self.designs[key] = str(typed.at_depth(n_sublayers)), design
            except VariantError as error:
                self.refused = error
                self.designs[key] = str(typed), None
        return self.designs[key]

    def _points(self, trunk: Trunk, design: Residual, name: str, options: Options) -> list[Point]:
        shape = trunk.shape(self.base)
        d_ff = match.width(
            lambda d_ff: n_params(replace(shape, d_ff=d_ff), design), shape, trunk.params
        )
        count, flops_per_token = counted(design, replace(shape, d_ff=d_ff))
        steps = self._steps(flops_per_token)
        if steps is None or d_ff < _LEAST_D_FF * trunk.d_ff:
            return []
        if abs(count / trunk.params - 1) > TOLERANCE:
            return []
        typed = tuple((key, _typed(value)) for key, value in options)
        return [
            Point(trunk, name, typed, lr, d_ff, steps, count, flops_per_token, self.recipe)
            for lr in self.rates
        ]

    def _steps(self, flops_per_token: int) -> int | None:
        """Steps of a run, None where whole ones cannot hold the budget."""
        if self.budget.flops is None:
            return self.recipe.steps
        exact = self.budget.flops / (flops_per_token * self.recipe.tokens_per_step)
        steps = round(exact)
        return steps if steps and abs(steps / exact - 1) <= TOLERANCE else None


def _typed(value: Value) -> Found:
    """A value of an option as a number or as it is typed: `on`, `none`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return write_value(value)
