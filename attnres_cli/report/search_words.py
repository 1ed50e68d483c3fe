"""What a search has found, in words: one text for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnres_cli.records.search_records import Search, Trial, Value, n_asked
from attnres_cli.report.table import capital, listed
from attnres_cli.stats.optima import Floats, above_zero, least_mean
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.optima import Finding, Pair
from attnres_cli.verdict.shape_results import Optimum, Shape, brief, named, sizes

LOWEST = "lowest"  # of the confirmed shapes

_ANSWERS = {
    "no trial": "No trial of {variant} is complete.",
    "one seed": "{who} is lowest at {best}, of {n_shapes} by one seed: no verdict.",
    "not tested": "{who} is lowest at {best} (not tested)",
    "only": "{who} has {best}, the only shape",
    "only fresh": "{who} has {best}, the only shape with fresh seeds",
    "none ruled out": "{who} is lowest at {best}, but none of its {n} confirmed shapes with "
    "{depths} is ruled out",
    "all ruled out": "{who} does best at {best}",
    "another": "{who} does best at {best}; another shape with {depths} may be as good",
    "others": "{who} does best at {best}; {n} other shapes with {depths} may be as good",
}
"""What a variant prefers. It `does best` only where another confirmed shape is ruled out."""

_RULES = (
    "first look: one seed ({first}), so that the lowest of many is lucky; fresh seeds: {fresh}, "
    f"which did not choose what is confirmed; the shape called {LOWEST} is chosen by them, so that "
    "its own mean and interval are a little lucky",
    "shape: layers x width; change: fresh mean minus first look; best: `lowest` has the lowest "
    "mean over fresh seeds, `may be` cannot be told from the best: these shapes hold the best of "
    "the confirmed ones with 95 % confidence; `no`: it is not; `-`: not tested",
    "`differ` is said of the optima of the confirmed shapes if for each of them the t test that it "
    f"is best for both has p < {ALPHA} (one-sided, paired by seed; Holm over pairs of variants), "
    "against the shapes that the first look chose; else they cannot be told apart. Shapes without "
    "fresh seeds are not tested: the likeliest to be best for both are among the confirmed",
)
"""Of a search with fresh seeds."""

_GOALS = (
    "the verdict is of val_loss alone: {goal} is that of the first look{where}",
    "front: by the first look (seed {first} alone, so that lucky losses are on it), no other shape "
    "of the variant is as low in both {goals} and lower in one",
)
_BUSY = "step times are of trials at different hours and loads: `attnres bench` times in turn"


def title(search: Search) -> str:
    """`Search 5ea4c0ffee12: recipe quick, params=2M within 2 %`; of two objectives, with both."""
    both = f", for {goals(search)}" if len(search.objectives) > 1 else ""
    within = f"{search.budget} within {100 * search.tolerance:.3g} %"
    return f"Search {search.name}: recipe {search.recipe}, {within}{both}"


def goals(search: Search) -> str:
    """`val_loss and step_time`."""
    return " and ".join(search.objectives)


def answer(finding: Finding) -> str:
    """The verdict: what each variant prefers and whether that differs, and no more."""
    budget = finding.search.budget
    if not any(one.shapes for one in finding.optima):
        return f"No answer: no trial of {budget} is complete."
    best = [_best(one) for one in finding.optima if one.confirmed]
    sentences = [f"At {budget}, {'. '.join(best)}."] if best else []
    sentences += [_pair_text(finding, pair) for pair in finding.pairs]
    return " ".join([*sentences, *(_best(one) for one in finding.optima if not one.confirmed)])


def _best(one: Optimum) -> str:
    """What one variant prefers."""
    best, confirmed = one.best, one.confirmed
    others = [shape for shape in confirmed[1:] if shape.may_be_best]
    alike, code = others, "others"
    if best is None:
        return _ANSWERS["no trial"].format(variant=one.family.variant)
    if not confirmed:
        code = "one seed"
    elif one.reason:
        code = "not tested"
    elif len(confirmed) == 1:
        code = "only" if one.n_shapes == 1 else "only fresh"
    elif len(others) == len(confirmed) - 1:
        alike, code = confirmed, "none ruled out"
    elif len(others) < 2:
        code = "another" if others else "all ruled out"
    return _ANSWERS[code].format(
        who=best.trial.variant,  # with its options where those were searched
        best=named(best),
        n=len(alike),
        n_shapes=plural(one.n_shapes, "shape"),
        depths=plural(_span(alike, "n_layers"), "layer"),
    )


def _span(shapes: Sequence[Shape], dimension: str) -> str:
    """`4 to 8`; empty of none."""
    values = sorted(float(shape.trial.dimensions[dimension]) for shape in shapes)
    ends = [f"{value:.3g}" for value in (*values[:1], *values[-1:])]
    return " to ".join(dict.fromkeys(ends))


def _pair_text(finding: Finding, pair: Pair) -> str:
    which = "the optima" if len(finding.pairs) == 1 else f"the optima of {' and '.join(pair.names)}"
    if pair.test is None or pair.p is None:
        return f"Whether {which} differ is not known: {pair.reason}."
    if pair.differ:
        held = {name for one in pair.both for s in one.shapes for name in s.trial.options}
        names = sorted(held - {"params", "mlp_ratio"})  # which are of the shape
        options = listed(names) if names else ""
        return (
            f"{capital(which)} differ (p = {pair.p:.2g}): none of the {len(pair.cells)} confirmed "
            f"shapes (of {pair.n_tried} tried)"
            f"{options and f', each at the best {options} tried there,'} can be best for both."
        )
    ours, theirs = (one.confirmed[0].cell for one in pair.both)
    shared = sizes(ours if ours == theirs else pair.cells[pair.test.hardest])
    text = f"No evidence that {which} differ (p = {pair.p:.2g}): {shared} may be best for both."
    return f"{text} About {pair.needed} fresh seeds would tell." if pair.needed else text


def blocks(finding: Finding) -> list[str]:
    """For each design whose block size or number was searched: which cannot be told apart, and by
    how much the others are worse, each at its best confirmed shape.
    """
    lines = []
    for one in finding.optima:
        for key, word in (("n_blocks", "block count"), ("block_size", "block size")):
            best: dict[Value, Shape] = {}
            for shape in one.confirmed:
                if (value := shape.trial.options.get(key)) is not None:
                    best.setdefault(value, shape)
            if len(best) > 1 and not one.reason:
                lines.append(
                    f"{one.family.variant}, {word}: {_of_blocks(key, best, one.confirmed)}."
                )
    return lines


def _of_blocks(key: str, best: Mapping[Value, Shape], confirmed: Sequence[Shape]) -> str:
    """`4 and 8 cannot be told apart; 1 is worse than 4 by 0.0300, at least 0.0100 (...)`."""
    ordered = sorted(best.items(), key=lambda each: (isinstance(each[0], str), each[0]))
    alike = [str(value) for value, shape in ordered if shape.may_be_best]
    parts = [f"{listed(alike)} cannot be told apart" if len(alike) > 1 else f"{alike[0]} is best"]
    for value, shape in ordered:
        if not shape.may_be_best:
            parts.append(f"{value} is worse than {_worse(key, shape, confirmed)}")
    return "; ".join(parts)


def _worse(key: str, shape: Shape, confirmed: Sequence[Shape]) -> str:
    """What ruled a shape out, by how much, and the bound of that test: of the first look's choice
    the test is against any other shape, corrected for their number.
    """
    choice, alpha = min(confirmed, key=lambda each: each.promised), ALPHA
    others = [each for each in confirmed if each is not shape]
    if choice is shape:
        alpha /= len(others)
        choice = min(others, key=lambda other: above_zero(_above(shape, other)))
    gap = _above(shape, choice)
    least = least_mean(gap, alpha)
    by = f"{choice.trial.options[key]} by {gap.mean():.4f}, at least {least:.4f}"
    return f"{by} (one-sided, 95%)"


def _above(shape: Shape, other: Shape) -> Floats:
    return np.array([shape.fresh[seed] - other.fresh[seed] for seed in sorted(other.fresh)])


def qualified(finding: Finding) -> list[str]:
    """What the answer must be read with, a line each; empty where nothing qualifies it."""
    search, lost, told = finding.search, len(failures(finding)), []
    if not search.confirm_seeds:
        told.append(
            f"every loss is of one seed ({search.first_seed}): the lowest of many is lucky, and no "
            "verdict rests on it"
        )
    for one in finding.optima:
        done = one.counts["complete"]
        if done < (n := n_asked(search, one.family)):
            told.append(f"{one.family.variant}: {done} of {plural(n, 'trial')} complete")
    if again := [seed for seed in search.confirm_seeds if seed in search.earlier_seeds]:
        told.append(
            f"fresh seeds {', '.join(map(str, again))} were looked at before: errors of 5% are of "
            "one look, and are more with each further one"
        )
    if lost:
        are = "is" if lost == 1 else "are"
        told.append(f"{plural(lost, 'run')} failed or diverged, and {are} in no verdict")
    return told


def notes(finding: Finding) -> list[str]:
    """What the tables rest on: seeds, trials, rules, provenance."""
    search = finding.search
    shapes = [shape for one in finding.optima for shape in one.shapes]
    fresh = ", ".join(map(str, search.confirm_seeds))
    told = [*map(_range, finding.optima), *map(_interaction, finding.pairs)]
    told += [rule.format(first=search.first_seed, fresh=fresh) for rule in _RULES if fresh]
    told += [counts(one, search) for one in finding.optima]
    told += [f"space {search.space}; learning rate: {search.learning_rate}"]
    for goal in search.objectives[1:]:
        where = _devices(shapes) if shapes and goal in ("step_time", "memory") else ""
        held = {"goal": goal, "goals": goals(search), "first": search.first_seed, "where": where}
        told += [line.format(**held) for line in _GOALS]
        told += [_BUSY] if goal == "step_time" else []
    told += [f"{search.recipe} ({search.recipe_digest}) on data {search.fingerprint}"]
    computed = f"computed with {'; '.join(finding.settings)}" if finding.settings else ""
    return [line for line in (*told, computed, *finding.versions) if line]


def _devices(shapes: Sequence[Shape]) -> str:
    names = sorted({shape.settings.device_name for shape in shapes if shape.settings})
    text = f" on {' and '.join(names) or 'a device that is not known'}"
    return text if len(names) < 2 else f"{text}, which cannot be compared"


def _range(one: Optimum) -> str:
    """The sizes among which a variant's best confirmed shape may be."""
    confirmed, name = one.confirmed, one.family.variant
    held = [shape for shape in confirmed if shape.may_be_best]
    if one.reason:
        return f"{name}: which shapes may be best is not known: {one.reason}"
    if len(confirmed) == 1:
        return f"{name}: one shape alone has fresh seeds, so that no other was refuted"
    words = {"layers": "n_layers", "width": "d_model", "aspect": "aspect"}
    of = ", ".join(f"{word} {_span(held, key)}" for word, key in words.items())
    n = f"{len(held)} of {len(confirmed)}"
    return f"{name}: {n} confirmed shapes may be its best (95 %): {of}" if held else ""


