"""Each operator of the kernels by itself, against a formula in float64."""

from __future__ import annotations

import inspect

import pytest
import torch
from mixes import DEVICE, drawer
from sampling import in_pairs
from torch import Tensor

pytest.importorskip("triton")

from attnres_cli.nn.depthmix.fused import kernels, ops

Size = tuple[int, int, int]
"""Tokens, heads and width of a head."""
SIZES: list[Size] = [(1, 1, 5), (16, 3, 7), (33, 2, 5)]
NORMS = {"norm": ["softmax", "sigmoid", "none"]}
TYPES = {"dtype": [torch.float32, torch.bfloat16, torch.float16]}
TABLE = {"table": [False, True]}


def close(ours: Tensor, theirs: Tensor, *, bits: torch.dtype = torch.float32) -> None:
    """Assert equality within some roundings of the type in which the numbers were stored last."""
    assert torch.isfinite(ours).all()
    eps = torch.finfo(bits).eps
    near = 20 * eps if bits == torch.float32 else eps
    torch.testing.assert_close(
        ours.double(), theirs, rtol=near, atol=near * max(1e-3, theirs.abs().max().item())
    )


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def apart(x: Tensor) -> Tensor:
    """The same numbers as rows of a wider tensor, which operators may be given."""
    return torch.cat((x, x), dim=-1)[..., : x.shape[-1]]


def weights_of(z: Tensor, norm: str) -> Tensor:
    """Weights of scores (S, ..., N, H)."""
    if norm == "softmax":
        return torch.softmax(z, dim=0)
    return torch.sigmoid(z) if norm == "sigmoid" else z


def mixed(vs: list[Tensor], z: Tensor, norm: str) -> Tensor:
    """(N, D) in float64 of sources (N, D) under scores (S, N, H), (S, 1, H) of a table."""
    v = split(torch.stack([v.double() for v in vs]), z.shape[-1])
    return (weights_of(z.double(), norm).unsqueeze(-1) * v).sum(dim=0).flatten(-2)


