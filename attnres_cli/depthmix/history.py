"""History: the sources made so far, mixed without ever being stacked.

Scores are taken when a source is made: its rms once, and one matrix product with the queries of
all sites that will read it. A read is then a softmax over scalars and one pass over the sources.
Nothing per site is stored but those scalars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnres_cli.depthmix.scoring import Scoring


@dataclass(frozen=True)
class History:
    """Sources v_0..v_j and their scores at the sites that will read them.

    Never changed in place: `append` and `accumulate` return a new history. Scores, weights and sums
    are in float32 at least, whatever the sources' type; a read returns the type of v_0.
    """

    scoring: Scoring
    sources: tuple[Tensor, ...] = ()
    scores: tuple[Mapping[int, Tensor], ...] = ()  # per source: site -> (B, T, H)

    def append(self, v: Tensor) -> History:
        """The history with one more source, v of shape (B, T, D)."""
        scores = _scores(self.scoring, v, len(self.sources))
        return replace(self, sources=(*self.sources, v), scores=(*self.scores, scores))

    def accumulate(self, y: Tensor) -> History:
        """The history with one more source: the newest one plus y, summed in float32 at least."""
        newest = self.sources[-1]
        return self.append(newest.to(_accumulation_type(newest)) + y)

    def read(self, site: int) -> tuple[Tensor, History]:
        """The weighted sum (B, T, D) that a site sees, and the history to go on with."""
        seen = self.scoring.visible[site]
        if len(seen) == 1 and self.scoring.norm == "softmax":
            return self.sources[seen[0]], self  # the softmax of one score is 1
        weights = self.weights(site).unbind(dim=-2)
        h: Tensor | None = None
        for a, i in zip(weights, seen, strict=True):
            v = self.sources[i].unflatten(-1, (self.scoring.heads, -1))  # (B, T, H, D/H)
            a = a.unsqueeze(-1)
            h = a * v if h is None else torch.addcmul(h, a, v.to(a.dtype))
        assert h is not None
        return h.flatten(-2).to(self.sources[0].dtype), self

    def weights(self, site: int) -> Tensor:
        """(B, T, S, H) weights of the sources in `visible[site]`; B and T are 1 for a table."""
        scoring = self.scoring
        if scoring.table is not None:
            table = scoring.table[scoring.pairs_of(site)]
            scores = table.to(_accumulation_type(table))[None, None]
        else:
            scores = torch.stack([self.scores[i][site] for i in scoring.visible[site]], dim=-2)
        if scoring.norm == "softmax":
            return torch.softmax(scores, dim=-2)
        return torch.sigmoid(scores) if scoring.norm == "sigmoid" else scores


def _accumulation_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scores(scoring: Scoring, v: Tensor, source: int) -> Mapping[int, Tensor]:
    """Scores of a source at every site that will read it: r_i (v_i . (query * gain))."""
    readers = scoring.readers(source)
    if scoring.query is None or not readers:
        return {}
    with torch.autocast(v.device.type, enabled=False):
        v = v.to(_accumulation_type(v))
        rows = slice(
            readers.start, readers.stop
        )  # a slice, since an index list would wait for CUDA
        queries = scoring.query[rows]
        if scoring.gain is not None:
            queries = queries * scoring.gain[rows]  # (R, D): folding the gain changes no score
        queries = queries.to(v.dtype).unflatten(-1, (scoring.heads, -1))  # (R, H, D/H)
        if scoring.heads == 1:
            scores = (v @ queries.squeeze(1).t()).unsqueeze(-1)  # (B, T, R, 1)
        else:
            per_head = v.unflatten(-1, (scoring.heads, -1))
            scores = torch.einsum("bthd,rhd->btrh", per_head, queries)
        if scoring.gain is not None:
            rms = torch.rsqrt(v.square().mean(dim=-1) + scoring.eps)
            scores = scores * rms[..., None, None]
        return dict(zip(readers, scores.unbind(dim=-2), strict=True))
