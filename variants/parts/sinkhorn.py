"""Sinkhorn's iterations, forward and backward: exp of scores with columns, then rows, divided by
their sums, again and again. On a GPU the fused kernels of sinkhorn_kernels.py compute the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines


def sinkhorn(scores: Tensor, iterations: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """exp(scores) (n, n, N) with columns, then rows, divided by their sums, again and again; and
    what its slopes need: the scores, itself, and the sums, by which backward undoes the steps.

    The first iteration, in logarithms, leaves rows of sum 1 and columns of sum 1 / n at least, and
    so does every other: from there on nothing overflows. Autograd gets all of them in logarithms.
    """
    if engines.plain() or torch.is_grad_enabled():
        return _in_logarithms(scores, iterations), ()
    logs = scores.log_softmax(dim=0)
    m, sums = logs.softmax(dim=1), []
    for _ in range(iterations - 1):
        for dim in (0, 1):
            sums.append(m.sum(dim, True))
            m.div_(sums[-1])
    return m, (logs, m, *sums)


def _in_logarithms(scores: Tensor, iterations: int) -> Tensor:
    for _ in range(iterations):
        scores = scores.log_softmax(dim=0).log_softmax(dim=1)
    return scores.exp()


def slopes(g: Tensor, logs: Tensor, m: Tensor, *sums: Tensor) -> Tensor:
    """The gradient of the scores from that of `sinkhorn`, and what that kept."""
    g, m, left = g * m, m.clone(), list(sums)  # of the logarithms of m from here on
    while left:
        for dim in (1, 0):
            g.addcmul_(m, g.sum(dim, True), value=-1)
            m.mul_(left.pop())
    g.addcmul_(m, g.sum(1, True), value=-1)
    return torch.ops.aten._log_softmax_backward_data(g, logs, 0, g.dtype)  # noqa: SLF001
