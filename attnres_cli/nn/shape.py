"""Shape: the trunk's sizes, and what follows from them by arithmetic: parameters and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mlp = Literal["swiglu", "gelu"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder-only Transformer, whatever its residual connection. Raises ValueError for
    sizes that no model can have.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    vocab_size: int
    seq_len: int
    mlp: Mlp = "swiglu"
    tie_embeddings: bool = False
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.d_head % 2:
            raise ValueError(f"d_head must be even for rotary positions, got {self.d_head}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads must be a multiple of n_kv_heads, got {self.n_heads} and "
                f"{self.n_kv_heads}"
            )

    @property
    def n_sublayers(self) -> int:
        """L of the formulas: one attention and one MLP per layer."""
        return 2 * self.n_layers

    def _matmul_weights_per_layer(self) -> int:
        attention = self.d_model * self.d_head * (2 * self.n_heads + 2 * self.n_kv_heads)
        return attention + self.d_model * self.d_ff * (3 if self.mlp == "swiglu" else 2)

    def n_params(self) -> int:
        """Parameters of the trunk with one norm before each sublayer, without the residual's own;
        tied embeddings count once.
        """
        norms = (self.n_sublayers + 1) * self.d_model
        tables = self.vocab_size * self.d_model * (1 if self.tie_embeddings else 2)
        return self.n_layers * self._matmul_weights_per_layer() + norms + tables

    def flops_per_token(self) -> int:
        """Forward FLOPs per token of the trunk's matrix products (a multiply-add is two).

        Attention is counted over the whole context, as if it were not causal, which is what
        torch's counter and the usual 12 n_layers d_model seq_len do. Training costs three
        times as much: the backward pass is two forward passes.
        """
        attention_scores = 4 * self.n_layers * self.seq_len * self.n_heads * self.d_head
        head = 2 * self.d_model * self.vocab_size
        return 2 * self.n_layers * self._matmul_weights_per_layer() + attention_scores + head
