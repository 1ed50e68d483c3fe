"""The trunk: a decoder-only Transformer around a residual design that it knows nothing about.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnres_cli.errors import VariantError
from attnres_cli.nn import generate as generation
from attnres_cli.nn.loss import capped, chunked_loss, n_chunks, next_token_loss
from attnres_cli.nn.residual import Hidden, Inputs, Norms, Residual
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.transfer import Transfer
from attnres_cli.nn.trunk import kinds
from attnres_cli.nn.trunk.documents import mask as mask_of
from attnres_cli.nn.trunk.kind import Heads, Kind
from attnres_cli.nn.trunk.linear import Linear
from attnres_cli.nn.trunk.norm import RMSNorm

TIED_EMBEDDING_STD = 0.02
HEAD_STD = 0.02


class Sublayer(nn.Sequential):
    """An attention or an MLP between the norms that the design asks for."""

    @property
    def kind(self) -> Kind:
        """The attention or MLP."""
        (found,) = (part for part in self if isinstance(part, Kind))
        return found

    def cache(self, length: int) -> object:
        """What it keeps of up to `length` tokens in generation, None for nothing."""
        return self.kind.cache(length)

    def forward(
        self,
        h: Hidden | Inputs | Heads,
        cache: object = None,
        *,
        to_heads: bool = False,
        mask: Tensor | None = None,
    ) -> Any:
        """(B, T, D) -> (B, T, D), of tokens that follow those in the cache. An open attention also
        goes in two steps: `to_heads` ends with its Heads, and takes these, changed or not, for h. A
        mask of documents is for an attention without a cache.
        """
        is_before, isolated = not isinstance(h, Heads), {} if mask is None else {"mask": mask}
        for part in self:
            if isinstance(part, Kind):
                if to_heads:
                    return part.heads(h)  # type: ignore[operator]
                h = part(h, **isolated) if cache is None else part(h, cache)
                is_before = True
            elif isinstance(h, Inputs):
                h = Inputs(*(map(part, h) if cache is None else part(torch.stack(h))))
            elif is_before:
                h = part(h)
        return h


class Head(Linear):
    """Logits of what the output norm gives, capped if the shape says so."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.d_model, shape.vocab_size)
        self.cap = shape.softcap

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., vocab_size)."""
        return capped(super().forward(x), self.cap)


class Transformer(nn.Module):
    """Embedding, 2 n_layers sublayers around a residual design, output norm, head.

    `checkpoints_activations`: training keeps of a sublayer what it reads, and computes the rest
    again in the backward pass. False until it is set.
    """

    def __init__(self, shape: Shape, residual: Residual) -> None:
        super().__init__()
        self.shape = shape
        self.checkpoints_activations = False
        self.embed = nn.Embedding(shape.vocab_size, shape.d_model)
        check_open(residual, shape)
        parts = kinds.sublayers(shape)
        self.sublayers = nn.ModuleList(_with_norms(part, residual.norms, shape) for part in parts)
        self.residual = residual
        self.norm = RMSNorm(shape.d_model, eps=shape.norm_eps)
        self.head: nn.Linear = Head(shape)
        if shape.tie_embeddings:
            self.head.weight = self.embed.weight
        # x has unit variance either way. With small embeddings the eps of the norms, and not the
        # design, would set designs that average their sources apart from `standard` at step 0.
        self.embed_scale = 1 / TIED_EMBEDDING_STD if shape.tie_embeddings else 1.0

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, vocab_size) of the next token, from tokens (B, T).

        With targets (B, T) instead their mean loss, in nats per token; those of -100 do not count.
        Of a large vocabulary the logits are then never all in memory at once. With `documents`, see
        `hidden`.
        """
        hidden = self.hidden(tokens, documents=documents)
        return self.head(hidden) if targets is None else self.loss(hidden, targets)

    def loss(self, hidden: Hidden, targets: Tensor) -> Tensor:
        """The mean loss of targets (B, T) in nats per token, from what the head sees (B, T, D)."""
        n_parts = n_chunks(targets, self.shape.vocab_size)
        if n_parts == 1:
            return next_token_loss(self.head(hidden), targets)
        return chunked_loss(hidden, self.head.weight, targets, n_parts, self.shape.softcap)

    def hidden(
        self, tokens: Tensor, caches: Sequence[object] = (), documents: Tensor | None = None
    ) -> Hidden:
        """What the head sees (B, T, D), from tokens (B, T).

        With caches, one per sublayer, the tokens follow those that the caches have seen, and are
        added to them. The residual needs none: nothing in it moves between time steps.

        Without caches, `documents` (B, T) may number the document of each token: none attends to
        another document. Rotary positions go on: attention sees their differences only. Raises
        TypeError where the shape has KDA, which has no mask.
        """
        x = self.embedded(tokens)
        mask = None if documents is None else mask_of(documents, x)
        every = range(1, len(self.sublayers) + 1)
        state = self.advance(self.residual.start(x), every, caches, mask)
        return self.norm(self.residual.finish(state))

    def advance(
        self,
        state: Any,
        sublayers: range,
        caches: Sequence[object] = (),
        mask: Tensor | None = None,
    ) -> Any:
        """The state of the residual after these sublayers, counted from 1, from that before."""
        for l in sublayers:
            h, state = self.residual.read(state, l)
            y, state = self._output(l, h, state, caches, mask)
            state = self.residual.write(state, l, y)
        return state

    def caches(self, length: int) -> list[object]:
        """Empty ones for `hidden`, with room for so many tokens; None for a sublayer without."""
        return [f.cache(length) for f in self.sublayers]  # type: ignore[operator]

    def trace(
        self, tokens: Tensor, documents: Tensor | None = None
    ) -> tuple[list[Hidden], list[Hidden | Inputs]]:
        """v_0..v_L, the embedding and what the sublayers put out, and h_1..h_L+1, what they and the
        output norm see, each (B, T, D), from tokens (B, T), and `documents` as in `hidden`.
        """
        values, seen = [self.embedded(tokens)], list[Hidden | Inputs]()
        mask = None if documents is None else mask_of(documents, values[0])
        state = self.residual.start(values[0])
        for l in range(1, len(self.sublayers) + 1):
            h, state = self.residual.read(state, l)
            seen.append(h)
            y, state = self._output(l, h, state, mask=mask)
            values.append(y)
            state = self.residual.write(state, l, y)
        return values, [*seen, self.residual.finish(state)]

    def embedded(self, tokens: Tensor) -> Hidden:
        """X (B, T, D) of tokens (B, T)."""
        x = self.embed(tokens)
        return x if self.embed_scale == 1 else x * self.embed_scale

    def _output(
        self,
        l: int,
        h: Hidden | Inputs,
        state: Any,
        caches: Sequence[object] = (),
        mask: Tensor | None = None,
    ) -> tuple[Hidden, Any]:
        """What sublayer l makes of h, and the state, which may have seen an attention's values."""
        f: Callable[..., Any] = self.sublayers[l - 1]
        if l % 2 and mask is not None:
            f = partial(f, mask=mask)
        if l % 2 and self.residual.sees_values:
            heads = self._recomputed(partial(f, to_heads=True), h)
            v, state = self.residual.values(state, l, heads.v)
            h = heads._replace(v=v)
        return f(h, caches[l - 1]) if caches else self._recomputed(f, h), state

    def _recomputed(self, f: Callable[[Any], Any], h: Any) -> Any:
        """f(h), of which backward may find nothing but h and compute the rest again."""
        if not (self.checkpoints_activations and torch.is_grad_enabled()):
            return f(h)
        return checkpoint(f, h, use_reentrant=False, preserve_rng_state=False)  # nothing draws

    generate = generation.generate

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The trunk's own parameters by name: those that every design shares."""
        named = self.named_parameters()
        return {name: p for name, p in named if not name.startswith("residual.")}


