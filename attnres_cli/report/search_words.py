"""What a search has found, in words and cells: one text for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnres_cli.records.search_records import Search, Trial, Value, n_asked
from attnres_cli.report import second_objective
from attnres_cli.report.table import capital, listed
from attnres_cli.stats.pairs import paired
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.optima import Finding, Pair
from attnres_cli.verdict.shape_results import Optimum, Shape, brief, named, options, sizes

_APART = ("complete", "extra")  # of what became of trials: said with words of their own

LOWEST = "lowest"  # of the confirmed shapes

RULE = (
    "`differ` is said of the optima of the confirmed shapes if for each of them the t test that it "
    f"is best for both has p < {ALPHA} (one-sided, paired by seed; Holm over pairs of variants), "
    "against the shapes that the first look chose; else they cannot be told apart. Shapes without "
    "fresh seeds are not tested: the likeliest to be best for both are among the confirmed"
)
SET_RULE = (
    "shape: layers x width; change: fresh mean minus first look; best: `lowest` has the lowest "
    "mean over fresh seeds, `may be` cannot be told from the best: these shapes hold the best of "
    "the confirmed ones with 95 % confidence; `no`: it is not; `-`: not tested"
)


def title(search: Search) -> str:
    """`Search 5ea4c0ffee12: recipe quick, params=2M within 2 %`; of two objectives, with both."""
    second = second_objective.second(search)
    return (
        f"Search {search.name}: recipe {search.recipe}, {search.budget} within "
        f"{100 * search.tolerance:.3g} %"
        f"{f', for {second_objective.both(search)}' if second else ''}"
    )


def question(finding: Finding) -> str:
    """What was asked."""
    variants = listed([one.family.variant for one in finding.optima])
    return f"At {finding.search.budget}, which shape should {variants} have?"


def answer(finding: Finding) -> str:
    """The verdict: what each variant prefers and whether that differs, and no more."""
    search = finding.search
    if not any(one.shapes for one in finding.optima):
        return f"No answer: no trial of {search.budget} is complete."
    best = [_best(one) for one in finding.optima if one.confirmed]
    sentences = [f"At {search.budget}, {'. '.join(best)}."] if best else []
    sentences += [_pair_text(finding, pair) for pair in finding.pairs]
    for one in finding.optima:
        if not one.shapes:
            sentences.append(f"No trial of {one.family.variant} is complete.")
        elif not one.confirmed:
            sentences.append(
                f"{_who(one)} is lowest at {named(one.shapes[0])}, of "
                f"{plural(one.n_shapes, 'shape')} by one seed: no verdict."
            )
    return " ".join(sentences)


def blocks(finding: Finding) -> list[str]:
    """For each design whose block size or number was searched: which cannot be told apart, and by
    how much the others are worse, each at its best confirmed shape.
    """
    lines = []
    for one in finding.optima:
        for key, word in (("n_blocks", "block count"), ("block_size", "block size")):
            best: dict[Value, Shape] = {}
            for shape in one.confirmed:
                if (value := options(shape.trial).get(key)) is not None:
                    best.setdefault(value, shape)
            if len(best) > 1 and not one.reason:
                lines.append(f"{one.family.variant}, {word}: {_of_blocks(best)}.")
    return lines


def _of_blocks(best: Mapping[Value, Shape]) -> str:
    """`4 and 8 cannot be told apart; 1 is worse by 0.0300 [0.0100, 0.0500]`."""
    first, *_ = best.values()  # the lowest of all
    alike = [str(value) for value, shape in sorted(best.items()) if shape.may_be_best]
    parts = [f"{listed(alike)} cannot be told apart" if len(alike) > 1 else f"{alike[0]} is best"]
    for value, shape in sorted(best.items()):
        seeds = sorted(shape.fresh.keys() & first.fresh.keys())
        if not shape.may_be_best and len(seeds) > 1:
            by = paired([shape.fresh[n] for n in seeds], [first.fresh[n] for n in seeds])
            parts.append(f"{value} is worse by {interval(by.mean, by.ci95, '.4f')}")
    return "; ".join(parts)


def qualified(finding: Finding) -> list[str]:
    """What the answer must be read with, a line each; empty where nothing qualifies it."""
    search, lost, told = finding.search, len(failures(finding)), []
    if not search.confirm_seeds:
        told.append(
            f"every loss is of one seed ({search.first_seed}): the lowest of many is lucky, and no "
            "verdict rests on it"
        )
    for one in finding.optima:
        done, lacking = one.counts["complete"], sum(bool(s.missing) for s in one.confirmed)
        if done < (n := n_asked(search, one.family)):
            told.append(f"{one.family.variant}: {done} of {plural(n, 'trial')} complete")
        if lacking:
            told.append(f"{one.family.variant}: {plural(lacking, 'shape')} without all fresh seeds")
    if lost:
        told.append(f"{plural(lost, 'run')} failed or diverged, and {_are(lost)} in no verdict")
    return told


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _best(one: Optimum) -> str:
    """`standard does best at 6 layers of width 160 ...; 2 other shapes with 4 to 8 layers may be as
    good`. It does best there only where another confirmed shape is ruled out.
    """
    best, others = one.confirmed[0], [s for s in one.confirmed[1:] if s.may_be_best]
    if one.reason:
        return f"{_who(one)} is lowest at {named(best)} (not tested)"
    if len(one.confirmed) == 1:
        rivals = "the only shape" if one.n_shapes == 1 else "the only shape with fresh seeds"
        return f"{_who(one)} has {named(best)}, {rivals}"
    if len(others) == len(one.confirmed) - 1:
        depths = _span([float(s.trial.dimensions["n_layers"]) for s in one.confirmed])
        return (
            f"{_who(one)} is lowest at {named(best)}, but none of its {len(one.confirmed)} "
            f"confirmed shapes with {plural(depths, 'layer')} is ruled out"
        )
    text = f"{_who(one)} does best at {named(best)}"
    if not others:
        return text
    depths = _span([float(s.trial.dimensions["n_layers"]) for s in others])
    which = "another shape" if len(others) == 1 else f"{len(others)} other shapes"
    return f"{text}; {which} with {plural(depths, 'layer')} may be as good"


def _who(one: Optimum) -> str:
    """The variant, with its options where those were searched."""
    return one.best.trial.variant if one.best is not None else one.family.variant


def _pair_text(finding: Finding, pair: Pair) -> str:
    ours, theirs = (finding.optima[i].family.variant for i in (pair.ours, pair.theirs))
    of_two = "" if len(finding.pairs) == 1 else f" of {ours} and {theirs}"
    which = f"the optima{of_two}"
    if pair.test is None or pair.p is None:
        return f"Whether {which} differ is not known: {pair.reason}."
    n = len(pair.cells)
    if pair.differ:
        return (
            f"{capital(which)} differ (p = {pair.p:.2g}): none of the {n} confirmed shapes (of "
            f"{pair.n_tried} tried){_options_clause(finding, pair)} can be best for both."
        )
    text = f"No evidence that {which} differ (p = {pair.p:.2g}): {_shared(finding, pair)} may be "
    text += "best for both."
    return f"{text} About {pair.needed} fresh seeds would tell." if pair.needed else text


def _options_clause(finding: Finding, pair: Pair) -> str:
    """`, each at the best lr and n_blocks tried there,`; empty if none were searched."""
    both = [finding.optima[pair.ours], finding.optima[pair.theirs]]
    names = dict.fromkeys(name for one in both for s in one.shapes for name in options(s.trial))
    return f", each at the best {listed(list(names))} tried there," if names else ""


def _shared(finding: Finding, pair: Pair) -> str:
    """The shape that is lowest for both, or else the one that is hardest to rule out."""
    assert pair.test is not None
    ours, theirs = (finding.optima[i].confirmed[0].cell for i in (pair.ours, pair.theirs))
    return sizes(ours if ours == theirs else pair.cells[pair.test.hardest])


def ranges(finding: Finding) -> list[str]:
    """For each variant the sizes among which its best confirmed shape may be."""
    lines = []
    for one in finding.optima:
        confirmed, name = one.confirmed, one.family.variant
        held = [shape for shape in confirmed if shape.may_be_best]
        if one.reason:
            lines.append(f"{name}: which shapes may be best is not known: {one.reason}")
        elif len(confirmed) == 1:
            lines.append(f"{name}: one shape alone has fresh seeds, so that no other was refuted")
        elif held:
            of = ", ".join(
                f"{word} {_span([float(s.trial.dimensions[key]) for s in held])}"
                for key, word in (
                    ("n_layers", "layers"),
                    ("d_model", "width"),
                    ("aspect", "aspect"),
                )
            )
            lines.append(
                f"{name}: {len(held)} of {len(confirmed)} confirmed shapes may be its best (95 %): "
                f"{of}"
            )
    return lines


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def notes(finding: Finding) -> list[str]:
    """What the tables rest on: seeds, trials, rules, provenance."""
    search = finding.search
    fresh = ", ".join(map(str, search.confirm_seeds))
    of_seeds = (
        f"first look: one seed ({search.first_seed}), so that the lowest of many is lucky; fresh "
        f"seeds: {fresh}, which did not choose what is confirmed; the shape called {LOWEST} is "
        "chosen by them, so that its own mean and interval are a little lucky"
    )
    lines = [*ranges(finding), *(_interaction(finding, pair) for pair in finding.pairs)]
    lines = [line for line in lines if line]
    lines += [of_seeds, SET_RULE, RULE] if fresh else []
    lines += [counts(one, search) for one in finding.optima]
    lines += [f"space {search.space}; learning rate: {search.learning_rate}"]
    lines += second_objective.notes(search, finding.optima)
    lines += [f"{search.recipe} ({search.recipe_digest}) on data {search.fingerprint}"]
    if finding.settings:
        lines.append(f"computed with {'; '.join(finding.settings)}")
    return lines + list(finding.versions)


def counts(one: Optimum, search: Search) -> str:
    """`standard: 38 of 40 trials complete, 1 failed; 24 different shapes; grid: ...`."""
    shapes = plural(one.n_shapes, "different shape")
    if one.n_shapes < len(one.shapes):
        shapes += f" ({plural(len(one.shapes), 'point')})"
    return f"{one.family.variant}: {trials_text(one, search)}; {shapes}; {one.family.sampler}"


def trials_text(one: Optimum, search: Search) -> str:
    """`38 of 40 trials complete, 1 failed, and 2 shapes beyond them that ...`."""
    held = [f"{n} {word}" for word, n in one.counts.items() if n and word not in _APART]
    n_tried = sum(n for word, n in one.counts.items() if word not in ("failed", "extra"))
    n_trials = max(n_asked(search, one.family), n_tried)
    text = ", ".join([f"{one.counts['complete']} of {plural(n_trials, 'trial')} complete", *held])
    extra = one.counts["extra"]
    if not extra:
        return text
    them = "it" if n_trials == 1 else "them"
    verb = "was" if extra == 1 else "were"
    return (
        f"{text}, and {plural(extra, 'shape')} beyond {them} that {verb} best for another variant"
    )


def _interaction(finding: Finding, pair: Pair) -> str:
    """What it costs to exchange the shapes that the first look chose."""
    if pair.test is None or pair.choices[0].cell == pair.choices[1].cell:
        return ""
    found = pair.test.interaction
    ours, theirs = (finding.optima[i].family.variant for i in (pair.ours, pair.theirs))
    return (
        f"{ours} and {theirs} exchanging the shapes that their first looks chose "
        f"({brief(pair.choices[0].trial)}; {brief(pair.choices[1].trial)}) changes their losses, "
        f"added up, by {found.mean:+.4f} [{found.ci95[0]:+.4f}, {found.ci95[1]:+.4f}] over "
        f"{found.n} fresh seeds"
    )


def failures(finding: Finding) -> list[tuple[str, str, str]]:
    """Variant, point with seed, and error of all trials and runs that failed or diverged."""
    first, found = finding.search.first_seed, []
    for one in finding.optima:
        runs = [*((trial, first, error) for trial, error in one.failed), *one.failed_runs]
        found += [(t.variant, f"{_point(t)}, seed {seed}", error) for t, seed, error in runs]
    return found


def _point(trial: Trial) -> str:
    """`6 x 354, 2 heads, lr=0.01`, without the options that the variant's name says."""
    named_there = trial.variant.partition(":")[2].split(",")
    held = [text for text in _options(trial) if text not in named_there]
    return ", ".join([brief(trial), *held])


def best_text(shape: Shape) -> str:
    """Whether it may be the best: `lowest`, `may be`, `no`, or `-` where that is not tested."""
    if shape.may_be_best is None:
        return "-"
    return LOWEST if shape.is_lowest else "may be" if shape.may_be_best else "no"


def fresh_text(shape: Shape) -> str:
    """`1.6021 [1.5911, 1.6131]`; where seeds are missing how many there are."""
    if shape.mean is None:
        return "one seed"
    text = f"{shape.mean:.4f}"
    if shape.ci95 is not None:
        text += f" [{shape.ci95[0]:.4f}, {shape.ci95[1]:.4f}]"
    n, all_ = len(shape.fresh), len(shape.fresh) + len(shape.missing)
    return f"{text} ({n} of {all_} seeds)" if shape.missing else text


def surprise_text(shape: Shape) -> str:
    """Fresh minus first look; `-` without fresh seeds."""
    return "-" if shape.surprise is None else f"{shape.surprise:+.4f}"


def options_text(trial: Trial) -> str:
    """`n_blocks=4, lr=0.01`, or `-`."""
    return ", ".join(_options(trial)) or "-"


def _options(trial: Trial) -> list[str]:
    held = options(trial).items()
    return [f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in held]
