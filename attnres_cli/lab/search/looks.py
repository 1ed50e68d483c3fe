"""First looks at designs: runs under one recipe on one seed, with a quarter of its tokens or all.

A design is trained at the learning rate of its stream, and each of its parts at the multiple of
that which suits the part alone: a composition tuned by nobody is judged at what its parts are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from attnres_cli.config.arms import LR, SCALE
from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab import grid, match
from attnres_cli.lab.search.design_proposals import TOP
from attnres_cli.lab.search.designs import Choices, DesignSpace, spec_of
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.lab.tune import adds_parameters
from attnres_cli.nn import variant
from attnres_cli.nn.residual import Value
from attnres_cli.records.comparison_terms import Match
from attnres_cli.records.plan import Arm, Plan

BASELINE = "standard"
SHARE = 4
"""A rung has four times the tokens of the one below, and the best quarter of its designs."""
MULTIPLES = (1.0, 3.0, 10.0, 30.0)
"""Of the learning rate, tried for a part of which the recipe says nothing."""


@dataclass(frozen=True, eq=False)
class Look(Point):
    """A design at a rung, under `base`; there is one object of each in a process."""

    choices: Mapping[str, Value]
    rung: int

    @cached_property
    def recipe(self) -> Recipe:
        """What it is trained under."""
        return self.base


@dataclass
class Looks:
    """Makes looks. `plan` has the shared recipe, without settings by design, which are those of
    `recipe`; `multiples` are of parts, by name.
    """

    space: DesignSpace
    recipe: Recipe
    tokens: Tokens
    budget: Match
    plan: Plan
    multiples: dict[str, float] = field(default_factory=dict)
    _names: dict[str, str | None] = field(default_factory=dict)
    _sized: dict[str, Arm | None] = field(default_factory=dict)
    _looks: dict[tuple[str, int], Look] = field(default_factory=dict)

    def name_of(self, choices: Choices) -> str | None:
        """The canonical name; None where the design is refused, or cannot have the budget."""
        spec = spec_of(choices)
        if spec not in self._names:
            model = self.recipe.model
            name = self.space.name_of(choices, model.d_model, 2 * model.n_layers)
            self._names[spec] = None if name is None or self.sized(name) is None else name
        return self._names[spec]

    def sized(self, name: str) -> Arm | None:
        """The design as an arm that is equal to the baseline; None where that cannot be."""
        if name not in self._sized:
            try:
                self._sized[name] = self._matched(name)
            except (VariantError, UsageError):
                self._sized[name] = None
        return self._sized[name]

    def _matched(self, name: str) -> Arm:
        (arm,) = grid.resolve([name], self.plan.recipe, self.tokens.vocab_size)
        if name == BASELINE:
            return arm
        plan = replace(self.plan, arms=(self._baseline, arm))
        to = (self.budget, BASELINE, self.tokens, (), lambda _line: None)
        return match.matched(plan, *to).arms[-1]

    @cached_property
    def _baseline(self) -> Arm:
        return self._matched(BASELINE)

    def look(self, choices: Choices, rung: int) -> Look | None:
        """A design at a rung; None where there is none."""
        if (name := self.name_of(choices)) is None:
            return None
        if (name, rung) not in self._looks:
            self._looks[name, rung] = self._look(name, choices, rung)
        return self._looks[name, rung]

    def _look(self, name: str, choices: Choices, rung: int) -> Look:
        arm = self.arm(name, rung)
        assert arm.recipe is not None
        model, steps = arm.recipe.model, arm.recipe.steps
        shape = model.shape(self.tokens.vocab_size)
        sizes = shape.n_layers, shape.d_model, shape.n_heads, shape.d_ff
        trunk = Trunk(*sizes, shape.d_ff / shape.d_model, arm.n_params)
        options = tuple(
            (key, value if type(value) in (int, float) else variant.write_value(value))
            for key, value in choices.items()
        )
        counts = shape.d_ff, steps, arm.n_params, arm.flops_per_token
        return Look(trunk, name, options, None, *counts, arm.recipe, choices, rung)  # type: ignore[arg-type]

    def arm(self, name: str, rung: int, multiples: Mapping[str, float] | None = None) -> Arm:
        """The design as an arm, under the recipe of a rung."""
        arm = self.sized(name)
        assert arm is not None
        multiples = self.multiples if multiples is None else multiples
        own = self._settings(name, multiples)
        own = own.model_copy(update={"model": self.plan.recipe_of(arm).model})
        return replace(arm, recipe=own if rung >= TOP else shorter(own), how=None)

    def _settings(self, name: str, multiples: Mapping[str, float]) -> Recipe:
        """The recipe of a design: what it says of that, or else of its parts alone."""
        said = dict(self.recipe.arms)
        if name in said:
            return self.recipe.of(name)
        parts = [part.name for part in variant.parse(name).parts]
        # Of a composition on standard the name begins with an add-on.
        is_on_baseline = len(parts) > 1 and parts[0] in self.space.addons
        stream = BASELINE if is_on_baseline else parts[0]
        lr = dict(said.get(stream, ())).get(LR, self.plan.recipe.optim.lr)
        scales = {part: multiples.get(part, self._multiple(part)) for part in parts}
        scales = {part: scale for part, scale in scales.items() if self._adds(part)}
        alone = scales.get(parts[0], 1.0) if len(parts) == 1 else 1.0
        recipe = self.plan.recipe.changed((LR, lr), (SCALE, alone))
        return _at_multiples(recipe, scales if len(parts) > 1 else {})

    def compared(self) -> Recipe:
        """The recipe under which the best designs are tuned and compared: each part learns at its
        multiple, times the one that a design is tuned by.
        """
        every = {part: self._multiple(part) for part in (*self.space.streams, *self.space.addons)}
        said = dict(self.recipe.optim.part_lr_scale) | every | self.multiples
        return _at_multiples(self.plan.recipe.changed((SCALE, 1.0)), said)

    def _multiple(self, part: str) -> float:
        """What the recipe says of the rate of a part, times the design's own rate."""
        optim = self.recipe.optim
        said = dict(dict(self.recipe.arms).get(part, ())).get(SCALE, optim.design_lr_scale)
        return float(said) * dict(optim.part_lr_scale).get(part, 1.0)

    def _adds(self, part: str) -> bool:
        """Whether a part may have parameters that learn at another rate."""
        if (arm := self.sized(self._alone(part))) is None:  # with its defaults it does not fit
            return True
        return adds_parameters(arm, self.recipe)

    def _alone(self, part: str) -> str:
        return str(variant.parse(part).at_depth(2 * self.recipe.model.n_layers))

    def untuned(self) -> list[str]:
        """The parts of the space of whose rates the recipe says nothing."""
        said = {*dict(self.recipe.arms), *dict(self.recipe.optim.part_lr_scale)}
        parts = [*self.space.streams, *self.space.addons]
        return [
            part
            for part in parts
            if part not in said and self.sized(self._alone(part)) is not None and self._adds(part)
        ]

    def at_multiples(self, part: str) -> list[Arm]:
        """A part alone, at the lowest rung, at each multiple that is tried for it."""
        return [self.arm(self._alone(part), 0, {part: multiple}) for multiple in MULTIPLES]


def _at_multiples(recipe: Recipe, multiples: Mapping[str, float]) -> Recipe:
    """The recipe with each of these parts at its multiple, and no others."""
    own = tuple((part, scale) for part, scale in sorted(multiples.items()) if scale != 1)
    optim = recipe.optim.model_copy(update={"part_lr_scale": own})
    return recipe.model_copy(update={"optim": optim})


def shorter(recipe: Recipe) -> Recipe:
    """The recipe with a quarter of its tokens. Where the rate is level after the warm-up, it warms
    up for as long as the whole run, which can go on from it.
    """
    steps = max(1, recipe.steps // SHARE)
    found, optim = recipe.at(steps * recipe.tokens_per_step), recipe.optim
    warmup = math.ceil(optim.warmup_fraction * recipe.steps)
    if optim.schedule != "wsd" or not 0 < warmup < steps * (1 - optim.decay_fraction):
        return found
    fraction = float(f"{(warmup - 0.5) / steps:.6g}")
    return found.model_copy(
        update={"optim": optim.model_copy(update={"warmup_fraction": fraction})}
    )
