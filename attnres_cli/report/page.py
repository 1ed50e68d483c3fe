"""A report as one HTML file: no script, nothing from elsewhere, figures and styles within it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape

from attnres_cli.config import address
from attnres_cli.config.recipe import paper
from attnres_cli.records import gates
from attnres_cli.report import answer
from attnres_cli.report.export import (
    bits_per_byte,
    difference_text,
    facts_of,
    loss_text,
    own_text,
    verdict_text,
)
from attnres_cli.report.figures import drawings
from attnres_cli.report.markup import Cells, code, document, figures, listed, part, section, table
from attnres_cli.report.page_parts import beside_paper, over_sizes
from attnres_cli.report.search_commands import RecipeOf
from attnres_cli.report.search_page import of_page as search_answer
from attnres_cli.report.search_page import part as search_part
from attnres_cli.verdict import labels, recipe_order
from attnres_cli.verdict.chapter import PLUGIN, Chapter, plugins_typed
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.labels import capital
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.optima import Finding


def to_html(
    chapters: Sequence[Chapter],
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
    known: RecipeOf | None = None,
) -> str:
    """The page of a study's comparisons, one chapter after the other, never pooled.

    Args:
        chapters: of one recipe or of several, the newest last.
        ladders: what recipes of one name that differ in size say together.
        findings: of the searches of the study.
        known: gives the study's recipe of a digest, by which their shapes are reproduced.

    """
    whole, brief = recipe_order.split(chapters)
    every = [*whole, *brief]
    names = dict(zip(map(id, every), recipe_order.names(every), strict=True))
    titles = [_title(chapter, names[id(chapter)]) for chapter in whole]
    numbered = list(enumerate(zip(whole, titles, strict=True), 1))
    body = [
        _answer(chapter, "" if len(whole) == 1 else title, f"c{number}")
        for number, (chapter, title) in numbered
    ]
    body += [_of_sizes(found, f"s{number}") for number, found in enumerate(ladders, 1)]
    first = len(ladders) + 1
    body += [search_answer(found, f"s{number}") for number, found in enumerate(findings, first)]
    body += [over_sizes(found, f"s{number}") for number, found in enumerate(ladders, 1)]
    body += [_chapter(chapter, title, f"c{number}") for number, (chapter, title) in numbered]
    study = every[0].study_name
    body += [search_part(found, known, study, n) for n, found in enumerate(findings, first)]
    body.append(beside_paper(whole, titles, paper(), "paper"))
    body += [_without(brief, [_title(each, names[id(each)]) for each in brief])] if brief else []
    n_recipes = len({recipe_order.of(chapter) for chapter in every})
    several = f"{n_recipes} recipes of {study}, never pooled"
    title = f"attnres: {titles[0] if n_recipes == 1 else several}"
    return document(title, answer.question(whole), "".join(body), study)


def _without(chapters: Sequence[Chapter], titles: Sequence[str]) -> str:
    """Recipes in which nothing can be said, each in a row."""
    rows = [
        (escape(capital(title)), code(answer.answer(chapter.comparison)))
        for chapter, title in zip(chapters, titles, strict=True)
    ]
    caption = "What else the study holds; `attnres report --recipe DIGEST` shows one of them."
    html = table(caption, ("recipe", "answer"), rows, prose=True)
    return part("recipes without a verdict", html, "without")


def _title(chapter: Chapter, name: str) -> str:
    """The terms, with what tells the recipe from others on the page."""
    comparison = chapter.comparison
    title, recipe = labels.title(comparison), f"recipe {comparison.recipe}"
    if not name:
        return title
    return title.replace(recipe, f"{recipe} ({comparison.recipe_digest}), {name}", 1)


def _answer(chapter: Chapter, title: str, name: str) -> str:
    """The answer of a chapter, below its title where there are several."""
    lead = f"<strong><a href='#{name}'>{escape(capital(title))}</a>.</strong> " if title else ""
    return f"<p class='answer'>{lead}{code(answer.answer(chapter.comparison))}</p>\n"


def _of_sizes(found: Ladder, name: str) -> str:
    lead = f"<strong><a href='#{name}'>Over {len(found.rungs)} sizes</a>.</strong> "
    return f"<p class='answer'>{lead}{code(answer.over_sizes(found))}</p>\n"


def _chapter(chapter: Chapter, title: str, name: str) -> str:
    comparison = chapter.comparison
    drawn = figures(drawings(chapter), f"{name}-")
    parts = [
        _verdicts(comparison) if comparison.arms else "",
        _failures(comparison),
        section("Figures", drawn) if drawn else "",
        section("Gates", _gates(comparison)) if comparison.arms else "",
        section("Provenance", _provenance(chapter)),
        section("Reproduce a row", _commands(chapter)) if comparison.arms else "",
    ]
    return part(title, "".join(parts), name)


def _verdicts(comparison: Comparison) -> str:
    of_bytes = comparison.data.is_bytes
    head = ["variant", "validation loss", "difference [95 %]", "verdict", "seeds"]
    head += ["parameters", "FLOPs/token", "ms/step", *(["bits/byte"] if of_bytes else [])]
    rows = [_verdict(arm, of_bytes=of_bytes) for arm in comparison.arms]
    caption = (
        "Validation loss in nats per token, mean ± standard deviation over seeds; difference from "
        f"{comparison.baseline}, paired by seed: less is better."
    )
    return table(caption, head, rows, left=("verdict",))


def _verdict(arm: ArmResult, *, of_bytes: bool) -> Cells:
    kind = arm.verdict.replace(" ", "-")
    verdict = escape(verdict_text(arm)).replace(" (~", "<br>(~")  # the table fits a desktop so
    delta = f" ({arm.params_delta:+,})" if arm.params_delta else ""
    cells = [
        f"<code>{escape(arm.variant)}</code>{escape(own_text(arm))}",
        loss_text(arm),
        difference_text(arm),
        f"<span class='{kind}'>{verdict}</span>",
        str(len(arm.losses)),
        f"{arm.n_params:,}{delta}",
        f"{arm.flops_per_token:.3g}",
        f"{1000 * arm.step_s:.1f}",
    ]
    if of_bytes:
        cells.append(f"{bits_per_byte(arm.mean):.4f}" if arm.mean == arm.mean else "-")
    return cells


def _failures(comparison: Comparison) -> str:
    if not comparison.failed:
        return ""
    rows = [
        (f"<code>{escape(f.variant)}</code>", str(f.seed), escape(f.error))
        for f in comparison.failed
    ]
    caption = "Runs that failed; `attnres runs show` has the whole traceback."
    return section(
        "Failed runs", table(caption, ("variant", "seed", "error"), rows, left=("error",))
    )


def _gates(comparison: Comparison) -> str:
    rows = []
    for arm in comparison.arms:
        for seed, met in sorted(arm.gates.items()):
            for gate in met:
                bounds = f"{_number(gate.low)} to {_number(gate.high)}"
                word = "passed" if gate.passed else "<strong>not passed</strong>"
                rows.append(
                    (
                        f"<code>{escape(arm.variant)}</code>",
                        str(seed),
                        escape(gates.MEANING[gate.name]),
                        _number(gate.value),
                        bounds if (gate.low, gate.high) != (None, None) else "",
                        word,
                    )
                )
    passed, n = sum(row[-1] == "passed" for row in rows), len(rows)
    caption = f"What every run had to meet before it may be judged: {passed} of {n} passed."
    head = ("variant", "seed", "condition", "loss", "allowed", "outcome")
    summary = f"<summary>{passed} of {n} passed</summary>"
    is_open = "" if passed == n else " open"
    found = table(caption, head, rows, left=("condition", "outcome"))
    return f"<details{is_open}>{summary}{found}</details>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _provenance(chapter: Chapter) -> str:
    lines = facts_of(chapter.comparison)
    made = {key: set[str]() for key in ("git_revision", "git_dirty", "platform", "cuda")}
    for run in chapter.runs:
        for key, found in made.items():
            if run.versions.get(key):
                found.add(run.versions[key])
    lines += [
        f"{key.replace('_', ' ')}: {', '.join(sorted(found))}"
        for key, found in made.items()
        if found
    ]
    recipe = chapter.recipe
    if recipe is None:
        return listed(lines)
    values = recipe.model_dump(mode="json", exclude_none=True)
    rows = [
        (name, escape(", ".join(f"{key} {value}" for key, value in held.items())))
        for name, held in values.items()
        if isinstance(held, dict)
    ]
    has_own = any(arm.own is not None for arm in chapter.comparison.arms)
    own = "; what an arm has of its own stands beside its name" if has_own else ""
    caption = f"The recipe that all arms share{own}."
    return listed(lines) + table(caption, ("section", "settings"), rows, prose=True)


def _commands(chapter: Chapter) -> str:
    rows = []
    for arm in chapter.comparison.arms:
        runs = chapter.runs_of(arm.variant)
        where = address.typed(chapter.study) + plugins_typed([arm.variant])
        typed = [shlex.join(["attnres", "verify", str(run.id), *where]) for run in runs]
        checks = "<br>".join(f"<code>{escape(command)}</code>" for command in typed)
        name = f"<code>{escape(arm.variant)}</code>"
        rows.append((name, f"<code>{escape(chapter.command(arm))}</code>", checks))
    caption = (
        "What trains the runs of a row again in a study of their own, equal to rounding (another "
        "number of threads adds in another order); and what trains a single run again as this "
        "study has it and compares every bit."
    )
    if any(f"--plugin {PLUGIN}" in again for _, again, _ in rows):
        caption += f" {PLUGIN} stands for the plugin that has the design."
    return table(caption, ("variant", "again", "bit for bit"), rows, prose=True)
