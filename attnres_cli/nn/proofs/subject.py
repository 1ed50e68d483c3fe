"""What a proof is given, and how it says what it found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.residual import Residual
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import Variant

SHAPE = Shape(
    n_layers=3,
    d_model=16,
    n_heads=2,
    n_kv_heads=2,
    d_head=8,
    d_ff=24,
    vocab_size=11,
    seq_len=8,
    norm_eps=1e-12,  # too small to matter: with a real one, designs that average differ by it
)
"""The trunk that proofs run on: three layers, six sublayers."""


class BrokenError(Exception):
    """The contract is broken; the message is the first thing wrong."""


class NotApplicableError(Exception):
    """The proof means nothing for this design; the message says why."""


@dataclass(frozen=True)
class Subject:
    """What is proven: a design with its options, and the trunk to prove it on."""

    variant: Variant
    shape: Shape = SHAPE

    def untrained(self, variant: Variant | None = None) -> Transformer:
        """A model at step 0; of another design if one is given."""
        design = (variant or self.variant).build(self.shape.d_model, self.shape.n_sublayers)
        model = Transformer(self.shape, design)
        init_weights(model, seed=0)
        return model

    def perturbed(self, scale: float = 0.5) -> Transformer:
        """A model whose design has left its initial values."""
        model = self.untrained()
        perturb(model.residual, scale)
        return model

    def tokens(self) -> Tensor:
        """Two random rows."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.shape.vocab_size, (2, self.shape.seq_len), generator=generator)


Proof = Callable[[Subject], None]


def perturb(design: Residual, scale: float = 0.5) -> None:
    """Add noise of this size to a design's parameters, always the same."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in design.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def design_of(subject: Subject) -> Residual:
    """The design alone, away from its initial values, in float64."""
    design = subject.variant.build(subject.shape.d_model, subject.shape.n_sublayers).double()
    perturb(design)
    return design


def values_for(subject: Subject, n: int) -> list[Tensor]:
    """So many tensors (2, 4, D) in float64."""
    generator = torch.Generator().manual_seed(2)
    size = (n, 2, 4, subject.shape.d_model)
    return list(torch.randn(size, generator=generator, dtype=torch.float64))


def gradients(
    model: Transformer, tokens: Tensor, forward: Callable[..., Tensor] | None = None
) -> dict[str, Tensor]:
    """Gradients by parameter, of those that have any. `forward` is the model's compiled form."""
    model.zero_grad()
    forward = model if forward is None else forward
    forward(tokens, tokens.roll(-1, dims=1)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def agree(what: str, found: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    """Raise BrokenError with the first number that differs."""
    if found.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    wrong = ~torch.isclose(found, expected, rtol=rtol, atol=atol)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        where = f" at {list(at)}" if at else ""
        raise BrokenError(f"{what}{where}: {told_apart(found[at].item(), expected[at].item())}")


def told_apart(found: float, expected: float) -> str:
    """`1.2346, expected 1.2345`: two numbers with the first digit that differs, and one more."""
    differ = (n for n in range(4, 17) if f"{found:.{n - 2}e}" != f"{expected:.{n - 2}e}")
    digits = next(differ, 17)
    return f"{found:#.{digits}g}, expected {expected:#.{digits}g}"


def agree_all(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], rtol: float, of_all: float
) -> None:
    """Raise BrokenError with the first gradient that differs, by more than its own size times
    `rtol` and that of all gradients together times `of_all`: where sums cancel, rounding is of the
    size of their terms.
    """
    atol = of_all * size(expected.values())
    for name, exact in sorted(expected.items()):
        mine = found.get(name, torch.zeros_like(exact))
        agree(f"gradient of {name}", mine, exact, rtol, atol)


def size(tensors: Iterable[Tensor]) -> float:
    """The norm of all entries of these tensors."""
    return math.hypot(*(tensor.norm().item() for tensor in tensors))
