"""The contract of a design as proofs that run: what `attnres check` prints and our tests demand.

A proof takes a subject: a design with its options on a small trunk. It returns where all is well,
else it raises BrokenError with the first wrong number, or NotApplicableError with the reason. The
first line of its docstring is what it proves.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

from attnres_cli.errors import VariantError
from attnres_cli.nn import design_page
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.design_page import Finding
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.subject import BrokenError, NotApplicableError, Proof, Subject
from attnres_cli.nn.residual import registry
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant

QUICK: tuple[Proof, ...] = (
    design.keeps_shape,
    design.is_token_wise,
    model.is_causal,
    model.repeats,
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
    model.generates,
    design.reads_back,
    design.is_documented,
)
"""About a tenth of a second in all."""

ALL: tuple[Proof, ...] = (*QUICK, model.compiles)
"""Compiling takes some seconds more."""


def prove(subject: Subject, proofs: Sequence[Proof]) -> Iterator[Finding]:
    """Run proofs one by one; whatever a design raises is a finding."""
    for proof in proofs:
        sentence = (proof.__doc__ or "").partition("\n")[0].removesuffix(".")
        try:
            proof(subject)
        except NotApplicableError as reason:
            yield Finding(sentence, "not applicable", str(reason))
        except BrokenError as wrong:
            yield Finding(sentence, "failed", str(wrong))
        except Exception as error:  # a design may raise anything
            yield Finding(sentence, "failed", _raised(error, subject.variant))
        else:
            yield Finding(sentence, "passed")


def admit(variant: Variant, shape: Shape) -> None:
    """Raise VariantError where a design raises, gives wrong shapes, or mixes tokens; whatever its
    engine, whose faults are not its own.
    """
    proofs = (design.keeps_shape, design.is_token_wise)
    with engines.use("reference"):
        found = list(prove(Subject(variant, shape), proofs))
    for finding in found:
        if finding.outcome == "failed":
            raise VariantError(
                f"{variant}: {finding.detail}; attnres check {variant} proves all of the contract"
            )


def _raised(error: Exception, variant: Variant) -> str:
    """What was raised, and by which line of the design's own file."""
    file = design_page.file_of(registry()[variant.name])
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    where = f" ({file}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    text = " ".join(str(error).split())
    return f"it raised {type(error).__name__}: {text[:300]}{where}"
