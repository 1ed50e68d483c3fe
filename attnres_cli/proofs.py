"""The contract of a design as proofs that run: what `attnres check` prints and our tests demand.

A proof takes a subject: a design with its options on a small trunk. It returns where all is well,
else it raises BrokenError with the first wrong number, or NotApplicableError with the reason. The
first line of its docstring is what it proves.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnres_cli import docs
from attnres_cli.errors import VariantError
from attnres_cli.facts import Finding
from attnres_cli.generate import generate
from attnres_cli.model import Transformer, init_weights, n_params, next_token_loss
from attnres_cli.residual import Residual, registry
from attnres_cli.shape import Shape
from attnres_cli.variant import Variant, options_of, parse

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

    def moved(self, scale: float = 0.5) -> Transformer:
        """A model whose design has left its initial values."""
        model = self.untrained()
        move(model.residual, scale)
        return model

    def tokens(self) -> Tensor:
        """Two random rows."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.shape.vocab_size, (2, self.shape.seq_len), generator=generator)


Proof = Callable[[Subject], None]

_BFLOAT16 = 0.04


def prove(subject: Subject, proofs: Sequence[Proof]) -> Iterator[Finding]:
    """Run proofs one by one; whatever a design raises is a finding."""
    for proof in proofs:
        sentence = sentence_of(proof)
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
    """Refuse a design that cannot be trained fairly: it raises, misshapes, or mixes tokens.

    Raises:
        VariantError: the first such finding.

    """
    for finding in prove(Subject(variant, shape), (keeps_shape, is_token_wise)):
        if finding.outcome == "failed":
            raise VariantError(
                f"{variant}: {finding.detail}; attnres check {variant} proves all of the contract"
            )


def sentence_of(proof: Proof) -> str:
    """What a proof proves, in one sentence."""
    return (proof.__doc__ or "").partition("\n")[0].removesuffix(".")


def move(design: Residual, scale: float) -> None:
    """Add noise of this size to a design's parameters, always the same."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in design.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def keeps_shape(subject: Subject) -> None:
    """Every sublayer sees a tensor of the embedding's shape."""
    design = _design(subject)
    x = _values(subject, 1)[0]
    state = design.start(x)
    for l in range(1, design.n_sublayers + 1):
        back: Any = design.read(state, l)
        if not (isinstance(back, tuple) and len(back) == 2):
            raise BrokenError(
                f"read must return the pair (h, state), sublayer {l} got {_kind(back)}"
            )
        h, state = back
        _has_shape(h, x, f"read for sublayer {l}")
        state = design.write(state, l, _branch(h, l))
    _has_shape(design.finish(state), x, "finish")


def is_token_wise(subject: Subject) -> None:
    """A token changes what no other token's sublayers see, in no sequence."""
    design = _design(subject)
    before = _values(subject, 1)[0]
    changed = before.clone()
    changed[1, 2] += 1.0
    seen = [_all_reads(design, x) for x in (before, changed)]
    for l, (a, b) in enumerate(zip(*seen, strict=True), 1):
        moved = (a != b).any(dim=-1)
        moved[1, 2] = False
        if moved.any():
            row, time = moved.nonzero()[0].tolist()
            raise BrokenError(
                f"it mixes tokens: token 2 of sequence 1 was changed, and site {l} sees another "
                f"token {time} of sequence {row}; a design may move nothing between tokens"
            )


def is_causal(subject: Subject) -> None:
    """A token changes no logits before it, and some from it on."""
    model, tokens = subject.moved().double(), subject.tokens()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % subject.shape.vocab_size
    before, after = model(tokens), model(changed)
    _agree("logits before the changed token", after[:, :5], before[:, :5], 0, 0)
    if torch.equal(before[:, 5:], after[:, 5:]):
        raise BrokenError("the logits do not depend on the tokens")


