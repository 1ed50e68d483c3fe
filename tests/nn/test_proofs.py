"""Each proof of the contract finds the designs that break it, and says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attnres_cli.nn import residual
from attnres_cli.nn.addon import Addon
from attnres_cli.nn.design_page import Finding
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.prove import ALL, QUICK, admit, doubts, prove
from attnres_cli.nn.proofs.subject import SHAPE, Proof, Subject, small, told_apart
from attnres_cli.nn.residual import Inputs, Residual, VariantError, register
from attnres_cli.nn.variant import parse

Design = type[Residual]


class Plain(Residual):
    """A sound design: standard by another name."""

    equals_standard_at_init = True

    def write(self, state, l, y):
        return state + y


class WithMatrix(Plain):
    """A matrix mixes channels, which `depth_mixing` does not say."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.w = nn.Parameter(torch.eye(d_model))

    def write(self, state, l, y):
        return state + y @ self.w.to(y.dtype)


class WithScale(Plain):
    """A scalar per sublayer."""

    start_value = 1.0

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        self.scale = nn.Parameter(torch.full((n_sublayers,), self.start_value))

    def write(self, state, l, y):
        return state + self.scale[l - 1] * y


class GrowsLate(Plain):
    def start(self, x):
        self.scale = nn.Parameter(torch.ones(1))
        return x


class CutTooSmall(Plain):
    """What is resumed is not what was carried."""

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


class Raises(Plain):
    def read(self, state, l):
        if l == 3:
            raise RuntimeError("no such sublayer")
        return state, state


class Remembers(Plain):
    def finish(self, state):
        self.last = state.detach()
        return state


class Undocumented(Plain):
    """broken: h_l = x."""

    def __init__(self, d_model: int, n_sublayers: int, *, strength: float = 1.0) -> None:
        super().__init__(d_model, n_sublayers)


def but(base: Design = Plain, /, **changes: Any) -> Design:
    """A design that differs from a sound one in these methods and facts."""
    for name, value in changes.items():
        if callable(value):
            value.__name__ = name  # which messages name
    return type("Broken", (base,), {"__module__": __name__, **changes})


TOO_NARROW = but(read=lambda self, state, l: (state[..., :8], state))
NO_PAIR = but(read=lambda self, state, l: state)
GIVES_NOTHING = but(write=lambda self, state, l, y: None)
LOOKS_AHEAD = but(read=lambda self, state, l: (state + 0.1 * state.roll(-1, dims=1), state))
AT_48 = but(
    write=lambda self, state, l, y: (state + y).roll(-1, 1) if y.shape[1] >= 48 else state + y
)
DICES = but(write=lambda self, state, l, y: state + y * (1 + 0.1 * torch.rand(1, dtype=y.dtype)))
OVERFLOWS = but(WithScale, finish=lambda self, state: state * self.scale.abs().sum().exp())
NEEDS_FOUR_TOKENS = but(
    read=lambda self, state, l: (state * (1.0 if state.shape[1] >= 3 else 3.0 * l), state),
    write=lambda self, state, l, y: state + y * (1.0 if y.shape[1] >= 3 else -3.0 * l),
)
HALVED_IN_BF16 = but(
    write=lambda self, state, l, y: state + (y / 2 if y.dtype == torch.bfloat16 else y)
)
CALLS_DEAD_WHAT_LEARNS = but(WithScale, dead_params=lambda self: {"scale": (2,)})
SAYS_NO_COST = but(WithMatrix, extra_flops_per_token=lambda self: 0)


class Late(Addon):
    """It does not commute with a gain."""

    def on_write(self, l, y):
        return y + 1.0


