"""The contract of a design as proofs that run: what `attnres check` prints and our tests demand.

A proof takes a subject: a design with its options on a small trunk. It returns where all is well,
else it raises BrokenError with the first wrong number, or NotApplicableError with the reason. The
first line of its docstring is what it proves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnres_cli.errors import VariantError
from attnres_cli.nn import design_page, plugins
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.design_page import Finding
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.subject import (
    BrokenError,
    NotApplicableError,
    Proof,
    Subject,
    small,
)
from attnres_cli.nn.residual import is_shipped
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant, parse

_FEW_ROWS = 2
_MOST_NUMBERS = 2**23  # of what a design keeps while it is proven, some 60 MB

QUICK: tuple[Proof, ...] = (
    design.keeps_shape,
    model.repeats,
    design.is_token_wise,
    model.is_causal,
    design.keeps_states,
    model.learns,
    model.counts_parameters,
    design.counts_costs,
    model.starts_as_standard,
    model.stays_finite,
    model.runs_in_autocast,
    model.runs_in_bfloat16,
    model.mixes_as_it_says,
    model.recomputes,
    model.resumes,
    model.generates,
    design.commutes,
    design.reads_back,
    design.is_documented,
)
"""Some tenths of a second in all."""

ALL: tuple[Proof, ...] = (*QUICK, model.compiles)
"""Compiling takes some seconds more."""


_ALONE = (design.reads_back, design.is_documented)
_FIRST = (design.keeps_shape, model.repeats)
_NEEDS: dict[Proof, tuple[Proof, ...]] = {
    model.is_causal: (design.is_token_wise,),
    model.mixes_as_it_says: (design.is_token_wise,),
    model.generates: (design.is_token_wise,),
    model.recomputes: (design.keeps_states,),
    model.resumes: (design.keeps_states,),
    model.compiles: (model.counts_parameters,),
}
"""Proofs that mean nothing where others fail; where one of _FIRST does, only _ALONE mean something.
"""


_CHANGE: dict[Proof, str] = {
    design.keeps_shape: "read and finish give (batch, time, d_model), read with the state",
    model.repeats: "draw nothing at random, and keep nothing between calls",
    design.is_token_wise: "no mean, shift or norm over batch or time",
    model.is_causal: "no mean, shift or norm over batch or time",
    design.keeps_states: "make a new tensor, and change none in place",
    model.learns: "use the parameter without detach, leave it out, or name it in dead_params",
    model.counts_parameters: "make every parameter in the constructor",
    design.counts_costs: "correct extra_flops_per_token, or leave it out",
    model.starts_as_standard: "let equals_standard_at_init say how it starts",
    model.stays_finite: "bound the weights, by a sigmoid or softmax, or say why not in unbounded",
    model.runs_in_autocast: "compute in float32 what is too fine, and give the type that was given",
    model.runs_in_bfloat16: "compute in float32 what is too fine, and give the type that was given",
    model.mixes_as_it_says: "correct depth_mixing, or leave it out",
    model.recomputes: "keep nothing between calls",
    model.resumes: "carry gives all that resume, later sublayers and finish need",
    model.generates: "ask no tensor for its length: one token is computed alone",
    design.commutes: "set `order` on its class",
    design.reads_back: "options are numbers, words or yes and no",
    design.is_documented: "complete the docstring",
    model.compiles: "no .item(), and no branch on what a tensor holds",
}
"""What to do where a proof fails, if what it finds does not say it."""

_SECTION = '(docs/contract.md, "What is proven")'


def prove(subject: Subject, proofs: Sequence[Proof]) -> Iterator[Finding]:
    """Run proofs one by one; whatever a design raises is a finding. One cause is found once: a
    proof is not run that needs one which failed, nor told where it says what one has said.
    """
    failed: dict[Proof, str] = {}
    details: dict[str, str] = {}
    for proof in proofs:
        sentence = (proof.__doc__ or "").partition("\n")[0].removesuffix(".")
        found = partial(Finding, proof.__name__, sentence)
        needed = () if proof in _ALONE else (*_FIRST, *_NEEDS.get(proof, ()))
        if cause := next((failed[each] for each in needed if each in failed), None):
            failed[proof] = cause
            yield found("not run", cause)
            continue
        try:
            remark = _proven(proof, subject)
        except NotApplicableError as reason:
            yield found("not applicable", str(reason))
        except Exception as error:  # a design may raise anything
            detail = _told(error, subject.variant)
            failed[proof] = f"until {proof.__name__} passes"
            if detail in details:
                failed[proof] = details[detail]
                yield found("not run", failed[proof])
            else:
                details[detail] = failed[proof]
                yield found("failed", _with_change(detail, proof), error)
        else:
            yield found("passed", remark)


def _with_change(detail: str, proof: Proof) -> str:
    """What is wrong, what to do, and where that is explained."""
    change = _CHANGE.get(proof)
    return f"{detail}; {change} {_SECTION}" if change else f"{detail} {_SECTION}"


def _proven(proof: Proof, subject: Subject) -> str:
    """Run a proof: in float32 where a design that computes in it, whatever it is given, fails only
    in float64. The remark that says so; raises what the proof raises.
    """
    try:
        proof(subject)
    except NotApplicableError:
        raise
    except Exception as error:
        if not _computes_in_float32(subject):
            raise
        try:
            proof(replace(subject, dtype=torch.float32))
        except Exception:
            raise error from None
        return "in float32, in which the design computes whatever it is given"
    return ""


def _computes_in_float32(subject: Subject) -> bool:
    """Whether a design given float64 makes float32 of it."""
    if subject.dtype != torch.float64:
        return False
    with _Narrows() as seen, contextlib.suppress(Exception):
        design.keeps_shape(subject)
    return seen.narrows


class _Narrows(TorchDispatchMode):
    """Notes whether an operation on float64 gives float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrows = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x.dtype for x in args if isinstance(x, torch.Tensor)]
        if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
            self.narrows |= torch.float64 in given
        return out


