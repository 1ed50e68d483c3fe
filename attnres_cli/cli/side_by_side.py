"""Several recipes of a study, as `attnres report` shows them together."""

from __future__ import annotations

from dataclasses import replace

from attnres_cli.cli.report import Reporting
from attnres_cli.errors import UsageError
from attnres_cli.lab.study_view import Held
from attnres_cli.report import texts, two_recipes
from attnres_cli.report.table import Report
from attnres_cli.verdict.texts import Texts, on_texts

_NOT_OF_SEVERAL = ("--scaling", "--against", "--downstream", "--margin", "--baseline")


def side_by_side(asked: Reporting, held: Held) -> tuple[list[Report], list[Texts]]:
    """Of two recipes their losses; before that, where recipes read other texts, whether these
    agree. Raises UsageError.
    """
    names, both, found = asked.recipes or [], None, list[Texts]()
    asked.refuse("{} is of one recipe, and several are named: leave it out", *_NOT_OF_SEVERAL)
    if len(names) == 2:
        both = held.sides(names, asked.codes)
    else:
        asked.refuse("{} chooses rows of one recipe or two: leave it out", "VARIANT")
    if both is None or both[0].data.fingerprint != both[1].data.fingerprint:
        found = on_texts(held.by_recipe(names, asked.codes))
    if both is not None:
        shown = {row.variant for row in both[2]}
        kept = [tuple(row for row in one.rows if row.variant in shown) for one in found]
        pairs = zip(found, kept, strict=True)
        found = [replace(one, rows=rows) for one, rows in pairs if rows]
    if not found:
        asked.refuse("{} draws one recipe, or several texts: leave it out", "--figures")
    reports = [texts.report_of(one) for one in found]
    reports += [two_recipes.report_of(*both)] if both is not None else []
    if not reports:
        raise UsageError(
            f"--recipe takes one or two recipes, got {len(names)}: more of them are compared "
            "where each has read as many tokens of another text"
        )
    return reports, found
