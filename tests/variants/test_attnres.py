"""Attention residuals against slow loops written from the paper's equations, and its identities."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from attnres_variants.attnres import AttnRes
from designs import build
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
from attnres_cli.nn.depthmix import reference
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape

OPTIONS = [
    "attnres",
    "attnres:block_size=2",
    "attnres:block_size=4",
    "attnres:block_size=6",
    "attnres:heads=4",
    "attnres:key_norm=off",
    "attnres:norm=sigmoid",
    "attnres:score=static",
    "attnres:window=2",
    "attnres:block_size=4,heads=2,key_norm=off",
    "attnres:n_blocks=2",
    "attnres:query=input",
    "attnres:block_size=4,heads=2,norm=sigmoid,query=input",
    "attnres:block_size=2,key_norm=off,prior=count,query=input",
    "attnres:rank=3",
    "attnres:block_size=4,heads=2,rank=6",
    "attnres:agg=mean,block_size=4",
    "attnres:agg=mean,block_size=4,prior=count,rank=4",
    "attnres:agg=mean,block_size=2,score=static",
    "attnres:agg=rmssum",
    "attnres:agg=rmssum,block_size=4,heads=2",
    "attnres:agg=rmssum,block_size=3,prior=recency,query=input",
    "attnres:prior=recency,window=2",
    "attnres:block_size=4,heads=2,norm=sigmoid,prior=recency",
    "attnres:norm=sigmoid_normalised",
    "attnres:block_size=2,heads=2,norm=sigmoid_normalised,query=stream",
    "attnres:norm=none,score=static",
    "attnres:query=stream",
    "attnres:agg=rmssum,block_size=3,query=stream",
    "attnres:head_norm=on,heads=4",
    "attnres:block_size=4,head_norm=on,heads=2,prior=recency,query=input",
]


def sources_of(
    values: list[Tensor], l: int, n_sublayers: int, block_size: int, window: int | None, agg: str
) -> list[tuple[Tensor, int]]:
    """Equations 4 to 6: the embedding, the sums of finished blocks, the current block so far; each
    with its number of outputs.
    """
    blocks: list[list[Tensor]] = [[]]
    for v in values[1:l]:
        if len(blocks[-1]) == block_size:
            blocks.append([])
        blocks[-1].append(v)
    blocks = [block for block in blocks if block]
    if window is not None:
        blocks = blocks[-window:]
    sources = [(values[0], 1)]
    for block in blocks:
        source = sum(block)
        if agg == "mean":
            source = source / len(block)
        if agg == "rmssum" and (len(block) == block_size or l > n_sublayers):
            source = sum(v / rms(v) for v in block)
        sources.append((source, len(block)))
    return sources


def rms(v: Tensor) -> Tensor:
    return torch.sqrt((v**2).sum(dim=-1, keepdim=True) / v.shape[-1] + 1e-6)


def slow_forward(model: Transformer, tokens: Tensor) -> Tensor:
    """The whole model, one token and one source at a time, from the paper's equations."""
    design = model.residual
    assert isinstance(design, AttnRes)
    window = next((len(s) - 1 for s in design.visible if len(s) < s[-1] + 1), None)
    window = window if design.block_size == 1 else None
    values, pairs = [model.embed(tokens)], 0
    for l in range(1, design.n_sublayers + 2):
        sources = sources_of(values, l, design.n_sublayers, design.block_size, window, design.agg)
        u = sum(values) if design.query_of == "stream" else sources[-1][0]
        counts = [n for _, n in sources]
        h = torch.zeros_like(values[0])
        for b in range(tokens.shape[0]):
            for t in range(tokens.shape[1]):
                seen = [v[b, t] for v, _ in sources]
                h[b, t] = slow_site(design, seen, u[b, t], counts, l - 1, pairs)
        pairs += len(sources)
        if l <= design.n_sublayers:
            values.append(model.sublayers[l - 1](h))
    return model.head(model.norm(h))


