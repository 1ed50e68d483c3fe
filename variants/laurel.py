"""laurel: h_{l+1} = a_l f_l(h_l) + b_l (h_l + B_l A_l sum_{j<k} c_lj h_{l-j}), h_1 = x.

Symbols: x (B, T, D) the embedding; f_l sublayer l with its norm inside (PreNorm), l = 1..L; a_l
and b_l learned scalars; A_l (r, D) and B_l (D, r) a learned map of low rank r; c_lj learned scalars
for the k newest streams, h_l first (site l has no more than l of them).
Options:
    kind      which parts are learned. rw: a and b, and no low-rank term (B A = 0). lr: the low-rank
              term of h_l alone (k = 1, c = 1), a = b = 1. pa: the whole low-rank term, a = b = 1.
              rw+lr, rw+pa: both.
    rank      r.
    previous  k, for kinds with pa.
    total     a_l + b_l, for kinds with rw: 2, or 1 as in a plain softmax.
Start: (a_l, b_l) = total softmax(w_l) with w = 0, so a = b = 1; B = 0; c = 1 for h_l and 0 for the
older ones; row j of A has the same value for each channel i with i mod r = j, 0 elsewhere, and unit
length, so that rows are orthogonal. The model is `standard` at step 0. With total=1 a and b start
at 1/2 and it is not: each site halves the stream.
Parameters: rw: 2 L. lr: 2 r D L. pa: 2 r D L + sum_l min(k, l). Sums of these for both.
Cost: rw: 2 D FLOPs per sublayer, no bytes. lr: (4 r + 1) D FLOPs, no bytes. pa: 2 m D
FLOPs on top for the weighted sum of streams, m = min(k, l), of which m - 1 are read for it.
Depth mixing: for rw M[l, i] = a_i prod_{j = i + 1}^{l - 1} b_j, a_0 = 1. The other kinds mix
channels, so that there is no weight per channel.
Refused: a rank that rw does not have, or above the width; `previous` without pa; another total
than 2 without rw.
Source: Menghani, Kumar and Kumar 2024 (arXiv 2411.07501), section 2, with RW, LR, PA and
their combination.
Differences: the paper asks that a and b be bounded and names softmax, without first values; the
default starts where `standard` does, total=1 is the plain softmax. The start of A, B and c
is our choice, as is one pair A, B for all streams of a site. The unit is a sublayer, the
paper's is a layer. Gemma 3n maps the normalised attention input, normalises the result and divides
the sum by sqrt 2, which is another design. Nothing bounds B A: large maps overflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.residual import Hidden, Residual, Value, VariantError, register

RANK, PREVIOUS, TOTAL = 16, 3, 2.0
Streams = tuple[Hidden, ...]


@register("laurel")
class Laurel(Residual):
    """The state is the newest streams, h_l first: as many as the next site needs."""

    rate_falls = (("down", 1, 0),)

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        kind: Literal["rw", "lr", "pa", "rw+lr", "rw+pa"] = "rw",
        rank: int = RANK,
        previous: int = PREVIOUS,
        total: float = TOTAL,
    ) -> None:
        super().__init__(d_model, n_sublayers)
        _refuse(d_model, kind, rank, previous, total)
        self.rank, self.total = rank, total
        self.equals_standard_at_init = total == TOTAL
        self.kept = previous if "pa" in kind else 1
        counts = [min(self.kept, l) for l in range(1, n_sublayers + 1)]
        self.first = tuple(accumulate(counts, initial=0))  # of site l: row first[l - 1] of past
        self.logits = self.down = self.up = self.past = None
        if "rw" in kind:
            self.logits = nn.Parameter(torch.zeros(n_sublayers, 2))
        if kind != "rw":
            self.down = nn.Parameter(_orthogonal(rank, d_model).repeat(n_sublayers, 1, 1))
            self.up = nn.Parameter(torch.zeros(n_sublayers, d_model, rank))
            self.not_linear = "the low-rank map of the stream mixes channels with each other"
            self.unbounded = "nothing bounds the low-rank map that multiplies the stream"
        if "pa" in kind:
            newest = [float(j == 0) for count in counts for j in range(count)]
            self.past = nn.Parameter(torch.tensor(newest).unsqueeze(-1))  # (pairs, 1)

    def start(self, x: Hidden) -> Streams:
        return (x,)

    def read(self, state: Streams, l: int) -> tuple[Hidden, Streams]:
        return state[0], state

    def write(self, state: Streams, l: int, y: Hidden) -> Streams:
        carried = self._carried(state, l)
        if self.logits is not None:
            a, b = (self.total * self.logits[l - 1].softmax(dim=-1)).chunk(2)
            y, carried = a * y, b * carried
        return (y + carried, *state)[: self.kept]

    def finish(self, state: Streams) -> Hidden:
        return state[0]

    def carry(self, state: Streams, l: int) -> Streams:
        return state

    def resume(self, tensors: Sequence[Tensor], l: int) -> Streams:
        return tuple(tensors)

    def extra_flops_per_token(self) -> int:
        scalars = 0 if self.logits is None else 2 * self.n_sublayers
        maps = 0 if self.down is None else (4 * self.rank + 1) * self.n_sublayers
        return self.d_model * (scalars + maps + (0 if self.past is None else 2 * self.first[-1]))

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """No site has more earlier streams than the last one."""
        previous = options.get("previous")
        if isinstance(previous, int):
            return {**options, "previous": min(previous, n_sublayers)}
        return options

    def _carried(self, streams: Streams, l: int) -> Tensor:
        """h_l, and the low-rank term of it and of the streams before it."""
        h = seen = streams[0]
        if self.down is None or self.up is None:
            return h
        if self.past is not None:
            weights = self.past[self.first[l - 1] : self.first[l]]
            seen = reduce(torch.add, [c * x for c, x in zip(weights, streams, strict=True)])
        return h + F.linear(F.linear(seen, self.down[l - 1]), self.up[l - 1])


def _orthogonal(rank: int, d_model: int) -> Tensor:
    """(rank, d_model) with rows of unit length: row j has the channels i with i mod rank = j."""
    rows = torch.arange(d_model) % rank == torch.arange(rank).unsqueeze(-1)
    return F.normalize(rows.float(), dim=-1)


def _refuse(d_model: int, kind: str, rank: int, previous: int, total: float) -> None:
    if "rw" not in kind and total != TOTAL:
        raise VariantError(f"kind={kind} has no a and b, so total means nothing: drop it")
    if not 0 < total < math.inf:
        raise VariantError(f"total must be above 0, got {total}")
    if kind == "rw" and rank != RANK:
        raise VariantError("kind=rw has no low-rank map, so rank means nothing: drop it")
    if kind != "rw" and not 1 <= rank <= d_model:
        raise VariantError(f"rank must be in 1..{d_model} (d_model), got {rank}")
    if "pa" not in kind and previous != PREVIOUS:
        raise VariantError(f"kind={kind} sees one stream, so previous means nothing: drop it")
    if previous < 1:
        raise VariantError(f"previous must be at least 1 stream, got {previous}")
