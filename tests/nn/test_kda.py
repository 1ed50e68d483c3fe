"""Kimi Delta Attention: chunks equal the recurrence, whatever the decay, and the public code; its
memory has a fixed size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attnres_variants.standard import Standard
from designs import build
from oracles import public
from sampling import in_pairs
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk import delta_rule
from attnres_cli.nn.trunk.delta_rule import CHUNK, DeltaRule, recurrence
from attnres_cli.nn.trunk.kda import KDA

B, H, K, V = 2, 3, 8, 6
TIMES = [1, CHUNK, 2 * CHUNK + 1, 77]
DECAYS = {"weak": 0.01, "usual": 1.0, "strong": 30.0, "none is left": 1e4}
SHAPE = Shape(2, 24, 3, 3, 8, 40, 11, 3 * CHUNK, attention=("kda", "softmax"))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def drawn(time: int, decay: float, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, g, beta and the first state, with decays of all orders of magnitude in a token."""
    generator = torch.Generator().manual_seed(time)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    q, k = (F.normalize(normal(B, time, H, K), dim=-1) for _ in range(2))
    g = -decay * normal(B, time, H, K).abs() ** 3
    beta = normal(B, time, H).sigmoid()
    found = [q, k, normal(B, time, H, V), g, beta, normal(B, H, K, V)]
    return [x.to(dtype).requires_grad_() for x in found]


def outcomes(rule: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor]) -> list[Tensor]:
    """o, the last state, and gradients of a weighted sum of both."""
    o, state = rule(*inputs)
    weights = torch.linspace(-1, 1, o.numel(), dtype=torch.float64).to(o.dtype).view_as(o)
    loss = (o * weights).sum() + state.square().sum()
    return [o.detach(), state.detach(), *torch.autograd.grad(loss, inputs)]


def assert_near(found: list[Tensor], expected: list[Tensor], rtol: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        bound = rtol * other.abs().max().item() + 1e-300
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=bound)


@in_pairs({"time": TIMES, "decay": list(DECAYS)})
def test_chunks_and_their_gradients_are_those_of_the_recurrence(time: int, decay: str):
    exact = outcomes(recurrence, drawn(time, DECAYS[decay]))

    assert_near(outcomes(DeltaRule(), drawn(time, DECAYS[decay])), exact, 1e-13)
    assert_near(outcomes(DeltaRule(), drawn(time, DECAYS[decay], torch.float32)), exact, 1e-5)


def test_no_state_is_a_state_of_zeros():
    *inputs, state = drawn(CHUNK + 3, 1.0)

    found = zip(DeltaRule()(*inputs, None), DeltaRule()(*inputs, 0 * state), strict=True)

    assert all(torch.equal(one, other) for one, other in found)


def test_equal_keys_that_nothing_decays_lose_no_digits():
    """Powers of A would be binomial coefficients; its inverse is never beyond 1."""
    q, k, v, g, beta, state = drawn(4 * CHUNK, 1.0, torch.float32)
    k, g, beta = k[:, :1].expand_as(k), torch.zeros_like(g), torch.ones_like(beta)
    inputs = [q, k, v, g, beta, state]

    o, _ = DeltaRule()(*inputs)
    exact, _ = recurrence(*(x.double() for x in inputs))

    assert_near([o], [exact], 1e-6)


def test_second_derivatives_are_those_of_the_values():
    inputs = [x[:1].detach()[..., :2].requires_grad_() for x in drawn(3, 1.0)[:4]]
    beta = drawn(3, 1.0)[4][:1].detach().requires_grad_()

    assert gradgradcheck(lambda *x: DeltaRule().double()(*x, None)[0], (*inputs, beta))


