"""A run that is stopped and taken up again is, bit for bit, the run that was not."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attnres_variants.standard import Standard
from inputs import changed
from training import SETTINGS, quiet

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.nn.residual import register
from attnres_cli.records.run import WEIGHTS, RunResult, RunSpec, Settings, Status
from attnres_cli.train.checkpoint import Checkpoints, differing
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.train.loop import train
from attnres_cli.train.trainer import Trainer

STEPS = 120  # one or two between the points of the curve, evaluated after 60 and 120


@pytest.fixture
def longer(tiny_recipe: Recipe) -> Recipe:
    return changed(tiny_recipe, train={"tokens": 64 * STEPS})


def keeper_of(folder: Path, stop: Stop | None = None, every_s: float = 1e9) -> Keeper:
    return Keeper(Checkpoints(folder / "run", {"recipe": "a"}), every_s, stop or Stop())


def stopped_at(spec: RunSpec, tokens: Tokens, keeper: Keeper, step: int, settings: Settings) -> int:
    """Train until that many steps are done; how many were."""
    taken = Trainer.step

    def counting(self: Trainer, number: int) -> torch.Tensor:
        if number + 1 == step:
            keeper.stop.wanted = True
        return taken(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counting)
        with pytest.raises(Stopped):
            train(spec, tokens, settings, "cpu", quiet, keeper)
    keeper.stop.wanted = False
    return keeper.step


def numbers(result: RunResult) -> tuple[object, ...]:
    """All of a result but times and memory."""
    return (result.status, result.val_loss, result.initial_loss, result.steps, result.curve)


EXPERTS = {"model": {"mlp": ["swiglu", "moe"]}, "train": {"micro_batch_size": 2}}
MUON = {"optim": {"optimizer": "muon"}, "train": {"micro_batch_size": 2}}


@pytest.mark.parametrize(
    ("variant", "precision", "sections"),
    [
        ("attnres:block_size=2", "fp32", {}),
        ("attnres:block_size=2", "fp32", EXPERTS),
        pytest.param("mhc", "bf16", EXPERTS, marks=pytest.mark.slow),
        pytest.param("standard", "bf16", MUON, marks=pytest.mark.slow),
        pytest.param("attnres:block_size=2", "bf16", MUON, marks=pytest.mark.slow),
        pytest.param("standard", "fp32", MUON, marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_again_and_again_ends_as_the_undisturbed_one(
    variant: str, precision: str, sections: dict, longer: Recipe, tokens: Tokens, tmp_path: Path
):
    recipe = changed(longer, **sections)
    spec, settings = RunSpec(recipe, variant, 3, ""), replace(SETTINGS, precision=precision)
    undisturbed = train(spec, tokens, settings, "cpu", quiet, keeper_of(tmp_path / "whole"))

    for step in (1, 2, 3, 59, 60, 61, 120):  # at, before and after points and evaluations
        assert stopped_at(spec, tokens, keeper_of(tmp_path), step, settings) == step
    told = []
    result = train(
        spec, tokens, settings, "cpu", lambda *seen: told.append(seen), keeper_of(tmp_path)
    )

    assert numbers(result) == numbers(undisturbed)
    assert {step for step, _ in told} == {120}  # nothing was left to train
    both = [
        path for folder in (tmp_path, tmp_path / "whole") for path in folder.glob(f"run/{WEIGHTS}")
    ]
    assert differing(*both) == []


def test_a_checkpoint_at_every_step_changes_no_number(
    longer: Recipe, tokens: Tokens, tmp_path: Path
):
    spec = RunSpec(longer, "attnres", 0, "")
    plain = train(spec, tokens, SETTINGS, "cpu", quiet)
    saved: list[int] = []
    keeper = replace(keeper_of(tmp_path, every_s=0), on_saved=saved.append)

    kept = train(spec, tokens, SETTINGS, "cpu", quiet, keeper)

    assert numbers(kept) == numbers(plain)
    assert saved == list(range(1, STEPS + 1))


def test_the_generators_of_a_design_that_draws_go_on_where_they_were(
    longer: Recipe, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from attnres_cli.nn import residual

    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))

    class Noisy(Standard):
        def write(self, state, l, y):
            return state + torch.nn.functional.dropout(y, 0.1, self.training)

    register("noisy")(Noisy)
    spec = RunSpec(longer, "noisy", 0, "")
    torch.manual_seed(99)
    undisturbed = train(spec, tokens, SETTINGS, "cpu", quiet)

    stopped_at(spec, tokens, keeper_of(tmp_path), 77, SETTINGS)
    torch.manual_seed(5)

    result = train(spec, tokens, SETTINGS, "cpu", quiet, keeper_of(tmp_path))
    assert numbers(result) == numbers(undisturbed)


def test_stopping_in_an_evaluation_repeats_the_evaluation_alone(
    longer: Recipe, tokens: Tokens, tmp_path: Path
):
    spec = RunSpec(longer, "standard", 0, "")
    undisturbed = train(spec, tokens, SETTINGS, "cpu", quiet)
    keeper = keeper_of(tmp_path)

    def at_half(step: int, loss: float | None) -> None:
        keeper.stop.wanted = step == 60  # told before the evaluation at this step begins

    with pytest.raises(Stopped):
        train(spec, tokens, SETTINGS, "cpu", at_half, keeper)
    assert keeper.step == 60
    result = train(spec, tokens, SETTINGS, "cpu", quiet, keeper_of(tmp_path))

    assert numbers(result) == numbers(undisturbed)


def test_stopping_before_the_first_step_leaves_nothing(
    longer: Recipe, tokens: Tokens, tmp_path: Path
):
    with pytest.raises(Stopped):
        train(
            RunSpec(longer, "standard", 0, ""),
            tokens,
            SETTINGS,
            "cpu",
            quiet,
            keeper_of(tmp_path, Stop(wanted=True)),
        )

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("lr", "is_a_number"), [(3e4, False), (10.0, True)])
def test_a_diverged_run_that_was_stopped_diverges_alike(
    lr: float, is_a_number: bool, longer: Recipe, tokens: Tokens, tmp_path: Path
):
    spec = RunSpec(changed(longer, optim={"lr": lr}), "standard", 0, "")
    undisturbed = train(spec, tokens, SETTINGS, "cpu", quiet)
    assert (undisturbed.status, math.isnan(undisturbed.val_loss)) == (Status.DIVERGED, True)
    assert undisturbed.steps < STEPS / 2
    assert math.isfinite(undisturbed.curve[-1].train_loss or 0.0) is is_a_number

    stopped_at(spec, tokens, keeper_of(tmp_path), undisturbed.steps // 2, SETTINGS)
    result = train(spec, tokens, SETTINGS, "cpu", quiet, keeper_of(tmp_path))

    assert repr(numbers(result)) == repr(numbers(undisturbed))  # nan is not nan


def test_a_run_shorter_than_the_interval_writes_its_weights_alone(
    tiny_recipe: Recipe, tokens: Tokens, tmp_path: Path
):
    spec = RunSpec(tiny_recipe, "standard", 0, "")

    train(spec, tokens, SETTINGS, "cpu", quiet, keeper_of(tmp_path, every_s=30))

    assert [file.match(WEIGHTS) for file in (tmp_path / "run").iterdir()] == [True]


def test_times_and_memory_are_those_of_all_processes(
    longer: Recipe, tokens: Tokens, tmp_path: Path
):
    spec = RunSpec(longer, "standard", 0, "")
    stopped_at(spec, tokens, keeper_of(tmp_path), 100, SETTINGS)
    keeper = keeper_of(tmp_path)
    found = keeper.load()
    assert found is not None
    before = found[0]

    result = train(spec, tokens, SETTINGS, "cpu", quiet, keeper_of(tmp_path))

    assert result.train_s > before["train_s"] > 0
    assert result.peak_bytes >= before["peak_bytes"] > 10_000_000
    assert 0 < result.step_s < 1


def test_slow_writes_are_made_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    keeper = keeper_of(tmp_path, every_s=30)

    def slow() -> dict[str, torch.Tensor]:
        now[0] += 10
        return {"x": torch.ones(1)}

    due = []
    for step in range(1, 1001):
        now[0] += 1
        if keeper.is_due():
            due.append(step)
            keeper.save({"step": step}, slow)

    assert due == [30, 530]  # ten seconds are a fiftieth of 500


DISK_FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.keeper import Keeper, Stop
told = []
keeper = Keeper(Checkpoints(Path(sys.argv[2]), {}), 0, Stop(), on_trouble=told.append)
keeper.save({"step": 1}, lambda: {"x": torch.ones(10)})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
keeper.save({"step": 2}, lambda: {"x": torch.ones(100_000)})
keeper.save({"step": 3}, lambda: {"x": torch.ones(100_000)})
print(len(told), told[0])
"""


def test_what_cannot_be_written_is_told_once_and_the_last_one_stays(tmp_path: Path):
    command = [sys.executable, "-c", DISK_FULL, str(Path.cwd()), str(tmp_path / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)

    assert done.stdout.startswith("1 ")
    assert "File too large" in done.stdout
    found = Checkpoints(tmp_path / "run", {}).load()
    assert found is not None
    assert found[0] == {"step": 1}
    assert len(list((tmp_path / "run").iterdir())) == 2


@pytest.mark.slow
def test_a_compiled_run_is_continued_bit_for_bit_too(
    longer: Recipe, tokens: Tokens, tmp_path: Path
):
    compiled = replace(SETTINGS, compiled=True, engine="compile")
    spec = RunSpec(longer, "attnres:block_size=2", 0, "")
    undisturbed = train(spec, tokens, compiled, "cpu", quiet)

    stopped_at(spec, tokens, keeper_of(tmp_path), 60, compiled)
    torch.compiler.reset()
    result = train(spec, tokens, compiled, "cpu", quiet, keeper_of(tmp_path))

    assert numbers(result) == numbers(undisturbed)
