"""Scores: s_il of source i at site l, before they are made weights.

Static      s_il = b_il, a learned scalar for each site, source and head
Dots        s_il = q_l . k_il + c_il, a dot product in each head, where
Keys        k_il = g_l * v_i / rms(v_i), or v_i; of its last `rank` channels without g_l
InputQuery  q_l = w_l + W_l u / (rms(u) sqrt(D)), u the newest source or the sum of all outputs;
            without it q_l = w_l
Recency     c_il = r_l, learned, for the newest source; without a prior c_il = 0
Count       c_il = log n_i, n_i the number of outputs in source i

A part names the tensors that it needs, with their initial values: parameters, and constants that
go where they go. The design registers them under these names and hands them back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.residual import Hidden

from .common import EPS, refuse, unit, wide
from .sources import Blocks, State
from .weights import WEIGHTS, Weights

Tensors = Mapping[str, Tensor]
"""By name, those of all parts."""


class Static:
    """They start where all weights of a site are equal."""

    def __init__(self, sources: Blocks, weights: Weights, heads: int) -> None:
        by_softmax = "score=static is normalised by softmax, or not: norm=softmax, sigmoid or none"
        refuse((weights.squashed, by_softmax))
        self.sources, self.weights, self.heads = sources, weights, heads

    def tensors(self) -> dict[str, Tensor]:
        shape = (self.sources.n_pairs, self.heads)
        return {"table": nn.Parameter(torch.full(shape, self.weights.neutral))}

    def scoring(self, at: Tensors, x: Hidden) -> Scoring:
        return Scoring(self.sources.visible, self.weights.norm, self.heads, table=at["table"])

    def query(self, at: Tensors, state: State, site: int) -> None:
        return None

    def flops(self) -> int:
        return 0

    def numbers(self) -> int:
        return 0


class Keys:
    """Slices of the width, one per head."""

    def __init__(
        self, d_model: int, heads: int, rank: int | None, *, norm: bool, head_norm: bool
    ) -> None:
        if rank is not None:
            refuse(
                (not 1 <= rank <= d_model, f"rank must be in 1..{d_model} (d_model), got {rank}"),
                (rank % heads > 0, f"heads slice the keys too: {heads} do not divide rank {rank}"),
                (not norm, "keys of low rank are always normalised: drop rank or key_norm=off"),
            )
        if head_norm:
            whole = "head_norm=on is of keys of full width that are normalised: drop it"
            refuse(
                (heads == 1, "head_norm=on normalises each head's slice: set heads, or drop it"),
                (not norm or rank is not None, whole),
            )
        self.d_model, self.heads, self.rank = d_model, heads, rank
        self.norm, self.head_norm = norm, head_norm

    @property
    def width(self) -> int:
        """Channels of a key."""
        return self.rank or self.d_model

    def tensors(self, n_sites: int) -> dict[str, Tensor]:
        has_gain = self.norm and self.rank is None
        return {"gain": nn.Parameter(torch.ones(n_sites, self.width))} if has_gain else {}

    def gain(self, at: Tensors, n_sites: int, x: Hidden) -> Tensor | None:
        """(sites, width) of the keys' norm; None: there is no norm."""
        if self.rank is None:
            return at.get("gain")
        return torch.ones(n_sites, self.rank, device=x.device)

    def flops(self, n_pairs: int, n_sources: int) -> int:
        """Two for each channel of each score, and of each rms."""
        return 2 * self.width * (n_pairs + n_sources * self.norm)


class InputQuery:
    """Of the sum of all outputs where the state has it, else of the newest source."""

    def __init__(self, keys: Keys, of: str) -> None:
        learned = f"keys of low rank have learned queries: drop query={of}"
        refuse((keys.rank is not None, learned))
        self.d_model, self.of_stream = keys.d_model, of == "stream"

    def tensors(self, n_sites: int) -> dict[str, Tensor]:
        return {"project": nn.Parameter(torch.zeros(n_sites, self.d_model, self.d_model))}

    def at_site(self, at: Tensors, state: State, site: int) -> Tensor:
        """(B, T, D)."""
        project = at["project"]
        u = state.history.sources[-1] if state.stream is None else state.stream
        scaled = unit(u).to(project.dtype) / self.d_model**0.5
        return at["query"][site] + F.linear(scaled, project[site])

    def flops(self, n_sites: int) -> int:
        summed = self.d_model * (n_sites - 1) * self.of_stream
        return 2 * self.d_model * (self.d_model + 1) * n_sites + summed

    def numbers(self, n_sites: int) -> int:
        """A query out and in; of the stream: an output and it in, it out, and in at each site."""
        summed = (3 * (n_sites - 1) + n_sites) * self.of_stream
        return self.d_model * (2 * n_sites + summed)