def _interaction(pair: Pair) -> str:
    """What it costs to exchange the shapes that the first look chose."""
    if pair.test is None or pair.choices[0].cell == pair.choices[1].cell:
        return ""
    found = pair.test.interaction
    return (
        f"{' and '.join(pair.names)} exchanging the shapes that their first looks chose "
        f"({'; '.join(brief(choice.trial) for choice in pair.choices)}) changes their losses, "
        f"added up, by {interval(found.mean, found.ci95, '+.4f')} over {found.n} fresh seeds"
    )


def counts(one: Optimum, search: Search) -> str:
    """`standard: 38 of 40 trials complete, 1 failed; 24 different shapes; grid: ...`."""
    shapes = plural(one.n_shapes, "different shape")
    if one.n_shapes < len(one.shapes):
        shapes += f" ({plural(len(one.shapes), 'point')})"
    return f"{one.family.variant}: {trials_text(one, search)}; {shapes}; {one.family.sampler}"


def trials_text(one: Optimum, search: Search) -> str:
    """`38 of 40 trials complete, 1 failed, and 2 shapes beyond them that ...`."""
    n, extra = one.counts, one.counts["extra"]
    tried = n["complete"] + n["running"] + n["diverged"]
    n_trials = max(n_asked(search, one.family), tried)
    rest = [f"{n[word]} {word}" for word in ("running", "failed", "diverged") if n[word]]
    text = ", ".join([f"{n['complete']} of {plural(n_trials, 'trial')} complete", *rest])
    if not extra:
        return text
    them, were = "it" if n_trials == 1 else "them", "was" if extra == 1 else "were"
    beyond = f"{plural(extra, 'shape')} beyond {them} that {were} best for another variant"
    return f"{text}, and {beyond}"


def failures(finding: Finding) -> list[tuple[str, str, str]]:
    """Variant, point with seed, and error of all trials and runs that failed or diverged."""
    failed = [each for one in finding.optima for each in one.failed]
    return [(t.variant, f"{_point(t)}, seed {seed}", error) for t, seed, error in failed]


def _point(trial: Trial) -> str:
    """`6 x 354, 2 heads, lr=0.01`, without the options that the variant's name says."""
    named_there = trial.variant.partition(":")[2].split(",")
    return ", ".join([brief(trial), *(each for each in _options(trial) if each not in named_there)])


def options_text(trial: Trial) -> str | None:
    """`n_blocks=4, lr=0.01`; None where nothing but sizes was searched."""
    return ", ".join(_options(trial)) or None


def _options(trial: Trial) -> list[str]:
    held = trial.options.items()
    return [f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in held]
