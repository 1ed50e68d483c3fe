"""What designs start as, how many parameters they add and which options they refuse, as tables."""

from __future__ import annotations

import pytest
import torch
from designs import build, close, perturbed, tokens_of

from attnres_cli.errors import VariantError
from attnres_cli.nn import variant
from attnres_cli.nn.shape import Shape

STARTS = {
    "the bits of standard": """
        denseformer frac:dynamic=off laurel laurel:kind=lr laurel:kind=rw+pa layerscale:scale=1.0
        unet:init=0.0 x0:init=neutral""",
    "standard to rounding": """
        attnres:agg=mean,block_size=2,prior=count attnres:agg=mean,block_size=4,prior=count,rank=4
        attnres:agg=mean,block_size=6,prior=count,query=input
        attnres:agg=mean,block_size=4,heads=2,prior=count delta delta:block_size=2,gate=scalar
        delta:block_size=4,gate=vector,null=on rescaled""",
    "another model": """
        attnres:agg=mean,block_size=4 attnres:block_size=4,prior=count
        attnres:agg=rmssum,block_size=4 attnres:agg=rmssum,block_size=4,prior=count
        delta:block_size=4,gate=scalar,partial=off delta:block_size=2,null=on,partial=off
        laurel:total=1.0 layerscale unet x0""",
}


@pytest.mark.parametrize(
    ("spec", "start"), [(spec, start) for start, specs in STARTS.items() for spec in specs.split()]
)
def test_the_untrained_model_is_standard_where_the_design_says_so(
    spec: str, start: str, tiny_shape: Shape
):
    model, standard = build(spec, tiny_shape), build("standard", tiny_shape)

    assert model.residual.equals_standard_at_init == (start != "another model")
    if start == "the bits of standard":
        assert torch.equal(model(tokens_of()), standard(tokens_of()))
    found, expected = model.double()(tokens_of()), standard.double()(tokens_of())
    if start == "another model":
        assert not torch.allclose(found, expected, rtol=1e-3)
    else:
        close(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("attnres", "attnres:window=6"),  # all sources
        ("attnres", "attnres:query=input"),  # what a query or a prior adds starts at zero
        ("attnres", "attnres:query=stream"),
        ("attnres", "attnres:prior=recency"),
        ("attnres:rank=16", "attnres"),  # its gain starts at one
        ("rescaled", "attnres"),  # queries start at zero: every site averages its sources
        ("rescaled", "attnres:heads=4"),
        ("frac:fractions=1", "hc:n_streams=1"),
        ("frac:dynamic=off,fractions=1", "hc:dynamic=off,n_streams=1"),
        ("laurel:kind=lr", "laurel:kind=pa,previous=1"),
        ("laurel:kind=lr", "laurel:kind=pa,previous=3"),  # earlier streams start at weight zero
        ("laurel", "laurel:kind=rw+lr"),  # the low-rank map starts by putting out nothing
        ("laurel", "laurel:kind=rw+pa"),
    ],
)
def test_a_design_with_the_parameters_of_another_is_that_design(
    spec: str, same: str, tiny_shape: Shape
):
    one, other = perturbed(spec, tiny_shape), build(same, tiny_shape).double()
    other.load_state_dict(one.state_dict(), strict=False)

    close(other(tokens_of()), one(tokens_of()))


