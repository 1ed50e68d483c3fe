"""The paper's formula, written plainly: the oracle of every engine's tests. Slow on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.scoring import EngineState, Scoring, wide

Sources = Sequence[Tensor] | Mapping[int, Tensor]


def scores(scoring: Scoring, sources: Sources, site: int, query: Tensor | None = None) -> Tensor:
    """(S, B, T, H) scores of the visible sources at a site, in the sources' own type.

    Attention Residuals (arXiv 2603.15031), equations 2 to 4. `query` (B, T, D) takes the place of
    the scoring's own.
    """
    v = torch.stack([sources[i] for i in scoring.visible[site]])  # (S, B, T, D)
    found = v.new_zeros(*v.shape[:3], scoring.heads)
    if scoring.table is not None:
        found = found + scoring.table[scoring.pairs_of(site)][:, None, None, :]
    if query is None:
        if scoring.query is None:
            return found
        query = scoring.query[site]
    keys = v if scoring.rank is None else v[..., v.shape[-1] - scoring.rank :]
    if scoring.gain is not None:
        slices = keys.unflatten(-1, (scoring.heads if scoring.head_norm else 1, -1))
        rms = torch.sqrt(slices.pow(2).mean(dim=-1, keepdim=True) + scoring.eps)
        keys = (slices / rms).flatten(-2) * scoring.gain[site]
    found = found + (keys * query).unflatten(-1, (scoring.heads, -1)).sum(dim=-1)
    return torch.log(torch.sigmoid(found)) if scoring.squashed else found


def mix(scoring: Scoring, sources: Sources, site: int, query: Tensor | None = None) -> Tensor:
    """(B, T, D) weighted sum of the sources that a site sees."""
    weights = scoring.weights(scores(scoring, sources, site, query), dim=0)
    v = torch.stack([sources[i] for i in scoring.visible[site]])
    per_head = v.unflatten(-1, (scoring.heads, -1))  # (S, B, T, H, D/H)
    return (weights.unsqueeze(-1) * per_head).sum(dim=0).flatten(-2)


class Reference:
    """The formula as an engine, for `--engine reference`. It keeps no records."""

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """One more source."""
        return state.with_source(v)

    def read(
        self, state: EngineState, site: int, query: Tensor | None = None
    ) -> tuple[Tensor, EngineState]:
        """The mix, computed in float32 at least."""
        h = mix(state.scoring, _widened(state), site, query)
        return h.to(state.dtype), state

    def scores(self, state: EngineState, site: int) -> Tensor:
        """(B, T, S, H) scores at a site."""
        return scores(state.scoring, _widened(state), site).permute(1, 2, 0, 3)


def _widened(state: EngineState) -> Sources:
    return {i: v.to(wide(v)) for i, v in state.sources.items()}
