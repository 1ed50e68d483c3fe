"""Gradients by hand of the scores that a read's own query makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring


@pytest.mark.parametrize(("heads", "head_norm"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("has_gain", [True, False])
@pytest.mark.parametrize("norm", ["softmax", "sigmoid"])
def test_gradients_are_those_of_reads_by_queries(
    heads: int, head_norm: bool, has_gain: bool, norm: str
):
    generator = torch.Generator().manual_seed(0)
    gain = torch.rand(2, 6, generator=generator, dtype=torch.float64) if has_gain else None
    visible = ((0, 1), (0, 1, 2))
    scoring = Scoring(visible, norm, heads, gain=gain, head_norm=head_norm)
    tensors = torch.randn(5, 2, 3, 6, generator=generator, dtype=torch.float64)

    def reads(*given: Tensor) -> Tensor:
        first, second, third, *queries = given
        h, history = History(scoring).append(first).append(second).read(0, queries[0])
        again, _ = history.append(third * h).read(1, queries[1])
        return torch.stack((h, again))

    with engines.use("eager"):
        given = [each.clone().requires_grad_() for each in tensors]
        assert torch.autograd.gradcheck(reads, given)
        found = reads(*given)
    with engines.use("reference"):
        torch.testing.assert_close(reads(*given), found)
