"""A finished run that is trained further is, bit for bit, one that had the tokens at the start."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inputs import changed
from training import SETTINGS, quiet

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.lab.extend import longer
from attnres_cli.records.run import RunSpec
from attnres_cli.train.checkpoint import LONGER, Checkpoints, clear, differing
from attnres_cli.train.keeper import Keeper, Stop
from attnres_cli.train.loop import joint, train

STEPS = 120
WSD = {"schedule": "wsd", "decay_fraction": 0.25}
LEVEL = {"schedule": "wsd", "final_lr_fraction": 1.0}


@pytest.fixture
def of(tiny_recipe: Recipe) -> Any:
    def make(optim: dict[str, object]) -> Recipe:
        return changed(tiny_recipe, train={"tokens": 64 * STEPS}, optim=optim)

    return make


def kept(folder: Path) -> Keeper:
    return Keeper(Checkpoints(folder, {"data": "a"}), 1e9, Stop())


def weights(folder: Path) -> Path:
    (found,) = folder.glob("weights*")
    return found


@pytest.mark.parametrize(("optim", "step", "steps"), [(WSD, 90, 203), (LEVEL, 120, 150)])
def test_it_has_the_weights_and_losses_of_a_run_that_was_long_at_once(
    of: Any, optim: dict[str, object], step: int, steps: int, tokens: Tokens, tmp_path: Path
):
    recipe = of(optim)
    own = longer(recipe, 64 * steps)
    first, further, whole = (tmp_path / name for name in ("first", "further", "whole"))
    specs = [RunSpec(each, "standard", 0, tokens.fingerprint) for each in (recipe, own)]

    train(specs[0], tokens, SETTINGS, "cpu", quiet, kept(first))
    clear(first, weights(first).name)
    state, tensors = Checkpoints(first / LONGER, {"data": "a"}).take()
    keeper = kept(further)
    keeper.checkpoints.save(state["step"], state, tensors)
    one = train(specs[1], tokens, SETTINGS, "cpu", quiet, keeper)
    two = train(specs[1], tokens, SETTINGS, "cpu", quiet, kept(whole))

    assert (state["step"], one.steps) == (step, steps)
    assert differing(weights(further), weights(whole)) == []
    assert (one.val_loss, one.status) == (two.val_loss, two.status)
    assert one.curve[-20:] == two.curve[-20:]


def test_the_warm_up_of_a_longer_run_has_as_many_steps(of: Any):
    for steps in (121, 150, 997, 12_345):
        own = longer(of(WSD), 64 * steps)
        assert math.ceil(own.optim.warmup_fraction * own.steps) == math.ceil(0.05 * STEPS)
        assert own.steps == steps
        assert joint(own) >= joint(of(WSD)) - 1


@pytest.mark.parametrize(
    ("optim", "tokens", "words"),
    [
        ({"schedule": "cosine"}, 64_000, "a cosine falls from the warm-up on"),
        (WSD, 64 * STEPS, "the run has had 7,680: more are needed, got 7,680"),
        (WSD | {"decay_fraction": 1.0}, 64_000, "its decay begins before the warm-up ends"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_with_the_reason(
    of: Any, optim: dict[str, object], tokens: int, words: str
):
    with pytest.raises(UsageError) as caught:
        longer(of(optim), tokens)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_kept_by_other_code_or_not_at_all_is_refused_and_stays(of: Any, tmp_path: Path):
    place = Checkpoints(tmp_path, {"data": "a"})
    with pytest.raises(UsageError, match="nothing is kept of the run to go on from"):
        place.take()
    place.save(5, {"step": 5}, {})

    with pytest.raises(UsageError, match=r"made with another data \(a, now b\): not exact here"):
        replace(place, identity={"data": "b"}).take()

    assert place.take()[0] == {"step": 5}
