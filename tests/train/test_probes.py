"""What is measured inside models: each number against a slow, plain one; training unchanged."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from attnres_variants.standard import Standard
from designs import BRIEF, SIMPLE, build, perturbed
from torch import Tensor
from training import COMPILED, SETTINGS, Lab

from attnres_cli.config.recipe import load
from attnres_cli.nn import describe, variant
from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.loss import next_token_loss
from attnres_cli.nn.model import Transformer
from attnres_cli.nn.proofs.model import UNKNOWN
from attnres_cli.nn.proofs.subject import perturb
from attnres_cli.nn.residual import Inputs
from attnres_cli.nn.shape import Shape
from attnres_cli.records.run import Probe, Status
from attnres_cli.train import probes

OF_ATTNRES = ("block_size=2", "block_size=4,heads=2", "window=2", "norm=sigmoid", "score=static")
PLAIN = ["standard", "attnres", "denseformer", "highway", "layerscale", "postnorm", "unet", "x0"]
SEVERAL = [*PLAIN, "delta:block_size=2", "hc", "mhc", *(f"attnres:{each}" for each in OF_ATTNRES)]
Register = Callable[[str, type], object]


def moved(spec: str, shape: Shape) -> Transformer:
    return perturbed(spec, shape, 0.3)


def windows(shape: Shape) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, shape.vocab_size, (3, shape.seq_len + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def probe_of(model: Transformer, spec: str, shape: Shape) -> Probe:
    inputs, targets = windows(shape)
    exact = contextlib.nullcontext()
    return probes.measure(model, variant.parse(spec), inputs, targets, 7, exact)


def watched(model: Transformer, shape: Shape) -> tuple[list[Tensor], list[Tensor]]:
    """v_0..v_L with their gradients, and h_1..h_L+1, of an ordinary pass through the model."""
    values, seen = [], []

    def keep(_module: object, _inputs: object, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor):  # the heads of an attention whose values are changed
            return output
        scaled = output * model.embed_scale if not values else output
        scaled.retain_grad()
        values.append(scaled)
        return output if len(values) > 1 else scaled / model.embed_scale

    hooks = [module.register_forward_hook(keep) for module in (model.embed, *model.sublayers)]

    def see(_module: object, inputs: tuple[object, ...]) -> None:
        h = inputs[0].q if isinstance(inputs[0], Inputs) else inputs[0]
        seen.extend([h] if isinstance(h, Tensor) else [])

    hooks += [module.register_forward_pre_hook(see) for module in (*model.sublayers, model.norm)]
    inputs, targets = windows(shape)
    logits = model.head(model.hidden(inputs))
    (next_token_loss(logits, targets) * targets.numel()).backward()
    for hook in hooks:
        hook.remove()
    return values, seen


def rms(x: Tensor) -> float:
    return math.sqrt(sum(number**2 for number in x.flatten().tolist()) / x.numel())


@pytest.mark.parametrize("spec", SIMPLE)
def test_magnitudes_and_gradients_are_those_of_plain_autograd(spec: str, tiny_shape: Shape):
    model = moved(spec, tiny_shape)
    probe = probe_of(model, spec, tiny_shape)
    with engines.use("reference"):
        values, seen = watched(model, tiny_shape)

    zero = torch.zeros(1)
    gradients = [zero if v.grad is None else v.grad for v in values]
    # next_token_loss is in float32, and so is what flows back from it
    assert probe.output_rms == pytest.approx([rms(v) for v in values], rel=1e-9)
    assert probe.gradient_rms == pytest.approx([rms(g) for g in gradients], rel=1e-5, abs=1e-12)
    assert probe.input_rms == pytest.approx([rms(h) for h in seen], rel=1e-9)


def plain_measures(model: Transformer, values: list[Tensor]) -> dict[str, list[float]]:
    """From M of one token at a time, in Python's own arithmetic."""
    values = [v.flatten(0, 1) for v in values]
    n_tokens, sites = len(values[0]), len(values)
    found = {name: [0.0] * sites for name in ("newest_share", "embedding_share", "entropy")}
    parts = [0.0] * sites
    for token in range(n_tokens):
        with torch.no_grad():
            m = model.residual.depth_mixing([v[token].view(1, 1, -1) for v in values])[0, 0]
        width = len(values[0][token]) // len(m)
        for part, rows in enumerate(m.tolist()):
            for site, row in enumerate(rows):
                weights = [  # of groups of outputs: by chance no two of them are equal
                    abs(row[i])
                    for i in range(site + 1)
                    if not i or not row[i] or not math.isclose(row[i], row[i - 1], rel_tol=1e-12)
                ]
                shares = [weight / sum(weights) for weight in weights]
                scale = 1 / n_tokens / len(m)
                found["newest_share"][site] += shares[-1] * scale
                found["embedding_share"][site] += shares[0] * scale
                found["entropy"][site] -= scale * sum(p * math.log(p) for p in shares if p)
            for i, v in enumerate(values):
                mine = v[token][part * width : (part + 1) * width]
                parts[i] += rows[-1][i] ** 2 * mine.square().sum().item()
    sizes = [math.sqrt(part) for part in parts]
    return found | {"contribution": [size / sum(sizes) for size in sizes]}


