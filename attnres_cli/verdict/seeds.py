"""How many seeds a study needs, and what they cost: from what it holds, before arms are trained."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.errors import StudyError
from attnres_cli.records.run import DataDescription, RunRecord
from attnres_cli.report.terminal import console
from attnres_cli.stats.power import (
    ASSUMED,
    SEEDS,
    Noise,
    Pairing,
    assumed,
    measured,
    noise,
    seconds,
)
from attnres_cli.verdict.comparison import Comparison, compare
from attnres_cli.verdict.format import duration, plural


@dataclass(frozen=True)
class Foresight:
    """What the runs of a study say about one that would separate a gap.

    Attributes:
        noise: of the baseline's losses over seeds.
        gap: to be separated, nats per token.
        n_arms: besides the baseline; p is corrected for so many.
        pairings: measured, where the study has arms; then assumed ones.
        runs: for each arm, the baseline first, runs held and the seconds that one takes.
        n_timed: runs that those seconds are medians of.
        numerics: of the baseline's runs that count.
        left_out: the baseline's runs that do not: diverged, or computed in another way.

    """

    comparison: Comparison
    noise: Noise
    gap: float
    n_arms: int
    pairings: tuple[Pairing, ...]
    runs: tuple[tuple[int, float], ...]
    n_timed: int
    workers: int
    numerics: str
    left_out: int


def foresee(
    records: Sequence[RunRecord],
    facts: DataDescription,
    baseline: str,
    gap: float,
    n_arms: int | None,
    workers: int | None,
    n_cores: int,
) -> Foresight | None:
    """What runs of one recipe say; None where the baseline has fewer than two that count.

    Args:
        records: of one recipe and fingerprint, one or more.
        facts: of that fingerprint.
        baseline: the canonical name of an arm.
        gap: in nats per token, more than 0.
        n_arms: besides the baseline; None: those that the study holds, or else one.
        workers: processes; None: as many as the threads of the runs leave room for on n_cores, on
            a GPU one.
        n_cores: of this machine.

    """
    base = [run for run in records if run.variant == baseline and run.result is not None]
    numerics = base[-1].result.settings.numerics if base and base[-1].result else ""
    counted = {run.seed: run for run in base if _counts(run, numerics)}
    if len(counted) < 2:
        return None
    losses = {seed: run.result.val_loss for seed, run in counted.items() if run.result}
    comparison = compare([run for run in records if run.result is not None], facts, baseline)
    pairs, arms = [], [arm for arm in comparison.arms if arm.variant != baseline]
    for arm in arms:
        if arm.difference is not None:
            shared = sorted(arm.losses.keys() & losses.keys())
            pairs.append(([arm.losses[s] for s in shared], [losses[s] for s in shared]))
    n_tests = n_arms or max(1, len(arms))
    floor = noise(list(losses.values()))
    found = measured(pairs, gap, n_tests)
    rows = [*([found] if found else []), *(assumed(floor, rho, gap, n_tests) for rho in ASSUMED)]
    timed = {name: _train_s(records, name) for name in (baseline, *(arm.variant for arm in arms))}
    on = next(iter(counted.values())).result
    assert on is not None
    fitting = max(1, n_cores // max(1, on.settings.threads)) if on.settings.device == "cpu" else 1
    return Foresight(
        comparison=comparison,
        noise=floor,
        gap=gap,
        n_arms=n_tests,
        pairings=tuple(rows),
        runs=tuple(_runs(timed, baseline, n_tests)),
        n_timed=sum(map(len, timed.values())),
        workers=workers or fitting,
        numerics=numerics,
        left_out=len(base) - len(counted),
    )


def _counts(run: RunRecord, numerics: str) -> bool:
    """Whether it is complete, and computed like the newest one."""
    result = run.result
    return (
        result is not None
        and math.isfinite(result.val_loss)
        and result.settings.numerics == numerics
    )


def _train_s(records: Sequence[RunRecord], variant: str) -> list[float]:
    return [r.result.train_s for r in records if r.variant == variant and r.result is not None]


def _runs(
    timed: Mapping[str, Sequence[float]], baseline: str, n_arms: int
) -> list[tuple[int, float]]:
    """Those of the baseline, then of the arms with most runs; arms that are not there yet take as
    long as the others' median, or the baseline's.
    """
    base = (len(timed[baseline]), median(timed[baseline]))
    held = [(len(times), median(times)) for name, times in timed.items() if name != baseline]
    usual = median(time for _, time in held) if held else base[1]
    arms = sorted(held, reverse=True)[:n_arms]
    return [base, *arms, *[(0, usual)] * (n_arms - len(arms))]


def need(study: str, recipe: str, baseline: str, held: int) -> StudyError:
    """What to say where the baseline has too few runs."""
    there = f"{held} run" if held == 1 else f"{held or 'no'} runs"
    command = f"attnres ablate '{baseline}' --recipe {recipe} --seeds 5 --study {study}"
    return StudyError(
        f"study {study} holds {there} of {baseline} under recipe {recipe} that count, a noise "
        f"floor takes two or more: `{command}`"
    )


def print_foresight(found: Foresight) -> None:
    """Noise floor, seeds needed with their cost, detectable differences; on stdout."""
    out = console(sys.stdout)
    out.print(Text(headline(found)))
    for title, names, rows in tables(found):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(names[0], no_wrap=True)
        for name in names[1:]:
            table.add_column(name, justify="right", no_wrap=name.isdecimal())
        for row in rows:
            table.add_row(*row)
        out.print(table)
    for line in facts_of(found):
        out.print(Text(line, style="dim"))


def headline(found: Foresight) -> str:
    """The noise floor, in a sentence."""
    comparison, floor = found.comparison, found.noise
    low, high = floor.ci95
    return (
        f"noise floor: {floor.n} runs of {comparison.baseline} under recipe "
        f"{comparison.recipe} ({comparison.recipe_digest}) end at {floor.mean:.4f}, sd "
        f"{floor.sd:.4f} [{low:.4f}, {high:.4f}] nats per token"
    )


Rows = list[tuple[str, ...]]


def tables(found: Foresight) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Seeds that the gap takes with their cost, and detectable differences: title, columns, rows;
    a row for each correlation.
    """
    arms = f"{found.n_arms} arm" + ("s" if found.n_arms > 1 else "") + " beside the baseline"
    needed: Rows = []
    for row in found.pairings:
        cells = ("-", "-", "-")
        if row.needed is not None:
            runs, left, took = seconds(row.needed, found.runs, found.workers)
            cells = (f"{runs:,}", f"{left:,}", duration(took))
        ends = "{}-{}".format(*(_count(n) for n in row.range))
        needed.append((_name(row), f"{row.sd:.4f}", f"{_count(row.needed)} [{ends}]", *cells))
    found_by = [(_name(row), *(f"{v:.3f}" for v in row.detectable)) for row in found.pairings]
    return [
        (
            f"seeds to separate {found.gap:g} from {found.comparison.baseline}, {arms}",
            ("correlation", "sd of difference", "seeds [95 %]", "runs", "to train", "time"),
            needed,
        ),
        (
            f"least difference that so many seeds separate, {arms}",
            ("correlation", *(str(n) for n in SEEDS)),
            [tuple(row) for row in found_by],
        ),
    ]


