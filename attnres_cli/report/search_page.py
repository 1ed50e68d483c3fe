"""A search as a section of a page, and as a page of its own."""

from __future__ import annotations

from dataclasses import replace

from attnres_cli.config import address
from attnres_cli.report.figures.drawing import of_search
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.search import RecipeOf, commands, table_of
from attnres_cli.report.search_words import answer, failures, notes, qualified, title
from attnres_cli.report.table import Column, Table, listed
from attnres_cli.verdict.optima import Finding


def to_html(finding: Finding, known: RecipeOf | None, study: str) -> str:
    """A page of a search. `known` gives the study's recipe of a digest."""
    variants = listed([one.family.variant for one in finding.optima])
    heading = f"At {finding.search.budget}, which shape should {variants} have?"
    name = f"attnres: {title(finding.search)}"
    return page(name, heading, [section(finding, known, study, 1)], address.parted(study)[0])


def section(finding: Finding, known: RecipeOf | None, study: str, number: int) -> Section:
    """A search as section `number` of a page."""
    tables = [table_of(replace(finding, optima=(one,))) for one in finding.optima]
    named = zip((one.family.variant for one in finding.optima), tables, strict=True)
    failed = Table(
        "Runs that came to nothing: first looks, and of fresh seeds.",
        [Column("variant", "code"), Column("shape", "text"), Column("error", "text")],
        failures(finding),
    )
    typed = Table(
        "What trains the best shape of a variant again, on all seeds, in a study of its own; and "
        "what trains runs that are missing, in this one.",
        [Column("what", "text"), Column("command", "code")],
        commands(finding, known, study),
    )
    parts = [
        *(
            Part(name, tables=[table])
            if table.rows
            else Part(text=[f"No trial of `{name}` is complete."])
            for name, table in named
        ),
        Part("Figures", figures=of_search(finding)),
        Part("Failed runs", tables=[failed]),
        Part("What this rests on", notes=notes(finding)),
        Part("Reproduce", tables=[typed]),
    ]
    return Section(title(finding.search), f"s{number}", parts, answer(finding), qualified(finding))
