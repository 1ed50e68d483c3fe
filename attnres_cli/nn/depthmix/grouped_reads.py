"""Reads of a group of sites in two phases (arXiv 2603.15031, section 4.2).

Phase 1, at a group's first read, mixes the sources made so far for all its sites at once, by a
kernel that reads each source once: h', and t, the log of the sum of exponentials. Phase 2 is the
engine's own mix of h', one more source of score t, and the few newer ones. Sums without a softmax
add.

A group's sums take the memory of as many sources, so that engines without such a kernel read each
site alone: on a CPU forward passes of 2,048 tokens of width 256 took 1 to 3 % longer in groups,
with 16 and 32 sublayers of Full and Block(4).

Shapes: N tokens times heads, each with its D of the width; R sites, S sources.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from attnres_cli.nn.depthmix.eager import Eager
from attnres_cli.nn.depthmix.gradients import ScoredSource
from attnres_cli.nn.depthmix.scoring import EngineState, Scoring

SUMS = 2**23
"""Numbers in a source up to which sites share sums where no gradient is wanted: 32 MiB each. Above,
memory is what is short, and each site reads all its sources."""


class Group(NamedTuple):
    """What the sites first..stop-1 see of some sources that all of them see.

    Of the first `n_sources` sources, those in `done` (ascending) are mixed: `mixed` (R, N, D) is
    their mix at each site and `score` (R, N, 1) its score. Without a softmax these are their
    weighted sum, and None.
    """

    first: int
    stop: int
    n_sources: int
    done: tuple[int, ...]
    mixed: Tensor
    score: Tensor | None

    def row(self, site: int) -> tuple[Tensor, Tensor | None]:
        """The mix and its score at one site."""
        row = site - self.first
        return self.mixed[row], None if self.score is None else self.score[row]


def read(state: EngineState, site: int, arithmetic: Eager) -> tuple[Tensor, EngineState]:
    """What a site sees, (B, T, D) in the type of v_0, and the state to go on with."""
    newest = state.newest
    grouped = arithmetic.trains_in_groups and newest.numel() <= SUMS
    group = _group_of(state, site, arithmetic) if grouped else None
    sources, scores, state = _parts(state, site, group)
    return arithmetic.mix(sources, scores, state.dtype)[0].view(newest.shape), state


def to_mix(
    state: EngineState, site: int, arithmetic: Eager
) -> tuple[list[Tensor], list[Tensor], EngineState]:
    """What phase 2 mixes for a site of many tokens, sources (tokens, width) and scores
    (tokens, heads), and the state to go on with. The first source is the group's own mix, where
    there is one, with the score that stands for all it holds.
    """
    return _parts(state, site, _group_of(state, site, arithmetic))


def _parts(
    state: EngineState, site: int, group: Group | None
) -> tuple[list[Tensor], list[Tensor], EngineState]:
    rest = _newer(state, site, group)
    sources, scores = [each.v for each in rest], [each.scores_at(site) for each in rest]
    if group is None:
        return sources, scores, state
    tokens = len(state.newest_record.source.v)
    mixed, score = group.row(site)
    if score is None:  # the score of weight 1
        one = math.inf if state.scoring.norm == "sigmoid" else 1.0
        score = mixed.new_full((len(mixed), 1), one)
    scores = [score.view(tokens, -1), *(z.expand(tokens, -1) for z in scores)]
    return [mixed.view(tokens, -1), *sources], scores, replace(state, group=group)


def _newer(state: EngineState, site: int, group: Group | None) -> list[ScoredSource]:
    """The sources that a site sees beside those that its group has mixed."""
    done = () if group is None else group.done
    return [state.records[i].source for i in state.scoring.visible[site] if i not in done]


def _group_of(state: EngineState, site: int, arithmetic: Eager) -> Group | None:
    """The group that a site is in, at hand or begun by phase 1; None if it is better read alone."""
    group: Group | None = state.group
    if group is not None and group.first <= site < group.stop:
        return group
    scoring = state.scoring
    done, stop = _shared(scoring, site, arithmetic.sites_together(len(scoring.visible)))
    if stop - site < 2:
        return None
    sources: list[ScoredSource] = [state.records[i].source for i in done]
    scores = [source.scores(site, stop) for source in sources]
    mixed, score = arithmetic.mix_group([source.v for source in sources], scores)
    mixed = mixed.view(stop - site, mixed.shape[1] * scoring.heads, -1)
    if score is not None:
        score = score.view(*mixed.shape[:2], 1)
    return Group(site, stop, state.n_sources, done, mixed, score)


def _shared(scoring: Scoring, site: int, size: int) -> tuple[tuple[int, ...], int]:
    """The sources that all sites of a group see, and the site after its last. The group has `size`
    sites at most, and shares at least half of what its first site sees.
    """
    seen = scoring.visible[site]
    common, stop = set(seen), site + 1
    last = min(len(scoring.visible), site + size)
    while stop < last:
        shared = common.intersection(scoring.visible[stop])
        if not shared or 2 * len(shared) < len(seen):
            break
        common, stop = shared, stop + 1
    return tuple(sorted(common)), stop
