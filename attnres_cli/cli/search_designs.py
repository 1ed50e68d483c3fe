"""`attnres search --designs`: which design is best at equal cost."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from attnres_cli.cli.launching import launched
from attnres_cli.cli.options import opened, read_seeds, refuse, show
from attnres_cli.config import address
from attnres_cli.console import say, told_if_slow
from attnres_cli.errors import SOME_FAILED, AttnresError, UsageError, unknown

if TYPE_CHECKING:
    from attnres_cli.cli.search import Searching
    from attnres_cli.lab.designing import Request
    from attnres_cli.records.run import RunRecord
    from attnres_cli.records.search_records import Search
    from attnres_cli.store.store import Store
    from attnres_cli.verdict.comparison import Comparison

ALL = "all"
_BUDGETS = ("params", "flops", "tokens")
_GOALS = ("val_loss", "time")
_MOST_CONFIRMED = 5
_N_FRESH = "7"


def search_designs(asked: Searching) -> None:
    """Look at designs, and compare the best on fresh seeds."""
    typed = {"VARIANT": asked.variants, "--suite": asked.suite, "--space": asked.space}
    refuse(typed, "--designs says what is searched: leave {} out")
    budget, seeds = _budget(asked.budget or []), _fresh(asked)
    others = {f"--sampler {asked.sampler}": asked.sampler not in ("auto", "tpe")}
    refuse(others, "--designs proposes by TPE: leave {} out")
    if asked.objective not in _GOALS:
        raise UsageError("--objective: " + unknown("objective", asked.objective, _GOALS))
    if not (designs := (asked.designs or "").strip(" ;")):
        raise UsageError("--designs names no design: type --designs all to search all of them")

    from attnres_cli.config.recipe import load

    loaded = load(asked.recipe, asked.override or [])

    from attnres_cli.lab import designing  # torch takes a second, and no mistake above it
    from attnres_cli.report.progress import OnStderr

    if not asked.dry_run and launched(asked):
        return
    text = "" if designs == ALL else asked.designs or ""
    terms = budget, asked.objective, asked.trials, asked.confirm, seeds
    with told_if_slow("still building designs of the space"):
        request = designing.make(loaded, text, *terms, asked.place(asked.workers))  # type: ignore[arg-type]
    if asked.dry_run:
        _foresee(asked, request)
        return
    found, n_failed = designing.run(request, OnStderr())
    _tell(asked, request.search.name, found)
    if n_failed:
        say(f"failed runs: {n_failed}; the same command with --retry-failed trains them again")
        raise typer.Exit(SOME_FAILED)


def _budget(typed: Sequence[str]) -> str:
    """What designs have equal. Raises UsageError."""
    word, *more = typed or ["params"]
    if more or word not in _BUDGETS:
        raise UsageError(
            f"--budget {','.join(typed)}: with --designs the recipe says how large models are; "
            "type what designs have equal, --budget params, --budget flops or --budget tokens"
        )
    return word


def _fresh(asked: Searching) -> tuple[int, ...]:
    """Seeds 1 to 7, or those asked for. Raises UsageError."""
    if asked.confirm > _MOST_CONFIRMED:
        raise UsageError(f"--confirm: at most {_MOST_CONFIRMED} designs are compared")
    if not asked.confirm:
        refuse({"--seeds": asked.seeds}, "--confirm 0 compares nothing: leave {} out")
        return ()
    return read_seeds(asked.seeds or _N_FRESH, 1)


def _foresee(asked: Searching, request: Request) -> None:
    """Print what a search would train."""
    from attnres_cli.lab import designing, step_times
    from attnres_cli.report.plans import plan_of_search

    timed = step_times.timed(request.looks.plan, request.looks.tokens)
    seconds = designing.seconds_of(request, timed)
    search, told = request.search, designing.lines(request, timed)
    total = None if seconds is None else sum(seconds)
    n_trials = {designing.FAMILY: search.n_trials}
    report = plan_of_search(search, told, n_trials, timed, total)
    show(replace(report, document=report.document | asdict(request.search.about)), asked.form)


def _tell(asked: Searching, name: str, found: Sequence[Comparison]) -> None:
    """Print what a search has found, and the comparison of its best designs."""
    from attnres_cli.lab.search.studies import read
    from attnres_cli.report import comparison, file_formats, search_designs
    from attnres_cli.report.table import joined

    (search,) = [each for each in read(asked.study) if each.name == name]
    records = opened(asked.study).runs(curves=False)
    reports = [search_designs.report_of(search, records, judged(search, found))]
    reports += list(comparison.report_of(found)) if found else []
    typed = ["attnres", "report", *address.typed(asked.study), "--recipe"]
    more = [f"Search: {shlex.join([*typed, name, '--notes'])}"]
    if found:
        more.append(f"Details: {shlex.join([*typed, search.about.compared_digest, '--notes'])}")
    file_formats.glance(joined(reports), asked.form, sys.stdout, *more)


def judged(search: Search, found: Sequence[Comparison]) -> Comparison | None:
    """The comparison that counts for a search: of tuned designs at its budget."""
    for one in found:
        terms = one.terms
        if terms.is_tuned and not terms.rate_only and terms.match == search.budget:
            return one
    return None


def compared(
    search: Search, store: Store, study: str, records: list[RunRecord]
) -> Comparison | None:
    """The same of what the study holds; None where its best designs have not been compared."""
    from attnres_cli.lab.study_view import Held

    held = Held(store, study, records)
    try:
        chosen = held.choose(f"{search.about.compared_digest}@{search.fingerprint}", "standard")
        return judged(search, held.comparisons(chosen))
    except AttnresError:
        return None