def repeats(subject: Subject) -> None:
    """A second run gives the same bits."""
    model, tokens = subject.moved(), subject.tokens()
    _agree("logits of a second run", model(tokens), model(tokens), 0, 0)


def keeps_states(subject: Subject) -> None:
    """A state is not changed in place: it can be read and written twice."""
    design = _design(subject)
    x, *outputs = _values(subject, design.n_sublayers + 1)
    state = design.start(x)
    for l, y in enumerate(outputs, 1):
        once, after_read = design.read(state, l)
        first = once.clone()
        design.write(after_read, l, y + 1.0)
        again, after_read = design.read(state, l)
        _agree(f"a second read for sublayer {l}", again, first, 0, 0)
        state = design.write(after_read, l, y)


def learns(subject: Subject) -> None:
    """Every parameter has a gradient by the second step, but those documented as dead."""
    model, tokens = subject.untrained().double(), subject.tokens()
    _gradients(model, tokens)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    found = _gradients(model, tokens)
    dead = {f"residual.{name}": rows for name, rows in model.residual.dead_params().items()}
    for name, parameter in model.named_parameters():
        if name.startswith("embed"):  # tokens that do not occur have no gradient
            continue
        gradient = found.get(name, torch.zeros_like(parameter))
        alive = gradient.flatten(1).abs().sum(dim=1) if parameter.ndim > 1 else gradient.abs()
        for row, size in enumerate(alive.flatten().tolist()):
            documented = row in dead.get(name, ())
            if documented != (size == 0):
                has = f"has a gradient of {size:.3g}" if size else "has no gradient"
                says = "says that it is dead" if documented else "does not say that it is dead"
                raise BrokenError(f"{name}, row {row}, {has}; dead_params {says}")


def counts_parameters(subject: Subject) -> None:
    """The number of parameters is that of the formula."""
    model = subject.untrained()
    counted = sum(parameter.numel() for parameter in model.residual.parameters())
    if model.residual.n_params() != counted:
        raise BrokenError(f"n_params() gives {model.residual.n_params()}, the module has {counted}")
    whole = sum(parameter.numel() for parameter in model.parameters())
    if n_params(model.shape, model.residual) != whole:
        raise BrokenError(
            f"the model's formula gives {n_params(model.shape, model.residual)}: {whole}"
        )


def counts_costs(subject: Subject) -> None:
    """FLOPs beyond `standard` are none or more, and bytes grow with the type's size."""
    design = subject.untrained().residual
    if design.extra_flops_per_token() < 0:
        raise BrokenError(f"extra_flops_per_token() gives {design.extra_flops_per_token()}")
    two, four = (design.extra_bytes_per_token(size) for size in (2, 4))
    if four != 2 * two:
        raise BrokenError(f"extra_bytes_per_token(2) gives {two} and (4) gives {four}")


def starts_as_standard(subject: Subject) -> None:
    """The untrained model is `standard`, gradients included, exactly where the design says so."""
    tokens = subject.tokens()
    ours = subject.untrained().double()
    theirs = subject.untrained(parse("standard")).double()
    found, expected = _gradients(ours, tokens), _gradients(theirs, tokens)
    found["logits"], expected["logits"] = ours(tokens).detach(), theirs(tokens).detach()
    try:
        for name, exact in sorted(expected.items()):
            rtol, atol = (1e-9, 1e-9) if name == "logits" else (1e-6, 1e-10)
            what = name if name == "logits" else f"gradient of {name}"
            _agree(what, found.get(name, torch.zeros_like(exact)), exact, rtol, atol)
    except BrokenError as wrong:
        if ours.residual.equals_standard_at_init:
            raise BrokenError(f"equals_standard_at_init is True, but {wrong}") from None
        raise NotApplicableError("it does not claim to be standard at step 0, and is not") from None
    if not ours.residual.equals_standard_at_init:
        raise BrokenError("it is standard at step 0, and equals_standard_at_init is False: say so")


