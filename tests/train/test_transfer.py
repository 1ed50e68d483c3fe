"""A rate that was tuned on a small model serves another: which parameter has what from the base."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from training import Lab, numbers

from attnres_cli.config.recipe import Model, Optim, validate
from attnres_cli.errors import RecipeError, VariantError
from attnres_cli.lab.grid import resolve
from attnres_cli.nn import variant
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.residual import registry
from attnres_cli.nn.transfer import Transfer
from attnres_cli.train.optimizers import groups_of, make_optimizers, set_rate

W, D = 4.0, 2.0
LARGER = Transfer(W, D)
SHAPE = Model(n_layers=4, d_model=32, n_heads=2, seq_len=16).shape(vocab_size=17)
BASE = {"d_model": 8, "n_layers": 2}  # of SHAPE: a quarter as wide, half as deep
RECIPE = {
    "model": {"n_layers": 4, "d_model": 32, "n_heads": 2, "seq_len": 16},
    "optim": {"lr": 0.01, "transfer": "completep", "base": BASE},
    "train": {"tokens": 1000, "batch_size": 2, "eval_tokens": 64},
}


def built(spec: str, transfer: Transfer | None = LARGER) -> Transformer:
    design = variant.parse(spec).build(SHAPE.d_model, SHAPE.n_sublayers)
    model = Transformer(SHAPE, design)
    init_weights(model, 0, transfer)
    return model


def told(spec: str, **optim: object) -> dict[str, tuple[float, float, float]]:
    """By parameter: scale of the rate, epsilon by the recipe's, decay in a step by the recipe's."""
    settings = Optim(lr=0.01, transfer="completep", base=BASE, eps=1.0, weight_decay=1.0, **optim)
    found = {}
    for groups in groups_of(built(spec), settings, LARGER).values():
        for group in groups:
            decay = group["weight_decay"] * group["scale"]
            own = group["scale"], group.get("eps", 0.0), decay
            found |= dict.fromkeys(group["names"], own)
    return found


def test_each_parameter_has_what_the_table_says():
    found = told("attnres")

    assert found["embed.weight"] == (1, 1 / W, 0)
    assert found["norm.weight"] == (1, 1 / W, 0)
    assert found["head.weight"] == (1 / W, 1, 1)
    assert found["sublayers.0.0.weight"] == (1, 1 / (W * D), 0)
    assert found["sublayers.0.1.qkv.weight"] == (1 / W, 1 / (W * D), 1)
    assert found["sublayers.1.1.out.weight"] == (1 / W / D, 1 / W, 1)
    assert found["residual.query"] == (1 / W, 1 / (W * D), 0)
    assert found["residual.gain"] == (1, 1 / (W * D), 0)


def test_muon_falls_with_the_root_of_the_width_and_a_design_keeps_its_scale():
    found = told("denseformer+vres", optimizer="muon", design_lr_scale=10.0)

    assert found["sublayers.0.1.qkv.weight"] == (W**-0.5, 0, 1)
    assert found["sublayers.1.1.out.weight"] == (W**-0.5 / D, 0, 1)
    assert found["residual.stream.weight"] == (10 / D**2, 1 / (W * D), 0)
    assert found["residual.addons.vres.own"] == (10, 1 / (W * D), 0)


def test_every_parameter_of_which_a_design_speaks_is_there():
    options = ["delta:gate=vector", "attnres:query=input", "mhc:readout=sigmoid", "laurel:kind=lr"]
    heard = set()
    for spec in [*registry(), *options]:
        design = variant.parse(spec).build(32, 8)
        names = {name for name, _ in design.named_parameters()}
        names |= {name.rpartition(".")[0] for name in names}
        heard |= {(type(design), own) for own, *_ in design.rate_falls if own in names}

    said = {(cls, own) for cls in registry().values() for own, *_ in cls.rate_falls}
    assert said == heard & said
    assert said


class Scaled(nn.Module):
    """What it wraps, times a number."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, *given: Tensor) -> Tensor:
        return self.factor * self.inner(*given)


