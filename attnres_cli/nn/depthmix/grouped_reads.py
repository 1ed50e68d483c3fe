"""Reads without a gradient, in two phases (arXiv 2603.15031, section 4.2).

Sites are read in groups. Phase 1, at a group's first read, mixes the sources made so far for all
its sites at once. Phase 2 lets those join that were made since. A softmax is mixed step by step:

    h = h' + sigmoid(s - t) (v - h')        the mix of one source more
    log(exp(t) + exp(s))                    its own t

where h' mixes some sources, t is the log of their sum of exponentials, and v with the score s
joins them: h' is one more source, of score t. Sums without a softmax add.

For few tokens time is the number of PyTorch's calls: a source joins the rest of its group when it
is made, four calls for all their sites. For many tokens it is memory's: phase 1 goes by tiles that
stay in the cache, and phase 2 is the engine's own mix of h' and the few newer sources. A group's
sums take the memory of as many sources.

Shapes: N tokens times heads, each with its D of the width; R sites, S sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.engine_state import Ledger
from attnres_cli.nn.depthmix.gradient_messages import Arithmetic, Made
from attnres_cli.nn.depthmix.scoring import Layout, Scoring

FEW = 2**14
"""Numbers in a source up to which tokens are few. Microseconds per read, 33 sites that see all, one
core of an AMD EPYC, float32:

| numbers in a source | one pass | by calls | by tiles |
|---------------------|----------|----------|----------|
| 1,024               | 87       | 32       | 67       |
| 4,096               | 95       | 44       | 82       |
| 16,384              | 160      | 102..131 | 124..142 |
| 65,536              | 345      | 328..399 | 298..347 |
| 1,048,576           | 11,700   | -        | 7,500    |

On two cores tiles took 0.8 to 1.1 of the time of one pass from 0.5M numbers on.
"""


class Partial(NamedTuple):
    """What the sites first..stop-1 of a group see of some sources that all of them see.

    Attributes:
        first: of those sites.
        stop: one past the last.
        made: how many sources there were.
        done: the numbers of the mixed ones, ascending.
        mixed: (R, N, D) their mix at each site; without a softmax, their weighted sum.
        score: (R, N, 1) the mix's score under a softmax, else None.

    """

    first: int
    stop: int
    made: int
    done: tuple[int, ...]
    mixed: Tensor
    score: Tensor | None


def read(ledger: Ledger, site: int, arithmetic: Arithmetic) -> tuple[Tensor, Ledger]:
    """What a site sees, (B, T, D) in the type of v_0, and the ledger to go on with."""
    scoring, v0 = ledger.scoring, ledger.sources[0]
    if v0.numel() > FEW:
        sources, scores, ledger = parts(ledger, site, arithmetic)
        return arithmetic.mix(sources, scores, scoring, v0.dtype)[0].view(v0.shape), ledger
    partial = _covering(ledger, site, arithmetic)
    if partial is None:
        mades: list[Made] = [ledger.notes[i].made for i in scoring.visible[site]]
        h, _ = arithmetic.mix(*_as_sources(mades, site), scoring, v0.dtype)
        return h.view(v0.shape), ledger
    if len(ledger.sources) > partial.made:
        partial = _renew(partial, ledger, site)
    row = site - partial.first
    mixed, score = partial.mixed[row], None if partial.score is None else partial.score[row]
    for i in scoring.visible[site]:
        if i not in partial.done:
            mixed, score = _join(mixed, score, ledger.notes[i].made, site, site + 1, scoring)
    if mixed.dtype != v0.dtype:
        mixed = mixed.to(v0.dtype)
    return mixed.view(v0.shape), replace(ledger, partial=partial)


def parts(
    ledger: Ledger, site: int, arithmetic: Arithmetic
) -> tuple[list[Tensor], list[Tensor], Ledger]:
    """Phase 2 for many tokens: what is to be mixed for a site, and the ledger to go on with.

    Returns:
        sources (tokens, width), scores (tokens, heads) of each, and a ledger. The first source is
        the group's own mix, where there is one, with the score that stands for all it holds.

    """
    partial, seen = _covering(ledger, site, arithmetic), ledger.scoring.visible[site]
    if partial is None:
        return *_as_sources([ledger.notes[i].made for i in seen], site), ledger
    rest: list[Made] = [ledger.notes[i].made for i in seen if i not in partial.done]
    row, tokens = site - partial.first, len(ledger.notes[0].made.v)
    mixed = partial.mixed[row]
    if partial.score is not None:
        score = partial.score[row]
    else:  # the score of weight 1
        one = math.inf if ledger.scoring.norm == "sigmoid" else 1.0
        score = mixed.new_full((len(mixed), 1), one)
    sources, scores = _as_sources(rest, site)
    scores = [z.expand(tokens, -1) for z in scores]
    sources, scores = [mixed.view(tokens, -1), *sources], [score.view(tokens, -1), *scores]
    return sources, scores, replace(ledger, partial=partial)


def _covering(ledger: Ledger, site: int, arithmetic: Arithmetic) -> Partial | None:
    """The group that a site is in: the one at hand, or one that it begins by phase 1; None for a
    site that is better read alone.
    """
    partial: Partial | None = ledger.partial
    scoring = ledger.scoring
    if partial is not None and partial.first <= site < partial.stop:
        return partial
    done, stop = _group(scoring, site, arithmetic.sites_together(len(scoring.visible)))
    if stop - site < 2:
        return None
    mades: list[Made] = [ledger.notes[i].made for i in done]
    scores = [_rows(made, site, stop) for made in mades]
    mixed, score = arithmetic.phase_one([made.v for made in mades], scores, scoring)
    mixed = mixed.view(stop - site, mixed.shape[1] * scoring.heads, -1)
    if score is not None:
        score = score.view(*mixed.shape[:2], 1)
    return Partial(site, stop, len(ledger.sources), done, mixed, score)


def _group(scoring: Scoring, site: int, size: int) -> tuple[tuple[int, ...], int]:
    """The sources that all sites of a group see, and the site after its last.

    The group has `size` sites at most, and ends where its sites would not share half of what the
    first one sees.
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


