"""The tables that a study was asked for, of which whoever reads several is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnres_cli.errors import StudyError
from attnres_cli.records.asked import Asked
from attnres_cli.store.store import Store
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import Comparison


def asked(of: Comparison, kind: str = "") -> Asked:
    """The table that this is, as a study keeps it; `kind`: of what, where that is not losses."""
    margin = "" if of.rules.margin is None else f"{of.rules.margin:.6g}"
    terms = ", ".join([labels.name(of.terms), *([kind] if kind else [])])
    return Asked(of.recipe_digest, of.data.fingerprint, of.baseline, terms, margin)


def kept(
    found: Sequence[Comparison], held: Store, study: str, first: Mapping[str, str], kind: str = ""
) -> list[Comparison]:
    """The comparisons, each with the number of tables that the study was asked for, as it is now
    for those of them that have a difference: it keeps that, if it can be written to. `first` gives
    the recipe that stands for those which compute the same.
    """
    before = held.asked()
    known = {replace(each, recipe_digest=first[each.recipe_digest]) for each in before or ()}
    now = {asked(one, kind) for one in found if any(arm.difference for arm in one.arms)}
    why = "" if held.is_current() else "it is of an earlier attnres, ablate renews it"
    if not why and now - known:
        try:
            Store.open(study, create=True).ask([*(now - known)])
        except StudyError as error:
            why = str(error)
    return [replace(one, n_asked=len(known | now) or 1, not_kept=why) for one in found]