class Recency:
    """The newest source is the last pair of its site."""

    def __init__(self, sources: Blocks) -> None:
        self.sources = sources

    def tensors(self) -> dict[str, Tensor]:
        ends = itertools.accumulate(map(len, self.sources.visible))
        newest = torch.tensor([end - 1 for end in ends])
        return {"recency": nn.Parameter(torch.zeros(len(newest))), "newest": newest}

    def biases(self, at: Tensors, x: Hidden) -> Tensor:
        """(pairs) what is added to the scores, in the order of the sites and what they see."""
        zeros = at["recency"].new_zeros(self.sources.n_pairs)
        return zeros.index_copy(0, at["newest"], at["recency"])


class Count:
    """Under a softmax it multiplies the weight of a source by its number of outputs."""

    def __init__(self, sources: Blocks) -> None:
        alone = "where every source is one output: set block_size or drop it"
        refuse((sources.size == 1, f"prior=count adds log 1 = 0 {alone}"))
        self.sources = sources

    def tensors(self) -> dict[str, Tensor]:
        seen = itertools.chain.from_iterable(self.sources.visible)
        return {"counts": torch.tensor([len(self.sources.outputs(j)) for j in seen])}

    def biases(self, at: Tensors, x: Hidden) -> Tensor:
        """As those of `Recency`."""
        return at["counts"].to(wide(x).dtype).log()


class Dots:
    """Queries start at zero: all scores of a site are then its priors."""

    def __init__(
        self,
        sources: Blocks,
        weights: Weights,
        keys: Keys,
        made: InputQuery | None = None,
        prior: Recency | Count | None = None,
    ) -> None:
        under = "prior=count multiplies weights by n under a softmax, not under a sigmoid: drop one"
        refuse(
            (weights.norm == "none", "norm=none is for score=static: queries need one"),
            (isinstance(prior, Count) and weights != WEIGHTS["softmax"], under),
        )
        self.sources, self.weights, self.heads = sources, weights, keys.heads
        self.keys, self.made, self.prior = keys, made, prior
        self.n_sites = len(sources.visible)

    @property
    def is_plain(self) -> bool:
        """Whether a site reads of a source what the paper's Table 1 counts."""
        whole = self.keys.rank is None and not self.keys.head_norm
        return whole and self.made is None and self.weights == WEIGHTS["softmax"]

    def tensors(self) -> dict[str, Tensor]:
        query = nn.Parameter(torch.zeros(self.n_sites, self.keys.width))
        found = {"query": query, **self.keys.tensors(self.n_sites)}
        if self.made is not None:
            found |= self.made.tensors(self.n_sites)
        return found if self.prior is None else found | self.prior.tensors()

    def scoring(self, at: Tensors, x: Hidden) -> Scoring:
        """What the engine computes."""
        table = None
        if self.prior is not None:
            table = self.prior.biases(at, x).unsqueeze(-1).expand(-1, self.heads)
        return Scoring(
            self.sources.visible,
            self.weights.norm,
            self.heads,
            query=at["query"] if self.made is None else None,  # else reads bring theirs
            gain=self.keys.gain(at, self.n_sites, x),
            table=table,
            eps=EPS,
            rank=self.keys.rank,
            head_norm=self.keys.head_norm,
            squashed=self.weights.squashed,
        )

    def query(self, at: Tensors, state: State, site: int) -> Tensor | None:
        """The query of one read (B, T, D), where it depends on the input."""
        return None if self.made is None else self.made.at_site(at, state, site)

    def flops(self) -> int:
        """Per token."""
        made = 0 if self.made is None else self.made.flops(self.n_sites)
        added = 0 if self.prior is None else self.heads * self.sources.n_pairs
        return self.keys.flops(self.sources.n_pairs, self.n_sites) + made + added

    def numbers(self) -> int:
        """Read and written per token: every key, once, and queries that are made."""
        made = 0 if self.made is None else self.made.numbers(self.n_sites)
        return self.keys.width * self.n_sites + made
