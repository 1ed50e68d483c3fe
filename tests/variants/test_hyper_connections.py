"""Hyper-connections, manifold-constrained and fractional ones too, against slow loops."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attnres_variants import mhc
from attnres_variants.frac import FracConnections
from attnres_variants.hc import HyperConnections
from attnres_variants.mhc import ManifoldHyperConnections
from attnres_variants.parts import sinkhorn as sinkhorn_part
from attnres_variants.parts.many_streams import ManyStreams, read
from designs import build, close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

SPECS = [
    "frac",
    "frac:fractions=1",
    "frac:dynamic=off,fractions=2",
    "hc",
    "hc:n_streams=3",
    "hc:n_streams=1",
    "hc:dynamic=off,n_streams=2",
    "hc:dynamic=off,n_streams=1",
    "mhc:iterations=3,n_streams=3",
    "mhc:n_streams=1",
    "mhc:readout=sigmoid",
    "mhc:residual=lite",
    "mhc:n_streams=3,residual=lite",
    "mhc:n_streams=3,residual=identity",
    "mhc:init=lite,iterations=2,n_streams=2,readout=sigmoid",
]
Maps = tuple[list[Tensor], list[Tensor], list[list[Tensor]]]
"""Of a token: what is read of each stream, what is written to each, and mix[to][from]."""


def slow_frac(model: Transformer, x: Tensor) -> Tensor:
    """What the output norm sees, one token and one fraction at a time."""
    design, m = model.residual, model.residual.n_streams
    for l, f in enumerate(model.sublayers):
        h, kept, found = torch.zeros_like(x), torch.zeros_like(x), {}
        for token in itertools.product(range(x.shape[0]), range(x.shape[1])):
            parts = x[token].split(16 // m)
            found[token] = rows = slow_rows(design, parts, l)
            h[token], kept[token] = slow_sums(rows, parts, 0), slow_sums(rows, parts, m)
        y = f(h)
        x = torch.zeros_like(y)
        for token, rows in found.items():
            parts = y[token].split(16 // m)
            added = [row[2 * m] * part for row, part in zip(rows, parts, strict=True)]
            x[token] = kept[token] + torch.cat(added)
    return x


def slow_sums(rows: list[list[Tensor]], parts: tuple[Tensor, ...], first: int) -> Tensor:
    """Part c is the sum over j of rows[j][first + c] part j."""
    m = len(parts)
    return torch.cat([sum(rows[j][first + c] * parts[j] for j in range(m)) for c in range(m)])


def slow_rows(design: ManyStreams, streams: Any, l: int) -> list[list[Tensor]]:
    """The coefficients of each stream of a token: the last one has a scale of its own."""
    rows = []
    for j, x in enumerate(streams):
        row = list(design.static[l, j])
        if design.weight is not None:
            key = design.gain[l] * x / torch.sqrt(x.square().sum() / len(x) + 1e-6)
            for c in range(len(row)):
                s = design.scale[l, 1 if c == len(row) - 1 else 0]
                row[c] = row[c] + s * torch.tanh(sum(key * design.weight[l, :, c]))
        rows.append(row)
    return rows


def slow_streams(model: Transformer, x: Tensor, maps: Callable[..., Maps]) -> Tensor:
    """What the output norm sees, one token and one stream at a time."""
    design, n = model.residual, model.residual.n_streams
    held = {(b, t): [x[b, t]] * n for b in range(x.shape[0]) for t in range(x.shape[1])}
    for l, f in enumerate(model.sublayers):
        h, found = torch.zeros_like(x), {}
        for token, streams in held.items():
            found[token] = maps(design, streams, l)
            h[token] = sum(found[token][0][j] * streams[j] for j in range(n))
        y = f(h)
        for token, streams in held.items():
            _, write, mix = found[token]
            held[token] = [
                sum(mix[i][j] * streams[j] for j in range(n)) + write[i] * y[token]
                for i in range(n)
            ]
    out = torch.zeros_like(x)
    for token, streams in held.items():
        weights = [1.0] * n
        if len(getattr(design, "head", ())):
            (scale, weight, bias), z = design.head, slow_norm(streams)
            weights = [torch.sigmoid(scale * sum(z * weight[:, i]) + bias[i]) for i in range(n)]
        out[token] = sum(w * s for w, s in zip(weights, streams, strict=True))
    return out


def slow_hc(design: HyperConnections, streams: list[Tensor], l: int) -> Maps:
    n, rows = design.n_streams, slow_rows(design, streams, l)
    mix = [[rows[j][1 + i] for j in range(n)] for i in range(n)]
    return [row[0] for row in rows], [row[n + 1] for row in rows], mix


def slow_norm(streams: list[Tensor]) -> Tensor:
    joined = torch.cat(streams)
    return joined / torch.sqrt(joined.square().sum() / len(joined) + 1e-6)


def slow_mhc(design: ManifoldHyperConnections, streams: list[Tensor], l: int) -> Maps:
    """P, Q and R; column c of W and b belongs to P, then to Q, then to R row by row."""
    n, z = design.n_streams, slow_norm(streams)
    scores = []
    for c in range(design.bias.shape[1]):
        a = design.scale[l, min(c // n, 2)]
        scores.append(a * sum(z * design.weight[l, :, c]) + design.bias[l, c])
    read = [torch.sigmoid(s) for s in scores[:n]]
    write = [2 * torch.sigmoid(s) for s in scores[n : 2 * n]]
    rest = scores[2 * n :]
    if not rest:
        return read, write, [[float(i == j) for j in range(n)] for i in range(n)]
    if design.permutations is not None:
        return read, write, slow_lite(rest, n)
    return read, write, slow_sinkhorn(rest, n, design.iterations)


def slow_sinkhorn(scores: list[Tensor], n: int, iterations: int) -> list[list[Tensor]]:
    r = [[torch.exp(scores[i * n + j]) for j in range(n)] for i in range(n)]
    for _ in range(iterations):
        columns = [sum(r[i][j] for i in range(n)) for j in range(n)]
        r = [[r[i][j] / columns[j] for j in range(n)] for i in range(n)]
        r = [[r[i][j] / sum(r[i]) for j in range(n)] for i in range(n)]
    return r


def slow_lite(scores: list[Tensor], n: int) -> list[list[Tensor]]:
    weights = [torch.exp(s) / sum(torch.exp(s) for s in scores) for s in scores]
    r = [[torch.zeros(()) for _ in range(n)] for _ in range(n)]
    for w, order in zip(weights, itertools.permutations(range(n)), strict=True):
        for i, j in enumerate(order):
            r[i][j] = r[i][j] + w
    return r


SLOW = {
    "frac": slow_frac,
    "hc": partial(slow_streams, maps=slow_hc),
    "mhc": partial(slow_streams, maps=slow_mhc),
}


@pytest.mark.parametrize("spec", SPECS)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    slow = SLOW[spec.partition(":")[0]]
    equals_slow_loop(perturbed(spec, tiny_shape), tokens_of(1, 2), slow)


def test_fractions_that_exchange_have_no_weights_over_depth():
    assert "matrix" in FracConnections(16, 6).not_linear
    assert FracConnections(16, 6).depth_mixing([torch.zeros(1, 1, 16)] * 7) is None
    assert not FracConnections(16, 6, fractions=1).not_linear


def test_the_start_of_hc_reads_the_streams_in_turn_and_keeps_them():
    design = HyperConnections(16, 6, n_streams=4)
    x = torch.randn(1, 2, 4, 16)

    for l, own in ((1, 0), (2, 1), (4, 3), (5, 0)):
        maps = design.maps(x, design.each()[l - 1])
        assert torch.equal(maps.read, torch.eye(4)[own].expand(1, 2, 1, 4))
        assert torch.equal(maps.mix, torch.eye(4).expand(1, 2, 4, 4))
        assert torch.equal(maps.write, torch.ones(1, 2, 4, 1))


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """(N, n, n) of scores (N, n, n)."""
    return sinkhorn_part.sinkhorn(scores.movedim(0, -1), iterations)[0].movedim(-1, 0)


@pytest.mark.parametrize(
    ("deviation", "error"), [(0.3, 1e-6), (1.0, 1e-3), (3.0, 0.1), (10.0, 0.5)]
)
def test_columns_sum_to_one_as_well_as_twenty_iterations_can_and_rows_exactly(
    deviation: float, error: float
):
    scores = deviation * torch.randn(2000, 4, 4, generator=torch.Generator().manual_seed(0))

    r = sinkhorn(scores, 20)

    assert (r >= 0).all()
    assert (r.sum(dim=-1) - 1).abs().max() < 1e-6
    assert (r.sum(dim=-2) - 1).abs().max() < error
    assert (sinkhorn(scores, 5).sum(dim=-2) - 1).abs().max() > (r.sum(dim=-2) - 1).abs().max()


def test_huge_scores_give_finite_maps_and_gradients():
    scores = 1e4 * torch.randn(4, 4, 200, generator=torch.Generator().manual_seed(0))

    with torch.no_grad():
        r, kept = sinkhorn_part.sinkhorn(scores, 20)
        slopes = sinkhorn_part.slopes(2 * r, *kept)

    assert torch.isfinite(r).all()
    assert torch.isfinite(slopes).all()
    torch.testing.assert_close(r.sum(dim=1), torch.ones(4, 200))


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("deviation", [0.3, 10.0])
def test_gradients_by_hand_are_those_of_the_iterations(iterations: int, deviation: float):
    scores = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = (deviation * scores).requires_grad_()
    g = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain, _ = sinkhorn_part.sinkhorn(scores, iterations)  # with a gradient it is in logarithms

    with torch.no_grad():
        found, kept = sinkhorn_part.sinkhorn(scores, iterations)
        slopes = sinkhorn_part.slopes(g, *kept)

    close(found, plain)
    close(slopes, torch.autograd.grad(plain, scores, g)[0])


def test_gradients_by_hand_are_those_of_the_sigmoid_readout_also_twice(tiny_shape: Shape):
    design = perturbed("mhc:n_streams=2,readout=sigmoid", tiny_shape).residual
    x = torch.randn(1, 2, 2, 16, dtype=torch.float64, requires_grad=True)
    head = [each.detach().requires_grad_() for each in design._head(x)]

    def out(x: Tensor, *head: Tensor) -> Tensor:
        return mhc._Out.apply(x, *head)

    torch.autograd.gradcheck(out, (x, *head))
    torch.autograd.gradgradcheck(out, (x, *head))
    close(out(x, *head), read(x, design.readout(x)))


def test_weights_from_before_the_readouts_scale_had_an_axis_are_read(tiny_shape: Shape):
    model, other = (build("mhc:readout=sigmoid", tiny_shape) for _ in range(2))
    held = model.state_dict() | {"residual.head.0": torch.tensor(0.5)}

    other.load_state_dict(held)

    assert torch.equal(other.residual.head[0], torch.tensor([0.5]))
    assert held["residual.head.0"].shape == ()


def test_a_mix_of_permutations_is_doubly_stochastic_for_any_scores(tiny_shape: Shape):
    design = perturbed("mhc:residual=lite", tiny_shape, scale=10.0).residual.float()
    mix = design.maps(torch.randn(2, 3, 4, 16), design.each()[1]).mix

    assert (mix >= 0).all()
    torch.testing.assert_close(mix.sum(dim=-1), torch.ones(2, 3, 4))
    torch.testing.assert_close(mix.sum(dim=-2), torch.ones(2, 3, 4))


@pytest.mark.parametrize(("residual", "kept"), [("sinkhorn", 0.9990), ("lite", 0.9943)])
def test_the_start_of_mhc_reads_one_stream_most_writes_ones_or_most_to_it_and_hardly_mixes(
    residual: str, kept: float
):
    design = ManifoldHyperConnections(16, 6, residual=residual)
    lite = ManifoldHyperConnections(16, 6, residual=residual, init="lite")
    x = torch.randn(1, 2, 4, 16)

    maps, like_read = design.maps(x, design.each()[5]), lite.maps(x, lite.each()[0])

    expected = torch.tensor([0.268941, 0.731059, 0.268941, 0.268941])  # sigmoid(+-1)
    torch.testing.assert_close(maps.read[0, 0, 0], expected)
    assert torch.equal(maps.write, torch.ones(1, 2, 4, 1))
    diagonal = maps.mix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, torch.full((1, 2, 4), kept), atol=5e-4, rtol=0)
    torch.testing.assert_close(like_read.write[..., 0], 2 * like_read.read[..., 0, :])
    torch.testing.assert_close(like_read.write[0, 0, :2, 0], torch.tensor([1.462117, 0.537883]))


def public(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(f"hyper_connections.{module}", reason="needs hyper-connections")


def equals_public_sublayer(design: ManyStreams, theirs: Any, x: Tensor, y: Tensor) -> None:
    """Assert that sublayer 3 reads and writes streams x (B, T, n, D) as the public one does."""
    h, state = design.read(design.start(x[:, :, 0])._replace(x=x), 3)
    after = design.write(state, 3, y).x
    their_h, add = theirs(x.movedim(2, 1).flatten(0, 1))  # theirs are (batch streams) time width

    torch.testing.assert_close(h, their_h, rtol=1e-5, atol=1e-5)
    their_after = add(y).unflatten(0, (2, 4)).movedim(1, 2)
    torch.testing.assert_close(after, their_after, rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_sublayer_equals_that_of_public_hyper_connections(dynamic: bool):
    generator = torch.Generator().manual_seed(0)
    design = HyperConnections(32, 6, n_streams=4, dynamic=dynamic)
    theirs = public("hyper_connections").HyperConnections(4, dim=32, layer_index=2)
    torch.testing.assert_close(theirs.static_alpha, design.static[2, :, :-1])
    with torch.no_grad():
        for parameter in design.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        theirs.static_alpha.copy_(design.static[2, :, :-1])
        theirs.static_beta.copy_(design.static[2, :, -1])
        if design.weight is not None:
            theirs.dynamic_alpha_fn.copy_(design.weight[2, :, :-1])
            theirs.dynamic_beta_fn.copy_(design.weight[2, :, -1])
            theirs.dynamic_alpha_scale.copy_(design.scale[2, 0])
            theirs.dynamic_beta_scale.copy_(design.scale[2, 1])
            theirs.norm.gamma.copy_(design.gain[2] - 1)
    x = torch.randn(2, 5, 4, 32, generator=generator)

    equals_public_sublayer(design, theirs, x, torch.randn(2, 5, 32, generator=generator))


@pytest.mark.oracle
def test_a_sublayer_equals_that_of_public_manifold_constrained_hyper_connections():
    """Where both mean the same: converged Sinkhorn (theirs applies the transpose), streams of one
    size (theirs are normed one by one), each map made from its own stream (theirs always are).
    """
    theirs_of = public("manifold_constrained_hyper_connections")
    n, width = 4, 32
    generator = torch.Generator().manual_seed(0)
    theirs = theirs_of.ManifoldConstrainedHyperConnections(n, dim=width, layer_index=2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        theirs.norm.gamma.zero_()
    design = ManifoldHyperConnections(width, 6, n_streams=n)
    _copy(theirs, design, 2)
    x = torch.nn.functional.rms_norm(torch.randn(2, 5, n, width, generator=generator), (width,))

    equals_public_sublayer(design, theirs, x, torch.randn(2, 5, width, generator=generator))
    for std in (1.0, 10.0):
        scores = std * torch.randn(500, n, n, generator=generator)
        log_domain = theirs_of.log_domain_sinkhorn_knopps(scores, 20)
        torch.testing.assert_close(sinkhorn(scores, 20), log_domain, rtol=1e-5, atol=1e-6)
        plain = theirs_of.sinkhorn_knopps(scores, 20)
        torch.testing.assert_close(sinkhorn(scores, 20), plain, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def _copy(theirs: torch.nn.Module, design: ManifoldHyperConnections, site: int) -> None:
    n, width = design.n_streams, design.d_model
    alpha, fn = theirs.static_alpha, theirs.dynamic_alpha_fn[0]  # (n, 1 + n), (width, 1 + n)
    bias = torch.cat((alpha[:, 0], theirs.static_beta, alpha[:, 1:].t().flatten()))
    design.bias[site] = bias
    scales = (theirs.pre_branch_scale, theirs.h_post_scale.view(1), theirs.residual_scale)
    design.scale[site] = torch.cat(scales)
    weight = torch.zeros(n, width, 2 * n + n * n)
    for s in range(n):
        weight[s, :, s] = fn[:, 0]
        weight[s, :, n + s] = theirs.dynamic_beta_fn
        for t in range(n):
            weight[s, :, 2 * n + t * n + s] = fn[:, 1 + t]
    design.weight[site] = weight.flatten(0, 1)
