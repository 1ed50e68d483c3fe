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
    ways        qkv: an attention reads for its queries, keys and values by queries of their own, as
                three sites that see the same sources; h: once for all (the paper).
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
Contains: rescaled, where queries or static scores are 0.
Parameters: 2 D S for S = L + 1 sites, with ways=qkv 2 L + 1; D S without key norm; rank S with a
rank; `heads` per site and source for static scores; D^2 S more with query=input or stream, S more
with prior=recency.
Cost: per site and source 2 D FLOPs for the sum, 2 D (2 rank) for the score, none for a static one;
per source 2 D (2 rank) for its rms; 2 D (D + 1) a site with query=input or stream. A source is read
where it is made and at each site that sees it.
Depth mixing: a_il, the same for all outputs of a block, divided by their number for agg=mean and by
rms(v_j) in a finished block for agg=rmssum.
Parts: the sources are in parts/sources.py, what options exclude in parts/options.py.

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

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres_cli.nn.cost import TableOne
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Norm, Scoring, wide
from attnres_cli.nn.residual import Hidden, Inputs, Residual, Value, register
from attnres_cli.nn.trunk.norm import rms_norm

from .parts.options import refuse_keys, refuse_weights, refuse_without_keys, size_of
from .parts.sources import Blocks, State, refuse, sources_of


