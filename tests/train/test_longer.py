"""A finished run that is trained further is, bit for bit, one that had the tokens at the start."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from training import Lab, keeper_of

from attnres_cli.errors import UsageError
from attnres_cli.lab.train_further import longer
from attnres_cli.records.run import WEIGHTS
from attnres_cli.train.checkpoint import LONGER, Checkpoints, clear, differing
from attnres_cli.train.loop import joint

STEPS = 120
WSD = {"schedule": "wsd", "decay_fraction": 0.25}
LEVEL = {"schedule": "wsd", "final_lr_fraction": 1.0}


@pytest.fixture
def short(lab: Lab) -> Lab:
    return lab.with_recipe(train={"tokens": 64 * STEPS}, model={"n_layers": 1}, optim=WSD)


def weights(folder: Path) -> Path:
    (found,) = folder.glob(WEIGHTS)
    return found


@pytest.mark.parametrize(("optim", "step", "steps"), [(WSD, 90, 203), (LEVEL, 120, 150)])
def test_it_has_the_weights_and_losses_of_a_run_that_was_long_from_the_start(
    optim: dict[str, object], step: int, steps: int, short: Lab, tmp_path: Path
):
    short = short.with_recipe(optim=optim)
    long = replace(short, recipe=longer(short.recipe, 64 * steps))
    first, further, whole = (tmp_path / name for name in ("first", "further", "whole"))

    short.run(keeper=keeper_of(first))
    clear(first, weights(first).name)
    state, tensors = Checkpoints(first / LONGER, {"recipe": "a"}).take()
    keeper = keeper_of(further)
    keeper.checkpoints.save(state["step"], state, tensors)
    one = long.run(keeper=keeper)
    two = long.run(keeper=keeper_of(whole))

    assert (state["step"], one.steps) == (step, steps)
    assert differing(weights(further), weights(whole)) == []
    assert (one.val_loss, one.status) == (two.val_loss, two.status)
    assert one.curve[-20:] == two.curve[-20:]


@pytest.mark.parametrize(
    ("warmup", "steps"), [(6, 121), (6, 150), (6, 997), (6, 12_345), (42, 150), (56, 200)]
)  # the last two round to 0.28 of the steps, which is a little more than 42 and 56
def test_the_warm_up_of_a_longer_run_has_as_many_steps(warmup: int, steps: int, short: Lab):
    short = short.with_recipe(optim={"warmup_fraction": warmup / STEPS})
    own = longer(short.recipe, 64 * steps)

    assert math.ceil(own.optim.warmup_fraction * own.steps) == warmup
    assert own.steps == steps
    assert joint(own) >= joint(short.recipe) - 1


@pytest.mark.parametrize(
    ("optim", "tokens", "words"),
    [
        ({"schedule": "cosine"}, 64_000, "a cosine falls from the warm-up on"),
        (WSD, 64 * STEPS, "the run has had 7,680: more are needed, got 7,680"),
        (WSD | {"decay_fraction": 1.0}, 64_000, "its decay begins before the warm-up ends"),
    ],
)
def test_a_run_that_cannot_be_trained_further_is_refused_with_the_reason(
    optim: dict[str, object], tokens: int, words: str, short: Lab
):
    with pytest.raises(UsageError) as caught:
        longer(short.with_recipe(optim=optim).recipe, tokens)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_other_code_or_none_is_refused_and_stays(tmp_path: Path):
    place = Checkpoints(tmp_path, {"data": "a"})
    with pytest.raises(UsageError, match="nothing is kept of the run to go on from"):
        place.take()
    place.save(5, {"step": 5}, {})

    with pytest.raises(UsageError, match=r"made with another data \(a, now b\): not exact here"):
        replace(place, identity={"data": "b"}).take()

    assert place.take()[0] == {"step": 5}
