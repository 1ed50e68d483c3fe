"""Gradients by hand of the scores that a read's own query makes."""

from __future__ import annotations

import torch
from sampling import in_pairs
from torch import Tensor

from attnres_cli.nn.depthmix import engines
from attnres_cli.nn.depthmix.history import History
from attnres_cli.nn.depthmix.scoring import Scoring


@in_pairs(
    {
        "heads,head_norm": [(1, False), (2, False), (2, True)],
        "has_gain": [True, False],
        "norm": ["softmax", "sigmoid"],
    }
)
def test_gradients_of_reads_by_queries_equal_the_formula_and_finite_differences(
    heads: int, head_norm: bool, has_gain: bool, norm: str
):
    generator = torch.Generator().manual_seed(0)
    gain = torch.rand(2, 4, generator=generator, dtype=torch.float64) if has_gain else None
    scoring = Scoring(((0, 1), (0, 1, 2)), norm, heads, gain=gain, head_norm=head_norm)
    given = torch.randn(5, 1, 2, 4, generator=generator, dtype=torch.float64)
    inputs = [each.clone().requires_grad_() for each in given]

    def reads(*given: Tensor) -> Tensor:
        first, second, third, *queries = given
        h, history = History(scoring).append(first).append(second).read(0, queries[0])
        again, _ = history.append(third * h).read(1, queries[1])
        return torch.stack((h, again))

    with engines.use("eager"):
        assert torch.autograd.gradcheck(reads, inputs)
        found = reads(*inputs)
    with engines.use("reference"):
        torch.testing.assert_close(reads(*inputs), found)
