"""Matching arms to the baseline in parameters, FLOPs or time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid, match
from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, train_flops_per_token
from attnres_cli.records.comparison_terms import ArmRecipe, Matched, Terms
from attnres_cli.records.plan import Arm, Plan, n_tokens


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load("smoke", ["train.tokens=64k"])


@pytest.fixture(scope="module")
def tokens(recipe: Recipe) -> Tokens:
    return sources.load(recipe)


def plan_of(recipe: Recipe, tokens: Tokens, *specs: str) -> Plan:
    arms = grid.resolve(("standard", *specs), recipe, tokens.vocab_size)
    return grid.make(recipe, arms, (0, 1), tokens.fingerprint, "cpu", 1)


def matched(plan: Plan, what: str, tokens: Tokens, held: Sequence[ArmRecipe] = ()) -> Plan:
    return match.matched(plan, what, "standard", tokens, held, lambda _: None)


def model_of(plan: Plan, arm: Arm, tokens: Tokens) -> Transformer:
    shape = plan.recipe_of(arm).model.shape(tokens.vocab_size)
    return Transformer(shape, variant.parse(arm.variant).build(shape.d_model, shape.n_sublayers))


@pytest.mark.parametrize("spec", ["attnres", "denseformer", "mhc", "delta", "sandwich"])
def test_models_matched_in_parameters_have_equal_parameters(spec: str, recipe, tokens):
    plan = matched(plan_of(recipe, tokens, spec), "params", tokens)
    models = [model_of(plan, arm, tokens) for arm in plan.arms]
    base, arm = (sum(p.numel() for p in model.parameters()) for model in models)
    how = plan.arms[1].how
    assert abs(arm / base - 1) <= match.TOLERANCE["params"]
    assert (how.value, how.target, plan.arms[1].n_params) == (arm, base, arm)
    assert how.remains == pytest.approx(arm / base - 1)


@pytest.mark.parametrize("spec", ["attnres", "delta"])
def test_models_matched_in_flops_have_equal_flops(spec: str, recipe: Recipe, tokens: Tokens):
    plan = matched(plan_of(recipe, tokens, spec), "flops", tokens)
    models = [model_of(plan, arm, tokens) for arm in plan.arms]
    base, arm = (train_flops_per_token(model.shape, model.residual) for model in models)
    assert abs(arm / base - 1) <= match.TOLERANCE["flops"]
    assert plan.arms[1].flops_per_token == arm


def test_the_nearest_width_is_taken_and_the_baseline_keeps_the_recipe(recipe, tokens):
    made = plan_of(recipe, tokens, "mhc", "attnres")
    assert matched(made, "tokens", tokens) is made  # as they are
    plan = matched(made, "params", tokens)
    assert plan.recipe_of(plan.arms[0]) is recipe
    assert plan.arms[0].how is None
    assert len({n_tokens(plan.recipe_of(arm)) for arm in plan.arms}) == 1
    how, shape = plan.arms[1].how, recipe.model.shape(tokens.vocab_size)
    per_unit = 3 * shape.d_model * shape.n_layers
    assert abs(how.value - how.target) <= per_unit / 2
    assert how.unmatched - how.value == per_unit * (how.before - how.after)


def test_the_width_of_a_large_model_stays_a_multiple_of_eight(tokens: Tokens):
    large = load("smoke", ["model.d_model=512", "model.n_heads=8", "model.n_layers=12"])
    how = matched(plan_of(large, tokens, "mhc"), "params", tokens).arms[1].how
    assert how.after in range(0, how.before, 8)
    assert abs(how.remains) <= 0.001


def test_an_arm_that_cannot_be_matched_is_refused_with_the_nearest(recipe: Recipe, tokens: Tokens):
    words = r"mhc cannot be brought within 0.5% of standard.* the nearest is d_ff 1 with"
    with pytest.raises(UsageError, match=words):
        matched(plan_of(recipe, tokens, "mhc"), "flops", tokens)


def timed(recipe: Recipe, tokens: Tokens, how: Matched) -> ArmRecipe:
    """What the study holds of an `attnres` that was matched in time."""
    terms = Terms("time", "standard")
    return ArmRecipe(recipe.digest, tokens.fingerprint, terms, "attnres", "0" * 12, how)


def test_an_arm_that_was_timed_before_keeps_its_tokens(recipe: Recipe, tokens: Tokens):
    steps, target = 100, 125 * 0.02
    numbers = (1.25 * target, steps * 0.025, target, (1.25, 1.2, 1.3))
    how = Matched("tokens", 64_000, steps * 512, *numbers)
    plan = plan_of(recipe, tokens, "attnres")
    found = matched(plan, "time", tokens, [timed(recipe, tokens, how)])
    assert found.recipe_of(found.arms[1]).steps == steps
    assert found.recipe_of(found.arms[0]) is recipe
    assert found.arm_recipes[0].how == how


def test_too_few_steps_to_match_in_time_are_refused(tokens: Tokens):
    short = load("smoke", ["train.tokens=2k"])
    how = Matched("tokens", 2048, 1536, 1.45 * 4, 1.45 * 3, 4.0, (1.45, 1.4, 1.5))
    with pytest.raises(UsageError, match=r"more train\.tokens make finer steps"):
        matched(plan_of(short, tokens, "attnres"), "time", tokens, [timed(short, tokens, how)])


@pytest.mark.slow
def test_step_times_are_measured_in_turn_and_tokens_follow_from_them(tokens: Tokens):
    recipe = load("smoke", ["train.tokens=640k"])  # whole steps come near, even if it is slow
    plan = matched(plan_of(recipe, tokens, "mhc"), "time", tokens)
    how, own = plan.arms[1].how, plan.recipe_of(plan.arms[1])
    median, low, high = how.step_ratio
    assert 1 < low <= median <= high
    assert (how.before, how.after) == (n_tokens(recipe), n_tokens(own))
    assert own.steps == round(recipe.steps / median)
    assert how.remains == pytest.approx(own.steps * median / recipe.steps - 1)
    assert own.tokens_per_step == recipe.tokens_per_step
