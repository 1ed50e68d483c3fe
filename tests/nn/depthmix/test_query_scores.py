"""Gradients by hand of the scores that a read's own query makes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from attnres_cli.nn.depthmix.query_scores import _Scores
from attnres_cli.nn.depthmix.scoring import Scoring


@pytest.mark.parametrize(("heads", "head_norm"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("has_gain", [True, False])
def test_gradients_are_those_of_the_scores(heads: int, head_norm: bool, has_gain: bool):
    gain = torch.ones(1, 6) if has_gain else None
    scoring = Scoring(((0, 1, 2),), "softmax", heads, gain=gain, head_norm=head_norm)
    generator = torch.Generator().manual_seed(0)
    tensors = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)

    form = partial(_Scores.apply, scoring)

    assert torch.autograd.gradcheck(form, [each.clone().requires_grad_() for each in tensors])
