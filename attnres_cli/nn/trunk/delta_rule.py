"""The gated delta rule with a decay per channel, token by token and in chunks.

    S_t = (I - beta_t k_t k_t') Diag(alpha_t) S_{t-1} + beta_t k_t v_t',    o_t = S_t' q_t

In a chunk of C tokens after the state S, with the decay a_ij = alpha_{j+1} ... alpha_i per channel
(a_i0 from before the chunk), each token adds k_i r_i' to the state:

    A_ij = k_i' Diag(a_ij) k_j for j < i,    X = (I + beta A)^-1
    W = X beta (k a_i0),    U = X beta v
    r = U - W S,    o_i = S' (q_i a_i0) + sum_{j <= i} (q_i' Diag(a_ij) k_j) r_j
    S <- Diag(a_C0) S + sum_j (k_j a_Cj) r_j'

so that only r and S wait for the chunk before. a_ij is nowhere a quotient a_i0 / a_j0, which
overflows where the decay is strong: of blocks of 2, 4 ... C tokens one has j in its first half and
i in its second, and a_ij is the decay from j to the border times that from the border to i.

Letters: B batch, T time, H heads, K width of a key, V of a value, N chunks, n = B H.
Source: Kimi Team 2025 (arXiv 2510.26692), section 3; chunks, Yang et al. 2024 (arXiv 2406.06484).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix.scoring import no_autocast

CHUNK = 16
"""Tokens at once. Forward and backward of kimi-tiny's shape (B 16, T 64, H 2, K 32) on a core of an
AMD EPYC: 6.8 ms, 7.5 by 8, 8.5 by 32, 14 by 64; of (1, 1024, 2, 128) 39, and 48, 42, 57.
"""

_UNROLLED = 16
"""Most chunks whose loop is left to a compiler, which writes it out."""


class DeltaRule(nn.Module):
    """By the kernels of fla-core on a GPU where they are installed, else in plain torch."""

    ranges: Tensor
    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        ranges, pairs = _borders(CHUNK)
        self.register_buffer("ranges", ranges, persistent=False)
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """All o (B, T, H, V) and the state (B, H, K, V) after T tokens, from q, k (B, T, H, K),
        v (B, T, H, V), g = log alpha (B, T, H, K), beta (B, T, H) and the state before, None for 0.

        The state is float32, or float64 if g is; so is o, but in the type of v from fla's kernels.
        """
        if state is None:
            state = g.new_zeros(len(q), *q.shape[2:], v.shape[-1])
        with no_autocast(q):
            if q.shape[1] == 1:
                return recurrence(q, k, v, g, beta, state)
            if kernel := _kernel(q, g):
                q, k = q.to(v.dtype), k.to(v.dtype)
                return kernel(
                    q, k, v, g, beta, scale=1.0, initial_state=state, output_final_state=True
                )
            arguments = (q, k, v, g, beta, state, self.ranges, self.pairs)
            if torch.compiler.is_compiling() and q.shape[1] > _UNROLLED * CHUNK:
                return torch.compiler.disable(chunked)(*arguments)
            return chunked(*arguments)


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """What DeltaRule returns, one token after the other: 6 K V FLOPs each and head."""
    q, k, v, beta = (x.to(g.dtype) for x in (q, k, v, beta))
    out = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1)
        missed = v[:, t].unsqueeze(-2) - k[:, t].unsqueeze(-2) @ state  # (B, H, 1, V)
        state = state + (beta[:, t].unsqueeze(-1) * k[:, t]).unsqueeze(-1) @ missed
        out.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(out, dim=1), state


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    ranges: Tensor,
    pairs: Tensor,
) -> tuple[Tensor, Tensor]:
    """What DeltaRule returns, chunk by chunk; `ranges` and `pairs` are of `_borders`."""
    batch, time = q.shape[:2]
    chunk = ranges.shape[-1]
    q, k, v, g, beta = (_cut(x.to(g.dtype), chunk) for x in (q, k, v, g, beta.unsqueeze(-1)))
    a, into, out_of = _scores(torch.stack((k, q), dim=2), k, g, ranges, pairs)
    kk, qk = a.unbind(2)
    inverse = _Inverse.apply(beta * kk, pairs)  # type: ignore[no-untyped-call]
    w, u = inverse @ (beta * k * into), inverse @ (beta * v)

    added, states = [], []
    s, left = state.flatten(0, 1), (k * out_of).mT
    decay = into[:, :, -1].unsqueeze(-1)
    for w_, u_, left_, decay_ in zip(*(x.unbind() for x in (w, u, left, decay)), strict=True):
        states.append(s)
        added.append(torch.baddbmm(u_, w_, s, alpha=-1))
        s = torch.baddbmm(s * decay_, left_, added[-1])
    r = torch.stack(added)
    o = (
        (q * into) @ torch.stack(states) + qk @ r + (q * k).sum(-1, keepdim=True) * r
    )  # (N, n, C, V)
    o = o.unflatten(1, (batch, -1)).permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :time]
    return o, s.unflatten(0, (batch, -1))


def _cut(x: Tensor, chunk: int) -> Tensor:
    """(N, n, C, K) of (B, T, H, K). Zeros after the last token: they neither decay nor add."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % chunk))
    return x.unflatten(1, (-1, chunk)).permute(1, 0, 3, 2, 4).flatten(1, 2)