def n_params(shape: Shape, residual: Residual) -> int:
    """Parameters of a model by formula: the trunk's, the design's, and a second norm's if any."""
    norms = {Norms.NONE: -1, Norms.PRE: 0, Norms.PRE_AND_POST: 1}[residual.norms]
    return shape.n_params() + residual.n_params() + norms * shape.n_sublayers * shape.d_model


def train_flops_per_token(shape: Shape, residual: Residual) -> int:
    """FLOPs per trained token, forward and backward, trunk and design."""
    return 3 * (shape.flops_per_token() + residual.extra_flops_per_token())


def check_open(residual: Residual, shape: Shape) -> None:
    """Raise VariantError for a design of other sizes than the shape's, or that asks for what an
    attention of its kind, or with so few values, does not do.
    """
    its, ours = (residual.d_model, residual.n_sublayers), (shape.d_model, shape.n_sublayers)
    if its != ours:
        raise VariantError(
            f"{type(residual).__name__} is built for d_model, n_sublayers = {its}, and the shape "
            f"has {ours}: build it with those"
        )
    closed = sorted(set(shape.attentions) - kinds.OPEN)
    if closed and (residual.named_inputs or residual.sees_values):
        asked = "named inputs" if residual.named_inputs else "values"
        raise VariantError(
            f"{type(residual).__name__} needs an attention with {asked}, which "
            f"{' and '.join(closed)} has not: --set model.attention=softmax"
        )
    width = shape.n_kv_heads * shape.d_head
    if residual.adds_to_values and width != shape.d_model:
        raise VariantError(
            f"{type(residual).__name__} adds the stream of width {shape.d_model} to values of "
            f"n_kv_heads x d_head = {shape.n_kv_heads} x {shape.d_head}, which must be as wide: "
            f"--set model.n_kv_heads={shape.n_heads} without model.d_head"
        )