def as_published(model: Transformer, optim: Optim) -> torch.optim.Optimizer:
    """The model with its factors in the forward pass, and AdamW as in the table of CompleteP."""
    head, groups = model.head.weight, []
    with torch.no_grad():
        head.mul_(W)
        for name, p in model.named_parameters():
            if name.endswith("out.weight"):
                p.mul_(D)
    for name, p in model.named_parameters():
        within, matrix = name.startswith("sublayers"), p.ndim > 1
        hidden = within and matrix
        decays = hidden or p is head
        groups.append(
            {
                "params": [p],
                "lr": optim.lr / (W if hidden else 1),
                "eps": optim.eps / W / (D if within else 1),
                "weight_decay": optim.weight_decay * (W if hidden else 1) if decays else 0.0,
            }
        )
    model.head = Scaled(model.head, 1 / W)
    for f in model.sublayers:
        f.kind.out = Scaled(f.kind.out, 1 / D)
    betas = optim.beta1, optim.beta2
    return torch.optim.AdamW(groups, betas=betas)


def test_the_steps_are_those_of_a_model_with_the_factors_in_its_forward_pass():
    optim = Optim(lr=0.01, transfer="completep", base=BASE, eps=1e-3)
    ours, theirs = (built("standard").double() for _ in range(2))
    (our_adamw,) = make_optimizers(ours, optim, LARGER)
    their_adamw = as_published(theirs, optim)
    tokens = torch.randint(0, 17, (4, 17), generator=torch.Generator().manual_seed(0))

    logits = []
    set_rate([our_adamw], optim.lr)
    for model, adamw in ((ours, our_adamw), (theirs, their_adamw)):
        for _ in range(5):
            adamw.zero_grad()
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            adamw.step()
        logits.append(model(tokens[:, :-1]))

    torch.testing.assert_close(*logits, rtol=1e-10, atol=1e-12)


def test_initial_values_follow_width_and_depth_and_all_others_are_as_ever():
    mine, plain = built("standard"), built("standard", None)
    for (name, p), q in zip(mine.named_parameters(), plain.parameters(), strict=True):
        factor = 1 / W if name == "head.weight" else 1.0
        if name.endswith("out.weight"):
            factor = D**-0.5  # of d^-1 the trunk has d^-1/2 at any depth
        torch.testing.assert_close(p, factor * q)


def test_a_design_says_how_its_outputs_shrink_and_an_addon_adds_to_it():
    def exponent(spec: str) -> float:
        return variant.parse(spec).build(32, 8).depth_exponent

    assert exponent("standard") == exponent("attnres+vres") == 1
    assert exponent("scaled:exponent=1.0") == 0
    assert exponent("attnres+scaled") == 0.5


@pytest.mark.parametrize("transfer", ["mup", "completep"])
def test_a_model_of_the_base_s_size_trains_the_bits_of_a_recipe_without(transfer: str, lab: Lab):
    model = lab.recipe.model
    base = {"d_model": model.d_model, "n_layers": model.n_layers}
    half = {"d_model": model.d_model // 2, "n_layers": model.n_layers}

    plain = lab.run("attnres")
    same = lab.run("attnres", optim={"transfer": transfer, "base": base})
    other = lab.run("attnres", optim={"transfer": transfer, "base": half})

    assert numbers(same) == numbers(plain) != numbers(other)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"optim": {"base": None}}, "--set optim.base.d_model=64 and --set optim.base.n_layers=4"),
        ({"optim": {"transfer": "none"}}, "--set optim.transfer=completep"),
    ],
)
def test_transfer_and_base_go_together(section: dict, message: str):
    values = {k: v | section.get(k, {}) for k, v in RECIPE.items()}
    with pytest.raises(RecipeError, match=message):
        validate(values, "recipe x")


@pytest.mark.parametrize(
    ("spec", "model", "message"),
    [
        ("standard", {"attention": "kda"}, "defined for model.attention=softmax, got kda"),
        ("standard", {"tie_embeddings": True}, "model.tie_embeddings=off"),
        ("sandwich", {}, "--set optim.transfer=mup"),
    ],
)
def test_what_no_table_speaks_of_is_refused_when_it_is_planned(
    spec: str, model: dict, message: str
):
    recipe = validate(RECIPE | {"model": RECIPE["model"] | model}, "recipe x")
    with pytest.raises(VariantError, match=message):
        resolve([spec], recipe, 17)
