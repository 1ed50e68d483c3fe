"""The measurements of benchmarks, on calls with a known answer."""

from __future__ import annotations

import math

import pytest
import torch
from designs import build

from attnres_cli.nn import measure
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

CPU = torch.device("cpu")
MIB = 2**20


def model_of(spec: str, shape: Shape) -> Transformer:
    model = build(spec, shape)
    measure.stir(model.residual)
    return model


@pytest.fixture
def windows(tiny_shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    size = (3, tiny_shape.seq_len + 1)
    return torch.randint(tiny_shape.vocab_size, size, generator=generator)


def test_a_processor_has_a_name_with_its_vectors_and_a_copy_speed():
    assert measure.cpu_name().endswith(f" ({torch.backends.cpu.get_cpu_capability()})")
    assert measure.copy_speed(CPU) > 0


def test_calls_take_turns_and_every_other_round_goes_backwards():
    made: list[str] = []
    calls = {name: lambda name=name: made.append(name) for name in "abc"}

    times = measure.in_turn(calls, 3, CPU)

    assert "".join(made) == "abccbaabc"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_peak_memory_counts_released_tensors_and_held_memory_does_not():
    hidden: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        large = torch.ones(8 * MIB // 4)
        small = large[: MIB // 4].clone()
        del large
        return small

    assert measure.peak_bytes(call, CPU) == pytest.approx(9 * MIB, rel=0.01)
    assert measure.allocations(call)[-1] == pytest.approx(MIB, rel=0.01)
    # tensors that only a Python object holds count too
    assert measure.allocations(lambda: hidden.append(torch.ones(MIB // 4)))[-1] >= MIB


@pytest.mark.parametrize(
    ("spec", "precision"),
    [("standard", "fp32"), ("attnres", "bf16"), ("attnres:block_size=4", "fp32")],
)
def test_the_eager_engine_agrees_with_the_reference_and_a_sequence_at_a_time_with_all_at_once(
    spec: str, precision: str, tiny_shape: Shape, windows: torch.Tensor
):
    model = model_of(spec, tiny_shape)

    found, elapsed = measure.check(model, model, windows, "eager", precision)
    whole, parts = (
        measure.loss_and_gradients(model, model, windows, "eager", "fp32", rows=rows)
        for rows in (len(windows), 1)
    )

    assert found.complaint(precision) is None
    assert elapsed > 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert max(measure.disagreement(parts, whole)[:2]) < 1e-5


def test_a_stirred_design_has_left_its_initial_values(tiny_shape: Shape):
    assert model_of("attnres", tiny_shape).residual.query.abs().min() > 0
    scalar = model_of("mhc:readout=sigmoid", tiny_shape).residual.head[0]
    assert scalar.item() != pytest.approx(0.01)


A, B = {"a": torch.ones(4)}, {"b": torch.zeros(3)}


@pytest.mark.parametrize(
    ("loss", "gradients", "words"),
    [
        (2.0, A | B, None),
        (2.1, A | B, "its loss is off"),
        (math.nan, A | B, "its loss is off"),
        (2.0, {"a": torch.ones(4) * 1.1} | B, "gradient of a"),
        (2.0, B, "gradient of a"),
        (2.0, A | B | {"c": torch.ones(1)}, "gradient of c"),
        (2.0, {"a": torch.full((4,), math.nan)} | B, "gradient of a"),
    ],
)
def test_a_wrong_loss_or_gradient_is_named(
    loss: float, gradients: dict[str, torch.Tensor], words: str | None
):
    complaint = measure.disagreement((loss, gradients), (2.0, A | B)).complaint("fp32")

    assert complaint is None if words is None else words in (complaint or "")
