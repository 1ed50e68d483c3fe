"""What is typed of a space of designs, how large it is, and what of it is legal."""

from __future__ import annotations

import re

import pytest

from attnres_cli.errors import UsageError
from attnres_cli.lab.search.designs import Choices, parse, spec_of
from attnres_cli.nn import variant
from attnres_cli.nn.addon import Addon
from attnres_cli.nn.residual import registry

SMALL = parse(
    "attnres:norm=*,heads=1|4;delta:gate=none|scalar;standard;+vres:weights=learned|sum|+x0"
)


def of_depth(choices: Choices) -> str | None:
    return SMALL.name_of(choices, 32, 8)


def test_size_counts_every_combination():
    """No add-on, one (3), the same twice (3), both in either order (4)."""
    assert SMALL.size == (4 * 2 + 2 + 1) * (1 + 3 + 3 + 4) == len(list(SMALL.every()))
    assert len({spec_of(choices) for choices in SMALL.every()}) == SMALL.size
    alone = parse("standard;+x0")
    assert [spec_of(choices) for choices in alone.every()] == ["standard", "standard+x0"]
    assert parse("standard").size == 1


def test_everything_is_every_stream_with_all_its_options_and_every_add_on():
    every = parse("")
    streams = {name for name, cls in registry().items() if not issubclass(cls, Addon)}
    assert set(every.streams) == streams
    assert set(every.addons) == set(registry()) - streams
    declared = variant.options_of(registry()["attnres"])
    assert set(every.streams["attnres"].options) == set(declared)
    assert not any(addon.options for addon in every.addons.values())
    assert every.size > 1e6


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("attnres.norm", ("softmax", "sigmoid", "sigmoid_normalised", "none")),
        ("attnres.key_norm", (False, True)),
        ("attnres.block_size", (1, 2, 4, 8)),
        ("mhc.iterations", (1, 2, 4, 8, 20)),
        ("attnres.n_blocks", (1, 2, 4, 8, None)),
        ("gtrxl.bias", (1.0, 2.0, 4.0)),
        ("highway.bias", (None,)),
    ],
)
def test_a_star_stands_for_values_that_follow_from_the_kind_of_an_option(option, values):
    part, _, name = option.partition(".")
    assert parse(f"{part}:{name}=*").streams[part].options[name] == values


def test_listed_values_are_read_as_the_option_reads_them_once_each():
    assert parse("attnres:heads=4|1|4").streams["attnres"].options["heads"] == (4, 1)
    kinds = parse("laurel:kind=rw|rw+lr").streams["laurel"].options["kind"]
    assert kinds == ("rw", "rw+lr")


def test_what_is_asked_is_only_what_the_design_has():
    asked: list[str] = []

    def pick(name, values):
        asked.append(name)
        return {"stream": "delta", "addon 1": "vres", "addon 2": "x0"}.get(name, values[-1])

    choices = SMALL.draw(pick)
    assert asked == ["stream", "delta.gate", "addon 1", "vres.weights", "addon 2"]
    assert spec_of(choices) == "delta:gate=scalar+vres:weights=sum+x0"


def test_equal_designs_have_one_name_and_refused_ones_none():
    vres_x0 = {"stream": "standard", "addon 1": "vres", "vres.weights": "learned", "addon 2": "x0"}
    x0_vres = {"stream": "standard", "addon 1": "x0", "addon 2": "vres", "vres.weights": "learned"}
    assert of_depth(vres_x0) == of_depth(x0_vres) == "vres+x0"
    assert of_depth({"stream": "attnres", "attnres.heads": 1, "addon 1": "none"}) == "attnres"
    assert of_depth({"stream": "attnres", "attnres.heads": 3}) is None  # 32 / 3 is no width
    assert of_depth({"stream": "standard", "addon 1": "x0", "addon 2": "x0"}) is None


def test_the_legal_share_is_exact_of_few_and_estimated_of_many():
    names = [of_depth(choices) for choices in SMALL.every()]
    assert SMALL.legal(of_depth) == sum(name is not None for name in names) / len(names)
    assert 0.2 < SMALL.legal(of_depth) < 0.3  # x0 stands on standard alone
    many, seen = parse("mhc:*;attnres:*"), []
    assert many.size > 2_000
    assert many.legal(lambda choices: seen.append(1) or str(choices["stream"])) == 1
    assert len(seen) == 500


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("+x0", "add-ons only: name the streams"),
        ("attnress", "unknown stream 'attnress'"),
        ("x0", "x0 is an add-on: type +x0"),
        ("standard;+delta", "delta is a stream"),
        ("attnres;attnres:norm=*", "attnres is given twice"),
        ("attnres:norm", "expected option=values, got 'norm'"),
        ("attnres:norms=*", "unknown option of attnres 'norms'"),
        ("attnres:norm=*,norm=none", "'norm' is given twice"),
        ("attnres:heads=two", "heads must be a whole number, got 'two', or *"),
    ],
)
def test_a_mistake_is_told_with_what_to_type(text, told):
    with pytest.raises(UsageError, match=re.escape(told)):
        parse(text)
