"""Shape: the trunk's sizes, and what follows from them by arithmetic: parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import cycle, islice
from numbers import Integral
from typing import Any, ClassVar, Literal, NamedTuple, get_args

Attention = Literal["softmax", "mla", "kda"]
Mlp = Literal["swiglu", "gelu", "relu2", "moe"]
Positions = Literal["rope", "none"]


_SIZES = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "vocab_size", "seq_len")
_MAY_BE_0 = ("d_ff", "d_latent", "n_experts", "top_k", "n_shared_experts")
"""d_ff for those who count what there is besides."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder-only Transformer, whatever its residual connection. Raises ValueError for
    sizes that no model can have.

    attention and mlp are one kind, or a pattern that repeats over the layers. d_ff is the width of
    an MLP, of one expert where there is a mixture of experts; a dense MLP between such ones is as
    wide as all experts that a token uses. Sizes that the chosen kinds do not have are 0; d_latent
    of mla is 4 d_head where none is given.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    vocab_size: int
    seq_len: int
    mlp: Mlp | tuple[Mlp, ...] = "swiglu"
    tie_embeddings: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    attention: Attention | tuple[Attention, ...] = "softmax"
    positions: Positions = "rope"
    qk_norm: bool = False
    softcap: float | None = None
    d_latent: int = 0
    n_experts: int = 0
    top_k: int = 0
    n_shared_experts: int = 0

    LATER: ClassVar[tuple[str, ...]] = (
        "attention", "positions", "qk_norm", "softcap", "d_latent",
        "n_experts", "top_k", "n_shared_experts",
    )  # fmt: skip
    """Fields newer than some studies: at their defaults a recipe's digest does not see them."""

    def __post_init__(self) -> None:
        for name in ("attention", "mlp"):  # JSON has lists
            if isinstance(kinds := getattr(self, name), list):
                object.__setattr__(self, name, tuple(kinds))
        self._check_kinds()
        self._check_sizes()
        if "mla" in self.attentions and not self.d_latent:
            object.__setattr__(self, "d_latent", 4 * self.d_head)  # as DeepSeek-V2's
        if self.positions == "rope" and self.d_head % 2:
            raise ValueError(f"d_head must be even for rotary positions, got {self.d_head}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads must be a multiple of n_kv_heads, got {self.n_heads} and "
                f"{self.n_kv_heads}"
            )
        if self.positions == "rope" and "mla" in self.attentions:
            raise ValueError("mla has no rotary positions here: set positions to none")
        if "moe" in self.mlps and not 1 <= self.top_k <= self.n_experts:
            raise ValueError(
                f"top_k must be 1 to n_experts, got {self.top_k} of {self.n_experts} experts"
            )

    def _check_kinds(self) -> None:
        if not (self.attention and self.mlp):
            raise ValueError("a pattern of attention or mlp names at least one kind")
        known = {"attention": Attention, "mlp": Mlp, "positions": Positions}
        for name, kinds in known.items():
            chosen = getattr(self, name)
            for kind in chosen if isinstance(chosen, tuple) else (chosen,):
                if kind not in get_args(kinds):
                    raise ValueError(f"{name} is {' or '.join(get_args(kinds))}, got {kind!r}")

    def _check_sizes(self) -> None:
        for name in (*_SIZES, *_MAY_BE_0):
            size, least = getattr(self, name), int(name in _SIZES)
            if not isinstance(size, Integral) or size < least:
                raise ValueError(f"{name} must be a whole number from {least} on, got {size!r}")

    @property
    def n_sublayers(self) -> int:
        """L of the formulas: one attention and one MLP per layer."""
        return 2 * self.n_layers

    @property
    def d_dense(self) -> int:
        """The width of a dense MLP, which is that of all experts that a token uses elsewhere, as in
        DeepSeek-V3 (arXiv 2412.19437): 18,432 beside 8 + 1 experts of 2,048.
        """
        return self.d_ff * max(1, self.top_k + self.n_shared_experts)

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kind of each layer's attention."""
        return _over(self.attention, self.n_layers)

    @property
    def mlps(self) -> tuple[str, ...]:
        """The kind of each layer's MLP."""
        return _over(self.mlp, self.n_layers)

    def fixed(self) -> dict[str, Any]:
        """What a recipe's digest sees: equal for equal trunks, however a pattern was written."""
        held = asdict(self)
        for name, kinds in (("attention", self.attentions), ("mlp", self.mlps)):
            lengths = range(1, len(kinds) + 1)
            n = next(n for n in lengths if _over(kinds[:n], len(kinds)) == kinds)
            held[name] = kinds[:n] if n > 1 else kinds[0]
        defaults = {each.name: each.default for each in fields(self)}
        unset = [name for name in self.LATER if held[name] == defaults[name]]
        return {name: value for name, value in held.items() if name not in unset}

    def _counts(self) -> list[Count]:
        """Of every sublayer, in no order."""
        return [COUNTS[kind](self) for kind in (*self.attentions, *self.mlps)]

    def _outside(self) -> int:
        """Parameters of embedding and head, and of the norms before each sublayer and the last."""
        tables = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return tables + (self.n_sublayers + 1) * self.d_model

    def n_params(self) -> int:
        """Parameters of the trunk with one norm before each sublayer, without the residual's own;
        tied embeddings count once.
        """
        return self._outside() + sum(each.params for each in self._counts())

    def n_active_params(self) -> int:
        """Those of n_params that one token uses."""
        return self._outside() + sum(each.active for each in self._counts())

    def flops_per_token(self) -> int:
        """Forward FLOPs per token of the trunk's matrix products (a multiply-add is two).

        Attention is counted over the whole context, as if it were not causal, which is what
        torch's counter and the usual 12 n_layers d_model seq_len do; of experts those that a token
        uses. Training costs three times as much: the backward pass is two forward passes.
        """
        head = 2 * self.d_model * self.vocab_size
        return head + sum(each.flops for each in self._counts())


