"""`show`: what a search has found, as a table, Markdown, CSV, JSON, LaTeX or a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Search
from attnres_cli.report import second_objective
from attnres_cli.report.formats import escaped
from attnres_cli.report.search_commands import RecipeOf, commands
from attnres_cli.report.search_export import to_csv, to_json
from attnres_cli.report.search_words import (
    answer,
    best_text,
    failures,
    fresh_text,
    notes,
    options_text,
    surprise_text,
    title,
)
from attnres_cli.report.terminal import console
from attnres_cli.verdict.optima import Finding, find
from attnres_cli.verdict.shape_results import Optimum, Shape, layers_by_width

_WIDE = 150
_WORDS = ("best", "front", "options")
SHAPE = ("shape", "heads")
LOSSES = ("aspect", "first look", "fresh seeds [95 %]", "change", "best")
COSTS = ("d_ff", "h/layer", "params", "tokens", "FLOPs", "ms/step")
MORE = ("options",)


def show(
    search: Search,
    runs: Sequence[RunRecord],
    form: str,
    out: TextIO,
    recipe_of: RecipeOf | None = None,
    study: str = "",
) -> None:
    """Print a search into a stream, as table, markdown, csv, json, latex or html.

    Args:
        search: with its trials.
        runs: of the study; those of the search are taken.
        form: a format's name.
        out: where to.
        recipe_of: gives the study's recipe of a digest (`Store.recipe`), by which shapes are
            reproduced; without it only those that are a shipped recipe with other sizes.
        study: the file or URL, as it was typed.

    """
    found, known = find(search, runs), recipe_of
    if form == "table":
        _print(found, known, study, out)
    elif form == "json":
        out.write(to_json(found, known) + "\n")
    elif form == "csv":
        out.write(to_csv(found))
    elif form == "markdown":
        out.write(_to_markdown(found, known, study))
    elif form == "latex":
        out.write(_to_latex(found))
    else:
        from attnres_cli.report.search_page import to_html

        out.write(to_html([found], known, study))


def cells(shape: Shape, goal: tuple[str, ...] = ()) -> list[str]:
    """The cells of SHAPE, LOSSES, those of a second objective, COSTS and MORE."""
    trial, held = shape.trial, shape.trial.dimensions
    return [
        layers_by_width(trial),
        str(held["n_heads"]),
        f"{float(held['aspect']):.3g}",
        f"{shape.promised:.4f}",
        fresh_text(shape),
        surprise_text(shape),
        best_text(shape),
        *goal,
        str(held["d_ff"]),
        f"{float(held['heads_per_layer']):.3g}",
        f"{trial.n_params:,}",
        f"{int(held['tokens']):,}",
        f"{trial.flops:.2e}".replace("e+0", "e").replace("e+", "e"),
        "-" if shape.step_s is None else f"{1000 * shape.step_s:.1f}",
        options_text(trial),
    ]


def table_of(one: Optimum, search: Search) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of a variant's listed shapes, without the columns that nothing is in."""
    head = (*SHAPE, *LOSSES, *second_objective.columns(search), *COSTS, *MORE)
    rows = [
        cells(*each) for each in zip(one.listed, second_objective.cells(one, search), strict=True)
    ]
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def heading(one: Optimum, search: Search) -> str:
    """What a table of one variant shows."""
    both = second_objective.both(search) if second_objective.second(search) else ""
    front = f", or on the front of {both}" if both else ""
    which = "trained with fresh seeds" if one.confirmed else "of the lowest first look, one seed"
    return f"Shapes of {one.family.variant} {which}{front}; validation loss, nats per token"


def _print(finding: Finding, known: RecipeOf | None, study: str, stream: TextIO) -> None:
    out, search = console(stream), finding.search
    second = second_objective.columns(search)
    wide = _WIDE + len(" ".join(second))
    out.print(Text(title(search), style="bold"))
    out.print(Text(answer(finding)))
    out.print()
    for one in finding.optima:
        head, rows = table_of(one, search)
        parts = [list(range(len(head)))] if out.width >= wide else _narrow(head, second)
        for number, part in enumerate(parts if rows else []):
            out.print(_rich("" if number else heading(one, search), head, rows, part))
    for variant, shape, error in failures(finding):
        out.print(Text(f"failed: {variant} at {shape}: {error}"))
    for line in notes(finding):
        out.print(Text(line, style="dim"))
    for name, typed in commands(finding, known, study):
        out.print(Text(f"{name}: {typed}"))


def _narrow(head: Sequence[str], second: Sequence[str]) -> list[list[int]]:
    """The columns of the tables that a wide one becomes, each with those that name a shape."""
    found = []
    for names in (LOSSES, ("first look", *second) if second else (), COSTS, MORE):
        places = [i for i, name in enumerate(head) if name in names]
        found += [[0, 1, *places]] if places else []
    return found


def _rich(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]
) -> Table:
    table = Table(
        title=name or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for title_ in (head[i] for i in columns):
        folds, is_text = title_ in ("fresh seeds [95 %]", "options"), title_ in _WORDS
        table.add_column(
            title_, justify="left" if is_text else "right", no_wrap=not folds, overflow="fold"
        )
    for row in rows:
        table.add_row(*(row[i] for i in columns))
    return table


def _to_markdown(finding: Finding, known: RecipeOf | None, study: str) -> str:
    search = finding.search
    lines = [f"### {title(search)}", "", answer(finding), ""]
    for one in (each for each in finding.optima if each.shapes):
        head, rows = table_of(one, search)
        lines += [f"**{heading(one, search)}**", "", f"| {' | '.join(head)} |"]
        lines += ["|" + "---|" * len(head)]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    lines += [f"- failed: `{v}` at {shape}: {error}" for v, shape, error in failures(finding)]
    lines += [f"- {line}" for line in notes(finding)]
    lines += [f"- {name}: `{typed}`" for name, typed in commands(finding, known, study)]
    return "\n".join(lines) + "\n"


def _to_latex(finding: Finding) -> str:
    parts, search = ["% needs \\usepackage{booktabs}"], finding.search
    more = [
        f"{note[0].upper()}{note[1:]}." for note in second_objective.notes(search, finding.optima)
    ]
    told = " ".join([answer(finding), *more])
    for one in (each for each in finding.optima if each.shapes):
        head, rows = table_of(one, search)
        body = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in (head, *rows)]
        caption = escaped(f"{title(search)}. {heading(one, search)}. {told}")
        parts += [r"\begin{table}", r"  \centering", rf"  \caption{{{caption}}}"]
        parts += [rf"  \begin{{tabular}}{{@{{}}{'r' * len(head)}@{{}}}}", r"    \toprule"]
        parts += [f"    {body[0]}", r"    \midrule", *(f"    {row}" for row in body[1:])]
        parts += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join(parts)
