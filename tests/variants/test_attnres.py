"""Attention residuals against slow loops written from the paper's equations, and its identities."""

from __future__ import annotations

import math

import pytest
import torch
from attnres_variants.attnres import AttnRes
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from oracles import public
from torch import Tensor

from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import reference
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

OPTIONS = [
    "attnres",
    "attnres:block_size=4",
    "attnres:heads=4,key_norm=off,norm=sigmoid",
    "attnres:score=static,window=2",
    "attnres:n_blocks=2,query=input",
    "attnres:agg=mean,block_size=4,prior=count,rank=4",
    "attnres:agg=rmssum,block_size=4,heads=2,rank=6",
    "attnres:agg=rmssum,block_size=3,prior=recency,query=stream",
    "attnres:block_size=2,heads=2,norm=sigmoid_normalised,query=stream",
    "attnres:agg=mean,block_size=2,norm=none,score=static",
    "attnres:block_size=4,head_norm=on,heads=2,prior=recency,query=input",
]
MORE_OPTIONS = [
    "attnres:block_size=2",
    "attnres:block_size=6",
    "attnres:heads=4",
    "attnres:key_norm=off",
    "attnres:norm=sigmoid",
    "attnres:score=static",
    "attnres:window=2",
    "attnres:block_size=4,heads=2,key_norm=off",
    "attnres:query=input",
    "attnres:block_size=4,heads=2,norm=sigmoid,query=input",
    "attnres:block_size=2,key_norm=off,prior=count,query=input",
    "attnres:rank=3",
    "attnres:agg=mean,block_size=4",
    "attnres:agg=rmssum",
    "attnres:prior=recency,window=2",
    "attnres:block_size=4,heads=2,norm=sigmoid,prior=recency",
    "attnres:norm=sigmoid_normalised",
    "attnres:query=stream",
    "attnres:head_norm=on,heads=4",
]


def rms(v: Tensor) -> Tensor:
    return torch.sqrt((v**2).sum(dim=-1, keepdim=True) / v.shape[-1] + 1e-6)


class Slow:
    """The whole stack, one token and one source at a time; options are those that were typed."""

    def __init__(self, design: AttnRes, spec: str) -> None:
        self.design, self.asked = design, dict(variant.parse(spec).options)
        self.heads = self.asked.get("heads", 1)
        self.size = self.asked.get("block_size", 1)
        if "n_blocks" in self.asked:
            self.size = math.ceil(6 / self.asked["n_blocks"])

    def stream(self, model: Transformer, x: Tensor) -> Tensor:
        values, pairs = [x], 0
        for l in range(1, 8):
            sources = self.sources(values, l)
            u = sum(values) if self.asked.get("query") == "stream" else sources[-1][0]
            h = torch.zeros_like(x)
            for b in range(x.shape[0]):
                for t in range(x.shape[1]):
                    seen = [(v[b, t], n) for v, n in sources]
                    h[b, t] = self.site(seen, u[b, t], l - 1, pairs)
            pairs += len(sources)
            if l < 7:
                values.append(model.sublayers[l - 1](h))
        return h

    def sources(self, values: list[Tensor], l: int) -> list[tuple[Tensor, int]]:
        """Equations 4 to 6: the embedding, the sums of finished blocks, the current block so far;
        each with its number of outputs.
        """
        blocks: list[list[Tensor]] = []
        for v in values[1:l]:
            if not blocks or len(blocks[-1]) == self.size:
                blocks.append([])
            blocks[-1].append(v)
        if "window" in self.asked:
            blocks = blocks[-self.asked["window"] :]
        agg, sources = self.asked.get("agg"), [(values[0], 1)]
        for block in blocks:
            source = sum(block)
            if agg == "mean":
                source = source / len(block)
            if agg == "rmssum" and (len(block) == self.size or l == 7):
                source = sum(v / rms(v) for v in block)
            sources.append((source, len(block)))
        return sources

    def site(self, seen: list[tuple[Tensor, int]], u: Tensor, site: int, pairs: int) -> Tensor:
        out, d_slice, norm = [], 16 // self.heads, self.asked.get("norm")
        for head in range(self.heads):
            scores = [self.score(v, u, head, site, pairs + i) for i, (v, _) in enumerate(seen)]
            if self.asked.get("prior") == "count":
                scores = [s + math.log(n) for s, (_, n) in zip(scores, seen, strict=True)]
            if self.asked.get("prior") == "recency":
                scores[-1] = scores[-1] + self.design.recency[site]
            gates = [1 / (1 + torch.exp(-s)) for s in scores]
            exps = [torch.exp(s) for s in scores]
            weights = {
                "sigmoid": gates,
                "sigmoid_normalised": [g / sum(gates) for g in gates],
                "none": scores,
            }.get(norm, [e / sum(exps) for e in exps])
            part = slice(head * d_slice, (head + 1) * d_slice)
            out.append(sum(a * v[part] for a, (v, _) in zip(weights, seen, strict=True)))
        return torch.cat(out)

    def score(self, v: Tensor, u: Tensor, head: int, site: int, pair: int) -> Tensor:
        """A source's score in one head: a sum over the head's slice of the key."""
        design, asked = self.design, self.asked
        if asked.get("score") == "static":
            return design.table[pair, head]
        key = v[16 - asked.get("rank", 16) :]
        if "head_norm" in asked:
            key = torch.cat([part / rms(part) for part in key.chunk(self.heads)])
        elif asked.get("key_norm", True):
            key = key / rms(key)
        if "rank" not in asked and asked.get("key_norm", True):
            key = design.gain[site] * key
        query = design.query[site]
        if "query" in asked:
            unit = u / rms(u)
            query = query + torch.stack([(row * unit).sum() for row in design.project[site]]) / 4
        size = len(key) // self.heads
        part = slice(head * size, (head + 1) * size)
        return (query[part] * key[part]).sum()


