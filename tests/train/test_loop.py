"""Training: fair by construction, deterministic, and honest about divergence."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from designs import computed_by
from torch import Tensor
from training import COMPILED, SETTINGS, Lab, keeper_of

from attnres_cli.config.recipe import load as load_recipe
from attnres_cli.data.sources import load
from attnres_cli.nn.depthmix import engines, few_tokens
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.records.run import Point, Status
from attnres_cli.train.keeper import Stopped
from attnres_cli.train.loop import LONG, MARGIN, SHORTEST, has_diverged
from attnres_cli.train.trainer import Trainer

ATTNRES = "attnres:block_size=2"


def batches_seen(trainer: Trainer) -> tuple[list[Tensor], list[Tensor]]:
    """The tokens that go through the model in three steps, and in an evaluation."""
    seen: list[Tensor] = []
    trainer.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    for step in range(3):
        trainer.step(step)
    trained = list(seen)
    seen.clear()
    trainer.evaluate()
    return trained, seen


@pytest.mark.parametrize("variant", [ATTNRES, "mhc", "postnorm"])
def test_arms_of_a_seed_see_the_same_batches_and_all_seeds_the_same_evaluation(
    variant: str, lab: Lab
):
    ours, ours_eval = batches_seen(lab.trainer(variant, seed=5))
    theirs, theirs_eval = batches_seen(lab.trainer("standard", seed=5))
    other, other_eval = batches_seen(lab.trainer("standard", seed=1))

    assert all(map(torch.equal, (*ours, *ours_eval), (*theirs, *theirs_eval)))
    assert not torch.equal(ours[0], ours[1])
    assert not torch.equal(ours[0], other[0])
    assert all(map(torch.equal, ours_eval, other_eval))


def test_a_result_holds_losses_counts_times_and_a_curve(lab: Lab):
    seen = []

    result = lab.run(on_step=lambda *told: seen.append(told))

    shape = lab.recipe.model.shape(256)
    assert result.status is Status.COMPLETE
    assert (result.steps, result.tokens) == (6, 384)
    assert result.initial_loss == pytest.approx(math.log(256), abs=0.2)
    assert result.val_loss == result.curve[-1].val_loss < result.initial_loss
    assert result.n_params == shape.n_params()
    assert result.flops_per_token == 3 * shape.flops_per_token()
    assert result.tokens_per_second == pytest.approx(64 / result.step_s)
    assert 0 < result.step_s < result.train_s
    assert result.peak_bytes > 10_000_000
    assert [point.step for point in result.curve] == list(range(7))
    assert [point.step for point in result.curve if point.val_loss is not None] == [0, 3, 6]
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(loss) for _, loss in seen)


def test_the_first_step_is_reported_at_once(lab: Lab):
    seen: list[int] = []

    def listen(step: int, _loss: float | None) -> None:
        seen.append(step)
        if len(seen) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        lab.run(on_step=listen, train={"tokens": 64 * 250})

    assert seen == [1, 2, 5]  # 2 or 3 steps between points


@pytest.mark.parametrize(
    ("engine", "trains", "evaluates"),
    [
        ("reference", "Reference", "Reference"),
        ("eager", "Eager", "Eager"),
        ("compile", "Unrolled", "Eager"),  # evaluation is never compiled
    ],
)
def test_steps_and_evaluation_are_computed_by_the_engine_of_the_settings(
    engine: str, trains: str, evaluates: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    chosen: list[str] = []
    choose = engines.choose

    def spy(v: Tensor, scoring: Scoring) -> engines.Engine:
        chosen.append(computed_by(choose(v, scoring)))
        return choose(v, scoring)

    monkeypatch.setattr(engines, "choose", spy)
    monkeypatch.setattr(few_tokens, "FEW", 0)  # which need no engine
    trainer = lab.trainer("attnres", settings=replace(SETTINGS, engine=engine))

    trainer.step(0)
    trained = set(chosen)
    chosen.clear()
    trainer.evaluate()

    assert trained == {trains}
    assert set(chosen) == {evaluates}


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        (replace(SETTINGS, engine="reference"), 1e-4),
        (replace(SETTINGS, engine="compile"), 1e-4),
        (replace(SETTINGS, precision="bf16"), 0.05),
        pytest.param(COMPILED, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_engines_precisions_and_the_compiler_agree_on_a_whole_run(settings, off: float, lab: Lab):
    plain = lab.run(ATTNRES)

    result = lab.run(ATTNRES, settings=settings)

    assert result.settings == settings
    assert result.val_loss == pytest.approx(plain.val_loss, abs=off)
    assert (result.val_loss != plain.val_loss) or settings.precision == "fp32"


def test_a_loss_that_is_not_finite_is_recorded_as_divergence_with_the_probes_so_far(lab: Lab):
    result = lab.run(optim={"lr": 3e4}, train={"tokens": 64 * 200})

    assert result.status is Status.DIVERGED
    assert math.isnan(result.val_loss)
    assert result.steps < 200
    assert result.probes[0].step == 0
    assert all(probe.step <= result.steps for probe in result.probes)


def test_a_process_compiles_every_arm_however_many_there_are(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    arms = ["standard", "attnres", "attnres:norm=sigmoid"]

    few = {"recompile_limit": 1, "accumulated_recompile_limit": 2}  # 8 and 256: as many are slow
    with torch.compiler.config.patch(few):
        for arm in arms:
            lab.trainer(arm, settings=COMPILED, model={"n_layers": 1}).step(0)

    torch.compiler.reset()
    assert len(graphs) == len(arms)


@pytest.mark.slow
def test_a_compiled_evaluation_is_that_of_eager_mode_to_rounding_and_its_last_batch_is_eager(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    lab = lab.with_recipe(train={"eval_tokens": 16 * 10})  # batches of 4, 4 and 2 sequences
    trainer = lab.trainer(ATTNRES, settings=COMPILED)
    rows: list[int] = []
    judge = trainer.judge
    monkeypatch.setattr(
        trainer, "judge", lambda windows: rows.append(len(windows)) or judge(windows)
    )
    trainer.step(0)

    found = trainer.evaluate()

    assert rows == [2]
    before = replace(COMPILED, way="")  # as older runs were computed, and are verified
    trainer.settings = before
    eager = trainer.evaluate()
    assert rows == [2, 4, 4, 2]
    assert found == pytest.approx(eager, abs=1e-5)


@pytest.mark.slow
def test_real_training_learns_more_than_byte_frequencies():
    recipe = load_recipe("smoke")
    real = Lab(recipe, load(recipe))

    result = real.run("attnres:block_size=4")

    assert result.val_loss < real.tokens.description.unigram_loss


@pytest.mark.slow
def test_a_long_run_takes_no_more_memory_at_its_end_than_after_its_warm_up(
    lab: Lab, tmp_path: Path
):
    steps, resident = 2000, {}

    def listen(step: int, _loss: float | None) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident[step] = pages * resource.getpagesize()

    lab.run(
        ATTNRES,
        on_step=listen,
        keeper=keeper_of(tmp_path, every_s=1.0),
        model={"n_layers": 2, "d_model": 32, "seq_len": 32},
        optim={"lr": 1e-3},
        train={"tokens": 128 * steps, "eval_tokens": 1024, "n_evals": 20},
    )

    early = max(n_bytes for step, n_bytes in resident.items() if step <= steps // 5)
    # One activation kept per step would be 16 kB of it, 26 MB in all; a heap that other tests left
    # in pieces grows by a few of its own.
    assert max(resident.values()) - early < 16 * 2**20


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


@pytest.mark.parametrize(
    ("losses", "start", "first"),
    [
        ([5.0, 4.0, math.nan, 3.0], 5.6, 300),  # at once
        ([5.0, 4.0, -math.inf, 3.0], 5.6, 300),
        ([5.0] * 20 + [HIGH] * 80, 5.6, 20 * 4 + LONG * STEPS),
        ([HIGH] * 100, 5.6, LONG * STEPS),  # in its first steps
        ([40.0 + MARGIN + 1] * 100, 40.0, LONG * STEPS),  # a bad start, and up from there
        ([HIGH] * 100, None, LONG * STEPS),  # a start that is no number counts for nothing
        ([HIGH] * 100, math.nan, LONG * STEPS),
        ([HIGH] * 100, math.inf, LONG * STEPS),
        ([5.5 - i / 40 for i in range(100)], 5.6, None),
        ([5.5] * 10 + [HIGH] * 24 + [3.0] * 66, 5.6, None),  # a long spike and its recovery
        ([HIGH if i % 2 else 5.0 for i in range(100)], 5.6, None),  # a wild one
        ([math.log(VOCAB) + MARGIN - 0.1] * 100, 5.6, None),  # nothing learned is no divergence
        ([40.0 - i / 4 for i in range(100)], 40.0, None),  # a bad start, and slowly down from there
    ],
)
def test_a_loss_that_is_no_number_or_far_above_chance_for_long_is_divergence(
    losses: list[float], start: float | None, first: float | None
):
    assert first_step_of(losses, start) == first


def test_a_short_run_is_given_some_steps():
    assert first_step_of([HIGH] * (SHORTEST - 1), steps=SHORTEST - 1) is None
    assert first_step_of([HIGH] * 40, steps=40) == SHORTEST
