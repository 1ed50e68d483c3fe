"""Designs that tell the inputs of attention apart, or change its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from slow_attention import slow_attention
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape


def slow_vres(
    model: Transformer, h: Tensor, weights: Callable[[Transformer, int], tuple[Tensor, Tensor]]
) -> Tensor:
    first: list[Tensor] = []
    for b in range(1, model.shape.n_layers + 1):
        attention, mlp = model.sublayers[2 * b - 2 : 2 * b]

        def changed(v: Tensor, b: int = b) -> Tensor:
            first.append(v)
            if b == 1:
                return v
            a, c = weights(model, b)
            return a * first[0] + c * v

        x = attention[0](h)
        h = h + slow_attention(attention[1], x, x, x, changed)
        h = h + mlp(h)
    return h


def learned(model: Transformer, b: int) -> tuple[Tensor, Tensor]:
    return model.residual.first[b - 2], model.residual.own[b - 2]


def shared(model: Transformer, b: int) -> tuple[Tensor, Tensor]:
    logits = model.residual.logit.flatten()
    share = torch.exp(logits[b - 2]) / torch.exp(logits).sum()
    return model.residual.scale * share, model.residual.own[b - 2]


def summed(model: Transformer, b: int) -> tuple[Tensor, Tensor]:
    own = model.residual.own[b - 2]
    return 1 - own, own


def fixed(_model: Transformer, _b: int) -> tuple[float, float]:
    return 0.25, 0.5


def slow_mudd(model: Transformer, x: Tensor, n_mixed: int = 99, window: int = 99) -> Tensor:
    ours, n = model.residual, model.shape.n_layers
    streams, ways = [x], [x, x, x, x]
    for b in range(1, n + 1):
        attention, mlp = model.sublayers[2 * b - 2 : 2 * b]
        h = ways[3] + slow_attention(attention[1], *map(attention[0], ways[:3]))
        streams.append(h + mlp(h))
        ways = [streams[-1]] * 4
        if b <= n - n_mixed:
            continue
        visible = [j for j in range(b + 1) if j == 0 or j > b - window]
        newest = streams[-1]
        rms = torch.sqrt((newest**2).mean(dim=-1, keepdim=True) + 1e-6)
        hidden = F.gelu(newest / rms @ ours.made_of[str(b)].T)
        weights = hidden @ ours.made[str(b)].T  # ways of the first source beside each other or not
        for c in range(4 if b < n else 1):
            mixed = torch.zeros_like(x)
            for place, j in enumerate(visible):
                w = weights[..., c * len(visible) + place] + ours.static[str(b)][c, place]
                mixed = mixed + w.unsqueeze(-1) * streams[j]
            ways[c if b < n else 3] = mixed
    return ways[3]


def slow_multiway(model: Transformer, x: Tensor, size: int = 1) -> Tensor:
    """Attention Residuals with a query for each input of an attention, in blocks of `size`."""
    ours, sources, partial_sum = model.residual, [x], None
    rows = iter(zip(ours.query, ours.gain, strict=True))

    def mixed() -> Tensor:
        query, gain = next(rows)
        seen = sources if partial_sum is None else [*sources, partial_sum]
        scores = []
        for v in seen:
            rms = torch.sqrt((v**2).mean(dim=-1, keepdim=True) + 1e-6)
            scores.append(((v / rms * gain) * query).sum(dim=-1))
        weights = torch.stack(scores).softmax(dim=0)
        return sum(w.unsqueeze(-1) * v for w, v in zip(weights, seen, strict=True))

    for l, f in enumerate(model.sublayers, 1):
        way = partial(slow_attention, f[1]) if l % 2 else lambda h, f=f: f[1](h)
        y = way(*[f[0](mixed()) for _ in range(3 if l % 2 else 1)])
        partial_sum = y if partial_sum is None else partial_sum + y
        if l % size == 0:
            sources, partial_sum = [*sources, partial_sum], None
    return mixed()


def slow_dca(model: Transformer, x: Tensor, nearest: int = 99) -> Tensor:
    ours, n, sources = model.residual, model.shape.n_layers, [x]
    for b in range(n + 1):
        seen = [j for j in range(b + 1) if j < nearest or j > b - nearest]
        ways = []
        for c in range(4 if b < n else 1):
            total = torch.zeros_like(x)
            for place, j in enumerate(seen):
                dots = (sources[j] * ours.gate[b][c]).sum(dim=-1)
                gates = torch.where(dots > 0, dots, torch.zeros_like(dots))
                total = total + (ours.gain[b][place, c] + gates.unsqueeze(-1)) * sources[j]
            ways.append(total)
        if b == n:
            return ways[0]
        attention, mlp = model.sublayers[2 * b : 2 * b + 2]
        a = slow_attention(attention[1], *map(attention[0], ways[:3]))
        sources.append(a + mlp(ways[3] + a))
    raise AssertionError


def slow_resv(model: Transformer, h: Tensor) -> Tensor:
    n = model.shape.n_layers
    seen, streams, weights = 8 * n // 11, [h], model.residual.weight
    for b in range(1, n + 1):
        attention, mlp = model.sublayers[2 * b - 2 : 2 * b]

        def changed(v: Tensor, b: int = b) -> Tensor:
            if b <= n - len(weights):
                return v
            added, places = torch.zeros_like(streams[0]), (0, 1, seen)
            for w, place in zip(weights[b - 1 - n], places, strict=True):
                added = added + w * streams[place]
            return v + added.view(v.shape)

        x = attention[0](h)
        h = h + slow_attention(attention[1], x, x, x, changed)
        h = h + mlp(h)
        streams.append(h)
    return h


@pytest.mark.parametrize(
    ("spec", "slow"),
    [
        ("attnres:ways=qkv", slow_multiway),
        ("attnres:block_size=4,ways=qkv", partial(slow_multiway, size=4)),
        ("dca", slow_dca),
        ("dca:nearest=1", partial(slow_dca, nearest=1)),
        ("vres", partial(slow_vres, weights=learned)),
        ("vres:weights=shared", partial(slow_vres, weights=shared)),
        ("vres:weights=sum", partial(slow_vres, weights=summed)),
        ("vres:first=0.25,weights=fixed", partial(slow_vres, weights=fixed)),
        ("mudd", slow_mudd),
        ("mudd:layers=2,window=1", partial(slow_mudd, n_mixed=2, window=1)),
    ],
)
@pytest.mark.parametrize("n_kv_heads", [2, 1])
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(
    spec: str, slow: Callable[[Transformer, Tensor], Tensor], n_kv_heads: int, tiny_shape: Shape
):
    shape = dataclasses.replace(tiny_shape, n_kv_heads=n_kv_heads)
    equals_slow_loop(perturbed(spec, shape), tokens_of(1, 2), slow)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("vres:weights=sum", "vres:first=0.5,own=0.5"),
        ("vres:first=0.0,own=1.0", "standard"),
        ("attnres+vres:first=0.0,own=1.0", "attnres"),
        ("mudd", "mudd:dynamic=off"),  # the second matrix starts at zero
        ("mudd:dynamic=off", "standard"),
    ],
)
def test_a_start_that_is_another_designs(spec: str, same: str, tiny_shape: Shape):
    close(
        build(spec, tiny_shape).double()(tokens_of()), build(same, tiny_shape).double()(tokens_of())
    )


@pytest.mark.parametrize("options", ["", "block_size=2", "score=static", "query=input"])
def test_three_equal_queries_of_an_attention_are_one(options: str, tiny_shape: Shape):
    both = [f"attnres:{each}".rstrip(":,") for each in (options, f"{options},ways=qkv".lstrip(","))]
    one, other = perturbed(both[0], tiny_shape), build(both[1], tiny_shape).double()
    sites, places = [site for l in range(7) for site in [l] * (1 if l % 2 or l == 6 else 3)], []
    for site in sites:
        seen = one.residual.visible
        first = sum(map(len, seen[:site]))
        pairs = range(first, first + len(seen[site]))
        places += pairs if options == "score=static" else [site]
    held = one.state_dict()
    moved = {n: w[places] if n.startswith("residual.") else w for n, w in held.items()}
    other.load_state_dict(moved)

    close(other(tokens_of()), one(tokens_of()))


@pytest.mark.parametrize("n_layers", [2, 3, 6])
def test_streams_that_are_added_to_values_equal_a_slow_loop(n_layers: int, tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, n_layers=n_layers)
    equals_slow_loop(perturbed("resv", shape), tokens_of(1, 2), slow_resv)
    for spec in ("resv", "attnres+resv", "modded-2026"):
        with pytest.raises(variant.VariantError, match="16 to values of n_kv_heads x d_head = 1 x"):
            build(spec, dataclasses.replace(shape, n_kv_heads=1))


@pytest.mark.parametrize(
    ("spec", "n_sublayers", "expected"),
    [
        ("vres", 12, 10),
        ("vres:weights=shared", 12, 11),
        ("vres:weights=sum", 12, 5),
        ("vres:weights=fixed", 12, 0),
        ("backout", 12, 1),
        ("mudd:dynamic=off", 6, 4 * 2 + 4 * 3 + 4),
        ("mudd", 6, 8 * 16 + 64 + 8 + 12 * 16 + 144 + 12 + 4 * 16 + 16 + 4),
    ],
)
def test_a_design_adds_as_many_parameters_as_its_paper_says(
    spec: str, n_sublayers: int, expected: int
):
    assert variant.parse(spec).build(16, n_sublayers).n_params() == expected


def test_kinds_of_attention_without_inputs_or_values_refuse_by_name(tiny_shape: Shape):
    for kind in ("mla", "kda"):
        shape = dataclasses.replace(tiny_shape, attention=kind, positions="none", d_latent=8)
        for spec, asked in (("mudd", "named inputs"), ("attnres+vres", "values")):
            with pytest.raises(variant.VariantError) as caught:
                build(spec, shape)
            assert f"needs an attention with {asked}, which {kind} has not" in str(caught.value)


def test_mixed_values_have_the_derivatives_of_the_formula_the_second_ones_too():
    design = variant.parse("vres").build(4, 4).double()
    generator = torch.Generator().manual_seed(0)
    first, own = (
        torch.randn(1, 2, 1, 3, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(2)
    )

    def mixed(first: Tensor, own: Tensor, *_: Tensor) -> Tensor:
        return design.on_values((first,), 3, own)[0]

    inputs = (first, own, *design.parameters())
    assert gradcheck(mixed, inputs)
    assert gradgradcheck(mixed, inputs)