@pytest.mark.parametrize("spec", SEVERAL)
def test_measures_of_m_are_those_of_plain_arithmetic_token_by_token(spec: str, tiny_shape: Shape):
    model = moved(spec, tiny_shape)
    probe = probe_of(model, spec, tiny_shape)
    values, _ = watched(model, tiny_shape)
    values = [v.detach() for v in values]

    assert probe.no_mixing == ""
    for name, expected in plain_measures(model, values).items():
        assert getattr(probe, name) == pytest.approx(expected, rel=1e-9, abs=1e-12), name
    with torch.no_grad():  # M itself is the mean over tokens and slices of the width
        exact = model.residual.depth_mixing(values).mean(dim=(0, 1, 2))
    torch.testing.assert_close(torch.tensor(probe.mixing), exact.float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("spec", ["mudd", "attnres:ways=qkv", "delta:ways=qkv"])
def test_an_attention_with_named_inputs_has_a_matrix_for_each(spec: str, tiny_shape: Shape):
    model = moved(spec, tiny_shape)
    probe = probe_of(model, spec, tiny_shape)
    values = [v.detach() for v in watched(model, tiny_shape)[0]]

    with torch.no_grad():
        exact = model.residual.depth_mixing(values)
    for part, m in zip((probe.mixing, probe.mixing_k, probe.mixing_v), exact, strict=True):
        mean = m.mean(dim=(0, 1, 2)).float()
        torch.testing.assert_close(torch.tensor(part), mean, rtol=1e-6, atol=1e-7)
    assert probe.mixing != probe.mixing_k != probe.mixing_v
    assert probe_of(moved("standard", tiny_shape), "standard", tiny_shape).mixing_k is None


@pytest.mark.parametrize("spec", ["standard", "attnres", "attnres:block_size=4"])
def test_the_newest_source_is_that_of_the_design(spec: str, tiny_shape: Shape):
    model = moved(spec, tiny_shape)
    probe = probe_of(model, spec, tiny_shape)
    values, _ = watched(model, tiny_shape)

    states = [model.residual.start(values[0])]
    for l, v in enumerate(values[1:], 1):
        states.append(model.residual.write(states[-1], l, v))
    held = [state if spec == "standard" else state.history.newest for state in states]

    assert probe.newest_source_rms == pytest.approx([rms(each) for each in held], rel=1e-9)


def test_joined_sources_are_found_without_the_engine_of_the_run(monkeypatch: pytest.MonkeyPatch):
    used, made = set(), engines._made
    monkeypatch.setattr(engines, "_made", lambda name, s: used.add(name) or made(name, s))
    describe.joined.cache_clear()

    with engines.use("eager"):  # on a GPU it may be one that knows no CPU
        describe.joined(variant.parse("attnres"), 6)

    assert used == {"reference"}


def test_sources_of_equal_weight_at_step_0_stay_apart(tiny_shape: Shape):
    probe = probe_of(build("attnres", tiny_shape), "attnres", tiny_shape)

    assert probe.newest_share == pytest.approx([1 / n for n in range(1, 8)])
    assert probe.entropy == pytest.approx([math.log(n) for n in range(1, 8)], abs=1e-6)


def test_a_design_that_is_not_linear_says_so_and_has_the_other_measures(tiny_shape: Shape):
    model = moved("laurel:kind=lr", tiny_shape)
    probe = probe_of(model, "laurel:kind=lr", tiny_shape)

    assert probe.no_mixing == model.residual.not_linear != ""
    assert (probe.mixing, probe.entropy, probe.contribution) == (None, None, None)
    assert len(probe.output_rms) == len(probe.gradient_rms) == len(probe.input_rms) == 7


@pytest.mark.parametrize("spec", ["attnres:block_size=2", "mhc", "postnorm", "standard"])
def test_m_of_a_few_tokens_at_a_time_is_the_same(
    spec: str, tiny_shape: Shape, monkeypatch: pytest.MonkeyPatch
):
    model = moved(spec, tiny_shape)
    whole = probe_of(model, spec, tiny_shape)
    monkeypatch.setattr(probes, "_NUMBERS", 7 * 49)  # one token, then seven, of 24

    pieces = probe_of(model, spec, tiny_shape)

    for name, value in vars(whole).items():
        if isinstance(value, tuple):
            torch.testing.assert_close(
                torch.tensor(value), torch.tensor(getattr(pieces, name)), rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("spec", BRIEF)
def test_every_design_is_measured_under_autocast(spec: str, tiny_shape: Shape):
    model = build(spec, tiny_shape)
    perturb(model.residual, 0.1)
    inputs, targets = windows(tiny_shape)
    rough = torch.autocast("cpu", torch.bfloat16)

    probe = probes.measure(model, variant.parse(spec), inputs, targets, 0, rough)
    exact = probe_of(model, spec, tiny_shape)

    assert probe.no_mixing == exact.no_mixing
    assert probe.no_mixing in (model.residual.not_linear, UNKNOWN)
    for name in ("output_rms", "gradient_rms", "input_rms", "newest_share", "contribution"):
        if getattr(exact, name) is not None:
            assert getattr(probe, name) == pytest.approx(getattr(exact, name), rel=0.1, abs=1e-3)


def test_a_wrong_m_is_not_believed_and_a_run_whose_m_fails_goes_on(lab: Lab, registered: Register):
    class Lying(Standard):
        def depth_mixing(self, values):
            return 2 * super().depth_mixing(values)

    class Mute(Standard):
        def depth_mixing(self, values):
            raise ZeroDivisionError("no M today")

    registered("lying", Lying)
    registered("mute", Mute)
    lying, mute = lab.run("lying"), lab.run("mute")

    assert lying.probes[0].no_mixing == "M is off what the output site saw by 100%"
    assert lying.probes[0].mixing is None
    assert mute.status is Status.COMPLETE
    assert mute.probes[0].no_mixing == "depth_mixing raised ZeroDivisionError: no M today"


@pytest.mark.parametrize(
    ("spec", "precision"),
    [("attnres:block_size=2", "bf16"), ("mhc", "fp32"), ("noisy", "fp32")],
)
@pytest.mark.usefixtures("registered")
def test_a_probe_leaves_weights_gradients_optimizer_and_generators_unchanged(
    spec: str, precision: str, lab: Lab
):
    settings = replace(SETTINGS, precision=precision)
    plain, probed = lab.trainer(spec, 1, settings), lab.trainer(spec, 1, settings)

    losses: list[list[float]] = [[], []]
    for trainer, found in zip((plain, probed), losses, strict=True):
        torch.manual_seed(5)
        for step in range(5):
            found.append(trainer.step(step).item())
            if trainer is probed:
                drawn, numpy_drawn = torch.get_rng_state(), np.random.get_state()[1].tolist()
                trainer.probe(step)
                assert torch.equal(torch.get_rng_state(), drawn)
                assert np.random.get_state()[1].tolist() == numpy_drawn

    assert losses[0] == losses[1]
    for (name, a), b in zip(plain.model.named_parameters(), probed.model.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert (a.grad is None, b.grad is None, b.requires_grad) == (True, True, True)
        for key, value in plain.optimizers[0].state[a].items():
            assert torch.equal(value, probed.optimizers[0].state[b][key]), key


@pytest.mark.parametrize(("steps", "probed"), [(200, [0, 50, 100, 200]), (199, [199]), (6, [6])])
def test_a_run_is_probed_at_four_steps_and_a_short_one_only_at_its_end(
    steps: int, probed: list[int], lab: Lab
):
    recipe = lab.with_recipe(train={"tokens": 64 * steps}).recipe

    assert sorted(probes.steps_of(recipe)) == probed


def test_probes_change_no_loss_and_are_no_part_of_the_time_of_a_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    plain = lab.run()
    measure, clock, late = probes.measure, time.perf_counter, [0.0]

    def slow(*arguments: object) -> Probe:
        late[0] += 100
        return measure(*arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    monkeypatch.setattr(probes, "measure", slow)
    monkeypatch.setattr(probes, "steps_of", lambda recipe: frozenset(range(7)))

    result = lab.run()

    assert len(result.probes) == 7
    assert result.curve == plain.curve
    assert result.step_s < 90
    assert result.train_s > 7 * 100


@pytest.mark.parametrize("name", ["smoke", "quick", "small"])
def test_probes_see_few_evaluation_tokens_the_same_for_every_arm_and_seed(name: str, lab: Lab):
    recipe = load(name)
    (sequences, length), seen = probes.windows_of(lab.tokens, recipe).shape, []
    tiny = replace(lab, recipe=recipe)
    for spec, seed in (("standard", 0), ("attnres", 7)):
        trainer = tiny.trainer(spec, seed, model={"n_layers": 1, "d_model": 16, "n_heads": 2})
        trainer.model.embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        trainer.probe(3)

    assert length == recipe.model.seq_len + 1
    n_probes = len(probes.steps_of(recipe))
    assert sequences == 1 or sequences * (length - 1) * n_probes <= 0.004 * recipe.train.tokens
    assert sequences <= recipe.train.batch_size
    assert torch.equal(seen[0], seen[1])


@pytest.mark.slow
def test_a_compiled_run_is_measured_as_an_eager_one(lab: Lab):
    torch.compiler.reset()
    ours, theirs = (lab.run("attnres:block_size=2", 0, each) for each in (COMPILED, SETTINGS))

    for name in ("output_rms", "gradient_rms", "input_rms"):
        found, expected = (getattr(result.probes[0], name) for result in (ours, theirs))
        assert found == pytest.approx(expected, rel=1e-2)


def test_the_load_of_experts_is_that_of_their_choices_and_nothing_is_counted(tiny_shape: Shape):
    shape = replace(tiny_shape, mlp=("gelu", "moe"), n_experts=6, top_k=2, n_shared_experts=1)
    model = moved("attnres", shape)
    seen = {}
    for number, f in enumerate(model.sublayers):
        f.kind.register_forward_pre_hook(lambda _, h, i=number: seen.setdefault(i, h[0]))

    probe = probe_of(model, "attnres", shape)

    n_tokens = torch.bincount(model.sublayers[3].kind.route(seen[3].flatten(0, 1))[1].flatten())
    wanted = int(n_tokens.max()) / (3 * shape.seq_len * 2 / 6)
    assert probe.imbalance == (0, 0, 0, 0, pytest.approx(wanted), 0, 0)
    assert not model.sublayers[3].kind.load.any()
    assert model.training
    assert probe_of(moved("attnres", tiny_shape), "attnres", tiny_shape).imbalance is None
