"""The arithmetic of eager.py by the fused kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.eager import Eager
from attnres_cli.nn.depthmix.fused import ops
from attnres_cli.nn.depthmix.gradients import ReadGrad, ScoredSource


class Triton(Eager):
    """The same functions by operators. Training is grouped too, which reads fewer bytes."""

    trains_in_groups = True

    def sites_together(self, n_sites: int) -> int:
        """The power of two near the root of all sites, best by count of bytes."""
        return 1 << max(1, round(math.log2(n_sites) / 2))

    def dots(self, v: Tensor, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        """By attnres::scores."""
        normalised = self.scoring.gain is not None
        z, r = ops.scores(v, queries, self.scoring.heads, normalised, self.scoring.eps)
        return z[:, : len(v)], r if normalised else None

    def mix(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        """By attnres::mix."""
        norm = ops.NORMS[self.scoring.norm]
        h, constants = ops.mix(list(sources), list(scores), norm, dtype)
        return h, constants if self.scoring.norm == "softmax" else None

    def mix_group(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """By attnres::mix_group."""
        mixed, score = ops.mix_group(list(sources), list(scores), ops.NORMS[self.scoring.norm])
        return mixed, score if self.scoring.norm == "softmax" else None

    def gather(
        self, source: ScoredSource, grads: Sequence[ReadGrad], start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """By attnres::gather, for the sites that follow each other; the rest goes on from there."""
        first = grads[0].site
        n = next((k for k, each in enumerate(grads) if each.site != first + k), len(grads))
        run, rest = grads[:n], grads[n:]
        acc, slopes = ops.gather(
            source.v,
            source.scores(first, first + n),
            [grad.g for grad in run],
            [grad.constants for grad in run if grad.constants is not None],
            [grad.delta for grad in run if grad.delta is not None],
            start,
            ops.NORMS[self.scoring.norm],
        )
        slopes = slopes[:, : len(source.v)]
        if not rest:
            return acc, slopes
        acc, more = self.gather(source, rest, acc)
        return acc, torch.cat((slopes, more))

    def finish(self, source: ScoredSource, acc: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """By attnres::finish."""
        assert source.params is not None
        assert source.z is not None
        return ops.finish(acc, source.v, source.z, source.r, source.params, slopes)