BROKEN: list[tuple[Proof, Design, str]] = [
    (design.keeps_shape, TOO_NARROW, "sublayer 1 gives shape (2, 4, 8), expected (2, 4, 16)"),
    (design.commutes, Late, "before layerscale, site 2 sees other numbers than after it"),
    (design.keeps_shape, NO_PAIR, "the pair (h, state), sublayer 1 got a Tensor"),
    (design.keeps_shape, GIVES_NOTHING, "write gives None: end it with `return` and the state"),
    (design.keeps_shape, Raises, "in read: RuntimeError: no such sublayer"),
    (design.keeps_shape, Raises, "test_proofs.py, line "),
    (design.is_token_wise, LOOKS_AHEAD, "site 1 sees another token 1 of sequence 1"),
    (
        design.is_token_wise,
        but(write=lambda self, state, l, y: state + y + 0.1 * y.mean(dim=0, keepdim=True)),
        "site 2 sees another token 2 of sequence 0",
    ),
    (
        design.is_token_wise,
        but(write=lambda self, state, l, y: state + y * float("nan")),
        "site 2 sees a number that is not finite",
    ),
    (
        design.is_token_wise,
        but(write=lambda self, state, l, y: state + y + 0.1 * state[:, :1]),
        "token 0 of sequence 0 was changed",
    ),
    (
        design.is_token_wise,
        but(write=lambda self, state, l, y: state + y + 0.1 * state[:1]),
        "token 0 of sequence 0 was changed",
    ),
    (
        design.is_token_wise,
        but(start=lambda self, x: x + 0.1 * x[:, -1:]),
        "was changed, and site 1 sees another",
    ),
    (model.is_causal, LOOKS_AHEAD, "logits before the changed token at [0, 0, 0]"),
    (
        model.is_causal,
        but(finish=lambda self, state: torch.ones_like(state)),
        "do not depend on the tokens",
    ),
    (model.repeats, DICES, "logits of a second run at"),
    (model.repeats, Remembers, "a batch leaves a trace in last"),
    (design.is_token_wise, AT_48, "token 32 of sequence 15 was changed, and site 2 sees another"),
    (design.is_token_wise, AT_48, "(16 x 64 tokens in float32, in evaluation, without gradients)"),
    (design.is_token_wise, AT_48, 'no mean, shift or norm over batch or time (docs/contract.md, "'),
    (
        design.keeps_states,
        but(start=lambda self, x: x.clone(), write=lambda self, state, l, y: state.add_(y)),
        "a second read for sublayer 1 at [0, 0, 0]",
    ),
    (
        model.learns,
        but(WithScale, write=lambda self, state, l, y: state + self.scale[0] * y),
        "residual.scale, row 1, has no gradient; dead_params does not say",
    ),
    (model.learns, CALLS_DEAD_WHAT_LEARNS, "residual.scale, row 2, has a gradient of"),
    (model.counts_parameters, GrowsLate, "parameters were counted before a pass, "),
    (design.counts_costs, SAYS_NO_COST, "gives 0, its operations are 3,072 at width 16 and 6"),
    (
        design.counts_costs,
        but(WithMatrix, extra_flops_per_token=lambda self: 6 * 4 * self.d_model**2),
        "leave it out, and they are counted",
    ),
    (model.starts_as_standard, but(WithScale, start_value=0.5), "is True, but logits at"),
    (model.starts_as_standard, but(equals_standard_at_init=False), "it is standard at step 0"),
    (model.stays_finite, OVERFLOWS, "a logit is nan"),
    (model.runs_in_autocast, HALVED_IN_BF16, "what the head sees is off by"),
    (model.runs_in_bfloat16, HALVED_IN_BF16, "what the head sees is off by"),
    (
        model.mixes_as_it_says,
        but(depth_mixing=lambda self, values: torch.ones(1, 1, 1, 7, 7, dtype=torch.float64)),
        "M at site 1 at",
    ),
    (
        model.mixes_as_it_says,
        but(
            named_inputs=True,
            read=lambda self, x, l: (Inputs(x, 2 * x, x) if l % 2 else x, x),
            depth_mixing=lambda self, values: torch.ones(7, 7).double().tril()[None, None, None],
        ),
        "M of the keys at site 1 at",
    ),
    (
        model.mixes_as_it_says,
        but(depth_mixing=lambda self, values: None),
        "not_linear does not say why",
    ),
    (model.resumes, CutTooSmall, "gradient of "),
    (model.generates, NEEDS_FOUR_TOKENS, "generated tokens at [0, "),
    (
        model.compiles,
        but(write=lambda self, state, l, y: state + (y if y.sum().item() > -1e9 else -y)),
        "it raised",
    ),
    (design.is_documented, but(), "the first line must read 'broken: h_l = ...'"),
    (design.is_documented, Undocumented, "under 'Options:' there is no line for strength"),
]


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch):
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))


def found_by(proof: Proof, cls: Design) -> Finding:
    register("broken")(cls)
    (finding,) = prove(Subject(parse("broken")), [proof])
    return finding


@pytest.mark.parametrize(("proof", "cls", "words"), BROKEN)
def test_a_proof_finds_a_design_that_breaks_it(proof: Proof, cls: Design, words: str):
    finding = found_by(proof, cls)

    assert finding.outcome == "failed"
    assert words in finding.detail, finding.detail


