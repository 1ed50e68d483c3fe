"""One chunk of a model: values in, values out, or tokens in, or what the head sees out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.pipeline.cache import Cache, tied
from attnres_cli.nn.pipeline.cuts import States
from attnres_cli.nn.pipeline.plan import Plan

Within = Callable[[], contextlib.AbstractContextManager[object]]
"""What a chunk computes in: autocast, an engine."""


def keep_share(model: Transformer, plan: Plan, rank: int) -> None:
    """Leave a rank what its chunks need of a model, under the same names: its sublayers, the
    embedding on the first rank, norm and head on the last, the whole design everywhere. Raises
    ValueError for a head that is the embedding.
    """
    if model.head.weight is model.embed.weight:
        raise ValueError("tied embeddings are on the first rank and on the last: untie them")
    mine = {l for c in range(rank, plan.n_chunks, plan.stages) for l in plan.sublayers(c)}
    for l in range(1, len(model.sublayers) + 1):
        if l not in mine:
            model.sublayers[l - 1] = nn.Identity()
    if rank != 0:
        model.embed = nn.Identity()  # type: ignore[assignment]
    if rank != plan.stages - 1:
        model.norm, model.head = nn.Identity(), nn.Identity()  # type: ignore[assignment]


class Chunk(nn.Module):
    """Chunk c of a plan, of a rank's share of a model."""

    def __init__(
        self,
        model: Transformer,
        states: States,
        plan: Plan,
        c: int,
        cache: Cache,
        within: Within = contextlib.nullcontext,
    ) -> None:
        super().__init__()
        self.model, self.states, self.plan, self.c = model, states, plan, c
        self.cache, self.within = cache, within

    def forward(self, *arrived: Tensor) -> Tensor | tuple[Tensor, ...]:
        """From tokens (B, T), or the values that the hop before brings, the values that the next
        one takes, or what the head sees (B, T, D).
        """
        with self.within():
            return self._computed(arrived)

    def _computed(self, arrived: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        model, sublayers, held = self.model, self.plan.sublayers(self.c), dict[int, Tensor]()
        if self.c == 0:
            state = model.residual.start(model.embedded(*arrived))
        else:
            held, done = self._held(arrived), sublayers.start - 1
            state = model.residual.resume([held[i] for i in self.states.carried[done]], done)
        state = model.advance(state, sublayers)
        if self.c == self.plan.n_chunks - 1:
            return tied(model.norm(model.residual.finish(state)), list(held.values()))
        done = sublayers.stop - 1
        carried = model.residual.carry(state, done)
        return self._sent(dict(zip(self.states.carried[done], carried, strict=True)), held)

    def _held(self, arrived: tuple[Tensor, ...]) -> dict[int, Tensor]:
        """What the chunk begins with: received, and taken from the cache."""
        plan, c, kept = self.plan, self.c, self.plan.kept(self.c)
        held = dict(zip(plan.received(c), arrived, strict=True))
        held |= {i: self.cache.deposit(i, held[i]) for i in kept if i in held}
        after = plan.known(c + plan.stages) if c + plan.stages < plan.n_chunks else ()
        for i in plan.known(c):
            held[i] = self.cache.withdraw(i, is_last=i not in after)
        return held

    def _sent(self, values: Mapping[int, Tensor], held: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
        """What the next hop takes. Values that were made here are all among it."""
        made = set(self.plan.kept(self.c)).difference(held)
        first, *others = (
            self.cache.deposit(i, values[i]) if i in made else values[i]
            for i in self.plan.received(self.c + 1)
        )
        sent = tied(first, list(held.values())), *others
        return tuple(x.contiguous() for x in sent)