def _name(row: Pairing) -> str:
    known = "none" if row.correlation is None else f"{row.correlation:.2f}"
    return f"{known} {'measured' if row.n_arms else 'assumed'}"


def _count(seeds: int | None) -> str:
    return "over 10,000" if seeds is None else f"{seeds:,}"


def facts_of(found: Foresight) -> list[str]:
    """The rule, and what the numbers rest on."""
    first, (base, *arms) = found.pairings[0], found.runs
    lines = [
        f"rule: found in 80 % of studies by the paired t test with p < 0.05 / {found.n_arms} "
        "(Holm's strictest step)",
        "correlation: of an arm's losses with the baseline's over seeds, which share data and "
        "initial weights; 0: pairing buys nothing. Assumed ones take arms to be as noisy as the "
        "baseline",
    ]
    if first.n_arms:
        lines.append(
            f"measured over {plural(first.n_arms, 'arm')} of this study, which share at most "
            f"{first.n_pairs} seeds with the baseline"
        )
    else:
        lines.append("no arm of this study shares two seeds with the baseline: nothing measured")
    others = f", an arm {_time(max(time for _, time in arms))} at most" if arms else ""
    lines.append(
        f"time: from {found.n_timed} runs of this study; a run of the baseline takes "
        f"{_time(base[1])}{others}; {plural(found.workers, 'worker')}, {found.numerics}"
    )
    if found.left_out:
        lines.append(
            f"left out: {plural(found.left_out, 'run')} of the baseline, diverged or not computed "
            f"on {found.numerics}"
        )
    gated = next((arm.reason for arm in found.comparison.arms if arm.verdict == "baseline"), "")
    return lines + ([f"warning: {gated}"] if gated else [])


def _time(seconds: float) -> str:
    """Of one run: tenths where a second is much."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"
