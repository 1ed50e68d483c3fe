"""Each proof finds what it is there to find: a design that breaks the contract in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnres_cli.nn import residual
from attnres_cli.nn.design_page import Finding
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.prove import ALL, QUICK, admit, prove
from attnres_cli.nn.proofs.subject import SHAPE, Proof, Subject, told_apart
from attnres_cli.nn.residual import Residual, VariantError, register
from attnres_cli.nn.variant import parse


class Plain(Residual):
    equals_standard_at_init = True

    def write(self, state, l, y):
        return state + y


class TooNarrow(Plain):
    def read(self, state, l):
        return state[..., :8], state


class NoPair(Plain):
    def read(self, state, l):
        return state


class GivesNothing(Plain):
    def write(self, state, l, y):
        state + y


class MixesChannels(Plain):
    """D x D."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.w = nn.Parameter(torch.eye(d_model))

    def write(self, state, l, y):
        return state + y @ self.w.to(y.dtype)


class LooksAhead(Plain):
    def read(self, state, l):
        return state + 0.1 * state.roll(-1, dims=1), state


class LooksAside(LooksAhead):
    equals_standard_at_init = False


class MixesSequences(Plain):
    def write(self, state, l, y):
        return state + y + 0.1 * y.mean(dim=0, keepdim=True)


class GivesNan(Plain):
    def write(self, state, l, y):
        return state + y * float("nan")


class Forgets(Plain):
    def finish(self, state):
        return torch.ones_like(state)


class Dices(Plain):
    def write(self, state, l, y):
        return state + y * (1 + 0.1 * torch.rand(1, dtype=y.dtype))


class InPlace(Plain):
    def start(self, x):
        return x.clone()

    def write(self, state, l, y):
        return state.add_(y)


class WithScale(Plain):
    """One scalar per sublayer."""

    start_value = 1.0

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.scale = nn.Parameter(torch.full((n_sublayers,), self.start_value))

    def write(self, state, l, y):
        return state + self.scale[l - 1] * y


class Unused(WithScale):
    def write(self, state, l, y):
        return state + self.scale[0] * y


class CallsDeadWhatLearns(WithScale):
    def dead_params(self) -> Mapping[str, Sequence[int]]:
        return {"scale": (2,)}


class GrowsLate(Plain):
    def start(self, x):
        self.scale = nn.Parameter(torch.ones(1))
        return x


class SaysNoCost(MixesChannels):
    def extra_flops_per_token(self) -> int:
        return 0


class Overstates(MixesChannels):
    def extra_flops_per_token(self) -> int:
        return 6 * 4 * self.d_model**2


class OtherwiseStarted(WithScale):
    start_value = 0.5


class StandardUnclaimed(Plain):
    equals_standard_at_init = False


class Overflows(WithScale):
    def finish(self, state):
        return state * torch.exp(self.scale.abs().sum())


class HalvedInAutocast(Plain):
    def write(self, state, l, y):
        return state + (y / 2 if y.dtype == torch.bfloat16 else y)


class Squares(WithScale):
    def write(self, state, l, y):
        return state + y * y


class SaysNothing(Plain):
    def depth_mixing(self, values: Sequence[Tensor]) -> None:
        return None


class Counts(Plain):
    """Another function at each call."""

    calls = 0

    def read(self, state, l):
        return state, state

    def write(self, state, l, y):
        Counts.calls += 1
        return state + y * (1 + 1e-3 * (Counts.calls % 7))


class CutTooSmall(Plain):
    def start(self, x):
        return x, x

    def read(self, state, l):
        return state[0] + state[1], state

    def write(self, state, l, y):
        return state[0] + y, state[1]

    def finish(self, state):
        return state[0]

    def carry(self, state, l):
        return state[:1]

    def resume(self, tensors, l):
        return tensors[0], 0 * tensors[0]


class NeedsFourTokens(Plain):
    def read(self, state, l):
        return state * (1.0 if state.shape[1] >= 3 else 3.0 * l), state

    def write(self, state, l, y):
        return state + y * (1.0 if y.shape[1] >= 3 else -3.0 * l)


class Asks(Plain):
    def write(self, state, l, y):
        return state + (y if y.sum().item() > -1e9 else -y)


class Raises(Plain):
    def read(self, state, l):
        if l == 3:
            raise RuntimeError("no such sublayer")
        return state, state


class Undocumented(Plain):
    """broken: h_l = x."""

    def __init__(self, d_model: int, n_sublayers: int, *, strength: float = 1.0) -> None:
        super().__init__(d_model, n_sublayers)


