"""Softmax attention one token and one head at a time, by the weights of ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnres_cli.nn.trunk.attention import Attention


def turned(x: Tensor, time: int, theta: float) -> Tensor:
    """A head x (d_head) at a position: each pair of halves turned by its angle."""
    half, out = len(x) // 2, torch.zeros_like(x)
    for j in range(half):
        angle = time * theta ** (-j / half)
        cos, sin = (float(np.float32(f(angle))) for f in (math.cos, math.sin))  # as ours are kept
        out[j] = x[j] * cos - x[half + j] * sin
        out[half + j] = x[half + j] * cos + x[j] * sin
    return out


def slow_attention(
    ours: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    changed: Callable[[Tensor], Tensor] = lambda values: values,
    theta: float = 10_000.0,
) -> Tensor:
    """(B, T, D), from what queries, keys and values are made of; `changed` are the values."""
    n_q, n_k, d = ours.n_heads, ours.n_kv_heads, ours.d_head
    sizes = n_q * d, n_k * d, n_k * d
    made = [x @ w.T for x, w in zip((q, k, v), ours.qkv.weight.split(sizes), strict=True)]
    queries, keys, values = (x.unflatten(-1, (-1, d)) for x in made)
    values, out = changed(values), torch.zeros_like(queries)
    for row in range(len(q)):
        for t in range(q.shape[1]):
            for head in range(n_q):
                group = head * n_k // n_q
                query = turned(queries[row, t, head], t, theta)
                scores = [
                    query @ turned(keys[row, s, group], s, theta) / math.sqrt(d)
                    for s in range(t + 1)
                ]
                weights = torch.stack(scores).softmax(dim=0)
                for s, weight in enumerate(weights):
                    out[row, t, head] = out[row, t, head] + weight * values[row, s, group]
    return out.flatten(-2) @ ours.out.weight.T
