"""Memory is counted without numbers, on tensors of known size."""

from __future__ import annotations

import pytest
import torch

from attnres_cli.nn.memory import counting

MIB = 2**20


def test_released_memory_counts_only_for_the_peak():
    with counting() as held:
        large = torch.ones(8 * MIB // 4)
        small = large[: MIB // 4].clone()
        del large

    assert (held.peak, held.now, held.made) == (9 * MIB, MIB, 9 * MIB)
    assert small.shape == (MIB // 4,)


def test_tensors_saved_by_autograd_are_held_until_backward_has_passed():
    with counting() as held:
        x = torch.ones(MIB // 4, requires_grad=True)
        y = x.exp().sin().cos()
        kept = held.now
        y.sum().backward()
        del y

    assert kept == 4 * MIB
    assert held.now == 2 * MIB  # x and its gradient
    assert held.n_operations >= 8


def test_terabytes_are_counted_without_being_allocated():
    with counting() as held:
        x = torch.ones(2**20, 2**20)
        x @ x

    assert held.peak == 8 * 2**40


def test_code_that_looks_at_a_number_cannot_be_counted():
    with counting(), pytest.raises(Exception, match="_local_scalar_dense"):
        torch.ones(3).sum().item()
