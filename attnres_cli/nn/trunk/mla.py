"""Latent attention: y = out(softmax(q k' / sqrt(d_head)) v), each token over itself and those
before it, with keys and values of low rank: c = norm(down h), (k, v) = up c for every head.

Generation keeps c alone, d_latent numbers per token, and never makes its keys and values: with U_k
and U_v the rows of `up` of one head, q k' = (q U_k) c' and (p v) = (p c) U_v', p the weights.
Letters: B batch, T time, D width, H heads, R d_latent, S time so far.
Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1, with queries of full rank as its Lite
model has them, and without its part for rotary positions, as Kimi Linear (arXiv 2510.26692) has it.
"""

from __future__ import annotations

from torch import Tensor

from attnres_cli.nn.residual import Hidden
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.attention import attended
from attnres_cli.nn.trunk.kind import Kind
from attnres_cli.nn.trunk.linear import Linear
from attnres_cli.nn.trunk.norm import RMSNorm


class MLA(Kind):
    """Causal softmax attention over keys and values that are made of a short latent vector."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads, self.d_head = shape.n_heads, shape.d_head
        width = shape.n_heads * shape.d_head
        self.query = Linear(shape.d_model, width)
        self.down = Linear(shape.d_model, shape.d_latent)
        self.norm = RMSNorm(shape.d_latent, eps=shape.norm_eps)
        self.up = Linear(shape.d_latent, 2 * width)  # keys of all heads, then values
        self.out = Linear(width, shape.d_model)

    def forward(
        self, h: Hidden, cache: Latents | None = None, mask: Tensor | None = None
    ) -> Hidden:
        """(B, T, D) -> (B, T, D); with a cache, h follows the tokens that the cache has seen. A
        mask (B, 1, T, T) of documents is added to the scores, where there is no cache.
        """
        q = self._heads(self.query(h))
        c = self.norm(self.down(h))
        if cache is not None:
            return self._joined(self._absorbed(q, c, cache))
        k, v = self._heads(self.up(c)).chunk(2, dim=1)
        return self._joined(attended(q, k, v, 0, mask=mask))

    def cache(self, length: int) -> Latents:
        """Latent vectors."""
        return Latents(length)

    def values(self, name: str, weights: Tensor) -> Tensor:
        """The rows of values in `up`, and `out`: queries and keys make scores, c is normalised."""
        if name == "up.weight":
            return weights[self.n_heads * self.d_head :]
        return weights if name == "out.weight" else weights[:0]

    def _absorbed(self, q: Tensor, c: Tensor, cache: Latents) -> Tensor:
        """(B, H, T, d_head) by the latents alone, from queries and the newest of them (B, T, R)."""
        start, c = cache.seen, cache.extend(c.to(q.dtype))[:, None]  # (B, 1, S, R)
        to_keys, to_values = self.up.weight.to(q.dtype).view(2, self.n_heads, self.d_head, -1)
        taken = attended(q @ to_keys, c, c, start, scale=self.d_head**-0.5)
        return taken @ to_values.mT

    def _heads(self, x: Tensor) -> Tensor:
        """(B, heads, T, d_head), from all side by side."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _joined(self, y: Tensor) -> Hidden:
        """(B, T, D), from (B, H, T, d_head)."""
        return self.out(y.transpose(1, 2).flatten(-2))


class Latents:
    """Of one attention for the `seen` tokens so far, with room for `length`."""

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, 0
        self._c: Tensor | None = None  # (B, length, R)

    def extend(self, c: Tensor) -> Tensor:
        """All so far (B, S, R), the next ones (B, T, R) last."""
        if self._c is None:
            self._c = c.new_empty(len(c), self.length, c.shape[-1])
        start, self.seen = self.seen, self.seen + c.shape[1]
        self._c[:, start : self.seen] = c
        return self._c[:, : self.seen]