BROKEN: list[tuple[type[Residual], Proof, str]] = [
    (TooNarrow, design.keeps_shape, "sublayer 1 gives shape (2, 4, 8), expected (2, 4, 16)"),
    (NoPair, design.keeps_shape, "the pair (h, state), sublayer 1 got a Tensor"),
    (LooksAhead, design.is_token_wise, "site 1 sees another token 1 of sequence 1"),
    (LooksAhead, model.is_causal, "logits before the changed token at [0, 0, 0]"),
    (MixesSequences, design.is_token_wise, "site 2 sees another token 2 of sequence 0"),
    (GivesNan, design.is_token_wise, "site 2 sees a number that is not finite"),
    (Forgets, model.is_causal, "do not depend on the tokens"),
    (Dices, model.repeats, "logits of a second run at"),
    (InPlace, design.keeps_states, "a second read for sublayer 1 at [0, 0, 0]"),
    (Unused, model.learns, "residual.scale, row 1, has no gradient; dead_params does not say"),
    (CallsDeadWhatLearns, model.learns, "residual.scale, row 2, has a gradient of"),
    (GrowsLate, model.counts_parameters, "parameters were counted before a pass, "),
    (SaysNoCost, design.counts_costs, "gives 0, its operations are 3,072 at width 16 and 6"),
    (Overstates, design.counts_costs, "leave it out, and they are counted"),
    (OtherwiseStarted, model.starts_as_standard, "is True, but logits at"),
    (StandardUnclaimed, model.starts_as_standard, "it is standard at step 0"),
    (Overflows, model.stays_finite, "a logit is nan"),
    (HalvedInAutocast, model.runs_in_autocast, "what the head sees is off by"),
    (HalvedInAutocast, model.runs_in_bfloat16, "what the head sees is off by"),
    (Squares, model.mixes_as_it_says, "M at site 2 at"),
    (SaysNothing, model.mixes_as_it_says, "not_linear does not say why"),
    (Counts, model.repeats, "logits of a second run at"),
    (CutTooSmall, model.resumes, "gradient of "),
    (NeedsFourTokens, model.generates, "generated tokens at [0, "),
    (Asks, model.compiles, "it raised"),
    (Raises, design.keeps_shape, "in read: RuntimeError: no such sublayer"),
    (Plain, design.is_documented, "the first line must read 'broken: h_l = ...'"),
    (GivesNothing, design.keeps_shape, "write gives None: end it with `return` and the state"),
    (MixesChannels, model.mixes_as_it_says, "say why in not_linear"),
    (Undocumented, design.is_documented, "under 'Options:' there is no line for strength"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch):
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))


def found_by(proof: Proof, cls: type[Residual]) -> Finding:
    register("broken")(cls)
    (finding,) = prove(Subject(parse("broken")), [proof])
    return finding


@pytest.mark.parametrize(
    ("cls", "proof", "words"), BROKEN, ids=[f"{cls.__name__}-{p.__name__}" for cls, p, _ in BROKEN]
)
def test_a_proof_finds_what_breaks_it(cls: type[Residual], proof: Proof, words: str):
    finding = found_by(proof, cls)

    assert finding.outcome == "failed"
    assert words in finding.detail, finding.detail


def test_what_a_design_raises_is_shown_with_its_line():
    finding = found_by(design.keeps_shape, Raises)

    assert "test_proofs.py, line" in finding.detail
    assert "in read: RuntimeError" in finding.detail


def test_every_proof_has_a_design_that_it_refuses():
    exempt: set[Callable[..., Any]] = {model.recomputes, design.reads_back}

    assert set(ALL) - exempt == {proof for _, proof, _ in BROKEN}


def test_a_design_that_says_why_may_overflow():
    class Unbounded(Overflows):
        unbounded = "it multiplies by an exponential"

    finding = found_by(model.stays_finite, Unbounded)

    expected = ("stays_finite", finding.proof, "not applicable", "it multiplies by an exponential")
    assert finding == Finding(*expected)


def test_a_design_may_have_a_state_that_cannot_be_cut():
    class Uncut(CutTooSmall):
        carry, resume = Plain.carry, Plain.resume

    finding = found_by(model.resumes, Uncut)

    assert finding.outcome == "not applicable"
    assert "Uncut cannot be cut between processes: its state is no tensor" in finding.detail


def test_a_sound_design_is_admitted_and_a_broken_one_is_not():
    admit(parse("attnres:block_size=2"), SHAPE)
    register("broken")(LooksAhead)

    with pytest.raises(VariantError, match=r"broken: it mixes tokens: .*attnres check broken"):
        admit(parse("broken"), SHAPE)


@pytest.mark.parametrize("cls", [TooNarrow, NoPair, GivesNothing, Raises, LooksAside, Dices])
def test_one_cause_is_one_finding(cls: type[Residual]):
    cls.__doc__ = "broken: h_l = x."
    register("broken")(cls)

    found = list(prove(Subject(parse("broken")), QUICK))

    (failed,) = [each for each in found if each.outcome == "failed"]
    others = [each for each in found if each.outcome == "not run"]
    assert others
    assert {each.detail for each in others} == {f"until {failed.name} passes"}


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (1.5, 2.25, "1.500, expected 2.250"),
        (1.00000000012, 1.0, "1.00000000012, expected 1.00000000000"),
        (1.0, 1.0 + 2**-52, "1.0000000000000000, expected 1.0000000000000002"),
        (float("nan"), 1.0, "nan, expected 1.000"),
    ],
)
def test_numbers_that_differ_are_told_with_the_digits_that_differ(
    found: float, expected: float, words: str
):
    assert told_apart(found, expected) == words


def test_a_comparison_refuses_flops_that_are_stated_wrongly():
    register("broken")(SaysNoCost)

    with pytest.raises(VariantError, match=r"extra_flops_per_token\(\) gives 0, its operations"):
        admit(parse("broken"), SHAPE)
