"""The memory of a training step is predicted within 2% of what PyTorch's allocator counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studies import SETTINGS

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.lab import step_memory
from attnres_cli.lab.step_memory import of_step
from attnres_cli.nn import loss, measure
from attnres_cli.nn.memory import counting
from attnres_cli.nn.residual import registry
from attnres_cli.records.plan import Memory
from attnres_cli.records.run import RunSpec
from attnres_cli.train.trainer import Trainer

CPU = torch.device("cpu")
QUICK = ("standard", "attnres", "hc", "unet")


def slow(*designs: str) -> list[object]:
    return [pytest.param(design, marks=pytest.mark.slow) for design in designs]


PAPER = ["model.attention=[kda,kda,mla]", "model.positions=none", "model.mlp=moe"]
MANY_TOKENS = ["train.tokens=100M", "train.eval_tokens=8192", "train.batch_size=512"]
MANY_TOKENS += ["model.seq_len=128", "model.attention=[kda,mla]", "model.n_layers=2"]
KINDS = {
    "wide": ["model.d_model=256", "model.n_heads=2", "train.batch_size=2"],
    "long": ["model.seq_len=1024", "train.batch_size=2", "model.mlp=gelu"],
    "checkpointing": ["train.checkpoint_activations=true"],
    "micro-batches": ["train.micro_batch_size=2"],
    "muon": ["optim.optimizer=muon", "train.batch_size=2"],
    "bf16": [],
    "experts": ["model.mlp=moe"],
    "the paper's": PAPER,
    "grouped heads, tied": ["model.n_kv_heads=1", "model.tie_embeddings=true"],
}
SEVERAL = ("standard", "attnres:block_size=2,heads=2", "mhc")
# each kind once, each design three times; all pairs nightly
DESIGN_AND_KIND = [
    pytest.param(design, kind, marks=[] if (i - j) % 3 == 0 else pytest.mark.nightly)
    for i, kind in enumerate(KINDS)
    for j, design in enumerate(SEVERAL)
]


def spec_of(variant: str, *changes: str) -> RunSpec:
    base = ["model.n_layers=3", "model.seq_len=64", "train.batch_size=8"]
    return RunSpec(load("smoke", [*base, *changes]), variant, 0, "0")


def predicted(spec: RunSpec, precision: str = "fp32") -> Memory:
    return of_step(spec, sources.load(spec.recipe), replace(SETTINGS, precision=precision))


def measured(spec: RunSpec, precision: str = "fp32") -> int:
    """Bytes at the peak of the third step."""
    given = replace(SETTINGS, precision=precision)
    return measured_of(Trainer(spec, sources.load(spec.recipe), given, CPU))


def measured_of(trainer: Trainer) -> int:
    for step in range(2):
        trainer.step(step)
    states = [value for each in trainer.optimizers for value in each.state.values()]
    tensors = [x for state in states for x in state.values() if torch.is_tensor(x)]
    held = sum(x.nbytes for x in (*trainer.model.parameters(), *tensors))
    return held + measure.peak_bytes(lambda: trainer.step(2), CPU)


def test_on_a_gpu_the_workspaces_of_matrix_products_count():
    spec = spec_of("standard")
    on_gpu = of_step(spec, sources.load(spec.recipe), replace(SETTINGS, device="cuda"))
    assert on_gpu.peak - 2 * 32 * 2**20 == pytest.approx(predicted(spec).peak, rel=0.02)


@pytest.mark.parametrize("design", [*QUICK, *slow(*sorted(registry().keys() - set(QUICK)))])
def test_the_peak_of_every_design_is_predicted(design: str):
    spec = spec_of(design)
    found = predicted(spec)
    assert found.peak == pytest.approx(measured(spec), rel=0.02)
    assert found.weights + found.optimiser < found.peak


@pytest.mark.parametrize(("design", "kind"), DESIGN_AND_KIND)
def test_the_peak_of_every_kind_of_training_is_predicted(design: str, kind: str):
    spec, precision = spec_of(design, *KINDS[kind]), "bf16" if kind == "bf16" else "fp32"
    assert predicted(spec, precision).peak == pytest.approx(measured(spec, precision), rel=0.02)


def test_a_mask_of_documents_counts_as_long_as_the_sequences_are():
    spec = spec_of("attnres", "model.seq_len=512", "train.batch_size=2", "model.d_model=32")
    tokens = sources.load(spec.recipe)
    joined = of_step(spec, tokens, SETTINGS)
    isolated = of_step(spec, tokens.isolated(10), SETTINGS)
    assert isolated.peak - joined.peak == pytest.approx(2 * 4 * 512**2, rel=0.5)
    trainer = Trainer(spec, tokens.isolated(10), SETTINGS, CPU)
    assert isolated.peak == pytest.approx(measured_of(trainer), rel=0.02)


def test_logits_computed_in_parts_hold_less(monkeypatch: pytest.MonkeyPatch):
    large = ("train.eval_tokens=64", "data.source=permutations", "data.degree=6")
    spec, peaks = spec_of("attnres", *large), []
    for most in (2**29, 2**18):
        monkeypatch.setattr(loss, "MOST_ON_CPU", most)
        peaks.append(predicted(spec).peak)
        assert peaks[-1] == pytest.approx(measured(spec), rel=0.02)
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("design", ["attnres:heads=4", *slow("attnres:block_size=3", "unet")])
def test_a_deep_model_is_extrapolated_from_shallower_ones(design: str, monkeypatch):
    spec = spec_of(design, "model.n_layers=18", "model.seq_len=32", "train.batch_size=2")
    whole = predicted(spec)
    monkeypatch.setattr(step_memory, "_MOST_LAYERS", 9)
    monkeypatch.setattr(step_memory, "_PARTS", (3, 6, 9))
    found = predicted(spec)
    assert found.peak == pytest.approx(whole.peak, rel=0.03)
    assert found.weights == pytest.approx(whole.weights, rel=1e-3)


@pytest.mark.parametrize("design", ["attnres", *slow("hc")])
def test_a_step_counts_the_same_with_numbers_and_without(design: str, monkeypatch):
    made = predicted(spec_of(design))
    monkeypatch.setattr(step_memory, "_IN_A_MOMENT", 0)
    followed = predicted(spec_of(design))
    assert replace(made, n_operations=0) == replace(followed, n_operations=0)


def test_a_design_that_cannot_run_without_numbers_has_no_prediction(monkeypatch):
    monkeypatch.setattr(step_memory, "_counted", lambda *_: torch.ones(1).sum().item() / 0)
    assert predicted(spec_of("standard")) is None


def test_counting_leaves_generators_and_modes_unchanged():
    before = torch.random.get_rng_state()
    predicted(spec_of("standard"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.ones(2).sum().item() == 2
    with counting() as held:
        pass
    assert held.now == 0


@pytest.mark.parametrize("design", ["standard", *slow("attnres:block_size=2,heads=2")])
def test_many_long_sequences_are_extrapolated_from_fewer_shorter_ones(design: str, monkeypatch):
    monkeypatch.setattr(step_memory, "_LONGEST", 128)
    spec = spec_of(design, *PAPER, *MANY_TOKENS, "model.seq_len=256")
    found = predicted(spec)
    monkeypatch.setattr(step_memory, "_LONGEST", 256)
    monkeypatch.setattr(step_memory, "_ROWS", (2**31 - 1,))
    whole = predicted(spec)
    assert found.peak == pytest.approx(whole.peak, rel=5e-3)
    assert (found.weights, found.optimiser) == (whole.weights, whole.optimiser)
    assert found.n_operations < whole.n_operations


def test_predicting_takes_the_same_work_for_any_number_of_tokens():
    few = predicted(spec_of("standard", *PAPER, *MANY_TOKENS))
    more = ["train.batch_size=4096", "model.seq_len=2048"]
    many = predicted(spec_of("standard", *PAPER, *MANY_TOKENS, *more))
    assert many.n_operations == few.n_operations < 3000
    assert many.peak == pytest.approx(128 * few.peak, rel=0.01)
