"""What a run holds is told within 2 % before it is run: beside the allocator's own account."""

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
DESIGNS = sorted(registry())
TOO_MANY = [
    "train.tokens=100M",
    "train.eval_tokens=8192",
    "train.batch_size=512",
    "model.seq_len=512",
]
PAPER = ["model.attention=[kda,kda,mla]", "model.positions=none", "model.mlp=moe"]
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


def spec_of(variant: str, *changes: str) -> RunSpec:
    base = ["model.n_layers=3", "model.seq_len=64", "train.batch_size=8"]
    return RunSpec(load("smoke", [*base, *changes]), variant, 0, "0")


def both(spec: RunSpec, precision: str = "fp32") -> tuple[Memory, int]:
    """Counted, and measured in the third step."""
    settings = SETTINGS.__class__(**{**vars(SETTINGS), "precision": precision})
    tokens = sources.load(spec.recipe)
    found = of_step(spec, tokens, settings)
    trainer = Trainer(spec, tokens, settings, CPU)
    for step in range(2):
        trainer.step(step)
    states = [value for each in trainer.optimizers for value in each.state.values()]
    tensors = [x for state in states for x in state.values() if torch.is_tensor(x)]
    held = sum(x.nbytes for x in (*trainer.model.parameters(), *tensors))
    assert found is not None
    return found, held + measure.peak_bytes(lambda: trainer.step(2), CPU)


@pytest.mark.parametrize("design", DESIGNS)
def test_of_every_design_the_peak_is_known_before(design: str):
    found, measured = both(spec_of(design))

    assert found.peak == pytest.approx(measured, rel=0.02)
    assert found.weights + found.optimiser < found.peak


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("design", ["standard", "attnres:block_size=2,heads=2", "mhc"])
def test_of_every_kind_of_training_too(design: str, kind: str):
    found, measured = both(spec_of(design, *KINDS[kind]), "bf16" if kind == "bf16" else "fp32")

    assert found.peak == pytest.approx(measured, rel=0.02)


def test_a_large_vocabulary_whose_logits_come_in_parts(monkeypatch: pytest.MonkeyPatch):
    changes = ["train.eval_tokens=64", "data.source=permutations", "data.degree=6"]
    monkeypatch.setattr(loss, "MOST_ON_CPU", 2**29)
    whole, measured = both(spec_of("attnres", *changes))
    monkeypatch.setattr(loss, "MOST_ON_CPU", 2**18)
    parts, measured_in_parts = both(spec_of("attnres", *changes))

    assert whole.peak == pytest.approx(measured, rel=0.02)
    assert parts.peak == pytest.approx(measured_in_parts, rel=0.02)
    assert parts.peak < whole.peak


@pytest.mark.parametrize("design", ["standard", "attnres:heads=4", "attnres:block_size=3", "unet"])
def test_deep_models_follow_from_shallower_ones(design: str, monkeypatch: pytest.MonkeyPatch):
    spec = spec_of(design, "model.n_layers=18", "model.seq_len=32", "train.batch_size=2")
    tokens = sources.load(spec.recipe)
    whole = of_step(spec, tokens, SETTINGS)
    monkeypatch.setattr(step_memory, "_MOST_LAYERS", 9)
    monkeypatch.setattr(step_memory, "_PARTS", (3, 6, 9))
    found = of_step(spec, tokens, SETTINGS)

    assert whole is not None
    assert found is not None
    assert found.peak == pytest.approx(whole.peak, rel=0.03)
    assert found.weights == pytest.approx(whole.weights, rel=1e-3)


@pytest.mark.parametrize("design", ["standard", "attnres", "hc"])
def test_a_short_step_that_is_made_and_one_without_numbers_hold_the_same(
    design: str, monkeypatch: pytest.MonkeyPatch
):
    spec = spec_of(design)
    tokens = sources.load(spec.recipe)
    made = of_step(spec, tokens, SETTINGS)
    monkeypatch.setattr(step_memory, "_IN_A_MOMENT", 0)
    followed = of_step(spec, tokens, SETTINGS)

    assert made is not None
    assert followed is not None
    assert replace(made, n_operations=0) == replace(followed, n_operations=0)


def test_what_does_not_run_without_numbers_is_not_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_memory, "_counted", lambda *_: torch.ones(1).sum().item() / 0)

    assert of_step(spec_of("standard"), sources.load(spec_of("standard").recipe), SETTINGS) is None


def test_counting_leaves_generators_and_modes_as_they_were():
    before, spec = torch.random.get_rng_state(), spec_of("standard")
    of_step(spec, sources.load(spec.recipe), SETTINGS)

    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.ones(2).sum().item() == 2
    with counting() as held:
        pass
    assert held.now == 0


@pytest.mark.parametrize("design", ["standard", "attnres:block_size=2,heads=2"])
def test_long_sequences_and_many_follow_from_shorter_and_fewer(
    design: str, monkeypatch: pytest.MonkeyPatch
):
    spec = spec_of(design, *PAPER, *TOO_MANY)
    tokens = sources.load(spec.recipe)
    found = of_step(spec, tokens, SETTINGS)
    monkeypatch.setattr(step_memory, "_LONGEST", 512)
    monkeypatch.setattr(step_memory, "_ROWS", (2**31 - 1,))
    whole = of_step(spec, tokens, SETTINGS)

    assert whole is not None
    assert found is not None
    assert found.peak == pytest.approx(whole.peak, rel=5e-3)
    assert (found.weights, found.optimiser) == (whole.weights, whole.optimiser)
    assert found.n_operations < whole.n_operations


def test_the_work_does_not_grow_with_tokens():
    found = []
    for changes in ([], ["train.batch_size=4096", "model.seq_len=8192"]):
        spec = spec_of("standard", *PAPER, *TOO_MANY, *changes)
        found.append(of_step(spec, sources.load(spec.recipe), SETTINGS))
    few, many = found

    assert few is not None
    assert many is not None
    assert many.n_operations == few.n_operations < 3000
    assert many.peak == pytest.approx(128 * few.peak, rel=0.01)