@pytest.mark.parametrize(
    "cls", [WithMatrix, but(WithScale, write=lambda self, state, l, y: state + y * y)]
)
def test_weights_that_no_method_tells_are_unknown_and_fail_nothing(cls: Design):
    finding = found_by(model.mixes_as_it_says, cls)

    assert finding.outcome == "not applicable"
    assert "unknown to figures" in finding.detail


def test_a_design_that_computes_in_float32_is_proven_in_it():
    widens = but(write=lambda self, state, l, y: (state + y).float() * 1.0)

    finding = found_by(model.starts_as_standard, widens)

    assert finding.outcome == "passed"
    assert finding.detail == "in float32, in which the design computes whatever it is given"


def test_every_proof_has_a_design_that_it_refuses():
    exempt: set[Proof] = {model.recomputes, design.reads_back}

    assert set(ALL) - exempt == {proof for proof, *_ in BROKEN}


CANNOT_BE_CUT = but(CutTooSmall, carry=Plain.carry, resume=Plain.resume)


@pytest.mark.parametrize(
    ("proof", "cls", "reason"),
    [
        (model.stays_finite, but(OVERFLOWS, unbounded="it overflows"), "it overflows"),
        (model.resumes, CANNOT_BE_CUT, "Broken cannot be cut between processes: its state is no"),
    ],
)
def test_a_design_that_says_why_is_exempt(proof: Proof, cls: Design, reason: str):
    finding = found_by(proof, cls)

    assert (finding.name, finding.outcome) == (proof.__name__, "not applicable")
    assert reason in finding.detail


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (LOOKS_AHEAD, r"broken: it mixes tokens: .*attnres check broken"),
        (SAYS_NO_COST, r"extra_flops_per_token\(\) gives 0, its operations"),
    ],
)
def test_a_comparison_admits_a_sound_design_and_refuses_a_broken_one(cls: Design, words: str):
    admit(parse("attnres:block_size=2"), SHAPE)
    register("broken")(cls)

    with pytest.raises(VariantError, match=words):
        admit(parse("broken"), SHAPE)


@pytest.mark.parametrize(
    "cls",
    [TOO_NARROW, NO_PAIR, GIVES_NOTHING, Raises, but(LOOKS_AHEAD, equals_standard_at_init=False),
     DICES],
)  # fmt: skip
def test_one_cause_is_one_finding(cls: Design):
    register("broken")(but(cls, __doc__="broken: h_l = x."))

    found = list(prove(Subject(parse("broken")), QUICK))

    (failed,) = [each for each in found if each.outcome == "failed"]
    others = [each for each in found if each.outcome == "not run"]
    assert others
    assert {each.detail for each in others} == {f"until {failed.name} passes"}


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("standard", (3, 16)),
        ("attnres:heads=64", (3, 64)),
        ("mudd:dynamic=off,layers=4", (4, 16)),
        ("denseformer:dilation=4,period=5", (6, 16)),
        ("resv:layers=2", (4, 16)),
    ],
)
def test_a_design_is_proven_on_the_smallest_trunk_that_it_fits(spec: str, sizes: tuple[int, int]):
    subject = small(parse(spec))

    assert (subject.shape.n_layers, subject.shape.d_model) == sizes
    assert [each.outcome for each in prove(subject, [design.keeps_shape])] == ["passed"]


class FitsDepth7(Plain):
    """Built for one depth."""

    def __init__(self, d_model: int, n_sublayers: int) -> None:
        super().__init__(d_model, n_sublayers)
        1 / (n_sublayers == 14)


def test_a_run_whose_design_fits_no_small_trunk_is_doubted_and_not_lost():
    register("broken")(FitsDepth7)

    assert doubts("broken", n_layers=7) == ("", "")
    assert small(parse("broken"), n_layers=7).shape.n_layers == 7
    *unknown, why = doubts("broken", n_layers=8)
    assert unknown == [None, None]
    assert "in __init__: ZeroDivisionError" in why


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (1.5, 2.25, "1.500, expected 2.250"),
        (1.00000000012, 1.0, "1.00000000012, expected 1.00000000000"),
        (1.0, 1.0 + 2**-52, "1.0000000000000000, expected 1.0000000000000002"),
        (float("nan"), 1.0, "nan, expected 1.000"),
    ],
)
def test_two_numbers_are_printed_up_to_the_digit_that_differs(
    found: float, expected: float, words: str
):
    assert told_apart(found, expected) == words
