"""Recipes that compute the same are one, however they were typed."""

from __future__ import annotations

import studies

from attnres_cli.config.recipe import load
from attnres_cli.records.computed import computed, first_of, placed
from attnres_cli.train.optimizers import lr_factor

SAME = (  # in recipe smoke: 31 steps of 16 sequences of 32 tokens
    "train.tokens=15873", "train.micro_batch_size=16", "train.n_evals=3", "train.precision=fp32",
    "train.eval_tokens=4100", "train.checkpoint_activations=true", "optim.decay_fraction=0.3",
    "optim.warmup_fraction=0.06", "arms={attnres: {optim.lr: 0.02}}",
)  # fmt: skip
OTHER = (
    "train.tokens=15871", "train.micro_batch_size=8", "train.eval_tokens=4064", "optim.lr=0.021",
    "optim.schedule=wsd", "optim.warmup_fraction=0.07", "arms={attnres: {optim.lr: 0.03}}",
    "model.d_ff=96", "data.edition=1",
)  # fmt: skip


def test_what_changes_no_bit_is_none_of_what_is_computed():
    smoke = load("smoke")
    for typed in SAME:
        recipe = load("smoke", [typed])
        assert (recipe.digest != smoke.digest, computed(recipe)) == (True, computed(smoke)), typed
    assert len({computed(recipe) for recipe in (smoke, *(load("smoke", [t]) for t in OTHER))}) == 10


def test_fractions_of_a_schedule_are_one_where_every_step_has_the_same_rate():
    found: dict[tuple[str, tuple[float, ...]], set[str]] = {}
    for k in range(20):
        typed = (f"optim.warmup_fraction={k / 100}", f"optim.decay_fraction={k / 40 + 0.1}")
        for schedule in "cosine", "wsd":
            recipe = load("smoke", [f"optim.schedule={schedule}", *typed])
            rates = tuple(lr_factor(recipe.optim, step, 31) for step in range(31))
            found.setdefault((schedule, rates), set()).add(computed(recipe))
    assert {len(keys) for keys in found.values()} == {1}
    assert len({key for keys in found.values() for key in keys}) == len(found) < 40


def test_precision_counts_as_the_machine_resolved_it_and_a_registered_recipe_goes_first():
    auto, typed = load("smoke"), load("smoke", ["train.precision=fp32"])
    held = {each.digest: each for each in (auto, typed)}
    on = dict.fromkeys(held, studies.SETTINGS)  # fp32 on a CPU
    assert first_of(held, {}) == {digest: digest for digest in held}
    assert set(first_of(held, on).values()) == {auto.digest}
    assert set(first_of(held, on, {typed.digest}).values()) == {typed.digest}


def test_a_recipe_that_is_held_takes_place_and_name_from_the_one_asked_for():
    there, here = (load("smoke", ["data.source=text", f"data.path={at}"]) for at in "ab")
    asked = here.at(15_873).model_copy(update={"name": "mine"})
    found = placed(there, asked)
    assert (found.name, found.data.path, found.train.tokens) == ("mine", "b", 16_000)
    assert found.digest == there.digest
