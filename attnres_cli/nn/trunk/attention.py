"""Attention: y = out(softmax(q k' / sqrt(d_head)) v), each token over itself and those before it.

Queries and keys are turned by their positions: with halves (a, b) of a head and angles t theta_j,
theta_j = base^(-2 j / d_head), (a, b) -> (a cos - b sin, a sin + b cos). With qk_norm each head
of q and k is normalised before, with one learned gain for all heads.
Letters: B batch, T time, D width, H heads, K key-value heads, S time so far.
Source: Vaswani et al. 2017 (arXiv 1706.03762); Su et al. 2021 (arXiv 2104.09864); fewer key-value
heads, Ainslie et al. 2023 (arXiv 2305.13245); norms of queries and keys, Dehghani et al. 2023
(arXiv 2302.05442), with RMSNorm over each head as in Qwen3 (arXiv 2505.09388).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Inputs
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.kind import Heads, Kind
from attnres_cli.nn.trunk.linear import Linear, linear
from attnres_cli.nn.trunk.norm import RMSNorm


class Attention(Kind):
    """Causal softmax attention, with fewer key-value heads than queries if the shape says so.
    Without rotary positions it knows no others than that the past is the past.
    """

    def __init__(self, shape: Shape, rotary: Rotary | None) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = shape.n_heads, shape.n_kv_heads
        self.d_head = shape.d_head
        self.rotary = rotary
        n_heads = shape.n_heads + 2 * shape.n_kv_heads
        self.qkv = Linear(shape.d_model, n_heads * shape.d_head)
        self.out = Linear(shape.n_heads * shape.d_head, shape.d_model)
        self.norms: nn.ModuleList | None = None
        if shape.qk_norm:  # of queries, of keys
            norms = (RMSNorm(shape.d_head, eps=shape.norm_eps) for _ in range(2))
            self.norms = nn.ModuleList(norms)

    def forward(
        self,
        h: Hidden | Inputs | Heads,
        cache: KeysAndValues | None = None,
        mask: Tensor | None = None,
    ) -> Hidden:
        """(B, T, D) -> (B, T, D); with a cache, h follows the tokens that the cache has seen. A
        mask (B, 1, T, T) of documents is added to the scores, where there is no cache.
        """
        if isinstance(h, Inputs) and cache is None:
            h = self.heads(h)
        if isinstance(h, Heads):
            return self._attend(h, cache, mask)
        start = 0 if cache is None else cache.seen
        qkv = self.qkv(h) if isinstance(h, Tensor) else torch.cat(self._projected(h), dim=-1)
        qkv = qkv.unflatten(-1, (-1, self.d_head))  # (B, T, H + 2K, d_head)
        sizes = self.n_heads, self.n_kv_heads
        if self.norms is not None:
            parts = qkv.split((*sizes, self.n_kv_heads), dim=-2)
            normed = [norm(x).to(x.dtype) for norm, x in zip(self.norms, parts, strict=False)]
            qkv = torch.cat((*normed, parts[-1]), dim=-2)
        if self.rotary is None:
            q, k, v = qkv.transpose(1, 2).split((*sizes, self.n_kv_heads), dim=1)
        else:
            q, k, v = self.rotary(qkv, *sizes, start)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(attended(q, k, v, start, mask=mask).transpose(1, 2).flatten(-2))

    def heads(self, h: Hidden | Inputs) -> Heads:
        """What h, or each of three, is projected to."""
        if isinstance(h, Inputs):
            q, k, v = self._projected(h)
            parts = torch.cat((q, k), dim=-1), v
        else:
            n_values = self.n_kv_heads * self.d_head
            parts = self.qkv(h).split((len(self.qkv.weight) - n_values, n_values), dim=-1)
        return Heads(*(part.unflatten(-1, (-1, self.d_head)) for part in parts))

    def _projected(self, h: Inputs) -> list[Tensor]:
        """Queries, keys and values (B, T, n d_head), each of its own input."""
        sizes = [n * self.d_head for n in (self.n_heads, self.n_kv_heads, self.n_kv_heads)]
        return [linear(x, w) for x, w in zip(h, self.qkv.weight.split(sizes), strict=True)]

    def _attend(self, heads: Heads, cache: KeysAndValues | None, mask: Tensor | None) -> Hidden:
        start, (qk, v) = 0 if cache is None else cache.seen, heads
        sizes = self.n_heads, self.n_kv_heads
        if self.norms is not None:
            parts = zip(self.norms, qk.split(sizes, dim=-2), strict=True)
            qk = torch.cat([norm(x).to(x.dtype) for norm, x in parts], dim=-2)
        if self.rotary is None:
            q, k = qk.transpose(1, 2).split(sizes, dim=1)
        else:
            q, k, _ = self.rotary(qk, *sizes, start)
        v = v.to(q.dtype).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.out(attended(q, k, v, start, mask=mask).transpose(1, 2).flatten(-2))

    def cache(self, length: int) -> KeysAndValues:
        """Keys and values."""
        return KeysAndValues(length)

    def values(self, name: str, weights: Tensor) -> Tensor:
        """Not the rows of queries and keys, which make scores."""
        n_rows = (self.n_heads + self.n_kv_heads) * self.d_head
        return weights[n_rows:] if name == "qkv.weight" else weights


class KeysAndValues:
    """Of one attention for the `seen` tokens so far, with room for `length`."""

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, 0
        self._kv: tuple[Tensor, Tensor] | None = None  # each (B, K, length, d_head)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far (B, K, S, d_head), the next ones (B, K, T, d_head) last."""
        if self._kv is None:
            size = (*k.shape[:2], self.length, k.shape[-1])
            self._kv = k.new_empty(size), v.new_empty(size)
        start, self.seen = self.seen, self.seen + k.shape[-2]
        for kept, new in zip(self._kv, (k, v), strict=True):
            kept[:, :, start : self.seen] = new
        return self._kv[0][:, :, : self.seen], self._kv[1][:, :, : self.seen]


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: int,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """(B, H, T, d): what queries (B, H, T, d) take from values (B, K, S, d) by keys of as many
    tokens, of which `start` are before them. Scores are scaled by 1 / sqrt(d) if by nothing else. A
    mask (B, 1, T, T) says what is seen, where `start` is 0; else all that is not later.
    """
    time = q.shape[-2]
    if mask is not None:  # a GPU's kernel that takes a mask takes as many keys as queries alone
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if start and time > 1:  # torch's is_causal would count from the first key
        mask = torch.ones(time, start + time, dtype=torch.bool, device=q.device).tril(start)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=time > 1 and mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


