"""The page of a study: answers, then every comparison with its tables, figures and provenance."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress

from attnres_cli.config import address
from attnres_cli.config.as_typed import PLUGIN, plugins_typed
from attnres_cli.errors import last_line
from attnres_cli.records import gates
from attnres_cli.records.run import Gate, Status
from attnres_cli.report import against, answer, scaling
from attnres_cli.report.comparison import facts_of, table_of
from attnres_cli.report.figures.drawing import drawings, of_effects, of_sizes
from attnres_cli.report.figures.style import arrow, gaps
from attnres_cli.report.html import RESTS_ON, Part, Section, page, section_of
from attnres_cli.report.search import RecipeOf
from attnres_cli.report.search_page import section as search_section
from attnres_cli.report.table import (
    MOST_CAVEATS,
    Cell,
    Column,
    Report,
    Table,
    capital,
    columns,
    grouped,
)
from attnres_cli.stats.effects import Effect
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import number
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.paper import is_known
from attnres_cli.verdict.report_section import Chapter, names, split
from attnres_cli.verdict.rows import STYLES

_MOST_ANSWERS = 6  # of a page that shows all of each
_CARD_ROWS = 8
_EDGE = 2.0  # percent of the column that stays free at each side
_DRAWN = "Drawn: mean and interval; small dots are seeds, the line is the baseline"
_AGAIN = (
    "What trains the runs of a row again in a study of their own, equal to rounding (another "
    "number of threads adds in another order); and what trains a single run again as this "
    "study has it and compares every bit."
)


@dataclass(frozen=True)
class Bar(Cell):
    """A difference with its interval: places of `mean`, its `ends`, the single `seeds` and the
    baseline's `zero`, in percent of the column's width. Without a mean its text is shown.
    """

    zero: float = 0.0
    mean: float | None = None
    ends: Sequence[float] = ()
    seeds: Sequence[float] = ()


def to_html(
    chapters: Sequence[Chapter],
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
    known: RecipeOf | None = None,
    of_designs: Sequence[tuple[Report, Sequence[Effect]]] = (),
) -> str:
    """The page of a study's comparisons, never pooled, the newest last, then ladders and searches:
    of shapes, and `of_designs` with what each choice changed. `known` gives the study's recipe of a
    digest, by which the shapes of searches are reproduced.
    """
    whole, brief = split(chapters)
    every = [*whole, *brief]
    titles = [_title(*named) for named in zip(every, names(every), strict=True)]
    study, first = every[0].study_name, len(ladders) + 1
    rungs = {rung.recipe.digest for found in ladders for rung in found.rungs}
    comparisons = [chapter.comparison for chapter in whole]
    sizes = [
        section_of(scaling.report_of([found]), f"s{n}", of_sizes(found))
        for n, found in enumerate(ladders, 1)
    ]
    is_long = len(ladders) + len(whole) + len(findings) > _MOST_ANSWERS
    sections = [
        _chapter(chapter, title, f"c{n}", comparisons, rungs, is_long)
        for n, (chapter, title) in enumerate(zip(whole, titles, strict=False), 1)
    ]
    searches = [search_section(found, known, study, n) for n, found in enumerate(findings, first)]
    searches += [
        section_of(report, f"d{n}", of_effects(changed))
        for n, (report, changed) in enumerate(of_designs, 1)
    ]
    alone = [chapter.comparison.recipe_digest not in rungs for chapter in whole]
    compared = alone if any(alone) else [True] * len(whole)  # with the paper, which has one size
    beside = _beside_paper(list(compress(whole, compared)), list(compress(titles, compared)))
    rest = _without(brief, titles[len(whole) :])
    n_recipes = len({chapter.recipe_and_data for chapter in every})
    several = f"{n_recipes} recipes of {study}, never pooled"
    return page(
        f"attnres: {titles[0] if n_recipes == 1 else several}",
        answer.question(whole),
        [*sizes, *sections, *searches, beside, rest],
        study,
    )


def _title(chapter: Chapter, name: str) -> str:
    """The terms, with what tells the recipe from others on the page."""
    held = chapter.comparison
    title, recipe = labels.title(held), f"recipe {held.recipe}"
    if name:
        title = title.replace(recipe, f"{recipe} ({held.recipe_digest}), {name}", 1)
    return capital(title)


def _chapter(
    chapter: Chapter,
    title: str,
    name: str,
    shown: Sequence[Comparison],
    rungs: Collection[str],
    is_long: bool,
) -> Section:
    """A comparison; on a page of many without its figures, and with the command that has them."""
    held, table = chapter.comparison, with_bars(chapter.comparison)
    qualified = qualifiers(held, n_read(held, shown))
    failures = Table(
        "Runs that failed; `attnres runs show` has the whole traceback.",
        columns("variant:code", "seed", "error:text"),
        [[run.variant, str(run.seed), last_line(run.error)] for run in held.runs(Status.FAILED)],
    )
    more = ["attnres", "report", "--recipe", chapter.recipe_and_data, "--format", "html"]
    more += [*address.typed(chapter.study), "--output", "report.html"]
    parts = [
        Part(tables=[table]),
        Part("Failed runs", tables=[failures]),
        Part(text=[f"Its figures: `{shlex.join(more)}`."])
        if is_long
        else Part("Figures", figures=drawings(chapter, without=["forest"])),
        Part("Notes", notes=[*qualified[MOST_CAVEATS:], *facts_of(held)], summary=RESTS_ON),
        _gates(held),
        _provenance(chapter),
        Part("Reproduce a row", tables=[_commands(chapter)], summary="commands"),
    ]
    is_rung = held.recipe_digest in rungs
    return Section(title, name, parts, answer.answer(held), qualified, is_rung, card(table))


def _without(chapters: Sequence[Chapter], titles: Sequence[str]) -> Section:
    """Recipes in which nothing can be said, each in a row."""
    answers = [answer.answer(chapter.comparison) for chapter in chapters]
    table = Table(
        "What else the study holds; `attnres report --recipe DIGEST` shows one of them.",
        columns("recipe:text", "answer:text"),
        list(zip(titles, answers, strict=True)),
    )
    return Section("Recipes without a verdict", "without", [Part(tables=[table])])


def _gates(held: Comparison) -> Part:
    """Every condition with how many runs passed it, open where one did not."""
    found = grouped(
        (gate.name, (f"{arm.variant} seed {seed}", gate))
        for arm in held.arms
        for seed, met in sorted(arm.gates.items())
        for gate in met
    )
    rows: list[list[str | Cell]] = []
    n_passed, n = 0, sum(map(len, found.values()))
    for name, runs in found.items():
        missed = [f"{run}: {_value(gate)}" for run, gate in runs if not gate.passed]
        passed = len(runs) - len(missed)
        n_passed += passed
        why = Cell("; ".join(missed), "strong" if missed else "")
        rows.append([gates.MEANING[name], f"{passed} of {len(runs)}", why])
    heads = columns("condition:text", "passed", "not passed:text")
    table = Table("What every run had to meet before it may be judged.", heads, rows)
    summary = f"{n_passed} of {n} passed"
    return Part("Gates", tables=[table], summary=summary, is_open=n_passed < n)


def _value(gate: Gate) -> str:
    """Of one that was not passed, with what is allowed."""
    ends = (gate.low, gate.high)
    allowed = "" if ends == (None, None) else f" (allowed: {' to '.join(map(number, ends))})"
    return f"{number(gate.value)}{allowed}"


def _provenance(chapter: Chapter) -> Part:
    lines, recipe = list[str](), chapter.recipe
    ended = [run for run in chapter.comparison.records if run.result is not None]
    for key in ("git_revision", "git_dirty", "platform", "cuda"):
        if found := {run.versions[key] for run in ended if run.versions.get(key)}:
            lines.append(f"{key.replace('_', ' ')}: {', '.join(sorted(found))}")
    if recipe is None:
        return Part("Provenance", notes=lines, summary="versions")
    rows = [
        [name, ", ".join(f"{key} {value}" for key, value in held.items())]
        for name, held in recipe.model_dump(mode="json", exclude_none=True).items()
        if isinstance(held, dict)
    ]
    has_own = any(arm.own is not None for arm in chapter.comparison.arms)
    own = "; what an arm has of its own stands beside its name" if has_own else ""
    heads = columns("section:word", "settings:text")
    table = Table(f"The recipe that all arms share{own}.", heads, rows)
    return Part("Provenance", tables=[table], notes=lines, summary="recipe and versions")


def _commands(chapter: Chapter) -> Table:
    rows, title = [], _AGAIN
    for arm in chapter.comparison.arms:
        where = address.typed(chapter.study) + plugins_typed([arm.variant])
        checks = [
            shlex.join(["attnres", "verify", str(run.id), *where])
            for run in chapter.runs_of(arm.variant)
        ]
        again = chapter.command(arm) or "none: no command gives its recipe"
        rows.append([arm.variant, again, "\n".join(checks)])
    if any(f"--plugin {PLUGIN}" in again for _, again, _ in rows):
        title += f" {PLUGIN} stands for the plugin that has the design."
    return Table(title, columns("variant:code", "again:code", "bit for bit:code"), rows)


def _beside_paper(chapters: Sequence[Chapter], titles: Sequence[str]) -> Section:
    """Comparisons beside the paper; empty where it has none of their arms but the baseline."""
    parts, notes = [], dict[str, None]()
    for chapter, title in zip(chapters, titles, strict=True):
        if is_known(chapter.comparison):
            report = against.one_report(chapter.comparison)
            parts.append(Part(title if len(chapters) > 1 else "", tables=report.tables))
            notes |= dict.fromkeys(report.notes)
    return Section("Beside the paper", "paper", [*parts, Part(notes=[*notes])])


def with_bars(held: Comparison) -> Table:
    """The verdict table, with all differences drawn on one scale, but those far off it."""
    table, found = table_of(held), {gap.arm.variant: gap for gap in gaps(held)}
    near = [gap for gap in found.values() if not gap.is_far]
    ends = [end for gap in near for end in (gap.mean, *gap.ends, *gap.seeds)]
    if not ends:
        return table
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = (high - low) or 1.0

    def place(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - low) / room, 1)

    def bar(arm: ArmResult) -> Bar:
        gap, style = found.get(arm.variant), STYLES.get(arm.verdict, "")
        if gap is None:
            return Bar("", zero=place(0.0))
        if gap.is_far:
            return Bar(arrow(gap.mean, 2), style, place(0.0))
        places = [*map(place, gap.ends)], [*map(place, gap.seeds)]
        return Bar("", style, place(0.0), place(gap.mean), *places)

    titles = [column.title for column in table.columns]
    word = titles.index("verdict")
    rest = [word, *(i for i in range(1, len(titles)) if i != word)]
    scale = Column(f"{low:+.2g} to {high:+.2g}", "bar")
    heads = [table.columns[0], scale, *(table.columns[i] for i in rest)]
    pairs = zip(table.rows, held.arms, strict=True)
    rows = [[row[0], bar(arm), *(row[i] for i in rest)] for row, arm in pairs]
    return Table(f"{table.title}. {_DRAWN}", heads, rows)


def card(table: Table) -> Table:
    """The first arms of such a table, with their bars and words alone."""
    kept = 3 if table.columns[1].kind == "bar" else len(table.columns)
    rows = [row[:kept] for row in table.rows[:_CARD_ROWS]]
    more = len(table.rows) > len(rows)
    title = f"The first {len(rows)} of {len(table.rows)} arms" if more else "All arms"
    return Table(title, table.columns[:kept], rows)
