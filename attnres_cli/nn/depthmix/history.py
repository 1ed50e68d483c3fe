"""History: the sources made so far, mixed without ever being stacked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines, unrolled
from attnres_cli.nn.depthmix.engines import Engine
from attnres_cli.nn.depthmix.scoring import (
    EngineState,
    Layout,
    Scoring,
    Visible,
    layout_of,
    no_autocast,
    wide,
)


@dataclass(frozen=True)
class History:
    """Sources v_0..v_j and the engine that mixes them.

    Never changed in place: `append`, `accumulate` and `read` return a new history. Scores, weights
    and sums are in float32 at least, whatever the sources' type; a read returns the type of v_0.

    The engine is chosen when the first source comes (see `engines.choose`).
    """

    scoring: Scoring
    engine: Engine | None = None
    state: EngineState | None = None

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """v_0..v_j, each (B, T, D)."""
        return () if self.state is None else self.state.sources

    def append(self, v: Tensor) -> History:
        """The history with one more source, v of shape (B, T, D)."""
        engine = self.engine or engines.choose(v, self.scoring)
        state = self.state or EngineState(self.scoring, _layout(self.scoring.visible))
        with no_autocast(v):
            return History(self.scoring, engine, engine.append(state, v))

    def accumulate(self, y: Tensor) -> History:
        """The history with one more source: the newest one plus y, summed in float32 at least."""
        newest = self.sources[-1]
        return self.append(newest.to(wide(newest)) + y)

    def read(self, site: int, query: Tensor | None = None) -> tuple[Tensor, History]:
        """The weighted sum (B, T, D) that a site, counted from 0, sees, and the history to go on
        with. A query (B, T, D) is of this read alone, in the place of the scoring's own.
        """
        seen = self.scoring.visible[site]
        if len(seen) == 1 and self.scoring.norm == "softmax":
            only = self.sources[seen[0]]  # the softmax of one score is 1
            return only.to(self.sources[0].dtype), self
        assert self.engine is not None
        assert self.state is not None
        with no_autocast(self.sources[0]):
            h, state = self.engine.read(self.state, site, query)
        return h, History(self.scoring, self.engine, state)

    def weights(self, site: int, query: Tensor | None = None) -> Tensor:
        """(B, T, S, H) weights of the sources in `visible[site]`; B and T are 1 for a table. The
        site and the query are as the read's.
        """
        assert self.engine is not None
        assert self.state is not None
        with no_autocast(self.sources[0]):
            if query is None:
                scores = self.engine.scores(self.state, site)
            else:
                scores = unrolled.query_scores(self.state, site, query)
        return self.scoring.weights(scores, dim=-2)


_remembered = cache(layout_of)


def _layout(visible: Visible) -> Layout:
    """The layout, remembered where no compiler is tracing: those warn of caches."""
    return layout_of(visible) if torch.compiler.is_compiling() else _remembered(visible)