def _renew(partial: Partial, ledger: Ledger, site: int) -> Partial:
    """The group's sums from a site on, joined by the sources made since that all its sites see."""
    layout, stop = ledger.layout, partial.stop
    new = [i for i in range(partial.made, len(ledger.sources)) if _all_see(layout, i, site, stop)]
    mixed, score = partial.mixed, partial.score
    if site > partial.first:
        mixed = mixed[site - partial.first :]
        score = None if score is None else score[site - partial.first :]
    for i in new:
        mixed, score = _join(mixed, score, ledger.notes[i].made, site, stop, ledger.scoring)
    return Partial(site, stop, len(ledger.sources), (*partial.done, *new), mixed, score)


def _all_see(layout: Layout, source: int, site: int, stop: int) -> bool:
    """Whether all the sites from `site` to before `stop` read a source."""
    if source >= len(layout.readers):
        return False
    readers = layout.readers[source]
    if not (readers.start <= site and stop <= readers.stop):
        return False
    return -1 not in layout.pairs[source][site - readers.start : stop - readers.start]


def _join(
    mixed: Tensor, score: Tensor | None, made: Made, site: int, stop: int, scoring: Scoring
) -> tuple[Tensor, Tensor | None]:
    """The mixes (R, N, D) of sites, and their scores, with one source more; R may be left out."""
    z, v = _scores(made, site, stop, scoring), _per_head(made.v, scoring)
    if mixed.dim() == 2:
        z = z[0]
    if v.dtype != mixed.dtype:
        v = v.to(mixed.dtype)
    if score is None:
        return torch.addcmul(mixed, scoring.weights(z, dim=0), v), None
    return torch.lerp(mixed, v, torch.sigmoid(z - score)), torch.logaddexp(score, z)


def _as_sources(mades: Sequence[Made], site: int) -> tuple[list[Tensor], list[Tensor]]:
    """Sources (tokens, width) and their scores (tokens, heads) at a site; (1, heads) of a table."""
    scores = []
    for made in mades:
        assert made.z is not None
        scores.append(made.z[site - made.first])
    return [made.v for made in mades], scores


def _rows(made: Made, site: int, stop: int) -> Tensor:
    """(R, tokens, heads) scores of a source at sites; (R, 1, heads) of a table."""
    assert made.z is not None
    return made.z[site - made.first : stop - made.first]


def _scores(made: Made, site: int, stop: int, scoring: Scoring) -> Tensor:
    """(R, N, 1) scores of a source at sites."""
    assert made.z is not None
    z = made.z[site - made.first : stop - made.first]
    if scoring.heads == 1 and scoring.table is None:
        return z
    return z.expand(-1, made.v.shape[0], -1).reshape(stop - site, -1, 1)


def _per_head(v: Tensor, scoring: Scoring) -> Tensor:
    """(tokens, width) as (N, D)."""
    return v if scoring.heads == 1 else v.view(len(v) * scoring.heads, -1)