@pytest.mark.parametrize(
    "spec", [*OPTIONS, *(pytest.param(spec, marks=pytest.mark.slow) for spec in MORE_OPTIONS)]
)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    model = perturbed(spec, tiny_shape)
    equals_slow_loop(model, tokens_of(1, 2), Slow(model.residual, spec).stream)


def test_a_block_of_one_sublayer_is_full_and_has_its_name():
    assert str(variant.parse("attnres:block_size=1,heads=1")) == "attnres"


def test_a_window_over_all_sources_is_full(tiny_shape: Shape):
    full, windowed = perturbed("attnres", tiny_shape), perturbed("attnres:window=6", tiny_shape)

    assert torch.equal(full(tokens_of()), windowed(tokens_of()))


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("window=6", ""),
        ("window=5", ":window=5"),
        ("block_size=99", ":block_size=6"),
        ("n_blocks=1", ":block_size=6"),
        ("n_blocks=2", ":block_size=3"),
        ("n_blocks=4", ":block_size=2"),
        ("n_blocks=6", ""),
        ("n_blocks=99", ""),
    ],
)
def test_equal_designs_have_equal_names_at_a_depth(spec: str, name: str):
    typed = variant.parse(f"attnres:{spec}")

    assert str(typed.at_depth(6)) == f"attnres{name}"
    simple = typed.at_depth(6).build(16, 6)
    assert typed.build(16, 6).sources.visible == simple.sources.visible


@pytest.mark.parametrize("heads", [1, 4])
def test_untrained_queries_are_zero_so_that_every_site_averages_its_sources(
    heads: int, tiny_shape: Shape
):
    untrained = build(f"attnres:heads={heads}", tiny_shape).double()

    close(untrained(tokens_of()), build("rescaled", tiny_shape).double()(tokens_of()))


@pytest.mark.parametrize("same", ["query=input", "query=stream", "prior=recency"])
def test_options_that_start_at_zero_add_nothing_before_training(same: str, tiny_shape: Shape):
    plain, model = perturbed("attnres", tiny_shape), build(f"attnres:{same}", tiny_shape).double()
    model.load_state_dict(plain.state_dict(), strict=False)

    close(model(tokens_of()), plain(tokens_of()))


def test_keys_of_full_rank_are_those_of_attnres_with_a_gain_of_one(tiny_shape: Shape):
    plain, low = (build(s, tiny_shape).double() for s in ("attnres", "attnres:rank=16"))
    torch.nn.init.normal_(plain.residual.query)
    low.load_state_dict(plain.state_dict(), strict=False)

    close(low(tokens_of()), plain(tokens_of()))