def slow_site(
    design: AttnRes, sources: list[Tensor], u: Tensor, counts: list[int], site: int, pairs: int
) -> Tensor:
    out, d_slice = [], design.d_model // design.heads
    for head in range(design.heads):
        scores = []
        for i, (v, count) in enumerate(zip(sources, counts, strict=True)):
            if design.table is not None:
                scores.append(design.table[pairs + i, head])
                continue
            score = slow_score(design, v, u, head, site)
            if design.prior == "count":
                score = score + math.log(count)
            if design.prior == "recency" and i == len(sources) - 1:
                score = score + design.recency[site]
            scores.append(score)
        exps = [torch.exp(s) for s in scores]
        weights = [e / sum(exps) for e in exps]
        if design.norm == "sigmoid":
            weights = [1 / (1 + torch.exp(-s)) for s in scores]
        if design.norm == "sigmoid_normalised":
            gates = [1 / (1 + torch.exp(-s)) for s in scores]
            weights = [g / sum(gates) for g in gates]
        if design.norm == "none":
            weights = scores
        part = slice(head * d_slice, (head + 1) * d_slice)
        out.append(sum(a * v[part] for a, v in zip(weights, sources, strict=True)))
    return torch.cat(out)


def slow_score(design: AttnRes, v: Tensor, u: Tensor, head: int, site: int) -> Tensor:
    """A source's score in one head: a sum over the head's slice of the key."""
    key = v if design.rank is None else v[len(v) - design.rank :]
    if design.head_norm:
        key = design.gain[site] * torch.cat([part / rms(part) for part in key.chunk(design.heads)])
    elif design.rank is not None:
        key = key / rms(key)
    elif design.gain is not None:
        key = design.gain[site] * key / rms(key)
    query = design.query[site]
    if design.project is not None:
        unit = u / rms(u)
        projected = [(row * unit).sum() for row in design.project[site]]
        query = query + torch.stack(projected) / math.sqrt(len(unit))
    size = len(key) // design.heads
    part = slice(head * size, (head + 1) * size)
    return (query[part] * key[part]).sum()


def shaken(spec: str, shape: Shape) -> Transformer:
    model = build(spec, shape).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.residual.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.5 * noise
    return model


@pytest.mark.parametrize("spec", OPTIONS)
def test_values_and_gradients_equal_a_slow_loop_from_the_paper(spec: str, tiny_shape: Shape):
    model = shaken(spec, tiny_shape)
    tokens = torch.randint(0, 11, (1, 2), generator=torch.Generator().manual_seed(0))
    weight = torch.randn(11, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    fast = model(tokens)
    fast_gradients = torch.autograd.grad((fast * weight).sum(), list(model.parameters()))
    slow = slow_forward(model, tokens)
    slow_gradients = torch.autograd.grad(
        (slow * weight).sum(), list(model.parameters()), materialize_grads=True
    )

    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(fast_gradients, slow_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def visible(n_sublayers: int, **options: int) -> list[tuple[int, ...]]:
    return list(AttnRes(16, n_sublayers, **options).visible)


def test_full_sees_every_earlier_output_and_the_embedding():
    assert visible(4) == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)]


def test_blocks_of_two_of_four_sublayers_see_what_figure_9_draws():
    assert visible(4, block_size=2) == [(0,), (0, 1), (0, 2), (0, 2, 3), (0, 2, 4)]


def test_a_last_block_may_be_shorter():
    assert visible(5, block_size=2)[-2:] == [(0, 2, 4), (0, 2, 4, 5)]


