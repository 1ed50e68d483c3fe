"""attnres: h_l = sum_i a_il v_i, a_il = softmax_i(w_l . RMSNorm_l(v_i)), v_0 = x, v_i = f_i(h_i).

Symbols: x (B, T, D) the embedding; v_i the output of sublayer i; i runs over the sources that
site l sees, for Full all i < l; w_l (D) one learned query per site, and g_l (D) the gain of its
keys' norm, for the L sublayers and for the site before the output norm. Values are not
normalised; there is no 1/sqrt(D).

Options:
    block_size  sublayers (not layers) whose outputs are summed into one source; 1 is Full. The
                embedding is a source of its own, the last block may be shorter. Sources are the
                finished blocks and the running sum of the current one (eq. 5 and 6).
    n_blocks    the same by number: block_size = ceil(L / n_blocks).
    heads       slices of the width with weights of their own.
    head_norm   on: keys are normalised in each head's slice, not over the full width before it is
                split (the paper does not say which).
    key_norm    off: s_il = w_l . v_i. Scores then grow with the sources.
    norm        sigmoid: a_il = sigmoid(s_il); sigmoid_normalised: over their sum (the paper does
                not say which); none, of static scores alone: a_il = b_il.
    score       static: s_il = b_il, one learned scalar per site and source, no query and no key
                (whether the paper normalises it, it does not say: by default with softmax).
    query       input: the query is w_l + W_l u / (rms(u) sqrt(D)), W_l (D, D), u the newest
                source; stream: u is the sum of the embedding and all outputs so far (the paper: a
                projection of the current hidden state; not which, nor how scaled).
    rank        keys are the last `rank` channels of v_i, normalised over those without a gain, and
                w_l has `rank` entries: LR-AttnRes, without its heads and priors.
    window      a site sees the embedding and the newest `window` outputs, older ones are dropped.
    agg         what a block's source is, of its outputs: mean, of those so far; rmssum, once it is
                finished, sum_j v_j / rms(v_j), before that the plain sum. The embedding stays raw.
    prior       recency: a learned scalar per site is added to the newest source's score; count: the
                log of the number of outputs in a source is added to its score, 0 for the embedding.

Presets: kimi-48b, of 27 layers, has blocks of 6 sublayers; kimi-k3, of 93, blocks of 24 (12 layers,
as its code counts) and eps 1e-5.
Start: w = 0 (mandatory), g = 1, b = 0 (norm=none: 1), W = 0, recency 0. All weights of a site are
then equal, h_l is a positive multiple of the standard stream, and the sublayers' norms remove the
multiple: the model is `standard` at step 0. It is not with `window`, which drops sources, with
agg=rmssum, with agg=mean, where an output in a long block counts less, and with prior=count, but
for agg=mean and prior=count together: n_i / sum(n) times a mean of n_i outputs is the sum over
sum(n). The first site has one source: under softmax what it learns never receives a gradient (kept,
so that counts match the paper's).
Parameters: 2 D (L + 1); D (L + 1) without key norm; rank (L + 1) with a rank; `heads` per site and
source for static scores; D^2 (L + 1) more with query=input or stream, L + 1 more with
prior=recency.
Cost: per site and source 2 D FLOPs for the sum, 2 D (2 rank) for the score, none for a static one;
per source 2 D (2 rank) for its rms; 2 D (D + 1) a site with query=input or stream. A source is read
where it is made and at each site that sees it.
Depth mixing: a_il, the same for all outputs of a block, divided by their number for agg=mean and by
rms(v_j) in a finished block for agg=rmssum.
Refused: block_size with n_blocks, two names of one thing; window with blocks or agg, for it is one
of outputs; static scores with what they have not (keys, query, rank) or have already (prior);
norm=none of queries, norm=sigmoid_normalised of static scores; head_norm with one head, or without
normalised keys of full width; rank with key_norm=off, query=input or query=stream; agg=mean and
prior=count where every source is one output; prior=count with a sigmoid, where log n does not
multiply a weight by n.

Source: Kimi Team 2026 (arXiv 2603.15031), sections 3 and 5.3, Table 4, Fig. 6. rank: LR-AttnRes
(arXiv 2607.09694), whose public code also has agg=mean and prior=count. agg=rmssum: public code
named RMS-block.
Differences: the output site reads the embedding too, as in the authors' public code; the paper's
sentence names the blocks alone. Where the paper is silent is said with each option; without the
sqrt(D) of query=input, one step of Adam with rate lr moves scores by lr D^2. LR-AttnRes has
eps 2^-23 in its keys' norm, here it is 1e-6. A last block is finished at the output site, however
short it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.residual import Hidden, Residual, Value, VariantError, register

EPS = 1e-6


class State(NamedTuple):
    """The sources; for agg=rmssum the normalised outputs of the current block, summed; for
    query=stream the sum of all.
    """

    history: History
    units: Hidden | None = None
    stream: Hidden | None = None


@register("attnres", {"kimi-48b": {"block_size": 6}, "kimi-k3": {"block_size": 24}})
class AttnRes(Residual):
    """Source j is that of the block of sublayer j, up to j; for Full, v_j itself."""

    newest: Tensor
    counts: Tensor

    def __init__(
        self,
        d_model: int,
        n_sublayers: int,
        *,
        block_size: int = 1,
        n_blocks: int | None = None,
        heads: int = 1,
        key_norm: bool = True,
        head_norm: bool = False,
        norm: Literal["softmax", "sigmoid", "sigmoid_normalised", "none"] = "softmax",
        score: Literal["query", "static"] = "query",
        query: Literal["learned", "input", "stream"] = "learned",
        rank: int | None = None,
        window: int | None = None,
        agg: Literal["sum", "mean", "rmssum"] = "sum",
        prior: Literal["none", "recency", "count"] = "none",
    ) -> None:
        super().__init__(d_model, n_sublayers)
        _refuse_sizes(d_model, block_size, n_blocks, heads, rank)
        if n_blocks is not None:
            block_size = -(-n_sublayers // n_blocks)
        _refuse_blocks(block_size, window, agg, prior, norm)
        _refuse_scores(score, query, rank, prior, norm, key_norm=key_norm)
        _refuse_head_norm(heads, rank, score, on=head_norm, key_norm=key_norm)
        self.block_size, self.heads, self.head_norm, self.norm = block_size, heads, head_norm, norm
        self.query_of = query
        self.agg, self.prior, self.rank = agg, prior, rank
        as_one_sum = (agg, prior) in {("sum", "none"), ("sum", "recency"), ("mean", "count")}
        self.equals_standard_at_init = as_one_sum and (window is None or window >= n_sublayers)
        self.visible = tuple(_sources(l, block_size, window) for l in range(1, n_sublayers + 2))
        self._add_scores(score, query, rank, key_norm=key_norm)
        self._add_prior(prior)

    def _add_scores(self, score: str, query: str, rank: int | None, *, key_norm: bool) -> None:
        sites, width = self.n_sublayers + 1, rank or self.d_model
        self.query = self.gain = self.table = self.project = None
        if score == "static":
            start = 1.0 if self.norm == "none" else 0.0
            self.table = nn.Parameter(torch.full((self._n_pairs(), self.heads), start))
            return
        self.query = nn.Parameter(torch.zeros(sites, width))
        if key_norm and rank is None:
            self.gain = nn.Parameter(torch.ones(sites, width))
        if query != "learned":
            self.project = nn.Parameter(torch.zeros(sites, width, width))

    def _add_prior(self, prior: str) -> None:
        self.recency = None
        if prior == "recency":  # added to the last pair of each site
            ends = itertools.accumulate(map(len, self.visible))
            self.register_buffer("newest", torch.tensor([n - 1 for n in ends]), persistent=False)
            self.recency = nn.Parameter(torch.zeros(self.n_sublayers + 1))
        if prior == "count":  # of every pair
            counts = [len(self._outputs(j)) for seen in self.visible for j in seen]
            self.register_buffer("counts", torch.tensor(counts), persistent=False)

    def start(self, x: Hidden) -> State:
        query = self.query if self.project is None else None  # else reads bring theirs
        gain: Tensor | None = self.gain
        if self.rank is not None:  # the keys' norm has none
            gain = torch.ones(self.n_sublayers + 1, self.rank, device=x.device)
        squashed = self.norm == "sigmoid_normalised"
        scoring = Scoring(
            self.visible,
            "softmax" if self.norm == "sigmoid_normalised" else self.norm,  # of log sigmoid(s)
            self.heads,
            query,
            gain,
            self._biases(x),
            EPS,
            self.rank,
            self.head_norm,
            squashed,
        )
        return State(History(scoring).append(x), stream=x if self.query_of == "stream" else None)

    def _biases(self, x: Hidden) -> Tensor | None:
        """(pairs, heads) static scores, or what a prior adds to the others."""
        if self.recency is not None:
            biases = self.recency.new_zeros(self._n_pairs())
            biases = biases.index_copy(0, self.newest, self.recency)
            return biases.unsqueeze(-1).expand(-1, self.heads)
        if self.prior == "count":
            biases = self.counts.to(_wide(x).dtype).log()
            return biases.unsqueeze(-1).expand(-1, self.heads)
        return self.table

    def read(self, state: State, l: int) -> tuple[Hidden, State]:
        h, history = state.history.read(l - 1, self._query(state, l - 1))
        return h, state._replace(history=history)

    def _query(self, state: State, site: int) -> Tensor | None:
        """The query of query=input and stream: w_l + W_l u / (rms(u) sqrt(D))."""
        if self.project is None or self.query is None:
            return None
        u = state.history.sources[-1] if state.stream is None else state.stream
        unit = _unit(u).to(self.project.dtype) / self.d_model**0.5
        return self.query[site] + F.linear(unit, self.project[site])

    def write(self, state: State, l: int, y: Hidden) -> State:
        n = self._place(l)
        if state.stream is not None:
            state = state._replace(stream=state.stream + y)
        if self.agg == "rmssum":
            units = _unit(y) if n == 1 or state.units is None else state.units + _unit(y)
            if self._is_finished(l):
                return state._replace(history=state.history.append(units), units=None)
            state = state._replace(units=units)
        if n == 1:
            history = state.history.append(y)
        elif self.agg == "mean":
            mean = _wide(state.history.sources[-1])
            history = state.history.accumulate((y - mean) / n)
        else:
            history = state.history.accumulate(y)
        return state._replace(history=history)

    def finish(self, state: State) -> Hidden:
        return self.read(state, self.n_sublayers + 1)[0]

    def _place(self, l: int) -> int:
        """1, 2, ...: of a sublayer in its block."""
        return (l - 1) % self.block_size + 1

    def _is_finished(self, j: int) -> bool:
        """Whether source j holds all outputs of its block."""
        return self._place(j) == self.block_size or j == self.n_sublayers

    def _outputs(self, j: int) -> range:
        """The outputs that source j holds."""
        return range(j - self._place(j) + 1 if j else 0, j + 1)

    def weights(self, values: Sequence[Hidden]) -> list[Tensor]:
        """For each site, the (B, T, S, H) weights of the sources that it sees; 1, 1 for static."""
        state, found = self.start(values[0]), []
        for site in range(self.n_sublayers + 1):
            found.append(state.history.weights(site, self._query(state, site)))
            if site < self.n_sublayers:
                state = self.write(state, site + 1, values[site + 1])
        return found

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor:
        batch, time, sites = *values[0].shape[:2], self.n_sublayers + 1
        mixing = values[0].new_zeros(batch, time, self.heads, sites, sites)
        for site, weights in enumerate(self.weights(values)):
            for a, j in zip(weights.unbind(dim=-2), self.visible[site], strict=True):
                for i in self._outputs(j):
                    mixing[..., site, i] = a * self._share(values[i], j)
        return mixing

    def _share(self, v: Hidden, j: int) -> Tensor | float:
        """What an output v is multiplied by in source j: a number, or (B, T, 1)."""
        if self.agg == "mean":
            return 1 / len(self._outputs(j))
        if self.agg == "rmssum" and j > 0 and self._is_finished(j):
            return _inverse_rms(v)
        return 1.0

    def n_params(self) -> int:
        sites, d = self.n_sublayers + 1, self.d_model
        if self.table is not None:
            return self.heads * self._n_pairs()
        added = (self.gain is not None) * d + (self.project is not None) * d * d
        return sites * ((self.rank or d) + added + (self.recency is not None))

    def extra_flops_per_token(self) -> int:
        d, sites = self.d_model, self.n_sublayers + 1
        key = 0 if self.table is not None else self.rank or d
        normalised = self.gain is not None or self.rank is not None
        scores = 2 * key * (self._n_pairs() + sites * normalised)
        if self.prior != "none":
            scores += self.heads * self._n_pairs()
        if self.project is not None:
            scores += 2 * d * (d + 1) * sites + d * self.n_sublayers * (self.query_of == "stream")
        per_output = {"sum": 0, "mean": 2 * d, "rmssum": 4 * d}[self.agg]
        return scores + 2 * d * self._n_pairs() + per_output * self.n_sublayers

    def extra_bytes_per_token(self, itemsize: int) -> int:
        d, sites = self.d_model, self.n_sublayers + 1
        key = 0 if self.table is not None else self.rank or d
        moved = self._n_pairs() + sites - 3 * self.n_sublayers
        outputs = range(1, sites)
        moved += 3 * sum(self._place(l) > 1 for l in outputs)  # running sum and y in, sum out
        if self.agg == "rmssum":  # the other sum: y or itself in, itself out
            moved += 2 * sum(self._place(l) == 1 or not self._is_finished(l) for l in outputs)
        if self.project is not None:  # a query is written and read
            moved += 2 * sites + (3 * self.n_sublayers + sites) * (self.query_of == "stream")
        return itemsize * (d * moved + key * sites)

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        if self.norm in ("sigmoid", "none"):
            return {}
        return {name: (0,) for name, _ in self.named_parameters()}

    @classmethod
    def canonical_options(
        cls, options: Mapping[str, Value], n_sublayers: int
    ) -> Mapping[str, Value]:
        """A number of blocks is their size; one block over all sublayers is of size L; a window
        over all sources is none.
        """
        simple = dict(options)
        window, n_blocks = simple.get("window"), simple.pop("n_blocks", None)
        if isinstance(n_blocks, int):
            simple["block_size"] = -(-n_sublayers // max(1, n_blocks))
        if isinstance(window, int) and window >= n_sublayers:
            del simple["window"]
        block_size = simple.get("block_size")
        if isinstance(block_size, int):
            simple["block_size"] = min(block_size, n_sublayers)
        return simple

    def _n_pairs(self) -> int:
        return sum(map(len, self.visible))


def _sources(l: int, block_size: int, window: int | None) -> tuple[int, ...]:
    """The sources that site l sees: embedding, last sublayer of each finished block, newest."""
    finished = range(block_size, l, block_size)
    if window is not None:
        finished = range(max(1, l - window), l)
    return tuple(sorted({0, *finished, l - 1}))


def _wide(v: Tensor) -> Tensor:
    """In float32 at least."""
    return v.to(torch.promote_types(v.dtype, torch.float32))


def _inverse_rms(v: Tensor) -> Tensor:
    """(B, T, 1), in float32 at least."""
    return torch.rsqrt(_wide(v).square().mean(dim=-1, keepdim=True) + EPS)


def _unit(v: Tensor) -> Tensor:
    """V / rms(v), in float32 at least."""
    return v * _inverse_rms(v)


def _refuse_sizes(
    d_model: int, block_size: int, n_blocks: int | None, heads: int, rank: int | None
) -> None:
    _refuse(
        (block_size < 1, f"block_size must be at least 1 (1 is Full), got {block_size}"),
        (n_blocks is not None and n_blocks < 1, f"n_blocks must be at least 1, got {n_blocks}"),
        (n_blocks is not None and block_size > 1, "n_blocks sets block_size: give one of them"),
        (heads < 1 or d_model % heads > 0, f"heads must divide d_model {d_model}, got {heads}"),
    )
    if rank is not None:
        _refuse(
            (not 1 <= rank <= d_model, f"rank must be in 1..{d_model} (d_model), got {rank}"),
            (rank % heads > 0, f"heads slice the keys too, and {heads} do not divide rank {rank}"),
        )


def _refuse_blocks(block_size: int, window: int | None, agg: str, prior: str, norm: str) -> None:
    if window is not None:
        exclude = "exclude each other: a window of outputs or of blocks? Drop one"
        _refuse(
            (window < 1, f"window must be at least 1 output, got {window}"),
            (block_size > 1, f"window and block_size {exclude}"),
            (agg != "sum", f"window and agg={agg} {exclude}"),
        )
    alone = "where every source is one output: set block_size or drop it"
    _refuse(
        (block_size == 1 and agg == "mean", f"agg=mean is agg=sum {alone}"),
        (block_size == 1 and prior == "count", f"prior=count adds log 1 = 0 {alone}"),
        (
            norm.startswith("sigmoid") and prior == "count",
            "prior=count multiplies weights by n under a softmax, not under a sigmoid: drop one",
        ),
    )


def _refuse_scores(
    score: str, query: str, rank: int | None, prior: str, norm: str, *, key_norm: bool
) -> None:
    _refuse(
        (norm == "none" and score != "static", "norm=none is for score=static: queries need one"),
        (
            norm == "sigmoid_normalised" and score == "static",
            "score=static is normalised by softmax, or not: norm=softmax, sigmoid or none",
        ),
    )
    if score == "static":
        _refuse(
            (not key_norm, "score=static has no keys, so key_norm=off means nothing: drop it"),
            (rank is not None, f"score=static has no keys, so rank={rank} means nothing: drop it"),
            (query != "learned", f"score=static has no query, so drop query={query}"),
            (
                prior != "none",
                "score=static learns a scalar for every site and source, to which prior="
                f"{prior} adds nothing: drop it",
            ),
        )
    if rank is not None:
        _refuse(
            (not key_norm, "keys of low rank are always normalised: drop rank or key_norm=off"),
            (query != "learned", f"keys of low rank have learned queries: drop query={query}"),
        )


def _refuse_head_norm(
    heads: int, rank: int | None, score: str, *, on: bool, key_norm: bool
) -> None:
    if on:
        _refuse(
            (heads == 1, "head_norm=on normalises each head's slice: set heads, or drop it"),
            (
                not key_norm or score == "static" or rank is not None,
                "head_norm=on is of keys of full width that are normalised: drop it",
            ),
        )


def _refuse(*cases: tuple[bool, str]) -> None:
    for refused, reason in cases:
        if refused:
            raise VariantError(reason)
