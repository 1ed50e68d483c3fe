"""A search as a section of a page, and as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence

from attnres_cli.config import address
from attnres_cli.records.search_records import Search
from attnres_cli.report.figures.drawing import of_search
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.search import table_of
from attnres_cli.report.search_commands import RecipeOf, commands
from attnres_cli.report.search_words import answer, failures, notes, qualified, question, title
from attnres_cli.report.table import Column, Table
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum


def to_html(findings: Sequence[Finding], known: RecipeOf | None, study: str) -> str:
    """A page of one search or several. `known` gives the study's recipe of a digest."""
    heads = [question(finding) for finding in findings]
    heading = heads[0] if len(findings) == 1 else f"{len(findings)} searches of shapes"
    sections = [section(each, known, study, number) for number, each in enumerate(findings, 1)]
    name = f"attnres: {title(findings[0].search)}"
    return page(name, heading, sections, address.parted(study)[0])


def section(finding: Finding, known: RecipeOf | None, study: str, number: int) -> Section:
    """A search as section `number` of a page."""
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
        *(_table(one, finding.search) for one in finding.optima),
        Part("Figures", figures=of_search(finding)),
        Part("Failed runs", tables=[failed]),
        Part("What this rests on", notes=notes(finding)),
        Part("Reproduce", tables=[typed]),
    ]
    told = answer(finding), qualified(finding)
    return Section(title(finding.search), f"s{number}", parts, *told)


def _table(one: Optimum, search: Search) -> Part:
    name, table = one.family.variant, table_of([one], search)
    if not table.rows:
        return Part(text=[f"No trial of `{name}` is complete."])
    return Part(name, tables=[table])