class Count(NamedTuple):
    """Of one sublayer without its norms: parameters, those of them that a token uses, and forward
    FLOPs per token.
    """

    params: int
    active: int
    flops: int


def dense(weights: int, beside: int = 0, flops: int = 0) -> Count:
    """Of matrices that every token is multiplied with, and what is there beside them."""
    return Count(weights + beside, weights + beside, 2 * weights + flops)


def _softmax(shape: Shape) -> Count:
    heads = 2 * shape.n_heads + 2 * shape.n_kv_heads
    scores = 4 * shape.seq_len * shape.n_heads * shape.d_head
    gains = 2 * shape.d_head if shape.qk_norm else 0
    return dense(shape.d_model * shape.d_head * heads, beside=gains, flops=scores)


def _mla(shape: Shape) -> Count:
    width, rank = shape.n_heads * shape.d_head, shape.d_latent
    weights = shape.d_model * (2 * width + rank) + rank * 2 * width
    return dense(weights, beside=rank, flops=4 * shape.seq_len * width)  # a gain per latent


def _moe(shape: Shape) -> Count:
    """The router sees all of a token; a token uses the shared experts and top_k others."""
    router, expert = shape.d_model * shape.n_experts, 3 * shape.d_model * shape.d_ff
    active = router + (shape.top_k + shape.n_shared_experts) * expert
    return Count(active + (shape.n_experts - shape.top_k) * expert, active, 2 * active)


def _kda(shape: Shape) -> Count:
    """Its rule by the useful work of the recurrence, token after token: the state is read by a key,
    written, and read by a query. Chunks compute more, see docs/trunk.md.
    """
    heads, d_head = shape.n_heads, shape.d_head
    width, conv = heads * d_head, 3 * heads * d_head * 4
    weights = shape.d_model * (4 * width + heads) + 2 * (shape.d_model + width) * d_head
    beside = heads + width + d_head  # A_log, dt_bias, and the gains of the norm
    return dense(weights + conv, beside=beside, flops=6 * width * d_head)


COUNTS: dict[str, Callable[[Shape], Count]] = {
    "softmax": _softmax,
    "mla": _mla,
    "kda": _kda,
    "swiglu": lambda shape: dense(3 * shape.d_model * shape.d_dense),
    "gelu": lambda shape: dense(2 * shape.d_model * shape.d_dense),
    "relu2": lambda shape: dense(2 * shape.d_model * shape.d_dense),
    "moe": _moe,
}
"""Every kind of attention and MLP; nn/trunk/kinds.py has the modules."""


def _over(kinds: str | tuple[str, ...], n_layers: int) -> tuple[str, ...]:
    """The kind of each layer, from one or a pattern."""
    pattern = (kinds,) if isinstance(kinds, str) else kinds
    return tuple(islice(cycle(pattern), n_layers))
