"""How many seeds a gap takes and what they cost, as a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attnres_cli.report.comparison import METRIC, UNIT
from attnres_cli.report.table import Report, Table, columns
from attnres_cli.stats.power import POWER, SEEDS, Pairing, seconds
from attnres_cli.stats.sequential import LEAST_SEEDS, MOST, first_rate
from attnres_cli.verdict.fields import picked
from attnres_cli.verdict.numbers import duration, interval, multiple, plural
from attnres_cli.verdict.power import MINUTES, PowerAnalysis

_NEEDED = columns(
    "correlation:word", "sd of difference", "seeds [95 %]", "runs", "to train", "time"
)
_SEEN = columns("correlation:word", *map(str, SEEDS))
_DOCUMENT = (
    "recipe=comparison.recipe recipe_digest=comparison.recipe_digest "
    "baseline=comparison.baseline gap arms=n_arms alpha workers numerics left_out"
)
_PAIRING = "arm correlation measured_pairs=n_pairs sd seeds=needed seeds_ci95=range"
_FIELDS = (
    "recipe recipe_digest baseline gap arms noise_sd=noise.sd arm correlation is_measured "
    "measured_pairs sd seeds runs to_train seconds seeds_low=seeds_ci95.0 "
    "seeds_high=seeds_ci95.1 slope=slope.value "
) + " ".join(f"{name}_{n}={name}.{n}" for name in ("detectable", "resolution") for n in SEEDS)


def report_of(found: PowerAnalysis, to_measure: Sequence[str] = ()) -> Report:
    """The noise floor, the seeds a gap takes; `to_measure` is what measures a missing slope."""
    comparison, floor, base = found.comparison, found.noise, found.comparison.base
    arms, document = f"{plural(found.n_arms, 'arm')} beside the baseline", _document(found)
    tables = [
        Table(
            f"seeds to separate {found.gap:g} from {comparison.baseline}, {arms}",
            _NEEDED,
            [_needed_cells(row, found) for row in found.pairings],
        ),
        Table(
            f"least difference that so many seeds separate, {arms}",
            _SEEN,
            [[_name(row), *(f"{v:.3f}" for v in row.detectable)] for row in found.pairings],
        ),
    ]
    if found.slope is not None:
        title = f"resolution: the same as a multiple of the compute of {comparison.baseline}"
        worth = [[found.worth(v) or math.inf for v in row.detectable] for row in found.pairings]
        rows = zip(found.pairings, worth, strict=True)
        tables.append(Table(title, _SEEN, [[_name(row), *map(multiple, of)] for row, of in rows]))
    return Report(
        title=(
            f"noise floor: {floor.n} runs of {comparison.baseline} under recipe "
            f"{comparison.recipe} ({comparison.recipe_digest}) end at {floor.mean:.4f}, sd "
            f"{interval(floor.sd, floor.ci95, '.4f')} nats per token"
        ),
        tables=tables,
        warnings=[f"warning: {base.reason}"] if base is not None and base.reason else [],
        notes=[*_notes(found), _growing(found), _resolution(found, to_measure)],
        document=document,
        records=[picked(document | row, _FIELDS) for row in document["pairings"]],
    )


def _growing(found: PowerAnalysis) -> str:
    """What it takes if seeds are added until the arms are decided."""
    share, seeds, took = found.until_decided(found.pairings[0])
    return (
        f"a new study with --until decided (at most {MOST} seeds) separates {found.gap:g} in "
        f"{share:.0%} of studies ({_name(found.pairings[0])}), after about "
        f"{plural(seeds, 'seed')}, {duration(took)}"
    )


def _resolution(found: PowerAnalysis, to_measure: Sequence[str]) -> str:
    """What the seeds see that fit into a few minutes, and what its multiple of compute rests on."""
    first, base = found.pairings[0], found.comparison.baseline
    seeds, nats = found.in_minutes(first)
    line = f"in {MINUTES} minutes of training fit {plural(seeds, 'seed')} of each arm"
    if nats is None:
        line += f", of {LEAST_SEEDS} that a verdict takes"
    else:
        worth = found.worth(nats)
        line += f", which separate {nats:.3f} ({_name(first)})"
        line += "" if worth is None else f", {multiple(worth)} compute"
    if found.slope is not None:
        slope = f"{found.slope.value:.3f} nats per e-fold of tokens"
        return f"{line}. {base} gains {slope}, {found.slope.source}"
    how = " and ".join(f"`{command}`" for command in to_measure)
    how = how or f"train {base} with half and with twice the tokens"
    return f"{line}. No resolution without the slope of {base}'s loss over tokens: {how}"


def _needed_cells(row: Pairing, found: PowerAnalysis) -> list[str]:
    counts = ["over 10,000" if n is None else f"{n:,}" for n in (row.needed, *row.range)]
    cells = [_name(row), f"{row.sd:.4f}", "{} [{}-{}]".format(*counts)]
    if row.needed is None:
        return [*cells, "-", "-", "-"]
    runs, left, took = seconds(row.needed, found.runs, found.workers)
    return [*cells, f"{runs:,}", f"{left:,}", duration(took)]


def _name(row: Pairing) -> str:
    known = "none" if row.correlation is None else f"{row.correlation:.2f}"
    return f"{known} {row.arm or 'assumed'}"


def _notes(found: PowerAnalysis) -> list[str]:
    """The rule, and what the numbers rest on."""
    base, *arms = found.runs
    is_whole = found.alpha == first_rate(found.n_arms)
    lines = [
        "rule: found in 80 % of studies by the paired t test at the first look, "
        f"p < {found.alpha:.2g} for each of {plural(found.n_arms, 'arm')}; it takes {LEAST_SEEDS} "
        "seeds or more"
        + ("" if is_whole else ". That is half of the rate of a new study, which has no runs yet"),
        "correlation: of an arm's losses with the baseline's over seeds, which share data and "
        "initial weights; 0: pairing buys nothing. Assumed ones take arms to be as noisy as the "
        "baseline",
        "no arm of this study shares two seeds with the baseline: nothing measured",
    ]
    measured = [row for row in found.pairings if row.arm]
    if measured:
        most = max(row.n_pairs for row in measured)
        lines[-1] = (
            f"an arm's own spread: over {plural(most, 'seed')} at most that it shares with the "
            "baseline, the largest first"
        )
    others = f", an arm {_time(max(time for _, time in arms))} at most" if arms else ""
    lines.append(
        f"time: from {found.n_timed} runs of this study, as busy as the machine was then; a run of "
        f"the baseline takes "
        f"{_time(base[1])}{others}; {plural(found.workers, 'worker')}, {found.numerics}"
    )
    if found.left_out:
        lines.append(
            f"left out: {plural(found.left_out, 'run')} of the baseline, diverged or not computed "
            f"on {found.numerics}"
        )
    return lines


def _time(seconds: float) -> str:
    """Of one run: tenths where a second is much."""
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _document(found: PowerAnalysis) -> dict[str, Any]:
    base, *arms = [time for _, time in found.runs]
    return picked(found, _DOCUMENT) | {
        "data": picked(found.comparison.data, "source fingerprint bytes=n_bytes"),
        "metric": METRIC,
        "unit": UNIT,
        "noise": picked(found.noise, "runs=n mean sd sd_ci95=ci95"),
        "power": POWER,
        "run_s": {"baseline": base, "arms": arms, "runs": found.n_timed},
        "slope": found.slope and picked(found.slope, "value source"),
        "minutes": MINUTES,
        "pairings": [_pairing(row, found) for row in found.pairings],
    }


def _until(row: Pairing, found: PowerAnalysis) -> dict[str, Any]:
    return dict(zip(("power", "seeds", "seconds"), found.until_decided(row), strict=True))


def _pairing(row: Pairing, found: PowerAnalysis) -> dict[str, Any]:
    cost: tuple[int, int, float] | tuple[None, None, None] = (None, None, None)
    if row.needed is not None:
        cost = seconds(row.needed, found.runs, found.workers)
    seeds, nats = found.in_minutes(row)
    worth = None if nats is None else found.worth(nats)
    return {
        **picked(row, _PAIRING),
        "is_measured": bool(row.arm),
        **dict(zip(("runs", "to_train", "seconds"), cost, strict=True)),
        "detectable": dict(zip(SEEDS, row.detectable, strict=True)),
        "resolution": {n: found.worth(v) for n, v in zip(SEEDS, row.detectable, strict=True)},
        "until_decided": _until(row, found),
        "in_minutes": {"seeds": seeds, "detectable": nats, "resolution": worth},
    }
