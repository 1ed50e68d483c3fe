"""The figures of a search, in the order of a page."""

from __future__ import annotations

from attnres_cli.report.figures import aspect, heatmap, importance, pareto
from attnres_cli.report.figures.style import Drawing, house_style
from attnres_cli.report.search_words import trials_text
from attnres_cli.verdict.optima import Finding


def drawings(finding: Finding) -> list[Drawing]:
    """The figures that this search has something for; none before a trial is complete."""
    of = _of(finding)
    kinds = (
        ("shapes", "Loss by shape", heatmap.draw, heatmap.CAPTION, of),
        ("shapes-paper", "The paper's own shapes", heatmap.draw_paper, heatmap.PAPER_CAPTION, ""),
        ("aspect", "Loss over width per layer", aspect.draw, aspect.CAPTION, of),
        ("pareto", "What is given up for what", pareto.draw, pareto.CAPTION, of),
        ("importance", "What the loss depends on", importance.draw, importance.CAPTION, of),
    )
    with house_style():
        drawn = [
            (name, title, draw(finding), caption, of) for name, title, draw, caption, of in kinds
        ]
    return [
        Drawing(name, title, f"{caption} {of}".strip(), figure)
        for name, title, figure, caption, of in drawn
        if figure is not None
    ]


def _of(finding: Finding) -> str:
    """What the numbers are of: recipe, budget, seeds, tokens, trials, rule of the learning rate."""
    search = finding.search
    fresh = ", ".join(map(str, search.confirm_seeds))
    seeds = f"first look on seed {search.first_seed}" + (f", fresh seeds {fresh}" if fresh else "")
    trials = [t for one in finding.optima for t in one.family.trials]
    tokens = sorted({int(t.dimensions["tokens"]) for t in trials}) or [0]
    seen = f"{tokens[0]:,}" + (f" to {tokens[-1]:,}" if tokens[-1] != tokens[0] else "")
    complete = "; ".join(
        f"{one.family.variant} {trials_text(one, search)}" for one in finding.optima
    )
    return (
        f"Recipe {search.recipe} ({search.recipe_digest}); {search.budget} within "
        f"{100 * search.tolerance:.3g} %; {seeds}; {seen} tokens per run; {complete}; learning "
        f"rate: {search.learning_rate}."
    )