@in_pairs({"size": SIZES} | TYPES | {"n_rows,normalise": [(1, True), (5, False), (17, True)]})
def test_scores_are_dot_products_with_normalised_keys(
    size: Size, dtype: torch.dtype, n_rows: int, normalise: bool
):
    draw, (n, heads, d_head) = drawer(), size
    v, w = apart(draw(n, heads * d_head, dtype=dtype)), draw(n_rows, heads * d_head)

    z, r = ops.scores(v, w, heads, normalise, 1e-3)

    key = v.double()
    inverse = (key.square().mean(dim=-1) + 1e-3).rsqrt()
    expected = torch.einsum("nhd,rhd->rnh", split(key, heads), split(w.double(), heads))
    assert z.shape == (n_rows, (n + 15) // 16 * 16, heads)
    if normalise:
        expected = expected * inverse[None, :, None]
        close(r, inverse)
    close(z[:, :n], expected)


@in_pairs(
    {"size,n_sources": [((3, 1, 5), 66), (SIZES[1], 9), (SIZES[2], 1)]} | NORMS | TYPES | TABLE
)
def test_a_mix_is_the_weighted_sum_of_sources_of_any_types_in_the_type_asked_for(
    size: Size, n_sources: int, norm: str, dtype: torch.dtype, table: bool
):
    draw, (n, heads, d_head) = drawer(), size
    vs = [apart(draw(n, heads * d_head, dtype=TYPES["dtype"][i % 3])) for i in range(n_sources)]
    zs = [3 * draw(1 if table else n, heads) for _ in range(n_sources)]

    h, constants = ops.mix(vs, zs, ops.NORMS[norm], dtype)

    z = torch.stack(zs)
    assert h.dtype == dtype
    close(h, mixed(vs, z, norm), bits=dtype)
    if norm == "softmax":
        z = z.double().expand(-1, n, -1)
        close(constants[0], z.amax(dim=0))
        close(constants[1], 1 / (z - z.amax(dim=0)).exp().sum(dim=0))


@in_pairs({"size,n_sites": list(zip(SIZES, (5, 4, 1), strict=True))} | NORMS | TABLE)
def test_mix_group_and_the_mix_that_goes_on_from_it_are_one_mix(
    size: Size, n_sites: int, norm: str, table: bool
):
    draw, (n, heads, d_head) = drawer(), size
    vs = [apart(draw(n, heads * d_head)) for _ in range(5)]
    zs = [3 * draw(n_sites, 1 if table else n, heads) for _ in range(5)]
    number = ops.NORMS[norm]

    partial, score = ops.mix_group(vs[:3], zs[:3], number)
    score = score[:, :n]

    assert partial.shape == (n_sites, n, heads * d_head)
    for site in range(n_sites):
        z = torch.stack([z[site] for z in zs])
        close(partial[site], mixed(vs[:3], z[:3], norm))
        if norm == "softmax":
            close(score[site], z[:3].double().expand(-1, n, -1).logsumexp(dim=0))
            h, constants = ops.mix(
                [partial[site], *vs[3:]], [score[site], *z[3:]], number, torch.float32
            )
            close(h, mixed(vs, z, norm))
            scores = torch.cat((score[site][None].double(), z[3:].double().expand(-1, n, -1)))
            close(constants[0], scores.amax(dim=0))
            close(constants[1], 1 / (scores - scores.amax(dim=0)).exp().sum(dim=0))


@pytest.mark.parametrize(("old", "new"), [(1e4, -1e4), (-1e4, 1e4), (1e4, 1e4)])
def test_a_mix_goes_on_from_sums_of_any_magnitude(old: float, new: float):
    draw = drawer()
    vs = [draw(3, 4) for _ in range(4)]
    zs = [torch.full((1, 3, 1), score, device=DEVICE) for score in (old, old, new, new)]

    partial, score = ops.mix_group(vs[:2], zs[:2], 0)
    score = score[:, :3]
    h, _ = ops.mix([partial[0], *vs[2:]], [score[0], *(z[0] for z in zs[2:])], 0, torch.float32)

    # the one score that stands for two is 1e4 + log 2, to 1e-3 in float32
    torch.testing.assert_close(h.double(), mixed(vs, torch.cat(zs), "softmax"), rtol=0, atol=2e-3)


READS = [((3, 1, 5), 66), (SIZES[1], 9), (SIZES[2], 5), (SIZES[2], 1)]


@in_pairs({"size,n_reads": READS, "starts": [False, True]} | NORMS | TYPES | TABLE)
def test_gather_sums_the_gradients_of_reads_and_differentiates_their_scores(
    size: Size, n_reads: int, starts: bool, norm: str, dtype: torch.dtype, table: bool
):
    draw, (n, heads, d_head) = drawer(), size
    width = heads * d_head
    v, z = apart(draw(n, width, dtype=dtype)), draw(n_reads, 1 if table else n, heads)
    gs = [apart(draw(n, width, dtype=dtype)) for _ in range(n_reads)]
    soft = norm == "softmax"
    constants = [  # of this source and of others
        torch.stack((most.expand(n, -1) + draw(n, heads).abs(), draw(n, heads).exp()))
        for most in z
        if soft
    ]
    deltas = [draw(n, heads) for _ in gs] if soft else []
    start = draw(n, width) if starts else None

    acc, ds, along = ops.gather(v, z, gs, constants, deltas, start, ops.NORMS[norm])

    assert ds.shape == (n_reads, (n + 15) // 16 * 16, heads)
    g, z = split(torch.stack(gs).double(), heads), z.double()
    dots = (g * split(v.double(), heads)).sum(dim=-1)  # (K, N, H)
    if soft:
        pairs = torch.stack(constants).double()
        a = (z - pairs[:, 0]).exp() * pairs[:, 1]
        slopes = a * (dots - torch.stack(deltas).double())
    else:
        a = weights_of(z, norm).expand(-1, n, -1)
        slopes = dots * a * (1 - a) if norm == "sigmoid" else dots
    total = (a.unsqueeze(-1) * g).sum(dim=0).flatten(-2)
    close(acc, total + (start.double() if starts else 0))
    close(ds[:, :n], slopes)
    close(along, (slopes * z).sum(dim=0))


@in_pairs({"size": SIZES, "n_rows": [1, 17, 66], "normalised": [True, False]} | TYPES)
def test_finish_is_the_derivative_of_scores(
    size: Size, n_rows: int, normalised: bool, dtype: torch.dtype
):
    draw, (n, heads, d_head) = drawer(), size
    v, w = apart(draw(n, heads * d_head, dtype=dtype)), draw(n_rows, heads * d_head)
    acc, ds = apart(draw(n, heads * d_head)), 0.1 * draw(n_rows, n, heads)
    x, q = v.double().requires_grad_(), w.double().requires_grad_()
    z = torch.einsum("nhd,rhd->rnh", split(x, heads), split(q, heads))
    r = (x.square().mean(dim=-1) + 1e-3).rsqrt()
    if normalised:
        z = z * r[None, :, None]
    expected = torch.autograd.grad(z, (x, q), ds.double())

    along = (ds.double() * z).sum(dim=0).detach().float()
    dv, dw = ops.finish(acc, v, r.detach().float() if normalised else None, w, ds, along)

    assert dv.dtype == dtype
    close(dv, expected[0] + acc.double(), bits=dtype)
    close(dw, expected[1])


def test_finish_adds_up_more_tokens_than_it_has_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ops, "PARTS", 2)

    test_finish_is_the_derivative_of_scores((161, 2, 3), 3, True, torch.float32)


OPERATORS = ("scores", "mix", "mix_group", "dots", "gather", "finish")


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operators_fake_and_schema_are_true(name: str):
    draw, width, heads, dtype = drawer(), 6, 2, torch.bfloat16
    n = 16  # beyond a multiple of it scores are not defined
    v, other = draw(n, width, dtype=dtype), draw(n, width, dtype=dtype)
    z, w = draw(3, n, heads), draw(3, width)
    pair, delta = draw(2, n, heads), draw(n, heads)
    arguments = {
        "scores": [(v, w, heads, True, 1e-6), (v.t().contiguous().t(), w, heads, False, 1e-6)],
        "mix": [
            ([v, other], [z[0], z[1]], norm, kind)
            for norm, kind in ((0, dtype), (1, z.dtype), (2, dtype))
        ],
        "mix_group": [([v, other], [z, z], 0), ([v], [draw(3, 1, heads)], 1)],
        "dots": [(v, other, heads), (v.t().contiguous().t(), other.float(), heads)],
        "gather": [
            (v, z, [v, other, v], [pair] * 3, [delta] * 3, None, 0),
            (v, z[:1], [other], [], [], draw(n, width), 1),
        ],
        "finish": [
            (draw(n, width), v, draw(n).abs(), w, z, delta),
            (draw(n, width), v, None, w, z, delta),
        ],
    }[name]
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    for each in arguments:
        torch.library.opcheck(getattr(ops, name), each, test_utils=checks)
    if name in {"scores", "mix", "dots"}:  # every number of their outputs is defined
        torch.library.opcheck(
            getattr(ops, name), arguments[0], test_utils="test_aot_dispatch_dynamic"
        )


POINTERS = {
    "x", "y",
    "v", "w", "z", "r", "wide", "wide_scores", "narrow", "narrow_scores", "mixed", "score", "out",
    "constants", "gs", "deltas", "start", "acc", "along", "ds", "dv", "dw",
}  # fmt: skip


def test_every_row_of_scores_is_aligned_so_that_no_kernel_is_compiled_anew_for_its_address():
    draw = drawer()
    v, z = draw(13, 16), draw(3, 13, 1)
    of_source, _ = ops.scores(v, draw(3, 16), 1, True, 1e-6)
    of_group = ops.mix_group([v], [z], 0)[1]
    of_gradients = ops.gather(v, z[:2], [v, v], [draw(2, 13, 1)] * 2, [draw(13, 1)] * 2, None, 0)[1]

    for rows in (of_source, of_group, of_gradients):
        assert {row.data_ptr() % 16 for row in rows} == {0}


@pytest.mark.parametrize("size", SIZES)
def test_dots_are_the_products_of_each_head(size: Size):
    draw, (n, heads, d_head) = drawer(), size
    x, y = apart(draw(n, heads * d_head)), draw(n, heads * d_head, dtype=torch.bfloat16)

    found = ops.dots(x, y, heads)

    close(found, (x.double() * y.double()).unflatten(-1, (heads, d_head)).sum(dim=-1))


@pytest.mark.parametrize("name", OPERATORS)
def test_no_kernel_is_compiled_anew_for_another_number_of_tokens_or_sources(name: str):
    """Triton compiles anew for each integer that is 1 or divisible by 16, unless told not to."""
    kernel = getattr(kernels, f"{name}_kernel")
    arguments = list(inspect.signature(kernel.fn).parameters)
    constants = {a for a in arguments if a.isupper()}

    exempt = set(getattr(kernel, "do_not_specialize", None) or kernel.kwargs["do_not_specialize"])

    assert exempt == set(arguments) - constants - POINTERS - {"eps"}
