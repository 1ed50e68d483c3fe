"""What benchmarks measure with, on things whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from attnres_cli.nn import measure, variant
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.shape import Shape

CPU = torch.device("cpu")
MIB = 2**20


def model_of(spec: str, shape: Shape) -> Transformer:
    model = Transformer(shape, variant.parse(spec).build(shape.d_model, shape.n_sublayers))
    init_weights(model, seed=0)
    measure.stir(model.residual)
    return model


def windows_of(shape: Shape, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocab_size, (rows, shape.seq_len + 1), generator=generator)


def test_a_processor_is_named_with_the_vectors_that_its_sums_round_by():
    assert measure.cpu_name().endswith(f" ({torch.backends.cpu.get_cpu_capability()})")


def test_calls_take_turns_and_every_other_round_goes_backwards():
    made: list[str] = []
    calls = {name: lambda name=name: made.append(name) for name in "abc"}

    times = measure.in_turn(calls, 3, CPU)

    assert "".join(made) == "abccbaabc"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_peak_counts_what_is_released_again_and_what_is_held_does_not():
    def call() -> torch.Tensor:
        large = torch.ones(8 * MIB // 4)
        small = large[: MIB // 4].clone()
        del large
        return small

    assert measure.peak_bytes(call, CPU) == pytest.approx(9 * MIB, rel=0.01)
    assert measure.allocations(call)[-1] == pytest.approx(MIB, rel=0.01)


def test_held_sees_what_only_a_python_object_holds():
    hidden: list[torch.Tensor] = []

    assert measure.allocations(lambda: hidden.append(torch.ones(MIB // 4)))[-1] >= MIB


def test_copy_speed_is_a_speed():
    assert measure.copy_speed(CPU) > 0


@pytest.mark.parametrize(
    ("spec", "precision"),
    [("standard", "fp32"), ("attnres", "bf16"), ("attnres:block_size=4", "fp32")],
)
def test_the_eager_engine_agrees_with_the_reference(spec: str, precision: str, tiny_shape: Shape):
    model = model_of(spec, tiny_shape)

    found, elapsed = measure.check(model, model, windows_of(tiny_shape), "eager", precision)

    assert found.complaint(precision) is None
    assert elapsed > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sequence_by_sequence_is_the_same_as_all_at_once(tiny_shape: Shape):
    model, windows = model_of("attnres", tiny_shape), windows_of(tiny_shape)

    parts = measure.loss_and_gradients(model, model, windows, "eager", "fp32", rows=1)
    whole = measure.loss_and_gradients(model, model, windows, "eager", "fp32")

    assert max(measure.disagreement(parts, whole)[:2]) < 1e-5


def test_a_stirred_design_is_off_its_start(tiny_shape: Shape):
    query = model_of("attnres", tiny_shape).residual.query

    assert isinstance(query, torch.Tensor)
    assert query.abs().min() > 0


def test_a_parameter_that_is_one_number_is_stirred_too(tiny_shape: Shape):
    residual = model_of("mhc:readout=sigmoid", tiny_shape).residual

    assert residual.head[0].item() != pytest.approx(0.01)


RIGHT = (2.0, {"a": torch.ones(4), "b": torch.zeros(3)})
FOUND = {
    "right": (RIGHT, None),
    "loss": ((2.1, RIGHT[1]), "its loss is off"),
    "loss that is no number": ((math.nan, RIGHT[1]), "its loss is off"),
    "gradient": ((2.0, {"a": torch.ones(4) * 1.1, "b": torch.zeros(3)}), "gradient of a"),
    "gradient that is missing": ((2.0, {"b": torch.zeros(3)}), "gradient of a"),
    "gradient where none should be": (
        (2.0, RIGHT[1] | {"c": torch.ones(1)}),
        "gradient of c",
    ),
    "gradient that is no number": (
        (2.0, {"a": torch.full((4,), math.nan), "b": torch.zeros(3)}),
        "gradient of a",
    ),
}


@pytest.mark.parametrize(("found", "words"), FOUND.values(), ids=FOUND)
def test_what_is_off_is_named(found: tuple[float, dict[str, torch.Tensor]], words: str | None):
    complaint = measure.disagreement(found, RIGHT).complaint("fp32")

    assert complaint is None if words is None else words in (complaint or "")
