"""Reads of a group of sites in two phases (arXiv 2603.15031, section 4.2).

Phase 1, at a group's first read, mixes the sources made so far for all its sites at once. Phase 2
lets those join that were made since. A softmax is mixed step by step:

    h = h' + sigmoid(s - t) (v - h')        the mix of one source more
    log(exp(t) + exp(s))                    its own t

where h' mixes some sources, t is the log of their sum of exponentials, and v with the score s
joins them: h' is one more source, of score t. Sums without a softmax add.

For few tokens time is the number of PyTorch's calls: a source joins the rest of its group when it
is made, four calls for all their sites. For many tokens it is memory's: phase 1 is a kernel that
reads each source once, and phase 2 the engine's own mix of h' and the few newer sources. A group's
sums take the memory of as many sources, so that engines without such a kernel read each site alone:
on a CPU forward passes of 2,048 tokens of width 256 took 1 to 3 % longer in groups, with 16 and 32
sublayers of Full and Block(4).

Shapes: N tokens times heads, each with its D of the width; R sites, S sources.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.eager import Eager
from attnres_cli.nn.depthmix.gradients import ScoredSource
from attnres_cli.nn.depthmix.scoring import EngineState, Scoring

FEW = 2**14
"""Numbers in a source up to which tokens are few. A read of 33 sites that see all took, on one core
of an AMD EPYC in float32, with 4,096 numbers 95 us in one pass, 44 by calls and 82 by tiles; with
16,384 numbers 160, 102..131 and 124..142; with 65,536 numbers 345, 328..399 and 298..347."""


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
    scoring, newest = state.scoring, state.newest
    few = newest.numel() <= FEW
    grouped = few or (arithmetic.trains_in_groups and newest.numel() <= SUMS)
    group = _group_of(state, site, arithmetic) if grouped else None
    if group is None or not few:
        sources, scores, state = _parts(state, site, group)
        return arithmetic.mix(sources, scores, state.dtype)[0].view(newest.shape), state
    if state.n_sources > group.n_sources:
        group = _with_newer(group, state, site)
    mixed, score = group.row(site)
    for source in _newer(state, site, group):
        z = _per_head(source.scores(site, site + 1), source, scoring)[0]
        mixed, score = _join(mixed, score, source, z, scoring)
    return mixed.to(state.dtype).view(newest.shape), replace(state, group=group)


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


def _with_newer(group: Group, state: EngineState, site: int) -> Group:
    """The group from a site on, joined by the sources made since that all its sites see."""
    stop, scoring = group.stop, state.scoring
    mixed, score = group.mixed, group.score
    if site > group.first:
        mixed = mixed[site - group.first :]
        score = None if score is None else score[site - group.first :]
    new = [
        i for i in range(group.n_sources, state.n_sources) if state.layout.all_read(i, site, stop)
    ]
    for i in new:
        source: ScoredSource = state.records[i].source
        z = _per_head(source.scores(site, stop), source, scoring)
        mixed, score = _join(mixed, score, source, z, scoring)
    return Group(site, stop, state.n_sources, (*group.done, *new), mixed, score)


def _join(
    mixed: Tensor, score: Tensor | None, source: ScoredSource, z: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor | None]:
    """The mixes (R, N, D) of sites, and their scores, with one source more; R may be left out."""
    v = source.v if scoring.heads == 1 else source.v.view(-1, mixed.shape[-1])
    v = v.to(mixed.dtype)
    if score is None:
        return torch.addcmul(mixed, scoring.weights(z, dim=0), v), None
    return torch.lerp(mixed, v, torch.sigmoid(z - score)), torch.logaddexp(score, z)


def _per_head(z: Tensor, source: ScoredSource, scoring: Scoring) -> Tensor:
    """(R, N, 1) of the scores (R, tokens, heads) of a source, or (R, 1, heads) of a table."""
    if scoring.heads == 1 and scoring.table is None:
        return z
    return z.expand(-1, len(source.v), -1).reshape(len(z), -1, 1)