@pytest.mark.parametrize(
    ("options", "names", "n_params"),
    [
        ({}, ["query", "gain"], 7 * 2 * 16),
        ({"key_norm": False}, ["query"], 7 * 16),
        ({"rank": 4}, ["query"], 7 * 4),
        ({"query": "input"}, ["query", "gain", "project"], 7 * (2 * 16 + 16 * 16)),
        ({"prior": "recency"}, ["query", "gain", "recency"], 7 * (2 * 16 + 1)),
        ({"block_size": 2, "prior": "count"}, ["query", "gain"], 7 * 2 * 16),
        ({"score": "static", "heads": 2}, ["table"], 28 * 2),
    ],
)
def test_weights_keep_the_names_in_checkpoints(options: dict, names: list[str], n_params: int):
    design = AttnRes(16, 6, **options)

    assert [name for name, _ in design.named_parameters()] == list(design.state_dict()) == names
    assert design.n_params() == n_params


def test_the_mean_of_means_counts_every_output_as_its_part():
    values = [torch.zeros(1, 1, 16)] * 7

    mixing = AttnRes(16, 6, block_size=4, agg="mean").depth_mixing(values)[0, 0, 0]

    third = [1 / 3, *[1 / 12] * 4, *[1 / 6] * 2]
    torch.testing.assert_close(mixing[6], torch.tensor(third))


@pytest.mark.parametrize("query", ["learned", "input"])
def test_weights_sum_to_one_and_site_one_has_one_source(query: str):
    design = AttnRes(16, 4, query=query)
    for parameter in design.parameters():
        torch.nn.init.normal_(parameter)

    weights = design.weights([torch.randn(2, 3, 16) for _ in range(5)])

    for each in weights:
        total = each.sum(dim=-2)
        torch.testing.assert_close(total, torch.ones_like(total))
    assert torch.equal(weights[0], torch.ones(2, 3, 1, 1))


@pytest.mark.parametrize(("key_norm", "changes"), [(True, False), (False, True)])
def test_scaling_a_source_leaves_its_weight_only_under_key_norm(key_norm: bool, changes: bool):
    design = AttnRes(16, 2, key_norm=key_norm).double()
    torch.nn.init.normal_(design.query)
    x, y = torch.randn(1, 1, 16).double(), torch.randn(1, 1, 16).double()

    plain = design.weights([x, y, y])[1]
    scaled = design.weights([x, 7 * y, y])[1]

    assert torch.allclose(plain, scaled, rtol=1e-5) != changes


@pytest.mark.oracle
def test_a_read_equals_the_authors_public_operator():
    naive = public("fla.ops.attnres.naive")
    generator = torch.Generator().manual_seed(0)
    query, gain = torch.randn(2, 32, generator=generator)
    sources = list(torch.randn(6, 2, 5, 32, generator=generator))
    scoring = Scoring(((0, 1, 2, 3, 4, 5),), "softmax", query=query[None], gain=gain[None])
    history = History(scoring)
    for v in sources:
        history = history.append(v)

    theirs = naive.naive_attnres(query, sources, gain, rms_eps=1e-6)

    torch.testing.assert_close(history.read(0)[0], theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reference.mix(scoring, sources, 0), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "flops"),
    [
        ("", 2 * 16 * (11 + 5)),  # a score per pair, an rms per source
        (",rank=4", 2 * 4 * (11 + 5)),
        (",key_norm=off", 2 * 16 * 11),
        (",heads=2,prior=recency", 2 * 16 * (11 + 5) + 2 * 11),
        (",query=input", 2 * 16 * (11 + 5) + 5 * 2 * 16 * 17),
        (",query=stream", 2 * 16 * (11 + 5) + 5 * 2 * 16 * 17 + 4 * 16),
    ],
)
def test_costs_of_scores_counted_by_hand(options: str, flops: int):
    """Blocks of two: sites see (0), (0 1), (0 2), (0 2 3), (0 2 4)."""
    design, static = (
        variant.parse(f"attnres:block_size=2{rest}").build(16, 4)
        for rest in (options, ",score=static")
    )

    assert design.extra_flops_per_token() - static.extra_flops_per_token() == flops
