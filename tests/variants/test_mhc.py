"""Manifold-constrained hyper-connections against a slow loop from the paper, and their facts."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from attnres_variants import mhc
from attnres_variants.mhc import ManifoldHyperConnections
from attnres_variants.parts.many_streams import State, read
from designs import close, equals_slow_loop, perturbed, tokens_of
from torch import Tensor

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

SPECS = [
    "mhc:iterations=3,n_streams=3",
    "mhc:n_streams=1",
    "mhc:n_streams=3,residual=lite",
    "mhc:init=lite,iterations=2,n_streams=2,readout=sigmoid",
]


def slow_stream(model: Transformer, x: Tensor) -> Tensor:
    """What the output norm sees, one token and one stream at a time."""
    design, (batch, time) = model.residual, x.shape[:2]
    assert isinstance(design, ManifoldHyperConnections)
    n = design.n_streams
    held = {(b, t): [x[b, t]] * n for b in range(batch) for t in range(time)}
    for l, f in enumerate(model.sublayers):
        h, found = torch.zeros_like(x), {}
        for token, streams in held.items():
            found[token] = slow_maps(design, streams, l)
            h[token] = sum(found[token][0][j] * streams[j] for j in range(n))
        y = f(h)
        for token, streams in held.items():
            _, q, r = found[token]
            held[token] = [
                sum(r[i][j] * streams[j] for j in range(n)) + q[i] * y[token] for i in range(n)
            ]
    out = torch.zeros_like(x)
    for token, streams in held.items():
        weights = [1.0] * n
        if len(design.head):
            (scale, weight, bias), z = design.head, slow_norm(streams)
            weights = [slow_sigmoid(scale * sum(z * weight[:, i]) + bias[i]) for i in range(n)]
        out[token] = sum(w * s for w, s in zip(weights, streams, strict=True))
    return out


def slow_norm(streams: list[Tensor]) -> Tensor:
    joined = torch.cat(streams)
    return joined / torch.sqrt(joined.square().sum() / len(joined) + 1e-6)


def slow_sigmoid(s: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-s))


def slow_maps(
    design: ManifoldHyperConnections, streams: list[Tensor], l: int
) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
    """P, Q and R of a token; column c of W and b belongs to P, then to Q, then to R row by row."""
    n, z = design.n_streams, slow_norm(streams)
    scores = []
    for c in range(design.bias.shape[1]):
        a = design.scale[l, min(c // n, 2)]
        scores.append(a * sum(z * design.weight[l, :, c]) + design.bias[l, c])
    read = [slow_sigmoid(s) for s in scores[:n]]
    write = [2 * slow_sigmoid(s) for s in scores[n : 2 * n]]
    rest = scores[2 * n :]
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


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """(N, n, n) of scores (N, n, n)."""
    return mhc.sinkhorn(scores.movedim(0, -1), iterations)[0].movedim(-1, 0)


@pytest.mark.parametrize("spec", SPECS)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    equals_slow_loop(perturbed(spec, tiny_shape), tokens_of(1, 2), slow_stream)


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
        r, kept = mhc.sinkhorn(scores, 20)
        slopes = mhc.sinkhorn_slopes(2 * r, *kept)

    assert torch.isfinite(r).all()
    assert torch.isfinite(slopes).all()
    torch.testing.assert_close(r.sum(dim=1), torch.ones(4, 200))


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("deviation", [0.3, 10.0])
def test_gradients_by_hand_are_those_of_the_iterations(iterations: int, deviation: float):
    scores = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = (deviation * scores).requires_grad_()
    g = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain, _ = mhc.sinkhorn(scores, iterations)  # with a gradient it is in logarithms

    with torch.no_grad():
        found, kept = mhc.sinkhorn(scores, iterations)
        slopes = mhc.sinkhorn_slopes(g, *kept)

    close(found, plain)
    close(slopes, torch.autograd.grad(plain, scores, g)[0])


@pytest.mark.parametrize("spec", ["mhc", "mhc:init=lite,n_streams=3,residual=lite"])
def test_the_first_sublayer_reads_one_of_its_equal_streams(spec: str, tiny_shape: Shape):
    design = perturbed(spec, tiny_shape).residual
    x = torch.randn(2, 3, 16, dtype=torch.float64, requires_grad=True)
    start = design.start(x)

    def first(state: State) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        h, state = design.read(state, 1)
        after = design.write(state, 1, h.sin()).x
        given = (x, design.weight, design.bias, design.scale)
        return h, after, torch.autograd.grad((h * after.sum(dim=-2).cos()).sum(), given)

    h, after, slopes = first(start)
    all_h, all_after, all_slopes = first(design.start(x)._replace(x=start.x.contiguous()))

    close(h, all_h)
    close(after, all_after)
    for found, expected in zip(slopes, all_slopes, strict=True):
        close(found, expected)


def test_gradients_by_hand_are_those_of_the_sigmoid_readout_also_twice(tiny_shape: Shape):
    design = perturbed("mhc:n_streams=2,readout=sigmoid", tiny_shape).residual
    x = torch.randn(1, 2, 2, 16, dtype=torch.float64, requires_grad=True)
    head = [each.detach().requires_grad_() for each in design._head(x)]

    def out(x: Tensor, *head: Tensor) -> Tensor:
        return mhc._Out.apply(x, *head)

    torch.autograd.gradcheck(out, (x, *head))
    torch.autograd.gradgradcheck(out, (x, *head))
    close(out(x, *head), read(x, design.readout(x)))


def test_a_mix_of_permutations_is_doubly_stochastic_for_any_scores():
    design = ManifoldHyperConnections(16, 6, residual="lite")
    with torch.no_grad():
        for parameter in design.parameters():
            parameter += 10 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    mix = design.maps(torch.randn(2, 3, 4, 16), design.each()[1]).mix

    assert (mix >= 0).all()
    torch.testing.assert_close(mix.sum(dim=-1), torch.ones(2, 3, 4))
    torch.testing.assert_close(mix.sum(dim=-2), torch.ones(2, 3, 4))


@pytest.mark.parametrize("residual", ["sinkhorn", "lite"])
def test_the_start_reads_one_stream_most_writes_ones_and_hardly_mixes(residual: str):
    design = ManifoldHyperConnections(16, 6, residual=residual)

    maps = design.maps(torch.randn(1, 2, 4, 16), design.each()[5])

    expected = torch.tensor([0.268941, 0.731059, 0.268941, 0.268941])  # sigmoid(+-1)
    torch.testing.assert_close(maps.read[0, 0, 0], expected)
    assert torch.equal(maps.write, torch.ones(1, 2, 4, 1))
    diagonal = maps.mix.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(
        diagonal,
        torch.full((1, 2, 4), 0.9990 if residual == "sinkhorn" else 0.9943),
        atol=5e-4,
        rtol=0,
    )


def test_the_start_of_mhc_lite_writes_most_to_the_stream_it_reads():
    design = ManifoldHyperConnections(16, 6, init="lite")

    maps = design.maps(torch.randn(1, 1, 4, 16), design.each()[0])

    torch.testing.assert_close(maps.write[..., 0], 2 * maps.read[..., 0, :])
    torch.testing.assert_close(maps.write[0, 0, :2, 0], torch.tensor([1.462117, 0.537883]))


def test_one_stream_is_never_mixed(tiny_shape: Shape):
    model = perturbed("mhc:n_streams=1", tiny_shape, scale=1.0)
    tokens = tokens_of()
    x, design = model.embed(tokens), model.residual
    for l, f in enumerate(model.sublayers):
        maps = design.maps(x.unsqueeze(-2), design.each()[l])
        assert torch.equal(maps.mix, torch.ones(2, 8, 1, 1))
        x = x + maps.write[..., 0] * f(maps.read[..., 0] * x)

    close(model(tokens), model.head(model.norm(x)))


@pytest.mark.parametrize("spec", ["mhc:readout=sigmoid", "mhc:residual=lite"])
def test_permuting_the_streams_with_their_parameters_changes_nothing(spec: str, tiny_shape: Shape):
    model = perturbed(spec, tiny_shape)
    design, order = model.residual, torch.tensor([2, 0, 3, 1])
    tokens = tokens_of()
    expected = model(tokens)
    columns = torch.cat((order, 4 + order, 8 + mix_columns(design, order)))
    rows = (16 * order[:, None] + torch.arange(16)).flatten()

    with torch.no_grad():
        design.bias.copy_(design.bias[:, columns])
        design.weight.copy_(design.weight[:, rows][:, :, columns])
        if len(design.head):
            _, weight, bias = design.head
            weight.copy_(weight[rows][:, order])
            bias.copy_(bias[order])

    close(model(tokens), expected)


def mix_columns(design: ManifoldHyperConnections, order: Tensor) -> Tensor:
    """Where the scores of R come from when stream i is what stream order[i] was."""
    if design.permutations is None:
        return (4 * order[:, None] + order).flatten()
    numbers = [tuple(p.argmax(dim=-1).tolist()) for p in design.permutations.view(-1, 4, 4)]
    back = order.argsort()
    new = [tuple(order[[p[int(i)] for i in back]].tolist()) for p in numbers]
    return torch.tensor([numbers.index(p) for p in new])


def test_mixing_keeps_the_mean_of_the_streams(tiny_shape: Shape):
    design = perturbed("mhc:residual=lite", tiny_shape).residual
    values = list(torch.randn(7, 1, 2, 16, dtype=torch.float64))
    state = design.start(values[0])
    shares = []
    for l in range(1, 7):
        state = design.read(state, l)[1]
        shares.append(state.write.sum(dim=-2))
        state = design.write(state, l, values[l])

    at_output = design.depth_mixing(values)[0, :, 0, -1]

    torch.testing.assert_close(at_output[:, 1:], torch.cat(shares, dim=-1)[0])
    torch.testing.assert_close(at_output[:, 0], torch.full((2,), 4.0, dtype=torch.float64))


@pytest.mark.oracle
def test_a_sublayer_equals_that_of_a_public_implementation():
    """Where both mean the same: converged Sinkhorn (theirs applies the transpose), streams of one
    size (theirs are normed one by one), each map made from its own stream (theirs always are).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        public = pytest.importorskip(
            "hyper_connections.manifold_constrained_hyper_connections",
            reason="needs hyper-connections",
        )
    n, width, l = 4, 32, 3
    generator = torch.Generator().manual_seed(0)
    theirs = public.ManifoldConstrainedHyperConnections(n, dim=width, layer_index=l - 1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        theirs.norm.gamma.zero_()
    design = ManifoldHyperConnections(width, 6, n_streams=n)
    _copy(theirs, design, l - 1)
    x = torch.nn.functional.rms_norm(torch.randn(2, 5, n, width, generator=generator), (width,))
    y = torch.randn(2, 5, width, generator=generator)

    h, state = design.read(design.start(x[:, :, 0])._replace(x=x), l)
    after = design.write(state, l, y).x
    their_h, add = theirs(x.movedim(2, 1).flatten(0, 1))  # theirs are (batch streams) time width

    torch.testing.assert_close(h, their_h, rtol=1e-5, atol=1e-5)
    their_after = add(y).unflatten(0, (2, n)).movedim(1, 2)
    torch.testing.assert_close(after, their_after, rtol=1e-5, atol=1e-5)
    for std in (1.0, 10.0):
        scores = std * torch.randn(500, n, n, generator=generator)
        log_domain = public.log_domain_sinkhorn_knopps(scores, 20)
        torch.testing.assert_close(sinkhorn(scores, 20), log_domain, rtol=1e-5, atol=1e-6)
        plain = public.sinkhorn_knopps(scores, 20)
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