@pytest.mark.parametrize(
    ("spec", "d_model", "n_sublayers", "expected"),
    [
        ("attnres", 640, 24, 32_000),  # as published
        ("attnres", 150, 96, 29_100),
        ("delta", 16, 6, 5 * 32),  # of the sites that mix
        ("delta:gate=vector", 16, 6, 5 * (32 + 256 + 16)),
        ("delta:block_size=2,null=on", 16, 6, 5 * 32),
        ("denseformer", 8, 20, 65),  # ten layers, as many as in the official code
        ("denseformer:dilation=4", 8, 20, 20),
        ("denseformer:dilation=4,period=5", 8, 20, 5),
        ("frac:dynamic=off", 100, 8, 8 * 36),  # the paper's, and here and below a norm
        ("frac", 100, 8, 8 * (36 + 25 * 9 + 2 + 25)),
        ("hc:dynamic=off", 100, 8, 8 * 24),
        ("hc:dynamic=off,n_streams=2", 100, 8, 8 * 8),
        ("hc", 100, 8, 8 * (24 + 6 * 100 + 2 + 100)),
        ("mhc", 100, 8, 8 * (400 * 24 + 24 + 3)),
        ("mhc:n_streams=2", 100, 8, 8 * (200 * 8 + 8 + 3)),
        ("mhc:residual=lite", 100, 8, 8 * (400 * 32 + 32 + 3)),
        ("mhc:readout=sigmoid", 100, 8, 8 * (400 * 24 + 24 + 3) + 1605),
        ("laurel", 16, 6, 12),
        ("laurel:kind=lr", 16, 6, 6 * 2 * 16 * 16),
        ("laurel:kind=pa", 16, 6, 6 * 2 * 16 * 16 + 1 + 2 + 3 * 4),
        ("laurel:kind=rw+pa,previous=2,rank=2", 16, 6, 12 + 6 * 2 * 2 * 16 + 1 + 2 * 5),
        ("gtrxl", 16, 6, 6 * (6 * 256 + 16)),
        ("lns", 16, 6, 6 * 16),
        ("mixln", 16, 6, 6 * 16),
        ("rezero", 16, 6, 3),
        ("rezero:shared=off", 16, 6, 6),
        ("unet", 16, 4, 1),  # half of the layers have a skip
        ("unet", 16, 24, 6),
    ],
)
def test_a_design_adds_as_many_parameters_as_its_paper_says(
    spec: str, d_model: int, n_sublayers: int, expected: int
):
    assert variant.parse(spec).build(d_model, n_sublayers).n_params() == expected


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("attnres:block_size=0", "at least 1"),
        ("attnres:heads=3", "divide d_model 16"),
        ("attnres:heads=0", "divide d_model 16"),
        ("attnres:window=0", "at least 1 output"),
        ("attnres:block_size=2,window=3", "window and block_size exclude"),
        ("attnres:n_blocks=0", "at least 1"),
        ("attnres:block_size=2,n_blocks=2", "one of them"),
        ("attnres:n_blocks=2,window=3", "exclude"),
        ("attnres:agg=rmssum,window=3", "window and agg=rmssum exclude"),
        ("attnres:agg=mean", "agg=mean is agg=sum where every source is one output"),
        ("attnres:agg=mean,n_blocks=6", "agg=sum"),
        ("attnres:prior=count", "log 1 = 0"),
        ("attnres:block_size=2,norm=sigmoid,prior=count", "sigmoid"),
        ("attnres:key_norm=off,score=static", "drop key_norm"),
        ("attnres:rank=4,score=static", "drop rank"),
        ("attnres:query=input,score=static", "drop query"),
        ("attnres:prior=recency,score=static", "drop prior"),
        ("attnres:block_size=2,prior=count,score=static", "drop prior"),
        ("attnres:rank=0", r"in 1\.\.16"),
        ("attnres:rank=17", r"in 1\.\.16"),
        ("attnres:heads=2,rank=3", "do not divide rank 3"),
        ("attnres:key_norm=off,rank=4", "always normalised"),
        ("attnres:query=input,rank=4", "learned queries"),
        ("attnres:norm=none", "is for score=static"),
        ("attnres:norm=sigmoid_normalised,score=static", "by softmax, or not"),
        ("attnres:head_norm=on", "set heads, or drop it"),
        ("attnres:head_norm=on,heads=2,key_norm=off", "keys of full width that are normalised"),
        ("attnres:head_norm=on,heads=2,rank=4", "keys of full width that are normalised"),
        ("attnres:block_size=2,norm=sigmoid_normalised,prior=count", "not under a sigmoid"),
        ("delta:block_size=0", "at least 1"),
        ("delta:partial=off", "means nothing for blocks of one output"),
        ("dca:nearest=0", r"in 1\.\.4"),
        ("dca:nearest=5", r"in 1\.\.4"),
        ("denseformer:dilation=0", r"in 1\.\.3"),
        ("denseformer:period=4", r"in 1\.\.3"),
        ("frac:fractions=0", "must divide d_model 16, got 0"),
        ("frac:fractions=3", "must divide d_model 16, got 3"),
        ("hc:n_streams=0", "n_streams must be at least 1, got 0"),
        ("highway:bias=nan", "finite"),
        ("laurel:rank=2", "no low-rank map"),
        ("laurel:kind=lr,rank=17", r"in 1\.\.16"),
        ("laurel:kind=lr,previous=2", "sees one stream"),
        ("laurel:previous=2", "sees one stream"),
        ("laurel:kind=lr,total=1", "no a and b"),
        ("laurel:total=0", "above 0"),
        ("laurel:kind=pa,previous=0", "at least 1"),
        ("layerscale:scale=-0.1", "at least 0"),
        ("layerscale:scale=inf", "finite"),
        ("mhc:n_streams=0", "at least 1"),
        ("mhc:iterations=0", "at least 1"),
        ("mhc:n_streams=5,residual=lite", "120 permutations; use residual=sinkhorn"),
        ("mhc:iterations=5,residual=lite", "has no iterations"),
        ("unet:init=inf", "finite"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_the_reason(spec: str, reason: str):
    with pytest.raises(VariantError, match=reason) as caught:
        variant.parse(spec).build(16, 6)

    assert str(caught.value).startswith(spec)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("dlcl:window=4", "dlcl"),
        ("dlcl:window=3", "dlcl:window=3"),
        ("mudd:window=3", "mudd"),
        ("mudd:layers=3,window=1", "mudd:window=1"),
        ("mudd:layers=2,window=3", "mudd:layers=2"),
        ("mudd:layers=3,window=3+resv", "mudd+resv"),
        ("dca:nearest=2", "dca"),
        ("dca:nearest=1", "dca:nearest=1"),
        ("delta:block_size=99", "delta:block_size=6"),
        ("delta:block_size=7,partial=off", "delta:block_size=6,partial=off"),
        ("mixln:share=0.3", "mixln"),
        ("mixln:share=0.6", "mixln:share=0.7"),
        ("mixln:share=1", "mixln:share=1.0"),
        ("mixln:share=0.1", "mixln:share=0.0"),
    ],
)
def test_equal_designs_have_equal_names_at_a_depth(spec: str, name: str, tiny_shape: Shape):
    simple = variant.parse(spec).at_depth(6)

    assert str(simple) == str(simple.at_depth(6)) == name
    one, other = perturbed(spec, tiny_shape), perturbed(name, tiny_shape)
    assert one.state_dict().keys() == other.state_dict().keys()
    close(one(tokens_of()), other(tokens_of()))


def test_a_model_too_small_for_a_design_is_refused():
    with pytest.raises(VariantError, match="at least 2 layers"):
        variant.parse("unet").build(16, 2)
    with pytest.raises(VariantError, match=r"in 1\.\.8"):
        variant.parse("laurel:kind=lr").build(8, 6)
