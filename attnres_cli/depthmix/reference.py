"""The paper's formula, written plainly: the oracle of every engine's tests. Slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnres_cli.depthmix.scoring import Scoring


def weights(scoring: Scoring, sources: Sequence[Tensor], site: int) -> Tensor:
    """(S, B, T, H) weights of the visible sources at a site, in the sources' own type.

    Attention Residuals (arXiv 2603.15031), equations 2 to 4.
    """
    v = torch.stack([sources[i] for i in scoring.visible[site]])  # (S, B, T, D)
    if scoring.query is not None:
        keys = v
        if scoring.gain is not None:
            rms = torch.sqrt(v.pow(2).mean(dim=-1, keepdim=True) + scoring.eps)
            keys = v / rms * scoring.gain[site]
        products = keys * scoring.query[site]
        scores = products.unflatten(-1, (scoring.heads, -1)).sum(dim=-1)
    else:
        assert scoring.table is not None
        scores = scoring.table[scoring.pairs_of(site)][:, None, None, :]
        scores = scores.expand(*v.shape[:3], scoring.heads)
    if scoring.norm == "softmax":
        return torch.softmax(scores, dim=0)
    return torch.sigmoid(scores) if scoring.norm == "sigmoid" else scores


def mix(scoring: Scoring, sources: Sequence[Tensor], site: int) -> Tensor:
    """(B, T, D) weighted sum of the sources that a site sees."""
    v = torch.stack([sources[i] for i in scoring.visible[site]])
    per_head = v.unflatten(-1, (scoring.heads, -1))  # (S, B, T, H, D/H)
    return (weights(scoring, sources, site).unsqueeze(-1) * per_head).sum(dim=0).flatten(-2)