REFUSES: tuple[Proof, ...] = (design.keeps_shape, design.is_token_wise, design.counts_costs)
"""What `ablate` and `search` refuse a design for before anything is trained."""

DOUBTS: tuple[Proof, ...] = (model.learns, model.starts_as_standard)
"""What stands beside the verdict of a design that fails it."""


def admit(variant: Variant, shape: Shape, rows: int = 2) -> None:
    """Raise VariantError where a design fails one of REFUSES, on batches of so many sequences, as
    long as the shape's; whatever its engine, whose faults are not its own. Those of this release,
    of which our tests have proven all, are proven for their options only.
    """
    ours = all(map(is_shipped, variant.classes))
    subject = Subject(variant, shape, *at_most(shape, rows, shape.seq_len), is_quick=ours)
    for proof in REFUSES[:-1] if ours else REFUSES:
        try:
            with engines.use("reference"):
                _proven(proof, subject)
        except Exception as error:  # a design may raise anything
            raise VariantError(
                f"{variant}: {_told(error, variant)}; attnres check {variant} proves all of the "
                "contract"
            ) from error


def at_most(shape: Shape, rows: int, length: int) -> tuple[int, int]:
    """So many sequences of so many tokens, or of a large batch as many as a laptop holds."""
    numbers = shape.d_model * shape.n_sublayers
    while rows > _FEW_ROWS and rows * length * numbers > _MOST_NUMBERS:
        rows //= 2
    return rows, max(2, min(length, _MOST_NUMBERS // (rows * numbers)))


@cache
def doubts(spec: str, n_layers: int) -> tuple[str | None, ...]:
    """What is wrong with a design by each of DOUBTS, empty where nothing is; of a design of this
    release, of which our tests have proven all, nothing. Where it fits no small trunk, also none as
    deep as the one it was trained in: None for each, and then why.
    """
    typed = parse(spec)
    if all(map(is_shipped, typed.classes)):
        return ()
    try:
        subject = small(typed, n_layers=n_layers)
    except Exception as error:  # a design may raise anything, and its run has ended
        return (*[None] * len(DOUBTS), _told(error, typed))
    return tuple(f.detail if f.outcome == "failed" else "" for f in prove(subject, DOUBTS))


def _told(error: Exception, variant: Variant) -> str:
    """What is wrong, or what was raised and by which line of the design's own file."""
    if isinstance(error, BrokenError):
        return str(error)
    return f"it raised {plugins.blamed(error, [*map(design_page.file_of, variant.classes)])}"
