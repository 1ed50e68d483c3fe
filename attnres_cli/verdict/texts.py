"""Designs on several texts: what each text says of them, and whether the texts agree.

Each text has its own table with its own words. Beside them stands by how much a design's difference
from the baseline is another one on another text, the heterogeneity: of the two texts that are
furthest apart, with an interval that holds for all designs and pairs of texts together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnres_cli.records.comparison_terms import Match
from attnres_cli.stats.pairs import apart
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.registered import is_exploratory

Agreement = Literal["agree", "other size", "differ", "open"]
"""agree: one word on all texts, and no text shown to be apart from another. other size: one word
on those that have it, but its differences are. differ: differences that are, without one word.
open: all else.
"""


@dataclass(frozen=True)
class OnTexts:
    """A design on every text, None where a text has no runs of it.

    Attributes:
        between: how much the difference changes from one text to a later one, the two that are
            furthest apart, and its interval; None where fewer than two texts have looks at it.
        places: which texts these are.
    """

    variant: str
    at: tuple[ArmResult | None, ...]
    agreement: Agreement
    between: tuple[float, tuple[float, float]] | None = None
    places: tuple[int, int] | None = None


@dataclass(frozen=True)
class Texts:
    """Comparisons of one baseline, one for each text, and the designs that at least two of them
    have. What is equal, tokens or another cost, is the same for all; settings may be each text's.
    """

    comparisons: tuple[Comparison, ...]
    rows: tuple[OnTexts, ...]

    @property
    def names(self) -> list[str]:
        """What tells the texts apart: the recipes, what they read, or fingerprints."""
        for named in (
            [one.recipe for one in self.comparisons],
            [one.data.name or one.data.source for one in self.comparisons],
        ):
            if len(set(named)) == len(named):
                return named
        return [one.data.fingerprint[:8] for one in self.comparisons]


def on_texts(comparisons: Sequence[Comparison]) -> list[Texts]:
    """The last comparison of each of several texts, one that was fixed beforehand before others: of
    one baseline and size, number of tokens and vocabulary, as nats per token of two tokenizers are
    not alike. None without a design beside the baseline.
    """
    groups: dict[tuple[Match, str, int, int, int], dict[str, Comparison]] = {}
    for one in sorted(comparisons, key=lambda one: not is_exploratory(one)):
        if one.base is None or one.terms.rate_only:
            continue
        size = one.base.n_params, one.base.tokens
        key = one.terms.match, one.baseline, *size, one.data.vocab_size
        groups.setdefault(key, {})[one.data.fingerprint] = one
    places = {one.data.fingerprint: n for n, one in reversed([*enumerate(comparisons)])}
    several = [
        tuple(sorted(group.values(), key=lambda one: places[one.data.fingerprint]))
        for group in groups.values()
        if len(group) > 1
    ]
    return [Texts(each, rows) for each in several if (rows := _rows(each))]


def _rows(found: Sequence[Comparison]) -> tuple[OnTexts, ...]:
    """Designs in the order of the first text, then of the later ones."""
    names = dict.fromkeys(arm.variant for one in found for arm in one.arms)
    arms = {name: tuple(one.arm(name) for one in found) for name in names}
    arms = {
        name: at
        for name, at in arms.items()
        if name != found[0].baseline and sum(arm is not None for arm in at) > 1
    }
    n_tests = max(1, len(arms) * len(found) * (len(found) - 1) // 2)
    return tuple(_row(name, at, ALPHA / n_tests) for name, at in arms.items())


def _row(name: str, at: tuple[ArmResult | None, ...], alpha: float) -> OnTexts:
    looked = [
        (place, arm.difference)
        for place, arm in enumerate(at)
        if arm is not None and arm.interval is not None and arm.difference is not None
    ]
    pairs = [
        (apart(later, earlier, alpha), (first, second))
        for (first, earlier), (second, later) in itertools.combinations(looked, 2)
    ]
    words = {arm.verdict for arm in at if arm is not None}
    if not pairs:
        return OnTexts(name, at, "open")
    between, places = max(pairs, key=lambda pair: _beyond(*pair[0]))
    is_apart = _beyond(*between)[0] > 0
    is_one = len(words) == 1 and not words & {"inconclusive", "pending", "blocked"}
    agreement: Agreement = "open"
    if is_apart:
        agreement = "other size" if is_one else "differ"
    elif is_one and None not in at:
        agreement = "agree"
    return OnTexts(name, at, agreement, between, places)


def _beyond(mean: float, ends: tuple[float, float]) -> tuple[float, float]:
    """By how much the interval keeps clear of 0, below 0 where it does not; then the mean."""
    return max(ends[0], -ends[1]), abs(mean)
