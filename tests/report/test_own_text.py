"""What tells an arm's recipe from the shared one, in a line."""

from __future__ import annotations

from attnres_cli.config.recipe import load
from attnres_cli.report.plans import own_text


def test_multiples_of_parts_stand_with_the_rate_and_the_sizes():
    shared = load("smoke", ["optim.part_lr_scale={x0: 30}"])
    own = load("smoke", ["optim.part_lr_scale={x0: 30, unet: 100}", "optim.lr=0.01"])

    assert own_text(own, shared) == "lr 0.01, unet x100"
    assert own_text(shared, shared) == ""