def test_one_block_over_all_sublayers_still_tells_the_embedding_from_the_sum():
    assert visible(4, block_size=4) == [(0,), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_a_window_sees_the_embedding_and_the_newest_outputs():
    assert visible(4, window=2) == [(0,), (0, 1), (0, 1, 2), (0, 2, 3), (0, 3, 4)]


@pytest.mark.parametrize(("block_size", "attention", "mlp"), [(4, 80, 88), (1, 256, 272)])
def test_source_counts_are_those_drawn_in_figure_8(block_size: int, attention: int, mlp: int):
    counts = [len(sources) for sources in visible(32, block_size=block_size)[:-1]]

    assert sum(counts[0::2]) == attention
    assert sum(counts[1::2]) == mlp


def test_the_48b_layout_has_ten_sources_at_its_deepest_sites():
    assert max(len(sources) for sources in visible(54, block_size=6)) == 10


def test_the_k3_layout_has_nine_states_at_the_output_site():
    assert len(visible(186, block_size=24)[-1]) == 9


@pytest.mark.parametrize(
    ("n_layers", "d_model", "expected"), [(12, 640, 32_000), (48, 150, 29_100)]
)
def test_parameters_equal_published_counts(n_layers: int, d_model: int, expected: int):
    assert AttnRes(d_model, 2 * n_layers).n_params() == expected


def test_a_block_of_one_sublayer_is_full_and_has_its_name():
    assert str(variant.parse("attnres:block_size=1,heads=1")) == "attnres"


def test_a_window_over_all_sources_is_full(tiny_shape: Shape):
    full, windowed = shaken("attnres", tiny_shape), shaken("attnres:window=6", tiny_shape)
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    assert torch.equal(full(tokens), windowed(tokens))
    assert str(variant.parse("attnres:window=6").at_depth(6)) == "attnres"
    assert str(variant.parse("attnres:window=5").at_depth(6)) == "attnres:window=5"


def test_a_block_larger_than_the_model_has_the_name_of_one_that_fits():
    assert str(variant.parse("attnres:block_size=99").at_depth(6)) == "attnres:block_size=6"


@pytest.mark.parametrize(
    ("n_blocks", "name"),
    [(1, ":block_size=6"), (2, ":block_size=3"), (4, ":block_size=2"), (6, ""), (99, "")],
)
def test_a_number_of_blocks_is_their_size_at_a_depth(n_blocks: int, name: str):
    spec = variant.parse(f"attnres:n_blocks={n_blocks}")

    assert str(spec.at_depth(6)) == f"attnres{name}"
    assert spec.build(16, 6).visible == spec.at_depth(6).build(16, 6).visible


@pytest.mark.parametrize("block_size", [2, 3, 4, 6])
@pytest.mark.parametrize("rest", ["", ",rank=4", ",query=input", ",heads=2"])
def test_means_with_the_prior_of_their_counts_are_standard_at_step_0(
    block_size: int, rest: str, tiny_shape: Shape
):
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))
    spec = f"attnres:agg=mean,block_size={block_size},prior=count{rest}"
    model, standard = (build(name, tiny_shape).double() for name in (spec, "standard"))

    assert model.residual.equals_standard_at_init
    torch.testing.assert_close(model(tokens), standard(tokens), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "other", ["agg=mean", "prior=count", "agg=rmssum", "agg=rmssum,prior=count"]
)
def test_means_rms_sums_and_counts_alone_are_not_standard_at_step_0(other: str, tiny_shape: Shape):
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))
    spec = f"attnres:block_size=4,{other}"
    model, standard = (build(name, tiny_shape).double() for name in (spec, "standard"))

    assert not model.residual.equals_standard_at_init
    assert not torch.allclose(model(tokens), standard(tokens), rtol=1e-3)


@pytest.mark.parametrize("same", ["query=input", "query=stream", "prior=recency"])
def test_what_starts_at_zero_adds_nothing_until_it_is_learned(same: str, tiny_shape: Shape):
    plain, model = shaken("attnres", tiny_shape), build(f"attnres:{same}", tiny_shape).double()
    model.load_state_dict(plain.state_dict(), strict=False)
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-10, atol=1e-10)


def test_keys_of_full_rank_are_those_of_attnres_with_its_gain_at_one(tiny_shape: Shape):
    plain, low = (build(s, tiny_shape).double() for s in ("attnres", "attnres:rank=16"))
    torch.nn.init.normal_(plain.residual.query)
    low.load_state_dict(plain.state_dict(), strict=False)
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(low(tokens), plain(tokens), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rank": 4}, 7 * 4),
        ({"query": "input"}, 7 * (2 * 16 + 16 * 16)),
        ({"query": "input", "key_norm": False}, 7 * (16 + 16 * 16)),
        ({"prior": "recency"}, 7 * (2 * 16 + 1)),
        ({"block_size": 2, "prior": "count"}, 7 * 2 * 16),
    ],
)
def test_options_add_the_parameters_they_say(options: dict[str, object], expected: int):
    assert AttnRes(16, 6, **options).n_params() == expected


