"""Which runs are of one code: those of different code are never one arm, nor compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from attnres_cli.records.code import Code
from attnres_cli.records.run import RunRecord
from attnres_cli.verdict.numbers import plural

NOT_KNOWN = "unknown"  # how runs are shown, and asked for, that do not say their code
_MOST = 3


def shown(record: RunRecord) -> str:
    """The digest of a run's code, as it is printed."""
    return record.code or NOT_KNOWN


def of_code(records: Iterable[RunRecord], asked: Collection[str]) -> list[RunRecord]:
    """The runs whose code begins with one of these; all where none is asked for."""
    return [r for r in records if not asked or shown(r).startswith(tuple(asked))]


def of_one_code(
    records: Sequence[RunRecord], asked: Collection[str] = ()
) -> tuple[list[RunRecord], list[RunRecord]]:
    """The runs that may be compared with each other, and those left out because of their code.

    What all designs share is that of the newest run, and of each variant the newest design under
    it; with codes (or starts of them) asked for, of the newest run and designs that have one.
    """
    newest = (of_code(records, asked) or records)[-1:]
    mine = [r for r in records if newest and _shared(r) == _shared(newest[0])]
    design_of = {r.variant: r.code for r in (*mine, *(of_code(mine, asked) if asked else ()))}
    kept = [r for r in mine if r.code == design_of[r.variant]]
    ids = {r.id for r in kept}
    return kept, [r for r in records if r.id not in ids]


def left_out(older: Sequence[RunRecord], compared: Sequence[RunRecord]) -> list[str]:
    """What to say of ended runs of other code than those compared, newest first: a line for each
    code of what all share, and of each design under the same.
    """
    groups: dict[object, list[RunRecord]] = {}
    now = _shared(compared[-1]) if compared else None
    for run in reversed([r for r in older if r.result is not None]):
        shared = _shared(run)
        groups.setdefault((run.variant, run.code) if shared == now else shared, []).append(run)
    lines = [
        f"not compared here: {plural(len(runs), 'run')} of {_arms(runs)} by other code "
        f"({_changed(runs[0], compared)}): attnres report --code {shown(runs[0])}"
        for runs in groups.values()
    ]
    more = len(lines) - _MOST
    return lines[:_MOST] + ([f"and of {more} codes more: attnres runs"] if more > 0 else [])


def _shared(record: RunRecord) -> tuple[str, ...]:
    return Code.of(record.versions).shared


def _arms(runs: Sequence[RunRecord]) -> str:
    names = dict.fromkeys(run.variant for run in reversed(runs))
    return ", ".join(names) if len(names) <= _MOST else plural(len(names), "arm")


def _changed(run: RunRecord, compared: Sequence[RunRecord]) -> str:
    """What is not the same in the runs that are compared, of this run's variant if they have it."""
    alike = [other for other in compared if other.variant == run.variant]
    before = Code.of(run.versions)
    now = [Code.of(other.versions) for other in alike or compared][-1:]
    if not now or not before.digest or not now[0].digest:
        return "not recorded"
    parts = [part for part in before.changed(now[0]) if alike or part != "design"]
    return f"{', '.join(parts)} changed"
