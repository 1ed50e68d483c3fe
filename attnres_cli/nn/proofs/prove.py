"""The contract of a design as proofs that run: what `attnres check` prints and our tests demand.

A proof takes a subject: a design with its options on a small trunk. It returns where all is well,
else it raises BrokenError with the first wrong number, or NotApplicableError with the reason. The
first line of its docstring is what it proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from attnres_cli.errors import VariantError
from attnres_cli.nn import design_page, plugins
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.design_page import Finding
from attnres_cli.nn.proofs import design, model
from attnres_cli.nn.proofs.subject import BrokenError, NotApplicableError, Proof, Subject
from attnres_cli.nn.residual import is_shipped, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant

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
    design.reads_back,
    design.is_documented,
)
"""About a tenth of a second in all."""

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
            proof(subject)
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
                yield found("failed", detail, error)
        else:
            yield found("passed")


def admit(variant: Variant, shape: Shape) -> None:
    """Raise VariantError where a design raises, gives wrong shapes, mixes tokens or states wrong
    FLOPs; whatever its engine, whose faults are not its own.
    """
    subject = Subject(variant, shape)
    proofs: tuple[Proof, ...] = (design.keeps_shape, design.is_token_wise)
    if not is_shipped(registry()[variant.name]):
        proofs = (*proofs, design.counts_costs)
    for proof in proofs:
        try:
            with engines.use("reference"):
                proof(subject)
        except Exception as error:  # a design may raise anything
            raise VariantError(
                f"{variant}: {_told(error, variant)}; attnres check {variant} proves all of the "
                "contract"
            ) from error


def _told(error: Exception, variant: Variant) -> str:
    """What is wrong, or what was raised and by which line of the design's own file."""
    if isinstance(error, BrokenError):
        return str(error)
    return f"it raised {plugins.blamed(error, [design_page.file_of(registry()[variant.name])])}"
