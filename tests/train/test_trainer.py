"""One step, the same however a batch is put through the model; optimisers and their schedule."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from designs import build
from inputs import changed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training import SETTINGS

from attnres_cli.config.recipe import Optim, Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DataError, RecipeError
from attnres_cli.nn import measure
from attnres_cli.nn.shape import Shape
from attnres_cli.records.run import RunSpec, Settings
from attnres_cli.train.trainer import Batches, Trainer, lr_factor, make_optimizers

CPU = torch.device("cpu")
DESIGNS = ["standard", "attnres", "attnres:block_size=2,heads=2", "mhc", "denseformer", "postnorm"]
KIMI = {"n_layers": 2, "attention": ["kda", "mla"], "positions": "none", "mlp": "moe"}


def trainer_of(
    recipe: Recipe, tokens: Tokens, variant: str = "standard", settings: Settings = SETTINGS
) -> Trainer:
    trainer = Trainer(RunSpec(recipe, variant, 0, tokens.fingerprint), tokens, settings, CPU)
    measure.stir(trainer.model.residual)
    return trainer


def gradients_of(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
    """Of the first batch."""
    loss = trainer._backward(trainer.batches.take(0))
    found = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    return loss.item(), found


@pytest.mark.parametrize(("micro", "variant"), list(zip([1, 2] * 3, DESIGNS, strict=True)))
def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    micro: int, variant: str, tiny_recipe: Recipe, tokens: Tokens
):
    parts = changed(tiny_recipe, train={"micro_batch_size": micro})
    loss, expected = gradients_of(trainer_of(tiny_recipe, tokens, variant))

    found_loss, found = gradients_of(trainer_of(parts, tokens, variant))

    assert parts.tokens_per_step == tiny_recipe.tokens_per_step
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert found.keys() == expected.keys()
    whole = torch.cat([g.flatten() for g in expected.values()]).norm()
    for name, gradient in found.items():
        assert float((gradient - expected[name]).norm() / whole) < 1e-6, name


def test_a_batch_in_parts_never_goes_through_the_model_whole(tiny_recipe: Recipe, tokens: Tokens):
    trainer = trainer_of(changed(tiny_recipe, train={"micro_batch_size": 2}), tokens)
    sizes: list[int] = []
    trainer.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))

    trainer.step(0)
    trained = list(sizes)
    sizes.clear()
    trainer.evaluate()

    assert trained == [2, 2]
    assert set(sizes) == {2}


def test_parts_must_be_equal(tiny_recipe: Recipe):
    with pytest.raises(RecipeError, match=r"must divide batch_size 4, got 3; --set .*=1$"):
        changed(tiny_recipe, train={"micro_batch_size": 3})


@pytest.mark.parametrize(
    ("precision", "variant"), list(zip(["fp32", "bf16"] * 3, DESIGNS, strict=True))
)
def test_checkpointed_activations_change_no_bit(
    variant: str, precision: str, tiny_recipe: Recipe, tokens: Tokens
):
    settings = replace(SETTINGS, precision=precision)
    kept = trainer_of(tiny_recipe, tokens, variant, settings)
    again = trainer_of(
        changed(tiny_recipe, train={"checkpoint_activations": True}), tokens, variant, settings
    )

    for step in range(3):
        assert torch.equal(kept.step(step), again.step(step))

    for mine, theirs in zip(again.model.parameters(), kept.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("changes", "compiled"),
    [
        ({"checkpoint_activations": True}, False),
        ({"micro_batch_size": 1, "checkpoint_activations": True}, False),
        pytest.param({"checkpoint_activations": True}, True, marks=pytest.mark.slow),
    ],
)
def test_experts_are_balanced_by_what_a_step_has_trained_on_and_nothing_else(
    changes: dict, compiled: bool, tiny_recipe: Recipe, tokens: Tokens
):
    recipe = changed(tiny_recipe, model={"mlp": ["moe", "gelu"]})
    settings = replace(SETTINGS, compiled=compiled, engine="compile" if compiled else "eager")
    plain = trainer_of(recipe, tokens)
    other = trainer_of(changed(recipe, train=changes), tokens, settings=settings)
    layers = [[f.kind for f in each.model.sublayers[1::4]] for each in (plain, other)]
    held = plain.model.state_dict().keys()

    plain.evaluate()
    plain.probe(0)
    for step in range(2):
        loads: list[Tensor] = []
        plain._summed = lambda counts, kept=loads: kept.append(counts.clone()) or counts
        plain.step(step)
        other.step(step)
        assert loads[0].sum(dim=1).tolist() == [2 * 4 * 16] * 2  # two experts of each token

    for mine, theirs in zip(*layers, strict=True):
        assert mine.bias.any()
        assert torch.equal(mine.bias, theirs.bias)
        assert not mine.load.any()
    assert {"sublayers.1.1.bias", "sublayers.5.1.bias"} <= held


@pytest.mark.parametrize("variant", ["attnres"])
def test_checkpointed_activations_take_less_memory(
    variant: str, tiny_recipe: Recipe, tokens: Tokens
):
    larger = changed(tiny_recipe, model={"d_model": 64, "seq_len": 64}, train={"tokens": 2048})

    def peak(recipe: Recipe) -> int:
        trainer = trainer_of(recipe, tokens, variant)
        trainer.step(0)
        return measure.peak_bytes(lambda: trainer.step(1), CPU)

    less = peak(changed(larger, train={"checkpoint_activations": True}))

    assert less < 0.75 * peak(larger)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "model"), [("standard", {}), ("attnres:block_size=2", KIMI)])
def test_checkpointing_and_parts_can_be_compiled(
    variant: str, model: dict, tiny_recipe: Recipe, tokens: Tokens
):
    whole = changed(tiny_recipe, model=model)
    both = {"checkpoint_activations": True, "micro_batch_size": 2}
    recipe = changed(whole, train=both)
    compiled = replace(SETTINGS, compiled=True, engine="compile")
    expected = gradients_of(trainer_of(whole, tokens, variant))

    loss, found = gradients_of(trainer_of(recipe, tokens, variant, compiled))

    assert measure.disagreement((loss, found), expected).complaint("fp32") is None


@pytest.mark.parametrize("variant", DESIGNS)
def test_muon_has_the_matrices_inside_of_sublayers_and_nothing_of_a_design(
    variant: str, tiny_recipe: Recipe, tokens: Tokens
):
    trainer = trainer_of(changed(tiny_recipe, optim={"optimizer": "muon"}), tokens, variant)
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}

    held = [
        [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        for optimizer in trainer.optimizers
    ]

    by_muon, by_adamw = held
    assert sorted(by_muon + by_adamw) == sorted(names.values())
    assert {name.split(".")[0] for name in by_muon} == {"sublayers"}
    assert {name.split(".")[-2] for name in by_muon} == {"qkv", "out", "gate_up"}
    assert not [name for name in by_adamw if name.startswith("sublayers") and "1." in name[12:]]


def test_stacks_of_experts_are_decayed_by_adamw_beside_muon(tiny_recipe: Recipe, tokens: Tokens):
    recipe = changed(tiny_recipe, model={"mlp": "moe"}, optim={"optimizer": "muon"})
    muon, adamw = trainer_of(recipe, tokens).optimizers
    decayed, free = (group["params"] for group in adamw.param_groups)

    assert {p.ndim for group in muon.param_groups for p in group["params"]} == {2}
    assert sum(p.ndim == 3 for p in decayed) == 2 * recipe.model.n_layers
    assert all(p.ndim < 3 for p in free)


def test_one_lr_is_right_for_both_optimisers(tiny_recipe: Recipe, tokens: Tokens):
    """The first updates of equal lr, without decay, are of about equal size."""
    still = {"weight_decay": 0.0, "warmup_fraction": 0.0, "clip": 1e9}

    def moved(optimizer: str) -> float:
        trainer = trainer_of(changed(tiny_recipe, optim=still | {"optimizer": optimizer}), tokens)
        weight = trainer.model.get_parameter("sublayers.0.1.qkv.weight")
        before = weight.detach().clone()
        trainer.step(0)
        trainer.step(1)
        return float((weight.detach() - before).square().mean().sqrt())

    assert 0.1 < moved("muon") / moved("adamw") < 1


def test_a_model_learns_the_next_token(tiny_recipe: Recipe, tokens: Tokens):
    trainer = trainer_of(tiny_recipe, tokens)
    windows = trainer.batches.take(0)

    logits = trainer.model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    torch.testing.assert_close(trainer._backward(windows), expected)


def test_gradients_are_clipped(tiny_recipe: Recipe, tokens: Tokens):
    """To a norm so far below AdamW's eps that nothing moves."""
    still = {"weight_decay": 0.0, "warmup_fraction": 0.0}
    moved = []
    for clip in (1.0, 1e-15):
        trainer = trainer_of(changed(tiny_recipe, optim=still | {"clip": clip}), tokens)
        before = trainer.model.embed.weight.clone()
        trainer.step(0)
        moved.append((trainer.model.embed.weight - before).abs().max().item())

    assert moved[0] > 1e-4
    assert moved[1] < 1e-6