def test_the_mean_of_means_counts_every_output_as_its_part(tiny_shape: Shape):
    values = [torch.zeros(1, 1, 16)] * 7

    mixing = AttnRes(16, 6, block_size=4, agg="mean").depth_mixing(values)[0, 0, 0]

    third = [1 / 3, *[1 / 12] * 4, *[1 / 6] * 2]
    torch.testing.assert_close(mixing[6], torch.tensor(third))


@pytest.mark.parametrize("query", ["learned", "input"])
def test_weights_sum_to_one_and_the_only_source_of_site_one_has_all_of_it(query: str):
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


def test_equal_queries_in_every_head_are_not_one_head():
    one, four = AttnRes(16, 2), AttnRes(16, 2, heads=4)
    torch.nn.init.normal_(one.query)
    four.load_state_dict(one.state_dict())
    x, y = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    read = [d.read(d.write(d.start(x), 1, y), 2)[0] for d in (one, four)]

    assert not torch.allclose(read[0], read[1])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("attnres:block_size=0", "at least 1"),
        ("attnres:heads=3", "divide d_model 16"),
        ("attnres:heads=0", "divide d_model 16"),
        ("attnres:window=0", "at least 1"),
        ("attnres:block_size=2,window=3", "exclude"),
        ("attnres:n_blocks=0", "at least 1"),
        ("attnres:block_size=2,n_blocks=2", "one of them"),
        ("attnres:n_blocks=2,window=3", "exclude"),
        ("attnres:agg=rmssum,window=3", "exclude"),
        ("attnres:agg=mean", "agg=sum"),
        ("attnres:agg=mean,n_blocks=6", "agg=sum"),
        ("attnres:prior=count", "log 1 = 0"),
        ("attnres:block_size=2,norm=sigmoid,prior=count", "sigmoid"),
        ("attnres:key_norm=off,score=static", "no keys"),
        ("attnres:rank=4,score=static", "no keys"),
        ("attnres:query=input,score=static", "no query"),
        ("attnres:prior=recency,score=static", "every site and source"),
        ("attnres:block_size=2,prior=count,score=static", "every site and source"),
        ("attnres:rank=0", r"in 1\.\.16"),
        ("attnres:rank=17", r"in 1\.\.16"),
        ("attnres:heads=2,rank=3", "do not divide rank 3"),
        ("attnres:key_norm=off,rank=4", "always normalised"),
        ("attnres:query=input,rank=4", "learned queries"),
        ("attnres:norm=none", "is for score=static"),
        ("attnres:norm=sigmoid_normalised,score=static", "by softmax, or not"),
        ("attnres:head_norm=on", "set heads, or drop it"),
        ("attnres:head_norm=on,heads=2,key_norm=off", "keys of full width that are normalised"),
        ("attnres:block_size=2,norm=sigmoid_normalised,prior=count", "not under a sigmoid"),
    ],
)
def test_nonsense_is_refused_with_the_reason(spec: str, reason: str):
    with pytest.raises(VariantError, match=reason) as caught:
        variant.parse(spec).build(16, 6)

    assert str(caught.value).startswith(spec)


@pytest.mark.oracle
def test_a_read_equals_the_authors_public_operator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU
        naive = pytest.importorskip("fla.ops.attnres.naive", reason="needs fla-core and triton")
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


def test_torch_counts_one_product_of_width_d_per_source_and_site(tiny_shape: Shape):
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    counted = []
    for spec in ("standard", "attnres"):
        with FlopCounterMode(display=False) as counter:
            build(spec, tiny_shape)(tokens)
        counted.append(counter.get_total_flops())

    pairs = sum(range(1, 8))

    assert counted[1] - counted[0] == tokens.numel() * 2 * 16 * pairs
    rms_and_sum = 2 * 16 * 7 + 2 * 16 * pairs
    assert AttnRes(16, 6).extra_flops_per_token() == 2 * 16 * pairs + rms_and_sum
