"""History: the sources made so far, mixed without ever being stacked."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from attnres_cli.nn.depthmix import engines, few_tokens, unrolled
from attnres_cli.nn.depthmix.engines import Engine
from attnres_cli.nn.depthmix.few_tokens import Buffers
from attnres_cli.nn.depthmix.scoring import (
    EngineState,
    Layout,
    Scoring,
    Visible,
    layout_of,
    no_autocast,
    wide,
)


@dataclass(eq=False)  # frozen=True would cost generation half a microsecond per site
class History:
    """Sources v_0..v_j and the engine that mixes them.

    Never changed in place: `append`, `accumulate` and `read` return a new history. Scores, weights
    and sums are in float32 at least, whatever the sources' type; a read returns the type of v_0.

    The engine is chosen when the first source comes (see `engines.choose`). Few tokens without
    gradients lie in buffers, up to source `number`, and go to an engine where those cannot go on.
    """

    scoring: Scoring
    engine: Engine | None = None
    state: EngineState | None = None
    few: Buffers | None = None
    number: int = 0

    @property
    def sources(self) -> Mapping[int, Tensor]:
        """v_0..v_j by number, each (B, T, D). Where gradients are off, those that no later site
        reads are gone.
        """
        if self.few is not None:
            return self.few.sources(self.number)
        return {} if self.state is None else self.state.sources

    @property
    def newest(self) -> Tensor:
        """v_j."""
        return self.state.newest if self.state is not None else list(self.sources.values())[-1]

    def append(self, v: Tensor) -> History:
        """The history with one more source, v of shape (B, T, D)."""
        if self.few is not None:
            return self._put(v, to_newest=False)
        if self.engine is None and engines.decodes():
            buffers = few_tokens.start(self.scoring, v)
            if buffers is not None:
                return self._in(buffers, 0)
        engine = self.engine or engines.choose(v, self.scoring)
        state = self.state or EngineState(self.scoring, _layout(self.scoring.visible), v.dtype)
        with no_autocast(v):
            return History(self.scoring, engine, engine.append(state, v))

    def accumulate(self, y: Tensor) -> History:
        """The history with one more source: the newest one plus y, summed in float32 at least."""
        if self.few is not None:
            return self._put(y, to_newest=True)
        return self.append(self.newest.to(wide(self.newest)) + y)

    def read(self, site: int, query: Tensor | None = None) -> tuple[Tensor, History]:
        """The weighted sum (B, T, D) that a site, counted from 0, sees, and the history to go on
        with. A query (B, T, D) is of this read alone, in the place of the scoring's own.

        Without gradients a source is kept until one is made after its last site was read. Raises
        ValueError for a site that would see a source which is gone.
        """
        if self.few is not None:
            found = self.few.read(self.number, site) if query is None else None
            return self._by_engine().read(site, query) if found is None else (found, self)
        assert self.engine is not None
        assert self.state is not None
        state, seen = self.state, self.scoring.visible[site]
        if not torch.is_grad_enabled():
            state = _read_on(state, site)
        if len(seen) == 1 and self.scoring.norm == "softmax":
            h = state.sources[seen[0]].to(state.dtype)  # the softmax of one score is 1
        else:
            with no_autocast(h := state.newest):
                h, state = self.engine.read(state, site, query)
        return h, History(self.scoring, self.engine, state)

    def weights(self, site: int, query: Tensor | None = None) -> Tensor:
        """(B, T, S, H) weights of the sources in `visible[site]`; B and T are 1 for a table. The
        site and the query are as the read's.
        """
        if self.few is not None:
            return self._by_engine().weights(site, query)
        assert self.engine is not None
        assert self.state is not None
        with no_autocast(self.newest):
            if query is None:
                scores = self.engine.scores(self.state, site)
            else:
                scores = unrolled.query_scores(self.state, site, query)
        return self.scoring.weights(scores, dim=-2)

    def carry(self, site: int) -> list[Tensor]:
        """What a history needs to go on from a site: the newest source, and those that are still
        read.
        """
        held = self.sources
        numbers = _layout(self.scoring.visible).carried(site, 1 + max(held))
        if self.few is not None:  # the next tokens are written over these
            return [held[i].clone() for i in numbers]
        return [held[i] for i in numbers]

    @classmethod
    def resume(
        cls, scoring: Scoring, sources: Sequence[Tensor], site: int, n_sources: int
    ) -> History:
        """The history of so many sources, to be read from a site on, from what `carry` gave."""
        first, layout = sources[0], _layout(scoring.visible)
        engine = engines.choose(first, scoring)
        state = EngineState(scoring, layout, first.dtype, site=site)
        with no_autocast(first):
            for i, v in zip(layout.carried(site, n_sources), sources, strict=True):
                state = engine.append(replace(state, n_sources=i), v)
        return cls(scoring, engine, state)

    def _put(self, v: Tensor, *, to_newest: bool) -> History:
        assert self.few is not None
        if self.few.put(self.number + 1, v, to_newest):
            return self._in(self.few, self.number + 1)
        history = self._by_engine()
        return history.accumulate(v) if to_newest else history.append(v)

    def _in(self, buffers: Buffers, number: int) -> History:
        history = History(self.scoring, None, None, buffers, number)
        buffers.made[number] = weakref.ref(history)
        return history

    def _by_engine(self) -> History:
        """The same history, kept by an engine."""
        assert self.few is not None
        held = self.sources
        gone = torch.zeros_like(held[self.number])
        with torch.no_grad():
            history = History(self.scoring, engines.choose(gone, self.scoring))
            for i in range(self.number + 1):
                history = history.append(held.get(i, gone))
        assert history.state is not None
        records = {i: history.state.records[i] for i in held}
        state = replace(history.state, dtype=self.few.kind, sources=held, records=records)
        state = replace(state, site=self.few.sites[self.number])
        return replace(history, state=state)


def _read_on(state: EngineState, site: int) -> EngineState:
    """The state that knows of a read. Raises ValueError where a source is gone."""
    if site < state.site and any(i not in state.sources for i in state.scoring.visible[site]):
        raise ValueError(
            f"site {site} sees a source that is gone: without gradients one is dropped when all "
            f"its sites were read, and here site {state.site - 1} was"
        )
    return replace(state, site=max(state.site, site + 1))


_remembered = cache(layout_of)


def _layout(visible: Visible) -> Layout:
    """The layout, remembered where no compiler is tracing: those warn of caches."""
    return layout_of(visible) if torch.compiler.is_compiling() else _remembered(visible)
