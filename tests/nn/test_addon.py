"""Add-ons on streams: names, order, what does not go together, and what becomes of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from designs import build, close, perturbed, tokens_of

from attnres_cli.nn import residual
from attnres_cli.nn.addon import Addon, Kept
from attnres_cli.nn.code import of_design
from attnres_cli.nn.generate import generate
from attnres_cli.nn.proofs.prove import QUICK, prove, small
from attnres_cli.nn.residual import Hidden, VariantError, register, registry
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

TOGETHER = (
    "attnres+vres", "attnres:block_size=2+layerscale:scale=0.5", "hc+vres:weights=sum",
    "backout+unet+x0", "layerscale:scale=0.5+vres+x0:init=neutral", "mudd+vres", "delta+vres",
    "postnorm+vres", "denseformer+vres",
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("standard+x0", "x0"),
        ("x0+backout", "backout+x0"),
        ("standard + x0 + backout", "backout+x0"),
        ("attnres:block_size=4+vres:own=0.5,first=0", "attnres:block_size=4+vres:first=0.0"),
        ("vres+attnres", None),
        ("laurel:kind=rw+lr+vres", "laurel:kind=rw+lr+vres"),
        ("block_size=4+vres", None),
    ],
)
def test_equal_designs_have_equal_names(typed: str, name: str | None):
    if name is None:
        with pytest.raises(VariantError):
            parse(typed)
    else:
        assert str(parse(typed)) == str(parse(name)) == name


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            "standard+attnres",
            "attnres is no add-on, to stand after a '+': backout, gpas, layerscale",
        ),
        ("attnres+x0", "X0 acts on a stream that every sublayer reads as it is, and AttnRes has"),
        ("hc+backout", "put it on standard"),
        ("vres+vres", "vres is given twice"),
        ("standard+vrez", "did you mean 'vres'?"),
        ("vres:own=inf", "first and own must be finite"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(spec: str, reason: str):
    with pytest.raises(VariantError) as caught:
        parse(spec).build(16, 6)
    assert reason in str(caught.value)


@pytest.mark.parametrize("spec", TOGETHER)
def test_a_composition_keeps_the_contract(spec: str, subtests: pytest.Subtests):
    for found in prove(small(parse(spec)), QUICK):
        with subtests.test(proof=found.name):
            assert found.outcome != "failed", found.detail


def test_an_addon_alone_is_the_same_on_standard(tiny_shape: Shape):
    """With the names of its weights that older checkpoints have."""
    alone = perturbed("x0", tiny_shape)
    composed = build("x0+vres:first=0.0,own=1.0", tiny_shape).double()
    weights = alone.state_dict()
    moved = {name.replace("residual.", "residual.addons.x0."): w for name, w in weights.items()}
    composed.load_state_dict(moved, strict=False)

    assert {"residual.kept", "residual.added"} <= weights.keys()
    close(composed(tokens_of()), alone(tokens_of()))


def test_costs_parameters_and_code_are_those_of_the_parts():
    parts = [parse(each).build(64, 12) for each in ("attnres:block_size=4", "vres")]
    whole = parse("attnres:block_size=4+vres")
    design = whole.build(64, 12)

    assert design.n_params() == sum(part.n_params() for part in parts)
    assert design.extra_flops_per_token() == sum(part.extra_flops_per_token() for part in parts)
    assert len(set(map(of_design, whole.classes)) | {of_design(*whole.classes)}) == 3


@pytest.mark.parametrize("spec", ["vres", "mudd", "attnres+vres", "backout+unet+x0"])
def test_tokens_and_their_prefill_are_those_of_whole_passes(spec: str, tiny_shape: Shape):
    shape = dataclasses.replace(tiny_shape, n_kv_heads=1)
    model, tokens = perturbed(spec, shape).eval(), tokens_of()[:, :3]

    found = generate(model, tokens, 4, temperature=0, chunk=2)

    with torch.no_grad():
        for _ in range(4):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(found, tokens)


class Late(Addon):
    def on_write(self, l: int, y: Hidden) -> Hidden:
        return y + 1.0


class Mixes(Addon):
    def on_values(self, kept: Kept, l: int, v: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        return v - v.mean(dim=1, keepdim=True), kept


@pytest.fixture
def theirs() -> Iterator[None]:
    for name, cls in (("late", Late), ("mixes", Mixes)):
        register(name)(cls)
    yield
    for name in ("late", "mixes"):
        del residual._REGISTRY[name]


@pytest.mark.usefixtures("theirs")
def test_an_addon_whose_order_matters_has_to_say_it_and_values_move_nothing_between_tokens():
    found = {each.name: each for each in prove(small(parse("late")), QUICK)}
    assert found["commutes"].outcome == "failed"
    assert "give it an `order`" in found["commutes"].detail
    Late.order = 5
    found = {each.name: each for each in prove(small(parse("late")), QUICK)}
    assert found["commutes"].outcome == "passed"

    mixes = {each.name: each for each in prove(small(parse("mixes")), QUICK)}
    assert mixes["is_token_wise"].outcome == "failed"
    assert "in its values sees another token" in mixes["is_token_wise"].detail


def test_shipped_addons_are_listed():
    addons = {name for name, cls in registry().items() if issubclass(cls, Addon)}
    assert addons >= {"backout", "layerscale", "unet", "vres", "x0"}