def _scores(
    kq: Tensor, k: Tensor, g: Tensor, ranges: Tensor, pairs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A and the same of queries (N, n, 2, C, C); a_i0 and a_Ci (N, n, C, K)."""
    decay = (ranges.flatten(0, 1).to(g.dtype) @ g).exp()  # one product of all is the fastest
    into, out_of, *borders = decay.unflatten(-2, ranges.shape[:2]).unbind(-3)
    a = kq.new_zeros(*kq.shape[:-1], kq.shape[-2])
    for x, is_pair in zip(borders, pairs.to(g.dtype), strict=True):
        rows, columns = (kq * x.unsqueeze(2)).flatten(2, 3), (k * x).mT
        a = torch.addcmul(a, (rows @ columns).unflatten(2, (2, -1)), is_pair)
    return a, into, out_of


class _Inverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A (..., C, C), from blocks of 2 to the whole.

    ((X, 0), (Z, Y))^-1 = ((X^-1, 0), (-Y^-1 Z X^-1, Y^-1)). torch's solve_triangular goes through
    the matrices one by one, and three times for a gradient; no part of this inverse exceeds 1.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, pairs: Tensor) -> Tensor:
        pairs = pairs.to(a.dtype)
        inverse = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) - a * pairs[0]
        for is_pair in pairs[1:]:
            inverse = inverse - inverse @ (a * is_pair) @ inverse
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ gradients[0] @ inverse.mT).tril(-1), None


def _borders(chunk: int) -> tuple[Tensor, Tensor]:
    """Of a chunk's tokens i, which of g_1 ... g_C to add up for the decay: from before the chunk
    through i; from after i to the chunk's end; and, for blocks of 2, 4 ... C tokens, from the
    border between the block's halves through i, or from after i to the border (2 + log C, C, C).
    And for each size of blocks the pairs (i, j) of second and first half of one (log C, C, C).
    """
    i, t = torch.arange(chunk).unsqueeze(1), torch.arange(chunk)
    ranges, pairs = [t <= i, t > i], []
    for half in (2**m for m in range((chunk - 1).bit_length())):
        border = i // (2 * half) * 2 * half + half
        is_second = i >= border
        inside = torch.where(is_second, (border <= t) & (t <= i), (i < t) & (t < border))
        ranges.append(inside)
        pairs.append(is_second & (border - half <= t) & (t < border))
    return torch.stack(ranges).float(), torch.stack(pairs).float()


def _kernel(q: Tensor, g: Tensor) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """fla-core's `chunk_kda` where it can be used: on a GPU, for the widths that it is tested with,
    and not in a compiled graph or float64.
    """
    fits = q.is_cuda and 64 <= q.shape[-1] <= 256 and g.dtype is torch.float32
    return _chunk_kda() if fits and not torch.compiler.is_compiling() else None


@functools.cache
def _chunk_kda() -> Callable[..., tuple[Tensor, Tensor]] | None:
    if importlib.util.find_spec("fla") is None:
        return None
    from fla.ops.kda import chunk_kda

    return chunk_kda
