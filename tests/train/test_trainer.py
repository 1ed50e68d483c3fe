"""One step, the same however a batch is put through the model; optimizers and their schedule."""

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
from training import COMPILED, SETTINGS, Lab

from attnres_cli.config.recipe import Optim, Recipe
from attnres_cli.errors import DataError, RecipeError
from attnres_cli.nn import measure
from attnres_cli.nn.shape import Shape
from attnres_cli.train.optimizers import make_optimizers
from attnres_cli.train.trainer import Batches, Trainer

CPU = torch.device("cpu")
DESIGNS = ["standard", "attnres", "attnres:block_size=2,heads=2", "mhc", "denseformer", "postnorm"]
KIMI = {"n_layers": 2, "attention": ["kda", "mla"], "positions": "none", "mlp": "moe"}
STILL = {"weight_decay": 0.0, "warmup_fraction": 0.0}


def stirred(trainer: Trainer) -> Trainer:
    """Its design away from its initial values."""
    measure.stir(trainer.model.residual)
    return trainer


def gradients_of(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the first batch."""
    loss = trainer._backward(trainer.batches.take(0))
    found = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    return loss.item(), found


# batches in parts, checkpointed activations


@pytest.mark.parametrize(("micro", "variant"), list(zip([1, 2] * 3, DESIGNS, strict=True)))
def test_a_batch_in_parts_has_the_gradients_of_the_whole(micro: int, variant: str, lab: Lab):
    parts = stirred(lab.trainer(variant, train={"micro_batch_size": micro}))
    loss, expected = gradients_of(stirred(lab.trainer(variant)))

    found_loss, found = gradients_of(parts)

    assert parts.spec.recipe.tokens_per_step == lab.recipe.tokens_per_step
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert found.keys() == expected.keys()
    whole = torch.cat([g.flatten() for g in expected.values()]).norm()
    for name, gradient in found.items():
        assert float((gradient - expected[name]).norm() / whole) < 1e-6, name


def test_a_batch_in_parts_never_goes_through_the_model_whole(lab: Lab):
    trainer = lab.trainer(train={"micro_batch_size": 2})
    sizes: list[int] = []
    trainer.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))

    trainer.step(0)
    assert sizes == [2, 2]
    trainer.evaluate()
    assert set(sizes) == {2}


def test_parts_must_be_equal(tiny_recipe: Recipe):
    with pytest.raises(RecipeError, match=r"must divide batch_size 4, got 3; --set .*=1$"):
        changed(tiny_recipe, train={"micro_batch_size": 3})


@pytest.mark.parametrize(
    ("precision", "variant"), list(zip(["fp32", "bf16"] * 3, DESIGNS, strict=True))
)
def test_checkpointed_activations_change_no_bit(variant: str, precision: str, lab: Lab):
    settings = replace(SETTINGS, precision=precision)
    kept, again = (
        stirred(lab.trainer(variant, 0, settings, train={"checkpoint_activations": checkpointed}))
        for checkpointed in (False, True)
    )

    for step in range(3):
        assert torch.equal(kept.step(step), again.step(step))

    for mine, theirs in zip(again.model.parameters(), kept.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_checkpointed_activations_take_less_memory(lab: Lab):
    larger = lab.with_recipe(model={"d_model": 64, "seq_len": 64}, train={"tokens": 2048})

    def peak(checkpointed: bool) -> int:
        trainer = larger.trainer("attnres", train={"checkpoint_activations": checkpointed})
        trainer.step(0)
        return measure.peak_bytes(lambda: trainer.step(1), CPU)

    assert peak(True) < 0.75 * peak(False)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"micro_batch_size": 1, "checkpoint_activations": True}, SETTINGS),
        pytest.param({"checkpoint_activations": True}, COMPILED, marks=pytest.mark.nightly),
    ],
)
def test_experts_are_balanced_by_what_a_step_trains_on_and_nothing_else(
    changes: dict, settings, lab: Lab
):
    lab = lab.with_recipe(model={"mlp": ["moe", "gelu"]})
    plain, other = lab.trainer(), lab.trainer(settings=settings, train=changes)
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


@pytest.mark.parametrize(
    ("variant", "model"),
    [
        pytest.param("attnres:block_size=2", {}, marks=pytest.mark.slow),
        pytest.param("attnres:block_size=2", KIMI, marks=pytest.mark.nightly),
    ],
)
def test_checkpointing_and_parts_can_be_compiled(variant: str, model: dict, lab: Lab):
    whole = lab.with_recipe(model=model)
    both = {"checkpoint_activations": True, "micro_batch_size": 2}
    expected = gradients_of(stirred(whole.trainer(variant)))

    found = gradients_of(stirred(whole.trainer(variant, 0, COMPILED, train=both)))

    assert measure.disagreement(found, expected).complaint("fp32") is None


# losses


def test_a_model_learns_the_next_token(lab: Lab):
    trainer = lab.trainer()
    windows = trainer.batches.take(0)

    logits = trainer.model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    torch.testing.assert_close(trainer._backward(windows), expected)


def test_an_evaluation_is_the_mean_over_all_windows_whatever_the_last_batch(lab: Lab):
    trainer = lab.trainer(train={"eval_tokens": 144})  # nine windows: four, four and one
    batches = lab.tokens.eval_batches(144, 4, 16)
    windows = torch.from_numpy(np.concatenate(list(batches)))

    logits = trainer.model(windows[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    assert len(windows) == 9
    assert trainer.evaluate() == pytest.approx(expected.item(), rel=1e-6)


def test_gradients_are_clipped(lab: Lab):
    """To a norm so far below AdamW's eps that nothing moves."""
    moved = []
    for clip in (1.0, 1e-15):
        trainer = lab.trainer(optim=STILL | {"clip": clip})
        before = trainer.model.embed.weight.clone()
        trainer.step(0)
        moved.append((trainer.model.embed.weight - before).abs().max().item())

    assert moved[0] > 1e-4
    assert moved[1] < 1e-6


def test_a_step_reads_nothing_back_from_the_device(lab: Lab):
    read: list[str] = []

    class Watch(TorchDispatchMode):
        """Notes what would wait for a GPU: a number, or a shape that depends on numbers."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func)
            if any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select")):
                read.append(name)
            return func(*args, **(kwargs or {}))

    for optimizer in ("adamw", "muon"):
        parts = {"optim": {"optimizer": optimizer}, "train": {"micro_batch_size": 2}}
        trainer = lab.trainer("attnres", **parts)
        trainer.step(0)
        with Watch():
            total = trainer.step(1) + 1
        assert read == []
        with Watch():
            total.item()
        assert read == ["aten._local_scalar_dense.default"]
        read.clear()


# optimizers and their schedule


@pytest.mark.parametrize("variant", DESIGNS)
def test_muon_has_the_matrices_of_sublayers_and_nothing_of_a_design(variant: str, lab: Lab):
    trainer = lab.trainer(variant, optim={"optimizer": "muon"})
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}

    by_muon, by_adamw = (
        [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        for optimizer in trainer.optimizers
    )

    assert sorted(by_muon + by_adamw) == sorted(names.values())
    assert {name.split(".")[0] for name in by_muon} == {"sublayers"}
    assert {name.split(".")[-2] for name in by_muon} == {"qkv", "out", "gate_up"}
    assert not [name for name in by_adamw if name.startswith("sublayers") and "1." in name[12:]]


def test_stacks_of_experts_are_decayed_by_adamw_beside_muon(lab: Lab):
    muon, adamw = lab.trainer(model={"mlp": "moe"}, optim={"optimizer": "muon"}).optimizers
    decayed, free = (group["params"] for group in adamw.param_groups)

    assert {p.ndim for group in muon.param_groups for p in group["params"]} == {2}
    assert sum(p.ndim == 3 for p in decayed) == 2 * lab.recipe.model.n_layers
    assert all(p.ndim < 3 for p in free)


@pytest.mark.parametrize("spec", ["standard", "attnres"])
def test_matrices_are_decayed_and_embeddings_gains_and_designs_are_not(
    spec: str, tiny_shape: Shape
):
    model = build(spec, tiny_shape)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    decayed, rest = make_optimizers(model, Optim(lr=1e-3))[0].param_groups

    matrices = {names[id(p)].split(".")[-2] for p in decayed["params"]}
    assert matrices == {"qkv", "out", "gate_up", "head"}
    others = {names[id(p)] for p in rest["params"] if p.ndim > 1}
    assert others - {"residual.query", "residual.gain"} == {"embed.weight"}


def test_one_lr_is_right_for_both_optimizers(lab: Lab):
    """The first updates of equal lr, without decay, are of about equal size."""

    def moved(optimizer: str) -> float:
        trainer = lab.trainer(optim=STILL | {"clip": 1e9, "optimizer": optimizer})
        weight = trainer.model.get_parameter("sublayers.0.1.qkv.weight")
        before = weight.detach().clone()
        trainer.step(0)
        trainer.step(1)
        return float((weight.detach() - before).square().mean().sqrt())

    assert 0.1 < moved("muon") / moved("adamw") < 1


# batches


def test_a_thread_makes_the_same_batches_ahead(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    makers: list[bool] = []
    make = Batches._make

    def spy(self: Batches, step: int) -> Tensor:
        makers.append(threading.current_thread() is threading.main_thread())
        return make(self, step)

    monkeypatch.setattr(Batches, "_make", spy)
    batches = Batches(lab.spec(seed=7), lab.tokens, CPU)

    taken = {step: batches.take(step) for step in (0, 1, 2, 5, 3)}

    for step, windows in taken.items():
        assert torch.equal(windows, torch.from_numpy(lab.tokens.batch(7, step, 4, 16)))
    assert makers.count(True) == 3  # the first, and two that nobody could expect


def test_the_thread_ends_with_the_trainer(lab: Lab):
    def threads() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("batches")}

    before = threads()
    trainer = lab.trainer()
    trainer.step(0)
    (mine,) = threads() - before

    del trainer

    mine.join(timeout=10)
    assert not mine.is_alive()


def test_bad_tokens_of_a_batch_made_ahead_are_reported(lab: Lab):
    beyond = replace(lab.tokens, train=np.full(5000, 300, dtype=np.uint16))
    batches = Batches(lab.spec(), beyond, CPU)

    for _ in range(2):
        with pytest.raises(DataError, match="300 is beyond the vocabulary"):
            batches.take(0)


def test_windows_go_to_a_gpu_from_pinned_memory_and_without_a_wait(lab: Lab, monkeypatch):
    trainer, windows, done = lab.trainer(), torch.zeros(2, 9, dtype=torch.long), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: done.append("pinned") or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *to, **how: done.append((*to, how)) or self
    )

    trainer._on_device(windows)
    trainer.device = torch.device("cuda")
    trainer._on_device(windows)

    on_cpu, *on_gpu = done
    assert on_cpu == (torch.device("cpu"), {"non_blocking": True})
    assert on_gpu == ["pinned", (torch.device("cuda"), {"non_blocking": True})]