class Rotary(nn.Module):
    """Rotary positions, halves turned against each other."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        half = shape.d_head // 2
        frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(shape.seq_len, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # (T, d_head / 2)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(
        self, qkv: Tensor, n_heads: int, n_kv_heads: int, start: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, d_head), keys and values (B, K, T, d_head), from all (B, T, H + 2K,
        d_head) side by side; queries and keys turned, the first time at position `start`. Values
        may be missing, and are then none.
        """
        cos, sin = self._at(start, qkv)
        if not torch.compiler.is_compiling():
            return _Turned.apply(qkv, cos, sin, n_heads, n_kv_heads)  # type: ignore[no-untyped-call]
        q, k, v = qkv.transpose(1, 2).tensor_split((n_heads, n_heads + n_kv_heads), dim=1)
        return turned(q, cos, sin), turned(k, cos, sin), v

    def _at(self, start: int, x: Tensor) -> tuple[Tensor, Tensor]:
        here = slice(start, start + x.shape[1])
        return self.cos[here].to(x.dtype), self.sin[here].to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads x (..., T, d_head) at positions with these cos and sin (T, d_head / 2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class _Turned(torch.autograd.Function):
    """Queries and keys in four calls, and a gradient in one piece: that of a turn is the turn back.

    Plain autograd makes 20 calls and adds up the gradients of q, k and v as parts of zeros.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, n_heads: int, n_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        heads, n_turned = qkv.transpose(1, 2), n_heads + n_kv_heads
        out = qkv.new_empty(heads.shape)
        _turn(heads[:, :n_turned], cos, sin, out[:, :n_turned])
        out[:, n_turned:].copy_(heads[:, n_turned:])  # so that `qkv` need not be kept
        q, k, v = out.tensor_split((n_heads, n_turned), dim=1)
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        q, k, v = gradients
        if torch.is_grad_enabled():  # create_graph=True
            heads = torch.cat((turned(q, cos, -sin), turned(k, cos, -sin), v), dim=1)
            return heads.transpose(1, 2), None, None, None, None
        sizes = [x.shape[1] for x in gradients]
        back = q.new_empty(len(q), sum(sizes[:2]), *q.shape[2:])
        for x, out in zip((q, k), back.split(sizes[:2], dim=1), strict=True):
            _turn(x, cos, -sin, out)
        qkv = q.new_empty(len(q), q.shape[2], sum(sizes), q.shape[3])
        for x, heads in zip((back, v), qkv.split((back.shape[1], sizes[2]), dim=2), strict=True):
            heads.copy_(x.transpose(1, 2))
        return qkv, None, None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """`turned`, written to `out`."""
    a, b = x.chunk(2, dim=-1)
    to_a, to_b = out.chunk(2, dim=-1)
    torch.mul(a, cos, out=to_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=to_b).addcmul_(a, sin)
    return out
