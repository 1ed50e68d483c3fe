"""The arithmetic of eager.py by the fused kernels: same functions, same shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.fused import ops
from attnres_cli.nn.depthmix.gradient_messages import Letter, Made
from attnres_cli.nn.depthmix.scoring import Scoring

name = "triton"

GATHERED_TOGETHER = 4
"""Sources whose gradients are gathered in one go where the same reads saw them. By count of bytes
the best is near the root of their number; not yet measured on a GPU."""


TRAINS_IN_PHASES = True
"""As eager.TRAINS_IN_PHASES: bytes are what it costs here, and groups read fewer."""


def sites_together(n_sites: int) -> int:
    """How many sites share phase 1: the power of two near the root, best by count of bytes."""
    return 1 << max(1, round(math.log2(n_sites) / 2))


def scores(v: Tensor, leaf: Tensor | None, scoring: Scoring) -> tuple[Tensor | None, Tensor | None]:
    """As eager.scores."""
    if leaf is None:
        return None, None
    if scoring.table is not None:
        return leaf.unsqueeze(1).contiguous(), None
    normalised = scoring.gain is not None
    z, r = ops.scores(v, leaf, scoring.heads, normalised, scoring.eps)
    return z[:, : len(v)], r if normalised else None


def mix(
    sources: Sequence[Tensor], scores: Sequence[Tensor], scoring: Scoring, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """As eager.mix."""
    norm = ops.NORMS[scoring.norm]
    h, constants = ops.mix(list(sources), list(scores), norm, dtype)
    return h, constants if scoring.norm == "softmax" else None


def phase_one(
    sources: Sequence[Tensor], scores: Sequence[Tensor], scoring: Scoring
) -> tuple[Tensor, Tensor | None]:
    """As eager.phase_one."""
    mixed, score = ops.phase_one(list(sources), list(scores), ops.NORMS[scoring.norm])
    return mixed, score if scoring.norm == "softmax" else None


def gather(
    mades: Sequence[Made],
    letters: Sequence[Letter],
    scoring: Scoring,
    starts: Sequence[Tensor | None],
) -> tuple[list[Tensor], list[Tensor]]:
    """As eager.gather. Sources of unlike types, and letters of sites that do not follow each
    other, go in parts.
    """
    if len({made.v.dtype for made in mades}) > 1:
        parts = [
            gather([made], letters, scoring, [start])
            for made, start in zip(mades, starts, strict=True)
        ]
        return [acc for accs, _ in parts for acc in accs], [d for _, ds in parts for d in ds]
    run = _run(letters)
    first, rest = letters[:run], letters[run:]
    accs, ds = _gather(mades, first, scoring, starts)
    if not rest:
        return accs, ds
    accs, more = gather(mades, rest, scoring, accs)
    return accs, [torch.cat(both) for both in zip(ds, more, strict=True)]


def finish(made: Made, acc: Tensor, ds: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """As eager.finish."""
    assert made.leaf is not None
    assert made.z is not None
    if scoring.table is not None:
        return acc, ds.sum(dim=1)
    return ops.finish(acc, made.v, made.z, made.r, made.leaf, ds)


def _gather(
    mades: Sequence[Made],
    letters: Sequence[Letter],
    scoring: Scoring,
    starts: Sequence[Tensor | None],
) -> tuple[list[Tensor], list[Tensor]]:
    zs = [_at(made, letters) for made in mades]
    constants = [letter.constants for letter in letters if letter.constants is not None]
    deltas = [letter.delta for letter in letters if letter.delta is not None]
    start = None
    if any(each is not None for each in starts):
        none = torch.zeros_like(mades[0].v, dtype=torch.float32)
        start = torch.stack([none if each is None else each.float() for each in starts])
    acc, ds = ops.gather(
        [made.v for made in mades], zs, [letter.g for letter in letters],
        constants, deltas, start, ops.NORMS[scoring.norm],
    )  # fmt: skip
    return list(acc.unbind()), [each[:, : len(mades[0].v)] for each in ds.unbind()]


def _at(made: Made, letters: Sequence[Letter]) -> Tensor:
    """(K, N, H) scores at the sites of letters that follow each other."""
    assert made.z is not None
    row = letters[0].site - made.first
    return made.z[row : row + len(letters)]


def _run(letters: Sequence[Letter]) -> int:
    """How many of the first letters come from sites that follow each other."""
    first = letters[0].site
    return next((k for k, letter in enumerate(letters) if letter.site != first + k), len(letters))