def _with_norms(part: Kind, norms: Norms, shape: Shape) -> Sublayer:
    """The part is called 1 whatever stands around it: a weight is drawn by its name."""
    parts: dict[str, nn.Module] = {"1": part}
    if norms is not Norms.NONE:
        parts = {"0": RMSNorm(shape.d_model, eps=shape.norm_eps), **parts}
    if norms is Norms.PRE_AND_POST:
        parts["2"] = RMSNorm(shape.d_model, eps=shape.norm_eps)
    return Sublayer(OrderedDict(parts))


@torch.no_grad()
def init_weights(model: Transformer, seed: int, transfer: Transfer | None = None) -> None:
    """Draw the trunk's weights, each from a generator of its own, seeded by (seed, name).

    So the parameters that designs share are equal bit for bit, whatever a design adds. A design
    sets its own values in its constructor.

    | parameter                     | distribution                                |
    |-------------------------------|---------------------------------------------|
    | embed, untied                 | N(0, 1)                                     |
    | embed, tied to the head       | N(0, 0.02^2), scaled back to N(0, 1) in use |
    | head, untied                  | N(0, 0.02^2)                                |
    | qkv, gate_up, up              | N(0, 1 / fan_in)                            |
    | out (attention and MLP)       | N(0, 1 / (fan_in 2 n_layers))               |
    | norm gains                    | 1                                           |

    Kinds of sublayers with weights of their own say how those begin (`Kind.initial`). What a
    sublayer's output is proportional to, as v (the last rows of qkv), gate_up, up and out, is
    multiplied by the design's `branch_scale` (`Kind.values`). A transfer makes head and out as
    its own table says.
    """
    outs = (
        float(model.shape.n_sublayers) if transfer is None else transfer.sublayers(model.residual)
    )
    head = HEAD_STD if transfer is None else HEAD_STD / transfer.width
    for name, parameter in model.shared_parameters().items():
        generator = torch.Generator().manual_seed(_seed_of(seed, name))
        drawn = torch.randn(parameter.shape, generator=generator)
        section, _, inner = name.partition(".")
        if section == "sublayers":
            number, part, own = inner.split(".", 2)
            kind = model.sublayers[int(number)].get_submodule(part)
            if isinstance(kind, Kind):
                parameter.copy_(kind.initial(own, drawn, outs))
                if parameter.ndim > 1:
                    kind.values(own, parameter).mul_(model.residual.branch_scale)
                continue
        std = {"embed": _embedding_std(model.shape), "head": head}.get(section)
        parameter.copy_(torch.ones_like(drawn) if std is None else drawn * std)


def _embedding_std(shape: Shape) -> float:
    return TIED_EMBEDDING_STD if shape.tie_embeddings else 1.0


def _seed_of(seed: int, name: str) -> int:
    """63 bits that depend on nothing but the seed and the parameter's name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
