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
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """By attnres::mix."""
        norm = ops.NORMS[self.scoring.norm]
        h, constants = ops.mix(list(sources), list(scores), norm, dtype)
        return h, (h, constants) if self.scoring.norm == "softmax" else ()

    def mix_group(
        self, sources: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """By attnres::mix_group."""
        mixed, score = ops.mix_group(list(sources), list(scores), ops.NORMS[self.scoring.norm])
        return mixed, score[:, : mixed.shape[1]] if self.scoring.norm == "softmax" else None

    def read_gradients(
        self, site: int, g: Tensor, kept: Sequence[Tensor], n_sources: int
    ) -> list[ReadGrad]:
        """The same for each source, which computes its weights again."""
        grad = ReadGrad(site, g)
        if kept:
            h, constants = kept
            grad = grad._replace(delta=ops.dots(g, h, constants.shape[-1]), constants=constants)
        return [grad] * n_sources

    def gather(
        self, source: ScoredSource, grads: Sequence[ReadGrad]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """By attnres::gather, for sites that follow each other at a time; they go on from what has
        its weights from plain scores.
        """
        plain = [grad for grad in grads if grad.is_plain]
        total, along = super().gather(source, plain)[0] if plain else None, None
        rest, slopes = [grad for grad in grads if not grad.is_plain], []
        while rest:
            first = rest[0].site
            n = next((k for k, each in enumerate(rest) if each.site != first + k), len(rest))
            run, rest = rest[:n], rest[n:]
            total, more, products = ops.gather(
                source.v,
                source.scores(first, first + n),
                [grad.g for grad in run],
                [grad.constants for grad in run if grad.constants is not None],
                [grad.delta for grad in run if grad.delta is not None],
                total,
                ops.NORMS[self.scoring.norm],
            )
            slopes.append(more[:, : len(source.v)])
            along = products if along is None else along + products
        assert total is not None
        if not slopes:
            return total, None, None
        return total, slopes[0] if len(slopes) == 1 else torch.cat(slopes), along

    def finish(
        self, source: ScoredSource, acc: Tensor, slopes: Tensor, along: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """By attnres::finish."""
        assert source.params is not None
        assert along is not None
        return ops.finish(acc, source.v, source.r, source.params, slopes, along)