@pytest.mark.oracle
@pytest.mark.parametrize("form", ["naive_recurrent_kda", "naive_chunk_kda"])
def test_values_and_gradients_are_those_of_the_public_forms(form: str):
    module = public("fla.ops.kda.naive")

    def theirs(*inputs: Tensor) -> Any:
        *arguments, state = inputs
        return getattr(module, form)(
            *arguments, scale=1.0, initial_state=state, output_final_state=True
        )

    inputs = drawn(2 * 64, 0.1, torch.float32)
    assert_near(outcomes(DeltaRule(), inputs), outcomes(theirs, inputs), 5e-6)


def test_the_memory_has_a_fixed_size_and_is_equal_after_any_pieces():
    module = KDA(SHAPE).double()
    h = torch.randn(2, 3 * CHUNK, 24, dtype=torch.float64)
    whole, memory = module.cache(0), module.cache(0)
    y = module(h, whole)

    pieces = [module(part, memory) for part in h.split([1, 2, 20, 1, 1, 23], dim=1)]

    torch.testing.assert_close(torch.cat(pieces, dim=1), y, rtol=0, atol=1e-13)
    torch.testing.assert_close(memory.state, whole.state, rtol=0, atol=1e-13)
    torch.testing.assert_close(memory.inputs, whole.inputs, rtol=0, atol=1e-13)
    assert [*memory.state.shape] == [2, 3, 8, 8]
    assert [*memory.inputs.shape] == [2, 3, 3 * 24]
    assert memory.inputs.untyped_storage().nbytes() == memory.inputs.nbytes


def test_initial_decays_are_those_of_the_public_code():
    model = build("standard", dataclasses.replace(SHAPE, n_heads=64, n_kv_heads=64, d_head=4))
    part = model.sublayers[0].kind
    a, dt = part.A_log.exp(), F.softplus(part.dt_bias)

    assert ((a >= 1) & (a <= 16)).all()
    assert a.mean().item() == pytest.approx(8.5, abs=1.5)
    assert ((dt > 0.99e-3) & (dt < 0.101)).all()
    assert dt.log10().mean().item() == pytest.approx(-2, abs=0.15)


def gradients(model: torch.nn.Module, h: Tensor) -> Iterator[Tensor]:
    h = h.clone().requires_grad_()
    return iter(torch.autograd.grad(model(h).square().mean(), [h, *model.parameters()]))


def test_in_bfloat16_decay_and_state_stay_in_float32():
    module = KDA(SHAPE)
    memory = module.cache(0)
    h = torch.randn(2, 2 * CHUNK + 3, 24)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(h, memory)
        found = list(gradients(module, h))

    assert memory.state.dtype is torch.float32
    torch.testing.assert_close(y.float(), module(h), rtol=0.05, atol=0.05)
    for one, other in zip(found, gradients(module, h), strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * other.abs().max().item())


def test_the_formulas_of_parameters_and_flops_give_the_counts_of_torch(
    monkeypatch: pytest.MonkeyPatch,
):
    with torch.device("meta"):
        assert KDA(SHAPE)(torch.empty(2, 33, 24)).shape == (2, 33, 24)
        monkeypatch.setattr(delta_rule, "chunked", lambda *x: recurrence(*x[:6]))
        model = Transformer(SHAPE, Standard(SHAPE.d_model, SHAPE.n_sublayers))
        tokens = torch.zeros(2, SHAPE.seq_len, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model(tokens)

    assert SHAPE.n_params() == sum(p.numel() for p in model.parameters())
    assert counter.get_total_flops() == tokens.numel() * SHAPE.flops_per_token()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # by torch, after a break
@pytest.mark.slow
@pytest.mark.parametrize("time", [2 * CHUNK + 3, 16 * CHUNK])
def test_a_compiler_takes_it_whole_unless_the_sequence_is_long(time: int):
    module = KDA(SHAPE)
    h = torch.randn(2, time, 24)
    whole = time < 16 * CHUNK
    compiled = torch.compile(module, backend="aot_eager", fullgraph=whole, dynamic=False)

    for one, other in zip(gradients(compiled, h), gradients(module, h), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * other.abs().max().item())