def stays_finite(subject: Subject) -> None:
    """Parameters of +-10,000 leave the logits finite."""
    model = subject.untrained()
    with torch.no_grad():
        for number, parameter in enumerate(model.residual.parameters()):
            parameter.fill_(1e4 if number % 2 else -1e4)
    logits = model(subject.tokens())
    if not torch.isfinite(logits).all():
        if model.residual.unbounded:
            raise NotApplicableError(model.residual.unbounded)
        bad = logits[~torch.isfinite(logits)][0].item()
        raise BrokenError(f"a logit is {bad}")


def runs_in_autocast(subject: Subject) -> None:
    """bfloat16 autocast stays close to float32, with gradients in float32."""
    model, tokens = subject.moved(scale=0.1), subject.tokens()
    exact = model.hidden(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        _close_in_bfloat16(model.hidden(tokens), exact)
        _loss(model, tokens).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or parameter.grad.dtype != torch.float32:
            raise BrokenError(f"{name} has no gradient in float32")


def runs_in_bfloat16(subject: Subject) -> None:
    """bfloat16 weights stay close to float32."""
    model, tokens = subject.moved(scale=0.1), subject.tokens()
    exact = model.hidden(tokens)
    _close_in_bfloat16(model.bfloat16().hidden(tokens), exact)


def mixes_as_it_says(subject: Subject) -> None:
    """M applied to the sublayers' outputs gives what every sublayer saw."""
    model, tokens = subject.moved().double(), subject.tokens()
    if model.residual.not_linear:
        raise NotApplicableError(model.residual.not_linear)
    values, seen = [model.embed(tokens)], []
    state = model.residual.start(values[0])
    for l, f in enumerate(model.sublayers, 1):
        h, state = model.residual.read(state, l)
        seen.append(h)
        values.append(f(h))
        state = model.residual.write(state, l, values[-1])
    seen.append(model.residual.finish(state))
    mixing = model.residual.depth_mixing(values)
    if mixing is None:
        raise BrokenError("depth_mixing gives None, and not_linear does not say why")
    v = torch.stack(values).unflatten(-1, (mixing.shape[2], -1))  # (S, B, T, H, D/H)
    everywhere = mixing.expand(v.shape[1], v.shape[2], -1, -1, -1)
    replayed = torch.einsum("bthls,sbthd->lbthd", everywhere, v).flatten(-2)
    for l, (mine, exact) in enumerate(zip(replayed, seen, strict=True), 1):
        _agree(f"M at site {l}", mine, exact, 1e-9, 1e-9)


def recomputes(subject: Subject) -> None:
    """Activation checkpointing of the sublayers changes no gradient."""
    model, tokens = subject.moved(), subject.tokens()
    expected = _gradients(model, tokens)
    for f in model.sublayers:
        f.forward = partial(checkpoint, f.forward, use_reentrant=False)
    found = _gradients(model, tokens)
    for name, exact in expected.items():
        _agree(f"gradient of {name}", found[name], exact, 1e-6, 1e-9)


def generates(subject: Subject) -> None:
    """Tokens generated with a cache are those of whole passes."""
    model, tokens = subject.moved().double().eval(), subject.tokens()[:, :3]
    found = generate(model, tokens, 4, temperature=0)
    with torch.no_grad():
        for _ in range(4):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    _agree("generated tokens", found, tokens, 0, 0)


def compiles(subject: Subject) -> None:
    """torch.compile takes forward and backward as one graph, with the same gradients."""
    torch.compiler.reset()
    model, tokens = subject.moved(), subject.tokens()
    expected = _gradients(model, tokens)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    model.zero_grad()
    next_token_loss(compiled(tokens), tokens.roll(-1, dims=1)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        _agree(f"gradient of {name}", parameter.grad, expected[name], 1e-4, 1e-6)


def reads_back(subject: Subject) -> None:
    """Its canonical spec reads back as itself."""
    if str(parse(str(subject.variant))) != str(subject.variant):
        raise BrokenError(f"'{subject.variant}' reads back as '{parse(str(subject.variant))}'")


def is_documented(subject: Subject) -> None:
    """Its docstring opens with the equation and explains every option."""
    cls = registry()[subject.variant.name]
    page = docs.page_of(cls)
    if not page.equation:
        raise BrokenError(f"the first line must read '{subject.variant.name}: h_l = ...'")
    for name in options_of(cls):
        if name not in page.options:
            raise BrokenError(f"under 'Options:' there is no line for {name}")


QUICK: tuple[Proof, ...] = (
    keeps_shape,
    is_token_wise,
    is_causal,
    repeats,
    keeps_states,
    learns,
    counts_parameters,
    counts_costs,
    starts_as_standard,
    stays_finite,
    runs_in_autocast,
    runs_in_bfloat16,
    mixes_as_it_says,
    recomputes,
    generates,
    reads_back,
    is_documented,
)
"""About a tenth of a second in all."""
ALL: tuple[Proof, ...] = (*QUICK, compiles)
"""Compiling takes some seconds more."""


def _design(subject: Subject) -> Residual:
    """The design alone, away from its initial values, in float64."""
    design = subject.variant.build(subject.shape.d_model, subject.shape.n_sublayers).double()
    move(design, 0.5)
    return design


def _values(subject: Subject, n: int) -> list[Tensor]:
    """So many tensors (2, 4, D) in float64."""
    generator = torch.Generator().manual_seed(2)
    size = (n, 2, 4, subject.shape.d_model)
    return list(torch.randn(size, generator=generator, dtype=torch.float64))


def _branch(h: Tensor, l: int) -> Tensor:
    """A stand-in for sublayer l that moves nothing between tokens."""
    return torch.tanh(h.roll(l, dims=-1))


@torch.no_grad()
def _all_reads(design: Residual, x: Tensor) -> list[Tensor]:
    state, seen = design.start(x), []
    for l in range(1, design.n_sublayers + 1):
        h, state = design.read(state, l)
        seen.append(h)
        state = design.write(state, l, _branch(h, l))
    return [*seen, design.finish(state)]


def _loss(model: Transformer, tokens: Tensor) -> Tensor:
    return next_token_loss(model(tokens), tokens.roll(-1, dims=1))


def _gradients(model: Transformer, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(tokens).flatten(0, -2)
    torch.nn.functional.cross_entropy(logits, tokens.roll(-1, dims=1).flatten()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _agree(what: str, found: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    """Raise BrokenError with the first number that differs."""
    if found.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    wrong = ~torch.isclose(found, expected, rtol=rtol, atol=atol)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        where = f" at {list(at)}" if at else ""
        raise BrokenError(
            f"{what}{where}: {found[at].item():.9g}, expected {expected[at].item():.9g}"
        )


def _close_in_bfloat16(found: Tensor, exact: Tensor) -> None:
    """bfloat16 keeps 8 bits, 0.4 % per rounding; six sublayers of sound designs lose 1.4 %."""
    off = ((found.float() - exact).norm() / exact.norm()).item()
    if not off < _BFLOAT16:
        raise BrokenError(
            f"what the head sees is off by {off:.2g} of its size, allowed {_BFLOAT16}"
        )


def _has_shape(h: Any, x: Tensor, who: str) -> None:
    if not isinstance(h, Tensor):
        raise BrokenError(f"{who} must give a tensor (batch, time, d_model), got {_kind(h)}")
    if h.shape != x.shape:
        raise BrokenError(f"{who} gives shape {tuple(h.shape)}, expected {tuple(x.shape)}")


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"


def _raised(error: Exception, variant: Variant) -> str:
    """What was raised, and by which line of the design's own file."""
    file = docs.file_of(registry()[variant.name])
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    where = f" ({file}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    text = " ".join(str(error).split())
    return f"it raised {type(error).__name__}: {text[:300]}{where}"
