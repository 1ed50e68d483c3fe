"""When trials may be ended early, and by which losses."""

from __future__ import annotations

import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import UsageError
from attnres_cli.lab.search.pruning import LOOKS, Pruning, asked, end, looks

ONE = ("val_loss",)


def recipe(*overrides: str) -> Recipe:
    return load("smoke", list(overrides))


def wsd(*overrides: str) -> Recipe:
    return recipe("optim.schedule=wsd", *overrides)


def test_a_constant_learning_rate_is_judged_from_the_warm_up_until_it_falls():
    assert asked("median", wsd(), ONE) == Pruning("median", 2, 16)
    late = wsd("optim.warmup_fraction=0.22", "optim.decay_fraction=0.5")
    assert asked("hyperband", late, ONE) == Pruning("hyperband", 5, 10)


def test_a_decay_is_judged_only_where_one_says_so():
    with pytest.raises(UsageError, match=r"optim\.schedule=wsd .* --pruner median:until=0\.5"):
        asked("median", recipe(), ONE)

    assert asked("median:until=0.5", recipe(), ONE) == Pruning("median", 2, 10)
    assert asked("hyperband:until=0.99", wsd(), ONE) == Pruning("hyperband", 2, 19)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("medain", "did you mean 'median'"),
        ("none:until=0.5", "--pruner none takes no options"),
        ("median:util=0.5", "did you mean 'until'"),
        ("median:until=1.5", "a share of the run between 0 and 1, as 0.5, got '1.5'"),
        ("median:until=half", "got 'half'"),
        ("median:until=0.05", "trials are judged from 10% of a run"),
    ],
)
def test_what_cannot_be_meant_says_what_can(text: str, says: str):
    with pytest.raises(UsageError, match=says.replace(".", r"\.")):
        asked(text, wsd(), ONE)


def test_nothing_is_pruned_by_default_nor_with_two_goals():
    assert asked("none", recipe(), ONE) is None
    with pytest.raises(UsageError, match="this search has two goals"):
        asked("median", wsd(), ("val_loss", "params"))


@pytest.mark.parametrize("steps", [31, 100, 429, 1717])
def test_a_look_is_the_mean_training_loss_since_the_one_before(steps: int):
    read = sorted({round(steps * i / 100) for i in range(1, 101)} - {0})  # as the curve has them
    losses = [(step, 5.0 - step / steps) for step in read]

    found = looks(losses, steps)

    assert sorted(found) == list(range(1, LOOKS + 1))
    for look, loss in found.items():
        inside = [v for s, v in losses if end(look - 1, steps) < s <= end(look, steps)]
        assert loss == pytest.approx(sum(inside) / len(inside))


def test_a_run_that_went_on_from_later_has_the_looks_from_there():
    losses = [(step, 3.0) for step in range(47, 64)]

    assert sorted(looks(losses, 100)) == [10, 11, 12]
