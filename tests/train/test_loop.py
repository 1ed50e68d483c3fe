"""Training: fair by construction, deterministic, and honest about divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from designs import computed_by
from inputs import changed
from torch import Tensor
from training import SETTINGS, quiet

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.sources import load
from attnres_cli.data.tokens import Tokens
from attnres_cli.nn.depthmix import engines, few_tokens
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.records.run import Point, RunSpec, Settings, Status
from attnres_cli.train.loop import LONG, MARGIN, SHORTEST, has_diverged, train
from attnres_cli.train.trainer import Trainer, seconds_per_step


def spec_of(recipe: Recipe, tokens: Tokens, variant: str = "standard", seed: int = 0) -> RunSpec:
    return RunSpec(recipe, variant, seed, tokens.fingerprint)


def batches_seen(spec: RunSpec, tokens: Tokens) -> tuple[list[Tensor], list[Tensor]]:
    """The tokens that went through the model in three steps, and in an evaluation."""
    trainer, seen = Trainer(spec, tokens, SETTINGS, torch.device("cpu")), []
    trainer.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    for step in range(3):
        trainer.step(step)
    trained = list(seen)
    seen.clear()
    trainer.evaluate()
    return trained, seen


@pytest.mark.parametrize("variant", ["attnres:block_size=2", "mhc", "postnorm"])
def test_every_arm_of_a_seed_sees_the_same_batches_in_the_same_order(
    variant: str, tiny_recipe: Recipe, tokens: Tokens
):
    ours, ours_eval = batches_seen(spec_of(tiny_recipe, tokens, variant, seed=5), tokens)
    theirs, theirs_eval = batches_seen(spec_of(tiny_recipe, tokens, "standard", seed=5), tokens)

    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ours_eval, theirs_eval, strict=True))


def test_another_seed_sees_other_batches_but_the_same_evaluation(
    tiny_recipe: Recipe, tokens: Tokens
):
    one, one_eval = batches_seen(spec_of(tiny_recipe, tokens, seed=0), tokens)
    other, other_eval = batches_seen(spec_of(tiny_recipe, tokens, seed=1), tokens)

    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])
    assert all(torch.equal(a, b) for a, b in zip(one_eval, other_eval, strict=True))


def test_another_seed_begins_with_other_weights(tiny_recipe: Recipe, tokens: Tokens):
    short = tiny_recipe.model_copy(
        update={"train": tiny_recipe.train.model_copy(update={"tokens": 1024})}
    )
    found = [
        train(spec_of(short, tokens, seed=seed), tokens, SETTINGS, "cpu", quiet) for seed in (0, 1)
    ]

    assert found[0].initial_loss != found[1].initial_loss


def test_the_same_run_twice_gives_the_same_curve_bit_for_bit(tiny_recipe: Recipe, tokens: Tokens):
    spec = spec_of(tiny_recipe, tokens, "attnres:block_size=2")

    one, two = (train(spec, tokens, SETTINGS, "cpu", quiet) for _ in range(2))

    assert one.curve == two.curve
    assert one.val_loss == two.val_loss


def test_a_result_says_what_it_is_of(tiny_recipe: Recipe, tokens: Tokens):
    result = train(spec_of(tiny_recipe, tokens), tokens, SETTINGS, "cpu", quiet)

    assert result.status is Status.COMPLETE
    assert (result.steps, result.tokens) == (6, 384)
    assert result.initial_loss == pytest.approx(math.log(256), abs=0.2)
    assert result.val_loss == result.curve[-1].val_loss < result.initial_loss
    assert result.n_params == tiny_recipe.model.shape(256).n_params()
    assert result.flops_per_token == 3 * tiny_recipe.model.shape(256).flops_per_token()
    assert result.tokens_per_second == pytest.approx(64 / result.step_s)
    assert 0 < result.step_s < result.train_s
    assert result.peak_bytes > 10_000_000


def test_the_curve_has_a_point_at_every_evaluation(tiny_recipe: Recipe, tokens: Tokens):
    result = train(spec_of(tiny_recipe, tokens), tokens, SETTINGS, "cpu", quiet)

    evaluated = [point.step for point in result.curve if point.val_loss is not None]
    assert evaluated == [0, 3, 6]
    assert [point.step for point in result.curve] == list(range(7))


def test_progress_is_told_with_steps_and_losses(tiny_recipe: Recipe, tokens: Tokens):
    told = []

    train(spec_of(tiny_recipe, tokens), tokens, SETTINGS, "cpu", lambda *seen: told.append(seen))

    assert [step for step, _ in told] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(loss) for _, loss in told)


def test_the_first_step_is_told_at_once(tiny_recipe: Recipe, tokens: Tokens):
    told = []
    longer = changed(tiny_recipe, train={"tokens": 64 * 250})

    train(spec_of(longer, tokens), tokens, SETTINGS, "cpu", lambda *seen: told.append(seen))

    assert [step for step, _ in told][:3] == [1, 2, 5]  # 2 or 3 steps between points


@pytest.mark.parametrize(
    ("engine", "trains", "evaluates"),
    [
        ("reference", "Reference", "Reference"),
        ("eager", "Eager", "Eager"),
        ("compile", "Unrolled", "Eager"),  # evaluation is never compiled
    ],
)
def test_steps_and_evaluation_are_computed_by_the_engine_of_the_settings(
    engine: str,
    trains: str,
    evaluates: str,
    tiny_recipe: Recipe,
    tokens: Tokens,
    monkeypatch: pytest.MonkeyPatch,
):
    chosen: list[str] = []
    choose = engines.choose

    def spy(v: Tensor, scoring: Scoring) -> engines.Engine:
        chosen.append(computed_by(choose(v, scoring)))
        return choose(v, scoring)

    monkeypatch.setattr(engines, "choose", spy)
    monkeypatch.setattr(few_tokens, "FEW", 0)  # which need no engine
    spec = spec_of(tiny_recipe, tokens, "attnres")
    device, settings = torch.device("cpu"), replace(SETTINGS, engine=engine)
    trainer = Trainer(spec, tokens, settings, device)

    trainer.step(0)
    trained = set(chosen)
    chosen.clear()
    trainer.evaluate()

    assert trained == {trains}
    assert set(chosen) == {evaluates}


@pytest.mark.parametrize("engine", ["reference", "compile"])
def test_engines_agree_on_a_whole_run(engine: str, tiny_recipe: Recipe, tokens: Tokens):
    spec = spec_of(tiny_recipe, tokens, "attnres:block_size=2")

    one = train(spec, tokens, SETTINGS, "cpu", quiet)
    other = train(spec, tokens, replace(SETTINGS, engine=engine), "cpu", quiet)

    assert other.settings.engine == engine
    assert other.val_loss == pytest.approx(one.val_loss, abs=1e-4)


def test_a_loss_that_is_not_finite_is_a_recorded_divergence(tiny_recipe: Recipe, tokens: Tokens):
    wild = changed(tiny_recipe, optim={"lr": 1e30})

    result = train(spec_of(wild, tokens), tokens, SETTINGS, "cpu", quiet)

    assert result.status is Status.DIVERGED
    assert math.isnan(result.val_loss)
    assert result.steps < wild.steps or result.curve[-1].val_loss is None


def test_bfloat16_trains_to_about_the_same_loss(tiny_recipe: Recipe, tokens: Tokens):
    mixed = Settings("cpu", "test", "bf16", compiled=False, threads=1, engine="eager")
    spec = spec_of(tiny_recipe, tokens, "attnres")

    plain = train(spec, tokens, SETTINGS, "cpu", quiet)
    result = train(spec, tokens, mixed, "cpu", quiet)

    assert result.val_loss == pytest.approx(plain.val_loss, abs=0.05)
    assert result.val_loss != plain.val_loss


@pytest.mark.slow
def test_a_compiled_run_ends_near_the_eager_one(tiny_recipe: Recipe, tokens: Tokens):
    compiled = Settings("cpu", "test", "fp32", compiled=True, threads=1, engine="compile")
    spec = spec_of(tiny_recipe, tokens, "attnres:block_size=2")

    eager = train(spec, tokens, SETTINGS, "cpu", quiet)
    result = train(spec, tokens, compiled, "cpu", quiet)

    assert result.val_loss == pytest.approx(eager.val_loss, abs=1e-3)


def test_a_process_compiles_every_arm_however_many_there_are(
    tiny_recipe: Recipe, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
):
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compile_with = partial(torch.compile, backend=backend)
    monkeypatch.setattr(torch, "compile", compile_with)
    torch.compiler.reset()
    settings = replace(SETTINGS, compiled=True, engine="compile")
    arms = ["standard", *(f"attnres:window={window}" for window in range(1, 6))]
    arms += ["attnres", "attnres:heads=2", "attnres:norm=sigmoid", "attnres:key_norm=off"]

    for arm in arms:
        spec = spec_of(tiny_recipe, tokens, arm)
        Trainer(spec, tokens, settings, torch.device("cpu")).step(0)

    torch.compiler.reset()
    assert len(graphs) == len(arms) == 10


def test_a_plan_can_time_more_steps_than_a_run_has(tiny_recipe: Recipe, tokens: Tokens):
    seconds = seconds_per_step(spec_of(tiny_recipe, tokens), tokens, SETTINGS, "cpu", n_steps=9)

    assert 0 < seconds < 5


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["standard", "denseformer", "attnres", "attnres:block_size=4"])
def test_real_training_learns_more_than_byte_frequencies(variant: str):
    from attnres_cli.config.recipe import load as load_recipe

    recipe = load_recipe("smoke")
    tokens = load(recipe)

    result = train(spec_of(recipe, tokens, variant), tokens, SETTINGS, "cpu", quiet)

    assert result.val_loss < tokens.description.unigram_loss


VOCAB = 256
HIGH = math.log(VOCAB) + MARGIN + 0.1
STEPS = 400


def first_step_of(losses: list[float], start: float | None = 5.6, steps: int = STEPS) -> int | None:
    """After which step a run with these losses, evenly spaced, has diverged; None: it has not."""
    gap = steps // len(losses)
    curve = [Point(0, None, start)]
    for number, loss in enumerate(losses, 1):
        if has_diverged(curve, number * gap, loss, steps, VOCAB):
            return number * gap
        curve.append(Point(number * gap, loss, None))
    return None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_at_once(loss: float):
    assert first_step_of([5.0, 4.0, loss, 3.0]) == 300


def test_a_loss_far_above_knowing_nothing_for_long_is():
    assert first_step_of([5.0] * 20 + [HIGH] * 80) == 20 * 4 + LONG * STEPS


def test_a_run_that_blows_up_in_its_first_steps_is():
    assert first_step_of([HIGH] * 100) == LONG * STEPS


@pytest.mark.parametrize(
    "losses",
    [
        [5.5 - i / 40 for i in range(100)],
        [5.5] * 10 + [HIGH] * 24 + [3.0] * 66,  # a long spike and its recovery
        [HIGH if i % 2 else 5.0 for i in range(100)],  # a wild one
        [math.log(VOCAB) + MARGIN - 0.1] * 100,  # nothing learned, which is no divergence
    ],
)
def test_a_run_that_learns_recovers_or_learns_nothing_is_not(losses: list[float]):
    assert first_step_of(losses) is None


def test_a_design_that_starts_badly_and_comes_down_slowly_is_not():
    assert first_step_of([40.0 - i / 4 for i in range(100)], start=40.0) is None


def test_a_design_that_starts_badly_and_goes_up_is():
    assert first_step_of([40.0 + MARGIN + 1] * 100, start=40.0) == LONG * STEPS


@pytest.mark.parametrize("start", [None, math.nan, math.inf])
def test_a_start_that_is_no_number_counts_for_nothing(start: float | None):
    assert first_step_of([HIGH] * 100, start=start) == LONG * STEPS


def test_a_short_run_is_given_some_steps():
    assert first_step_of([HIGH] * (SHORTEST - 1), steps=SHORTEST - 1) is None
    assert first_step_of([HIGH] * 40, steps=40) == SHORTEST
