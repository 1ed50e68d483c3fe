"""The page of a study: answers, then every comparison with its tables, figures and provenance."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import compress

from attnres_cli.config import address
from attnres_cli.records import gates
from attnres_cli.records.run import Status
from attnres_cli.report import against, answer, comparison, scaling
from attnres_cli.report.facts import facts_of
from attnres_cli.report.figures.drawing import drawings, of_sizes
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.search_commands import RecipeOf
from attnres_cli.report.search_page import section as search_section
from attnres_cli.report.table import Cell, Column, Table, capital
from attnres_cli.verdict import labels
from attnres_cli.verdict.chapter import PLUGIN, Chapter, names, plugins_typed, split
from attnres_cli.verdict.comparison import Comparison, last_line
from attnres_cli.verdict.format import number
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.paper import is_known
from attnres_cli.verdict.qualified import n_read, qualifiers


def to_html(
    chapters: Sequence[Chapter],
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
    known: RecipeOf | None = None,
) -> str:
    """The page of a study's comparisons, never pooled, the newest last, then ladders and searches.
    `known` gives the study's recipe of a digest, by which the shapes of searches are reproduced.
    """
    whole, brief = split(chapters)
    every = [*whole, *brief]
    titles = [_title(*named) for named in zip(every, names(every), strict=True)]
    study, first = every[0].study_name, len(ladders) + 1
    sizes = [_sizes(found, f"s{n}") for n, found in enumerate(ladders, 1)]
    rungs = {rung.recipe.digest for found in ladders for rung in found.rungs}
    comparisons = [chapter.comparison for chapter in whole]
    told = [
        _chapter(chapter, title, f"c{n}", comparisons, rungs)
        for n, (chapter, title) in enumerate(zip(whole, titles, strict=False), 1)
    ]
    searches = [search_section(found, known, study, n) for n, found in enumerate(findings, first)]
    alone = [chapter.comparison.recipe_digest not in rungs for chapter in whole]
    compared = alone if any(alone) else [True] * len(whole)  # with the paper, which has one size
    beside = beside_paper(list(compress(whole, compared)), list(compress(titles, compared)))
    rest = _without(brief, titles[len(whole) :])
    n_recipes = len({chapter.recipe_and_data for chapter in every})
    several = f"{n_recipes} recipes of {study}, never pooled"
    return page(
        f"attnres: {titles[0] if n_recipes == 1 else several}",
        answer.question(whole),
        [*sizes, *told, *searches, beside, rest],
        study,
    )


def _title(chapter: Chapter, name: str) -> str:
    """The terms, with what tells the recipe from others on the page."""
    held = chapter.comparison
    title, recipe = labels.title(held), f"recipe {held.recipe}"
    if not name:
        return capital(title)
    return capital(title.replace(recipe, f"{recipe} ({held.recipe_digest}), {name}", 1))


def _chapter(
    chapter: Chapter,
    title: str,
    name: str,
    shown: Sequence[Comparison],
    rungs: Collection[str],
) -> Section:
    held = chapter.comparison
    is_rung = held.recipe_digest in rungs
    told = qualifiers(held, n_read(held, shown))
    failures = Table(
        "Runs that failed; `attnres runs show` has the whole traceback.",
        [Column("variant", "code"), Column("seed"), Column("error", "text")],
        [[run.variant, str(run.seed), last_line(run.error)] for run in held.runs(Status.FAILED)],
    )
    parts = [
        Part(tables=[comparison.table_of(held)]),
        Part("Failed runs", tables=[failures]),
        Part("Figures", figures=drawings(chapter)),
        _gates(held),
        _provenance(chapter),
        Part("Reproduce a row", tables=[_commands(chapter)]),
    ]
    return Section(title, name, parts, answer.answer(held), len(shown) > 1, told, is_rung)


def _without(chapters: Sequence[Chapter], titles: Sequence[str]) -> Section:
    """Recipes in which nothing can be said, each in a row."""
    answers = [answer.answer(chapter.comparison) for chapter in chapters]
    table = Table(
        "What else the study holds; `attnres report --recipe DIGEST` shows one of them.",
        [Column("recipe", "text"), Column("answer", "text")],
        list(zip(titles, answers, strict=True)),
    )
    return Section("Recipes without a verdict", "without", [Part(tables=[table])])


def _gates(held: Comparison) -> Part:
    """Every gate of every run, open where one was not passed."""
    rows, passed = [], 0
    for arm in held.arms:
        for seed, met in sorted(arm.gates.items()):
            for gate in met:
                ends = (gate.low, gate.high)
                bounds = "" if ends == (None, None) else " to ".join(map(number, ends))
                word = "passed" if gate.passed else Cell("not passed", "strong")
                loss = number(gate.value)
                rows.append([arm.variant, str(seed), gates.MEANING[gate.name], loss, bounds, word])
                passed += gate.passed
    columns = [Column("variant", "code"), Column("seed"), Column("condition", "text")]
    columns += [Column("loss"), Column("allowed"), Column("outcome", "word")]
    summary = f"{passed} of {len(rows)} passed"
    title = f"What every run had to meet before it may be judged: {summary}."
    table = Table(title, columns, rows)
    return Part("Gates", tables=[table], summary=summary, is_open=passed < len(rows))


def _provenance(chapter: Chapter) -> Part:
    lines, recipe = facts_of(chapter.comparison), chapter.recipe
    ended = [run for run in chapter.comparison.records if run.result is not None]
    for key in ("git_revision", "git_dirty", "platform", "cuda"):
        found = {run.versions[key] for run in ended if run.versions.get(key)}
        lines += [f"{key.replace('_', ' ')}: {', '.join(sorted(found))}"] if found else []
    if recipe is None:
        return Part("Provenance", notes=lines)
    rows = [
        [name, ", ".join(f"{key} {value}" for key, value in held.items())]
        for name, held in recipe.model_dump(mode="json", exclude_none=True).items()
        if isinstance(held, dict)
    ]
    has_own = any(arm.own is not None for arm in chapter.comparison.arms)
    own = "; what an arm has of its own stands beside its name" if has_own else ""
    columns = [Column("section", "word"), Column("settings", "text")]
    table = Table(f"The recipe that all arms share{own}.", columns, rows)
    return Part("Provenance", tables=[table], notes=lines)


def _commands(chapter: Chapter) -> Table:
    rows = []
    for arm in chapter.comparison.arms:
        where = address.typed(chapter.study) + plugins_typed([arm.variant])
        checks = [
            shlex.join(["attnres", "verify", str(run.id), *where])
            for run in chapter.runs_of(arm.variant)
        ]
        again = chapter.command(arm) or "none: no command gives its recipe"
        rows.append([arm.variant, again, "\n".join(checks)])
    title = (
        "What trains the runs of a row again in a study of their own, equal to rounding (another "
        "number of threads adds in another order); and what trains a single run again as this "
        "study has it and compares every bit."
    )
    if any(f"--plugin {PLUGIN}" in again for _, again, _ in rows):
        title += f" {PLUGIN} stands for the plugin that has the design."
    columns = [Column(name, "code") for name in ("variant", "again", "bit for bit")]
    return Table(title, columns, rows)


def _sizes(found: Ladder, name: str) -> Section:
    """A ladder: its figures, the differences and what each arm is worth, the sizes, notes."""
    report = scaling.report_of([found])
    sizes, differences, *worth = report.shown
    document = report.document
    parts = [
        Part("Figures", figures=of_sizes(found)),
        Part("Over the sizes", tables=[differences, *worth], notes=report.notes),
        Part("The sizes", tables=[sizes]),
    ]
    told = document["answer"], True, document["qualified"]
    return Section(capital(report.title), name, parts, *told)


def scaling_page(ladders: Sequence[Ladder], study_name: str) -> str:
    """A page about the ladders of one recipe alone."""
    baseline = ladders[0].rungs[0].comparison.baseline
    heading = f"What is a residual connection worth in the compute of {baseline}?"
    sections = [_sizes(found, f"s{n}") for n, found in enumerate(ladders, 1)]
    return page(f"attnres: {scaling.title(ladders[0])}", heading, sections, study_name)


def beside_paper(chapters: Sequence[Chapter], titles: Sequence[str]) -> Section:
    """Comparisons beside the paper; empty where it has none of their arms but the baseline."""
    parts, notes = [], dict[str, None]()
    for chapter, title in zip(chapters, titles, strict=True):
        if is_known(chapter.comparison):
            report = against.one_report(chapter.comparison)
            parts.append(Part(title if len(chapters) > 1 else "", tables=report.tables))
            notes |= dict.fromkeys(report.notes)
    return Section("Beside the paper", "paper", [*parts, Part(notes=[*notes])])


def paper_page(chapters: Sequence[Chapter]) -> str:
    """A page of one recipe's comparisons beside the paper alone. Raises UsageError where the paper
    lacks the baseline.
    """
    comparisons = [chapter.comparison for chapter in chapters]
    against.report_of(comparisons)
    section = beside_paper(chapters, [capital(labels.title(held)) for held in comparisons])
    baseline, why = comparisons[0].baseline, answer.unanswerable(comparisons[0])
    if not section.shown and not why:
        why = (
            f"The paper has none of these arms besides `{baseline}`: `attnres ablate --suite "
            "table4` trains those that it has."
        )
    heading = f"Do these differences from {baseline} agree with the paper's?"
    title = f"attnres: {labels.title(comparisons[0])}, beside the paper"
    told = [line for held in comparisons for line in qualifiers(held, n_read(held, comparisons))]
    section = replace(section, answer=why, qualified=list(dict.fromkeys(told)))
    return page(title, heading, [section], chapters[0].study_name)