@register("attnres", {"kimi-48b": {"block_size": 6}, "kimi-k3": {"block_size": 24}})
class AttnRes(Residual):
    """Sources, scores of them, and weights made of the scores by the engine."""

    rate_falls: Sequence[tuple[str, float, float]] = (("query", 1, 0), ("project", 1, 0))
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
        ways: Literal["h", "qkv"] = "h",
    ) -> None:
        super().__init__(d_model, n_sublayers)
        refuse(
            (heads < 1 or d_model % heads > 0, f"heads must divide d_model {d_model}, got {heads}")
        )
        size = size_of(n_sublayers, block_size, n_blocks)
        self.sources = sources_of(d_model, n_sublayers, size, window, agg)
        if score == "static":
            refuse_without_keys(key_norm, head_norm, query, rank, prior, norm)
        else:
            refuse_keys(d_model, heads, key_norm, head_norm, query, rank)
            refuse_weights(norm, prior, size)
        self.named_inputs = ways == "qkv"
        self.sites = tuple(self._sites())
        seen = zip(self.sources.visible, self.sites, strict=True)
        self.visible = tuple(sources for sources, its in seen for _ in its)
        self.n_pairs = sum(map(len, self.visible))
        self.heads, self.rank, self.key_norm, self.head_norm = heads, rank, key_norm, head_norm
        self.norm: Norm = "softmax" if norm == "sigmoid_normalised" else norm
        self.squashed = norm == "sigmoid_normalised"
        self.keeps_stream, self.prior = query == "stream", prior
        self.equals_standard_at_init = prior in self.sources.standard_with
        self._learn(score, query)

    def _sites(self) -> Iterator[range]:
        """The numbers of each sublayer's reads, and of the output norm's, from 0."""
        first = 0
        for l in range(1, self.n_sublayers + 2):
            is_attention = l % 2 == 1 and l <= self.n_sublayers
            yield range(first, first := first + (3 if self.named_inputs and is_attention else 1))

    def _learn(self, score: str, query: str) -> None:
        """Add the parameters, and what a prior needs."""
        sites, d = len(self.visible), self.d_model
        self.query = self.gain = self.table = self.project = self.recency = None
        if score == "static":  # start where all weights of a site are equal
            equal = 1.0 if self.norm == "none" else 0.0
            self.table = nn.Parameter(torch.full((self.n_pairs, self.heads), equal))
            return
        self.query = nn.Parameter(torch.zeros(sites, self.rank or d))
        if self.rank is not None:
            self.rate_falls = (("project", 1, 0),)
        if self.key_norm and self.rank is None:
            self.gain = nn.Parameter(torch.ones(sites, d))
        if query != "learned":
            self.project = nn.Parameter(torch.zeros(sites, d, d))
        if self.prior == "recency":
            newest = [end - 1 for end in accumulate(map(len, self.visible))]
            self.recency = nn.Parameter(torch.zeros(sites))
            self.register_buffer("newest", torch.tensor(newest), persistent=False)
        if self.prior == "count":
            seen = chain.from_iterable(self.visible)
            counts = torch.tensor([len(self.sources.outputs(j)) for j in seen])
            self.register_buffer("counts", counts, persistent=False)

    def start(self, x: Hidden) -> State:
        stream = x if self.keeps_stream else None
        return State(History(self._scoring(x)).append(x), stream=stream, queries=self._queries())

    def _scoring(self, x: Hidden) -> Scoring:
        gain: Tensor | None = self.gain
        if self.rank is not None:
            gain = torch.ones(len(self.visible), self.rank, device=x.device)
        return Scoring(
            self.visible,
            self.norm,
            self.heads,
            query=self.query if self.project is None else None,  # else reads bring theirs
            gain=gain,
            table=self._biases(x),
            rank=self.rank,
            head_norm=self.head_norm,
            squashed=self.squashed,
        )

    def _queries(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Each site's q and P, taken apart once: an index has a gradient of all their size."""
        if self.project is None or self.query is None:
            return ()
        return list(zip(self.query.unbind(), self.project.unbind(), strict=True))

    def _biases(self, x: Hidden) -> Tensor | None:
        """(pairs, heads) static scores, or what a prior adds to the others."""
        if self.prior == "none":
            return self.table
        if self.recency is not None:
            zeros = self.recency.new_zeros(self.n_pairs)
            found = zeros.index_copy(0, self.newest, self.recency)
        else:
            found = self.counts.to(wide(x)).log()
        return found.unsqueeze(-1).expand(-1, self.heads)

    def read(self, state: State, l: int) -> tuple[Hidden | Inputs, State]:
        found, history = [], state.history
        for site in self.sites[l - 1]:
            query = self._query(state, site) if state.queries else None
            h, history = history.read(site, query)
            found.append(h)
        state = state if history is state.history else state._replace(history=history)
        return found[0] if len(found) == 1 else Inputs(*found), state

    def _query(self, state: State, site: int) -> Tensor | None:
        """(B, T, D) of one read, where it depends on the input."""
        if not state.queries:
            return None
        query, project = state.queries[site]
        u = state.history.newest if state.stream is None else state.stream
        u = u.to(wide(u))
        scaled = rms_norm(u, u.new_full((self.d_model,), self.d_model**-0.5), 1e-6)
        return query + F.linear(scaled.to(project.dtype), project)

    def write(self, state: State, l: int, y: Hidden) -> State:
        if state.stream is not None:
            state = state._replace(stream=state.stream + y)
        return self.sources.append(state, l, y)

    def finish(self, state: State) -> Hidden:
        (site,) = self.sites[-1]
        return state.history.read(site, self._query(state, site))[0]

    def carry(self, state: State, l: int) -> list[Tensor]:
        beside = [x for x in (state.units, state.stream) if x is not None]
        return [*state.history.carry(self.sites[l].start), *beside]

    def resume(self, tensors: Sequence[Tensor], l: int) -> State:
        sources = list(tensors)
        stream = sources.pop() if self.keeps_stream else None
        units = sources.pop() if self.sources.has_units(l) else None
        scoring, site = self._scoring(sources[0]), self.sites[l].start
        history = History.resume(scoring, sources, site, l + 1)
        return State(history, units, stream, self._queries())

    def weights(self, values: Sequence[Hidden], k: int = 0) -> list[Tensor]:
        """For each sublayer (of three inputs the k-th) and the output norm, the (B, T, S, H)
        weights of the sources that it sees; 1, 1 for static.
        """
        state, found = self.start(values[0]), []
        for l, sites in enumerate(self.sites, 1):
            site = sites[min(k, len(sites) - 1)]
            found.append(state.history.weights(site, self._query(state, site)))
            if l <= self.n_sublayers:
                state = self.write(state, l, values[l])
        return found

    def depth_mixing(self, values: Sequence[Hidden]) -> Tensor | Inputs:
        if self.named_inputs:
            return Inputs(*(self._mixing(values, k) for k in range(3)))
        return self._mixing(values)

    def _mixing(self, values: Sequence[Hidden], k: int = 0) -> Tensor:
        batch, time, sites = *values[0].shape[:2], self.n_sublayers + 1
        mixing = values[0].new_zeros(batch, time, self.heads, sites, sites)
        for site, weights in enumerate(self.weights(values, k)):
            for a, j in zip(weights.unbind(dim=-2), self.sources.visible[site], strict=True):
                for i in self.sources.outputs(j):
                    mixing[..., site, i] = a * self.sources.share(values[i], j)
        return mixing

    def extra_flops_per_token(self) -> int:
        d, sites, pairs = self.d_model, len(self.visible), self.n_pairs
        sums = self.sources.flops() + 2 * d * (pairs - self.sources.n_pairs)
        if self.query is None:
            return sums
        scores = 2 * (self.rank or d) * (pairs + sites * self.key_norm)
        if self.project is not None:
            scores += 2 * d * (d + 1) * sites + d * self.n_sublayers * self.keeps_stream
        if self.prior != "none":
            scores += self.heads * pairs
        return sums + scores

    def dead_params(self) -> Mapping[str, Sequence[int]]:
        """Those of the first site, where under a softmax the weight of its only source is 1."""
        if self.norm != "softmax":
            return {}
        return {name: tuple(self.sites[0]) for name, _ in self.named_parameters()}

    def table_one(self) -> TableOne | None:
        """Full in two phases: S + N in the best groups; Block: N / S + 5."""
        whole_keys = self.rank is None and not self.head_norm
        learned = self.query is not None and self.project is None
        softmax = self.norm == "softmax" and not self.squashed
        once = not self.named_inputs
        if not (once and whole_keys and learned and softmax and type(self.sources) is Blocks):
            return None
        depth, size = self.n_sublayers, self.sources.size
        if size == 1:
            groups = min(((s, -(-depth // s)) for s in range(1, depth + 1)), key=sum)
            return TableOne("Full", float(sum(groups)), groups, 24.0)
        n_blocks = -(-depth // size)
        return TableOne("Block", n_blocks / size + 5, (size, n_blocks), 5.5)

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
