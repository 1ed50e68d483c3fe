"""What a plan says of a GPU that is not here, beside every step that was timed on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnres_cli.config.recipe import load, rungs
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid, memory, step_times
from attnres_cli.records import assumed
from attnres_cli.records.assumed import LEAST, MOST, Gpus, read
from attnres_cli.train import device

FILE = Path(__file__).parents[2] / "docs/results/2026-11-28-h100-launches.json"
LARGE = [
    *("model.n_layers=16", "model.d_model=1024", "model.n_heads=16", "model.seq_len=2048"),
    *("train.tokens=100M", "train.eval_tokens=8192", "train.n_evals=1"),
]
SHAPES = {"quick": [], "large": [*LARGE, "train.batch_size=4"]}
VOCAB = {"quick": 256, "large": 32768}
H200_MS = {"standard": 15, "attnres": 35}
"""docs/results/2026-11-27-h200.md, of quick; `mhc` has had kernels of its own since."""


class Sized:
    """Data of which only the size of the vocabulary is known."""

    fingerprint = "0" * 16
    separator = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size


def foretold(gpus: str, shape: str, variant: str, compiled: str, *more: str) -> float:
    """Seconds of a step, as a plan for these GPUs has them."""
    changes = [*SHAPES[shape], f"train.compile={compiled}", *more]
    recipe, tokens = load("quick", changes), Sized(VOCAB[shape])
    arms = grid.resolve([variant], recipe, tokens.vocab_size)
    with device.assuming(read(gpus)):
        plan = grid.make(recipe, arms, (0,), tokens.fingerprint, "auto", None)
        plan = step_times.timed(memory.fitted(plan, tokens, None), tokens)
    (arm,) = plan.arms
    assert arm.step_s is not None
    return arm.step_s


def measured() -> list[object]:
    """GPU, shape, design, compiled, seconds of a step of the H100."""
    found: list[object] = []
    for result in json.loads(FILE.read_text())["results"]:
        shape, _, variant = result["case"].partition(":")
        for way, compiled in (("eager", "off"), ("compile", "on"), ("graphs", "graphs")):
            if way in result:
                case = ("h100", shape, variant, compiled, result[way]["step_s"]["median"])
                is_slow = shape == "large" or variant not in ("standard", "attnres")
                found.append(pytest.param(*case, marks=[pytest.mark.slow] if is_slow else []))
    for variant, ms in H200_MS.items():
        found.append(
            pytest.param("h200", "quick", variant, "off", ms / 1e3, marks=pytest.mark.slow)
        )
    return found


@pytest.mark.parametrize(("gpus", "shape", "variant", "compiled", "took"), measured())
def test_a_step_took_what_was_foretold_within_the_factors_that_a_plan_states(
    gpus: str, shape: str, variant: str, compiled: str, took: float
):
    share = took / foretold(gpus, shape, variant, compiled)
    assert LEAST <= share <= MOST


@pytest.mark.slow
def test_a_large_model_that_is_not_compiled_took_what_was_foretold():
    took = 16 * 2048 / 176_000  # docs/results/2026-11-28-h100.md: tokens per second
    share = took / foretold("h100", "large", "standard", "off", "train.batch_size=16")
    assert LEAST <= share <= MOST


@pytest.mark.parametrize("n_layers", [2, 6, 12])
def test_what_decides_for_cuda_graphs_counts_the_operations_of_a_step_to_a_tenth(n_layers: int):
    recipe, tokens = load("quick", [f"model.n_layers={n_layers}"]), Sized(256)
    arms = grid.resolve(["standard"], recipe, tokens.vocab_size)
    with device.assuming(read("h100")):
        plan = grid.make(recipe, arms, (0,), tokens.fingerprint, "auto", None)
        memory_ = memory.fitted(plan, tokens, None).arms[0].memory
    assert memory_ is not None
    beside, of_each = assumed._OF_TRUNK
    assert beside + of_each * n_layers == pytest.approx(memory_.n_operations, rel=0.1)


def test_a_step_with_kernels_of_a_design_is_foretold_too():
    without_s = 0.060  # docs/results/2026-11-27-h200.md, before it had them
    assert 0 < foretold("h200", "quick", "mhc", "off") < 0.75 * without_s


def test_gpus_are_read_with_their_number():
    assert read("h100") == Gpus(1, "NVIDIA H100 80GB HBM3", 80 * 10**9)
    assert read("8xH200").text == "8 x NVIDIA H200"
    for wrong, words in (
        ("h10", "unknown GPU 'h10': did you mean 'h100'"),
        ("0xh100", "unknown GPU '0xh100'"),
        ("2000xh100", "up to 1024 GPUs, as 8xh100"),
    ):
        with pytest.raises(UsageError, match=words):
            read(wrong)


def test_a_dry_run_says_hours_of_all_gpus_and_what_is_assumed(here: Path, attnres):
    typed = ("ablate", "standard", "--recipe", "smoke", "--seeds", "4", "--dry-run")
    one = attnres.json(*typed, "--assume", "h100")
    two = attnres.json(*typed, "--assume", "2xh100")

    assert (one["workers"], two["workers"]) == (1, 2)
    assert two["assumed"] == "2 x NVIDIA H100 80GB HBM3"
    assert two["settings"]["device_name"] == "NVIDIA H100 80GB HBM3"
    assert two["seconds"] < one["seconds"]
    assert two["gpu_hours"] == pytest.approx(2 * two["seconds"] / 3600)
    told = attnres.prints(*typed, "--assume", "4090")
    assert "predicted for NVIDIA GeForce RTX 4090, by arithmetic: " in " ".join(told.split())
    assert not list(here.iterdir())


def test_what_cannot_fit_an_assumed_gpu_is_refused_and_so_is_training_on_it(here: Path, attnres):
    typed = ("ablate", "standard", "--recipe", "smoke")
    assert "--assume h100 is for --dry-run: type it too" in attnres.refuses(
        *typed, "--assume", "h100"
    )
    both = (*typed, "--assume", "h100", "--dry-run", "--device", "cpu")
    assert "--assume says on what: leave --device out" in attnres.refuses(*both)
    wide = ("--set", "model.d_model=8192", "--set", "model.n_layers=8")
    said = attnres.refuses(*typed, *wide, "--dry-run", "--assume", "4090")
    assert "an assumed NVIDIA GeForce RTX 4090 has 24.0 GB: not one sequence" in said


@pytest.mark.parametrize(
    ("recipe", "gpu", "millions"),
    [
        ("gpu-30m", "4090", 30),
        pytest.param("gpt2-124m", "4090", 124, marks=pytest.mark.slow),
        pytest.param("gpt2-350m", "h100", 354, marks=pytest.mark.slow),
    ],
)
def test_recipes_for_gpus_are_planned_without_their_data_and_fit_where_they_say(
    recipe: str, gpu: str, millions: int, here: Path, attnres
):
    typed = ("ablate", "standard", "--recipe", recipe, "--seeds", "1", "--assume", gpu)
    found = attnres.json(*typed, "--dry-run")
    (arm,), tokens = found["arms"], load(recipe).train.tokens
    assert round(arm["n_params"] / 1e6) == millions
    assert 18 < tokens / arm["n_params"] < 22
    assert found["data"] is None
    assert found["gpu_hours"] > 0


def test_the_ladder_has_the_sizes_of_the_three_recipes():
    text = load("gpt2-350m").data
    for name, size in zip(("gpu-30m", "gpt2-124m", "gpt2-350m"), rungs(load("gpt2")), strict=True):
        alone = load(name)
        train = alone.train.model_copy(update={"micro_batch_size": size.train.micro_batch_size})
        alike = alone.model_copy(update={"data": text, "train": train})
        assert alike.digest == size.digest


@pytest.mark.slow
def test_nanochat_trains_12_tokens_for_each_parameter_of_layers_and_head(here: Path, attnres):
    typed = ("ablate", "--recipe", "nanochat-d12", "--seeds", "1", "--assume", "h100")
    found = attnres.json(*typed, "--dry-run")
    assert [arm["variant"] for arm in found["arms"]] == ["standard", "backout+x0", "attnres"]
    recipe, n_params = load("nanochat-d12"), found["arms"][0]["n_params"]
    assert recipe.train.tokens / (n_params - 50257 * 768) == pytest.approx(12, rel=0.01)
