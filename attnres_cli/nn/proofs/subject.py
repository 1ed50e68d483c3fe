"""What a proof is given, and how it says what it found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

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

_WIDTHS = (16, 64, 256, 1024)
_DEPTHS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""What is tried for a design that does not fit SHAPE, as one that mixes its last 4 layers."""

_FLOAT32 = 1e-4


class BrokenError(Exception):
    """The contract is broken; the message is the first thing wrong."""


class NotApplicableError(Exception):
    """The proof means nothing for this design; the message says why."""


@dataclass(frozen=True)
class Situation:
    """In what a design is run: so many sequences of so many tokens, in training mode or not, with
    gradients or not.
    """

    rows: int
    length: int
    dtype: torch.dtype
    trains: bool = True
    grads: bool = False

    def __str__(self) -> str:
        mode = "training" if self.trains else "evaluation"
        gradients = "" if self.grads else "out"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.rows} x {self.length} tokens in {dtype}, in {mode}, with{gradients} gradients"
        )

    @contextmanager
    def run(self) -> Iterator[None]:
        """With its gradients; what breaks there says in which situation."""
        try:
            with torch.set_grad_enabled(self.grads):
                yield
        except BrokenError as wrong:
            raise BrokenError(f"{wrong} ({self})") from None


@dataclass(frozen=True)
class Subject:
    """What is proven: a design with its options, and the trunk to prove it on. `rows` and `length`
    are those of a batch in training; `dtype` is that of proofs whose numbers must be exact.
    """

    variant: Variant
    shape: Shape = SHAPE
    rows: int = 16
    length: int = 64
    dtype: torch.dtype = torch.float64
    is_quick: bool = False  # one situation is enough

    def situations(self) -> tuple[Situation, ...]:
        """Each pair of batch, length, type, mode and gradients that a design may tell apart, not
        each product of them.
        """
        exact, rows, length = self.dtype, self.rows, self.length
        found = (
            Situation(2, 4, exact, grads=True),
            Situation(rows, length, torch.float32, trains=False),
            Situation(rows, length, torch.float32, grads=True),
            Situation(1, 7, torch.float32, trains=False, grads=True),
            Situation(2, length, torch.bfloat16),
            Situation(1, length, exact, trains=False, grads=True),
            Situation(rows, 5, torch.bfloat16, trains=False),
            Situation(rows, 3, exact),
        )
        return found[:1] if self.is_quick else found

    def near(self, tolerance: float) -> float:
        """A tolerance for float64; in float32 what rounding leaves of it."""
        return tolerance if self.dtype == torch.float64 else max(tolerance, _FLOAT32)

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

    def tokens(self, rows: int = 2, length: int | None = None) -> Tensor:
        """Random rows."""
        generator = torch.Generator().manual_seed(0)
        size = rows, length or self.shape.seq_len
        return torch.randint(0, self.shape.vocab_size, size, generator=generator)

    def within(self, situation: Situation) -> tuple[Transformer, Tensor]:
        """A model away from its start, and tokens, as a situation has them."""
        shape = replace(self.shape, seq_len=max(self.shape.seq_len, situation.length))
        model = replace(self, shape=shape).perturbed().to(situation.dtype)
        return model.train(situation.trains), self.tokens(situation.rows, situation.length)


def small(
    typed: Variant, rows: int = 16, length: int = 64, *, n_layers: int | None = None
) -> Subject:
    """A design on the proofs' small trunk, a little wider or deeper where it needs that; `n_layers`
    is one more depth to try. Raises what the design does where it fits none.
    """
    depths = {*_DEPTHS, n_layers or SHAPE.n_layers}
    in_turn = sorted(depths, key=lambda n: (n < SHAPE.n_layers, n))  # a shallower trunk last
    width, depth = _fitting(typed, in_turn)
    shape = replace(SHAPE, n_layers=depth, d_model=width, d_head=width // 2)
    return Subject(typed, shape, rows, length)


def fitting_width(typed: Variant, n_sublayers: int) -> int:
    """The smallest of some widths that a design can be built at. Raises what the design does where
    it fits none.
    """
    return _fitting(typed, (n_sublayers // 2,))[0]


def _fitting(typed: Variant, depths: Sequence[int]) -> tuple[int, int]:
    """The first width, and at it the first depth, that a design can be built at."""
    refusal: Exception | None = None
    for width in _WIDTHS:
        for depth in depths:
            try:
                typed.build(width, 2 * depth)
            except Exception as error:  # a design may raise anything
                refusal = error
            else:
                return width, depth
    assert refusal is not None
    raise refusal


Proof = Callable[[Subject], None]


def perturb(design: Residual, scale: float = 0.5) -> None:
    """Add noise of this size to a design's parameters, always the same."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in design.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def design_of(subject: Subject) -> Residual:
    """The design alone, away from its initial values."""
    design = subject.variant.build(subject.shape.d_model, subject.shape.n_sublayers)
    perturb(design)
    return design.to(subject.dtype)


def values_for(subject: Subject, n: int, rows: int = 2, length: int = 4) -> list[Tensor]:
    """So many tensors (rows, length, D)."""
    generator = torch.Generator().manual_seed(2)
    size = (n, rows, length, subject.shape.d_model)
    return list(torch.randn(size, generator=generator).to(subject.dtype))


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
