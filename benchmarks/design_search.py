"""Searches of designs: which sampler finds the best one, and what is called where all are equal.

    python benchmarks/design_search.py samplers [N_SURFACES] [TRIALS]
    python benchmarks/design_search.py nulls [N_STUDIES]

`samplers` searches the whole space of `--designs all` on surfaces fitted to the published losses of
docs/results (designs.md, inputs.md, rates.md): streams, add-ons and options have their published
differences from `standard`, each at its own settings where it was tuned. What was not published is
drawn: OPTIONS, and PAIRS of choices. No design is refused.
A run adds SEEDS; the loss after a quarter of the tokens is that of all of them + noise that leaves
this correlation over designs (of the middle half of them, as some designs are much worse than all).
Printed is the regret: how much worse than the best design of the space the one is that confirmation
of the 3 lowest on 7 fresh seeds chooses.

`nulls` searches among equal designs, confirms the k lowest as `ablate` would, and counts the
studies that call any of them, or the arm `attnres`, better or worse (benchmarks/workflows.py).
`same seeds` is what choosing them on the seven seeds of the confirmation would do, `promised`
the lowest first look less that of the baseline.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from workflows import BASELINE, NOISE, by_looks, p_values

from attnres_cli.lab.search.design_proposals import TOP, Proposer, Seen, proposed, tpe
from attnres_cli.lab.search.designs import Choices, DesignSpace, parse, parts_of, spec_of
from attnres_cli.nn import variant
from attnres_cli.nn.residual import Value, registry

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SECTIONS = {
    "designs.md": "## All arms",
    "inputs.md": "## Each at its own settings",
    "rates.md": "## At three terms",
}
"""The table of each page that counts; a later page's number replaces an earlier one's."""
SEEDS, PAIRS = 0.011, 0.005  # sd of a run's loss over seeds, and of a pair of choices, in nats
OPTIONS = (0.005, 0.01)  # mean and sd of what an option changes that was not published
CORRELATIONS, CONFIRMED, FRESH = (0.5, 0.7, 0.9), 3, 7
TRIALS, N_LOOKS = (100, 250, 500), 250
STARTS, MOVES = 40, 300
POPULATION, TOURNAMENT = 20, 5


def published() -> dict[str, float]:
    """Difference from `standard` of each published design, in nats per byte."""
    found = {"standard": 0.0}
    for page, section in SECTIONS.items():
        text = (
            (RESULTS / page).read_text(encoding="utf-8").partition(section)[2].partition("\n## ")[0]
        )
        for name, rest in re.findall(r"^\| `([^`]+)` \|(.*)$", text, re.MULTILINE):
            if differences := re.findall(r"([+-]\d\.\d{4}) \[", rest):
                found[name] = float(differences[-1])
    return found


class Surface:
    """The true loss of every design of a space, less that of `standard`, in nats."""

    def __init__(self, space: DesignSpace, seed: int) -> None:
        self.space, self.seed, self.known = space, seed, published()
        self.drawn: dict[str, float] = {}
        values = [self.value(choices) for choices in self.draws(500)]
        low, high = np.quantile(values, [0.25, 0.75])
        self.spread = float(high - low) / 1.349  # sd of a normal law with that middle half

    def draws(self, n: int) -> Iterator[Choices]:
        """Designs at random, always the same."""
        source = random.Random(self.seed)  # noqa: S311
        for _ in range(n):
            yield self.space.draw(lambda _, values: source.choice(values))

    def noise(self, of: str) -> float:
        """A standard normal number, always the same of the same text."""
        if of not in self.drawn:
            self.drawn[of] = random.Random(f"{self.seed} {of}").gauss(0, 1)  # noqa: S311
        return self.drawn[of]

    def value(self, choices: Choices) -> float:
        """Sum of the parts, of their options and of the pairs of both."""
        parts = parts_of(choices)
        found = sum(self.known[part] for part in parts)
        things = [(part, part) for part in parts if part != BASELINE]
        for key, value in choices.items():
            part, dot, option = key.partition(".")
            if dot and value != _options(part)[option].default:
                typed = f"{part}:{option}={variant.write_value(value)}"
                drawn = OPTIONS[0] + OPTIONS[1] * self.noise(typed)
                found += self.known[typed] - self.known[part] if typed in self.known else drawn
                things.append((part, typed))
        pairs = itertools.combinations(sorted(things), 2)
        return found + PAIRS * sum(self.noise(f"{a} {b}") for (p, a), (q, b) in pairs if p != q)

    @cached_property
    def best(self) -> float:
        """The lowest that climbs from STARTS of the best draws reach, one choice at a time."""
        source = random.Random(self.seed)  # noqa: S311
        starts = sorted(self.draws(3000), key=self.value)[:STARTS]
        return min(self._climbed(start, source) for start in starts)

    def _climbed(self, start: Choices, source: random.Random) -> float:
        here, value = start, self.value(start)
        for _ in range(MOVES):
            changed = source.choice(list(here))

            def pick(
                name: str, values: Sequence[Value], at: Choices = here, c: str = changed
            ) -> Value:
                return at[name] if name in at and name != c else source.choice(values)

            there = self.space.draw(pick)
            if (lower := self.value(there)) < value:
                here, value = there, lower
        return value


@cache
def _options(part: str) -> Mapping[str, variant.Option]:
    return variant.options_of(registry()[part])


def evolution(space: DesignSpace, seen: Sequence[Seen], seed: int) -> Proposer:
    """Regularised evolution (Real et al. 2019, arXiv 1802.01548): one choice of a parent changes,
    the best of 5 that are drawn from the 20 tried last.
    """
    source = random.Random(seed)  # noqa: S311
    living = [each for each in seen if each.loss is not None][-POPULATION:]

    def fitness(each: Seen) -> tuple[int, float]:
        assert each.loss is not None
        return -each.rung, each.loss

    def propose() -> Choices:
        drawn = source.sample(living, min(TOURNAMENT, len(living)))
        parent, open_names = min(drawn, key=fitness).choices, list[str]()

        def inherit(name: str, _values: Sequence[Value]) -> Value:
            open_names.append(name)
            return parent[name]

        space.draw(inherit)
        changed = source.choice(open_names) if open_names else ""

        def pick(name: str, values: Sequence[Value]) -> Value:
            if name == changed:
                return source.choice([value for value in values if value != parent[name]])
            return parent[name] if name in parent else source.choice(values)

        return space.draw(pick)

    return propose


MAKERS = {"tpe": tpe, "evolution": evolution, "random": None}


def search(surface: Surface, kind: str, correlation: float, trials: Sequence[int]) -> list[float]:
    """Regret in nats after each of so many proposals: of the best of the CONFIRMED lowest designs
    of the top rung by FRESH seeds, at most those of the first rung if fewer were promoted.
    """
    random_, seen = np.random.default_rng(surface.seed), list[Seen]()
    off, found = surface.spread * math.sqrt(correlation**-2 - 1), []
    while len(seen) < max(trials):
        if (at := _promoted(seen)) is not None:
            loss = surface.value(dict(seen[at].choices)) + SEEDS * random_.normal()
            seen[at] = Seen(seen[at].choices, TOP, loss)
            continue
        seed = 10_000 * surface.seed + len(seen)
        one = proposed(surface.space, spec_of, seen, seed, MAKERS[kind])
        assert one is not None
        loss = 0.3 + surface.value(one[0]) + off * random_.normal() + SEEDS * random_.normal()
        seen.append(Seen(one[0], 0, loss))
        if len(seen) in trials:
            found.append(_confirmed(surface, seen, random_) - surface.best)
    return found


def _promoted(seen: Sequence[Seen]) -> int | None:
    """The best design that has not left the first rung and is in the best quarter of those that
    have been there. A promoted one counts as better than all that were not.
    """
    waiting = [i for i, each in enumerate(seen) if each.rung < TOP]
    n_promoted = len(seen) - len(waiting)
    if n_promoted >= len(seen) // 4:
        return None
    return min(waiting, key=lambda i: seen[i].loss or 0.0)


def _confirmed(surface: Surface, seen: Sequence[Seen], random_: np.random.Generator) -> float:
    ended = sorted(seen, key=lambda each: (-each.rung, each.loss))[:CONFIRMED]
    values = np.array([surface.value(dict(each.choices)) for each in ended])
    fresh = values + SEEDS / math.sqrt(FRESH) * random_.normal(size=len(values))
    return float(values[np.argmin(fresh)])


def samplers(n_surfaces: int, most: int) -> None:
    """Print the regret of each sampler."""
    space, trials = parse(""), [n for n in TRIALS if n <= most]
    first = Surface(space, 0)
    print(f"{space.size:,} designs, sd {first.spread:.4f} nats of the middle half of them")
    print(f"\nRegret, nats: mean and its standard error over {n_surfaces} surfaces\n")
    print("| correlation | sampler | " + " | ".join(f"{n} designs" for n in trials) + " |")
    print("|---|---|" + "---|" * len(trials))
    surfaces = [Surface(space, seed) for seed in range(n_surfaces)]
    for correlation, kind in itertools.product(CORRELATIONS, MAKERS):
        found = np.array([search(each, kind, correlation, trials) for each in surfaces])
        errors = found.std(axis=0, ddof=1) / math.sqrt(n_surfaces)
        cells = (f"{m:.4f} ± {e:.4f}" for m, e in zip(found.mean(axis=0), errors, strict=True))
        print(f"| {correlation} | {kind} | " + " | ".join(cells) + " |", flush=True)


def nulls(n_studies: int) -> None:
    """Print the share of searches among equal designs that call anything."""
    print(f"Called where all of {N_LOOKS} designs are equal, % of {n_studies:,} searches\n")
    print("| confirmed | noise | better or worse | better | same seeds | promised, sd |")
    print("|---|---|---|---|---|---|")
    for k, noise in itertools.product((1, 3, 5), ("normal", "t, 3 df")):
        random_ = np.random.default_rng(k)
        first = NOISE[noise](random_, (n_studies, N_LOOKS + 1))  # the last is the baseline's
        promised = (first[:, :-1].min(axis=1) - first[:, -1]).mean()
        # Fresh seeds know nothing of how a design was chosen: it is one like the others.
        fresh = _called(NOISE[noise](random_, (n_studies, FRESH, k + 2)))
        every = NOISE[noise](random_, (n_studies // 10, FRESH, N_LOOKS + 2))
        order = 2 + np.argsort(every[..., 2:].mean(axis=1), axis=1)[:, :k]
        same = np.take_along_axis(every, order[:, None], axis=2)
        same = np.concatenate([every[..., :2], same], axis=2)
        cells = (f"{100 * each.mean():.1f}" for each in (*fresh, _called(same)[1]))
        print(f"| {k} | {noise} | " + " | ".join(cells) + f" | {promised:+.1f} |")


def _called(losses: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether any arm of (studies, seeds, baseline and arms) is called, and called better."""
    gaps = losses[..., 1:] - losses[..., :1]
    called = by_looks(p_values(gaps), [(gaps.shape[2], losses.shape[1])])
    return called.any(axis=1), (called & (gaps.mean(axis=1) < 0)).any(axis=1)


def main(words: Sequence[str]) -> None:
    """Print a table."""
    if words[:1] == ["nulls"]:
        nulls(int(words[1]) if len(words) > 1 else 20_000)
    else:
        numbers = [int(word) for word in words[1:]]
        samplers(*(numbers + [8, 250][len(numbers) :]))


if __name__ == "__main__":
    main(sys.argv[1:])
