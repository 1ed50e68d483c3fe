"""Attention residuals against slow loops written from the paper's equations, and its identities."""

from __future__ import annotations

import math

import pytest
import torch
from attnres_variants.attnres import AttnRes
from designs import equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn import variant
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
    "attnres:block_size=2,key_norm=off,prior=count,query=input",
    "attnres:block_size=4,heads=2,norm=sigmoid,prior=recency",
    "attnres:head_norm=on,heads=4",
    "attnres:norm=sigmoid_normalised",
    "attnres:prior=recency,window=2",
    "attnres:query=stream",
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


def test_scaling_a_source_leaves_its_weight_only_under_key_norm():
    x, y = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    for key_norm in (True, False):
        design = AttnRes(16, 2, key_norm=key_norm).double()
        torch.nn.init.normal_(design.query)

        plain, scaled = (design.weights([x, size * y, y])[1] for size in (1, 7))

        assert torch.allclose(plain, scaled, rtol=1e-5) == key_norm


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