def test_a_step_reads_nothing_back_from_the_device(tiny_recipe: Recipe, tokens: Tokens):
    read: list[str] = []

    class Watch(TorchDispatchMode):
        """Notes what would wait for a GPU: a number, or a shape that depends on numbers."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func)
            if any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select")):
                read.append(name)
            return func(*args, **(kwargs or {}))

    for optimizer in ("adamw", "muon"):
        parts = changed(tiny_recipe, optim={"optimizer": optimizer}, train={"micro_batch_size": 2})
        trainer = trainer_of(parts, tokens, "attnres")
        trainer.step(0)
        with Watch():
            total = trainer.step(1) + 1
        assert read == []
        with Watch():
            total.item()
        assert read == ["aten._local_scalar_dense.default"]
        read.clear()


def test_batches_are_made_ahead_by_a_thread_and_are_the_same(
    tiny_recipe: Recipe, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
):
    makers: list[bool] = []
    make = Batches._make

    def spy(self: Batches, step: int) -> Tensor:
        makers.append(threading.current_thread() is threading.main_thread())
        return make(self, step)

    monkeypatch.setattr(Batches, "_make", spy)
    batches = Batches(RunSpec(tiny_recipe, "standard", 7, ""), tokens, CPU)

    taken = {step: batches.take(step) for step in (0, 1, 2, 5, 3)}

    for step, windows in taken.items():
        assert torch.equal(windows, torch.from_numpy(tokens.batch(7, step, 4, 16)))
    assert makers.count(True) == 3  # the first, and two that nobody could expect


def test_the_thread_ends_with_the_trainer(tiny_recipe: Recipe, tokens: Tokens):
    def threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("batches")}

    before = threads()
    trainer = trainer_of(tiny_recipe, tokens)
    trainer.step(0)
    (mine,) = threads() - before

    del trainer

    mine.join(timeout=10)
    assert not mine.is_alive()


def test_bad_tokens_of_a_batch_made_ahead_are_told(tiny_recipe: Recipe, tokens: Tokens):
    beyond = replace(tokens, train=np.full(5000, 300, dtype=np.uint16))
    batches = Batches(RunSpec(tiny_recipe, "standard", 0, ""), beyond, CPU)

    for _ in range(2):
        with pytest.raises(DataError, match="300 is beyond the vocabulary"):
            batches.take(0)


def factors(optim: Optim, steps: int) -> list[float]:
    return [lr_factor(optim, step, steps) for step in range(steps)]


def test_cosine_rises_to_one_and_falls_to_its_floor():
    found = factors(Optim(lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.1), 100)

    assert found[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert found[10] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert found[10:] == sorted(found[10:], reverse=True)


def test_wsd_stays_at_one_until_the_last_steps():
    optim = Optim(lr=1.0, schedule="wsd", decay_fraction=0.2, final_lr_fraction=0.0)

    found = factors(optim, 100)

    assert set(found[5:79]) == {1.0}
    assert found[80:] == pytest.approx([(99 - step) / 20 for step in range(80, 100)])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_runs_have_a_schedule_too(schedule: str, steps: int):
    found = factors(Optim(lr=1.0, schedule=schedule), steps)

    assert all(0 < factor <= 1 for factor in found)


def test_matrices_are_decayed_and_embeddings_and_gains_are_not(tiny_shape: Shape):
    model = build("standard", tiny_shape)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    decayed, rest = make_optimizers(model, Optim(lr=1e-3))[0].param_groups

    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} == {
        "qkv", "out", "gate_up", "head",
    }  # fmt: skip
    assert all(p.ndim == 1 or names[id(p)] == "embed.weight" for p in rest["params"])
