"""A report as one HTML file: no script, nothing from elsewhere, figures and styles within it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from attnres_cli import __version__, gates
from attnres_cli.report import answer, terms
from attnres_cli.report.chapter import Chapter
from attnres_cli.report.comparison import ArmResult, Comparison
from attnres_cli.report.export import (
    bits_per_byte,
    difference_text,
    facts_of,
    loss_text,
    own_text,
    verdict_text,
)
from attnres_cli.report.figures import Drawing, drawings, picture

Cells = Sequence[str]
"""Of a table's row, already HTML."""


def to_html(chapters: Sequence[Chapter]) -> str:
    """The page of one recipe's comparisons, one chapter after the other."""
    first = chapters[0]
    style = (files("attnres_cli.report") / "page.css").read_text(encoding="utf-8")
    title = f"attnres: {terms.title(first.comparison)}"
    answers = [
        f"<p class='answer'>{_lead(chapter, alone=len(chapters) == 1)}"
        f"{_code(answer.answer(chapter.comparison))}</p>"
        for chapter in chapters
    ]
    body = "".join(_chapter(chapter, number) for number, chapter in enumerate(chapters, 1))
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(answer.question(first))}</h1>\n{''.join(answers)}\n{body}"
        f"</main>\n<footer><p>Made by attnres {__version__} from the study "
        f"{escape(first.study_name)}.</p></footer>\n</body>\n</html>\n"
    )


def _lead(chapter: Chapter, *, alone: bool) -> str:
    title = terms.title(chapter.comparison)
    return "" if alone else f"<strong>{escape(title[0].upper() + title[1:])}.</strong> "


def _chapter(chapter: Chapter, number: int) -> str:
    comparison = chapter.comparison
    title = terms.title(comparison)
    drawn = "".join(_figure(drawing, f"c{number}-") for drawing in drawings(chapter))
    parts = [
        f"<section>\n<h2>{escape(title[0].upper() + title[1:])}</h2>\n",
        _verdicts(comparison) if comparison.arms else "",
        _failures(comparison),
        _section("Figures", f"<div class='figures'>{drawn}</div>") if drawn else "",
        _section("Gates", _gates(comparison)) if comparison.arms else "",
        _section("Provenance", _provenance(chapter)),
        _section("Reproduce a row", _commands(chapter)) if comparison.arms else "",
        "</section>\n",
    ]
    return "".join(parts)


def _section(title: str, html: str) -> str:
    return f"<h3>{title}</h3>\n{html}\n"


def _verdicts(comparison: Comparison) -> str:
    of_bytes = comparison.data.is_bytes
    head = ["variant", "validation loss", "difference [95 %]", "verdict", "seeds"]
    head += ["parameters", "FLOPs/token", "ms/step", *(["bits/byte"] if of_bytes else [])]
    rows = [_verdict(arm, of_bytes=of_bytes) for arm in comparison.arms]
    caption = (
        "Validation loss in nats per token, mean ± standard deviation over seeds; difference from "
        f"{comparison.baseline}, paired by seed: less is better."
    )
    return _table(caption, head, rows)


def _verdict(arm: ArmResult, *, of_bytes: bool) -> Cells:
    kind = arm.verdict.replace(" ", "-")
    delta = f" ({arm.params_delta:+,})" if arm.params_delta else ""
    cells = [
        f"<code>{escape(arm.variant)}</code>{escape(own_text(arm))}",
        loss_text(arm),
        difference_text(arm),
        f"<span class='{kind}'>{escape(verdict_text(arm))}</span>",
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
    return _section("Failed runs", _table(caption, ("variant", "seed", "error"), rows))


def _figure(drawing: Drawing, prefix: str) -> str:
    """A figure in its page: its title and caption are also read aloud in its place."""
    svg = picture(drawing, ".svg").decode()
    name = prefix + drawing.name
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    # Every file numbers its parts from 1 on; in one page names must differ, and few are needed.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r'\bid="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    open_tag = (
        f"<svg role='img' aria-labelledby='{name}-title {name}-told' "
        f"style='max-width:{drawing.figure.get_figwidth() * 96:.0f}px' "
    )
    told = (
        f"<title id='{name}-title'>{escape(drawing.title)}</title>"
        f"<desc id='{name}-told'>{escape(drawing.caption)}</desc>"
    )
    svg = svg.replace("<svg ", open_tag, 1)
    end = svg.index(">") + 1
    return (
        f"<figure id='{name}'><h4>{escape(drawing.title)}</h4>\n{svg[:end]}{told}{svg[end:]}"
        f"<figcaption>{_code(drawing.caption)}</figcaption></figure>\n"
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
    return f"<details{is_open}>{summary}{_table(caption, head, rows)}</details>"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _provenance(chapter: Chapter) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in facts_of(chapter.comparison))
    made = {key: set[str]() for key in ("git_revision", "git_dirty", "platform", "cuda")}
    for run in chapter.runs:
        for key, found in made.items():
            if run.versions.get(key):
                found.add(run.versions[key])
    for key, found in made.items():
        if found:
            items += f"<li>{key.replace('_', ' ')}: {escape(', '.join(sorted(found)))}</li>"
    recipe = chapter.recipe
    if recipe is None:
        return f"<ul>{items}</ul>"
    values = recipe.model_dump(mode="json", exclude_none=True)
    rows = [
        (section, escape(", ".join(f"{key} {value}" for key, value in held.items())))
        for section, held in values.items()
        if isinstance(held, dict)
    ]
    has_own = any(arm.own is not None for arm in chapter.comparison.arms)
    own = "; what an arm has of its own stands beside its name" if has_own else ""
    table = _table(
        f"The recipe that all arms share{own}.", ("section", "settings"), rows, prose=True
    )
    return f"<ul>{items}</ul>\n{table}"


def _commands(chapter: Chapter) -> str:
    rows = []
    for arm in chapter.comparison.arms:
        runs = chapter.runs_of(arm.variant)
        where = [] if chapter.study == "attnres.db" else ["--study", chapter.study_name]
        typed = [shlex.join(["attnres", "verify", str(run.id), *where]) for run in runs]
        checks = "<br>".join(f"<code>{escape(command)}</code>" for command in typed)
        name = f"<code>{escape(arm.variant)}</code>"
        rows.append((name, f"<code>{escape(chapter.command(arm))}</code>", checks))
    caption = (
        "What trains the runs of a row again in a study of their own, equal to rounding (another "
        "number of threads adds in another order); and what trains a single run again as this "
        "study has it and compares every bit."
    )
    return _table(caption, ("variant", "again", "bit for bit"), rows, prose=True)


def _table(caption: str, head: Cells, rows: Iterable[Cells], *, prose: bool = False) -> str:
    """A table whose first column names its rows; it scrolls by itself where it is too wide."""
    columns = "".join(f"<th scope='col'>{name}</th>" for name in head)
    body = "".join(
        f"<tr><th scope='row'>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>\n"
        for first, *rest in rows
    )
    kind = " class='prose'" if prose else ""
    return (
        f"<div class='wide' role='region' aria-label='{escape(caption, quote=True)}' tabindex='0'>"
        f"<table{kind}><caption><span>{_code(caption)}</span></caption>\n<thead><tr>{columns}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def _code(text: str) -> str:
    """Text as HTML, with what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
