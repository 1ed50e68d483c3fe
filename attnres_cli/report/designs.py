"""Residual designs and recipes for reading: the lists, a design's page, proofs, one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.config import recipe as recipes
from attnres_cli.config import shipped
from attnres_cli.nn import design_page
from attnres_cli.nn.design_page import Description, Finding
from attnres_cli.report.plans import params
from attnres_cli.report.table import Cell, Column, Report, Table
from attnres_cli.verdict.numbers import plural

_SHADES = " ·░▒▓█"
_MOST_SITES = 65
_OUTCOMES = {
    "passed": Cell("ok", "good"), "failed": Cell("FAILED", "bad"), "not applicable": Cell("-"),
    "not run": Cell("not run"),
}  # fmt: skip


def variants_of(
    streams: Mapping[str, Any],
    addons: Mapping[str, Any],
    presets: Mapping[str, str],
    paper: Mapping[str, float],
) -> Report:
    """One line per design: its name, its equation, and what the paper measured of it. Add-ons have
    a table of their own.
    """
    columns = [Column("name", "word"), Column("equation", "text"), Column("paper")]
    rows, on = (
        [
            [name, design_page.page_of(cls).equation, f"{paper[name]:.3f}" if name in paper else ""]
            for name, cls in known.items()
        ]
        for known in (streams, addons)
    )
    rows += [[name, f"a preset: {spec}", ""] for name, spec in presets.items()]
    note = (
        "paper: validation loss of Table 4 (arXiv 2603.15031; 436M, 87.9B tokens, one run each) "
        "with default options"
    )
    title = "variants (attnres variants NAME tells all about one)"
    heading = "add-ons, alone or on a stream, as attnres+vres"
    with_addons = Table(heading, columns[:2], [row[:2] for row in on])
    return Report(title, [Table("", columns, rows), with_addons], notes=[note])


def tree_of(contains: Mapping[str, Mapping[str, str]]) -> Report:
    """What each design can be: below a design are those that are it somewhere. `contains` has, by
    name, the names that a design contains, and where it is them.
    """
    columns = [Column("design", "word"), Column("is the one it hangs from", "text")]
    tops = [name for name in contains if not contains[name]]
    grown = [name for name in tops if any(name in each for each in contains.values())]
    rows = [row for name in grown for row in _branches(name, contains)]
    alone = Table("contains none of these", columns[:1], [[n] for n in tops if n not in grown])
    return Report("what each design contains", [Table("", columns, rows), alone])


def _branches(
    name: str, contains: Mapping[str, Mapping[str, str]], before: str = "", where: str = ""
) -> list[list[str | Cell]]:
    """A design's row, and those of what contains it, drawn as a tree."""
    rows: list[list[str | Cell]] = [[before + name, where]]
    stem = before.replace("├─ ", "│  ").replace("└─ ", "   ")
    below = [other for other, each in contains.items() if name in each]
    for other in below:
        branch = "└─ " if other == below[-1] else "├─ "
        rows += _branches(other, contains, stem + branch, f"where {contains[other][name]}")
    return rows


def composition_of(
    spec: str,
    classes: Sequence[Any],
    paper: Sequence[tuple[str, float]],
    described: Description,
) -> Report:
    """A stream with add-ons: the equation of each, costs at a size, a drawing, proofs."""
    lines = [design_page.page_of(cls).text.partition("\n")[0] for cls in classes]
    text = ["\n".join(lines), "\n" + "\n".join([*_costs(described, paper), ""])]
    text.append("\n".join(_drawing(described)))
    return Report(spec, [_proofs(described.spec, described.findings)], text=text)


def variant_of(
    spec: str,
    cls: Any,
    options: Mapping[str, Any],
    paper: Sequence[tuple[str, float]],
    described: Description,
) -> Report:
    """A design's own page: equation, options, start, source; costs at a size; proofs; a drawing."""
    page, tables = design_page.page_of(cls), []
    text = [
        f"\n{heading}: {body}" if heading else f"\n{body}"
        for heading, body in page.parts.items()
        if heading != "Options" or not options
    ]
    if options:
        texts = [Column(name, "text") for name in ("takes", "default", "meaning")]
        rows = [
            [each.name, each.allowed(), each.default_text(), page.options.get(each.name, "")]
            for each in options.values()
        ]
        title = f"options, as in attnres ablate {spec.partition(':')[0]}:option=value"
        tables.append(Table(title, [Column("option", "word"), *texts], rows))
    text += ["\n" + "\n".join([*_costs(described, paper), "", *_drawing(described)])]
    tables.append(_proofs(described.spec, described.findings))
    return Report(page.text.partition("\n")[0], tables, text=text)


def findings_of(spec: str, findings: Sequence[Finding]) -> Report:
    """What was proven, what failed with the first wrong number, what does not apply and why."""
    return Report("", [_proofs(spec, findings)])


def _proofs(spec: str, findings: Sequence[Finding]) -> Table:
    rows: list[list[str | Cell]] = [
        [_OUTCOMES[each.outcome], each.name, _told(each)] for each in findings
    ]
    columns = [Column("outcome", "word"), Column("name", "word"), Column("proof", "text")]
    return Table(f"{spec}: the contract, checked now", columns, rows)


def _told(finding: Finding) -> str:
    """What a proof proves, and below it what it found."""
    if finding.outcome == "not run":
        return finding.detail
    return finding.proof + (f"\n{finding.detail}" if finding.detail else "")


def _drawing(described: Description) -> list[str]:
    """M at step 0 by shades: a row per site, a column per source."""
    if described.mixing is None:
        return [f"depth mixing: no table, {described.not_linear}"]
    if len(described.mixing) > _MOST_SITES:
        n = len(described.mixing)
        return [f"{n} sites are too many to draw; try --shape n_layers=8"]
    assert described.joined is not None
    lines = [
        f"who reads what at step 0, {plural(described.n_layers, 'layer')}: a row per site (the "
        "last is the output's), a column per output (the first is the embedding); the darker, the "
        "larger its weight in the row; ─ goes with the output to its left: they are read as a sum, "
        "with one weight"
    ]
    for l, (row, joined) in enumerate(zip(described.mixing, described.joined, strict=True), 1):
        largest = max(map(abs, row)) or 1.0
        shades = zip((_shade(abs(weight) / largest) for weight in row), joined, strict=True)
        lines.append(f"{l:4d} {''.join('─' if goes else s for s, goes in shades).rstrip()}")
    return lines


def _shade(share: float) -> str:
    """The darker, the larger a weight is in its row; blank for 0 alone."""
    return _SHADES[0 if share == 0 else 1 + int(share * (len(_SHADES) - 1) * 0.999)]


def _costs(described: Description, paper: Sequence[tuple[str, float]]) -> list[str]:
    sublayers = 2 * described.n_layers
    per_sublayer = described.extra_bytes / (2 * described.d_model * sublayers)
    share = described.n_params / described.trunk_params
    facts = [
        f"{described.spec} at {plural(described.n_layers, 'layer')} of width {described.d_model} "
        "(--shape n_layers=...,d_model=...):",
        f"  parameters     {described.n_params:+,}, {share:+.3%} of the layers' "
        f"{described.trunk_params:,}",
        f"  FLOPs/token    {described.extra_flops:+,} forward, "
        f"{described.extra_flops / described.trunk_flops:+.2%} of a trunk with 2,048 positions",
        f"  bytes/token    {described.extra_bytes:+,} forward in bf16: {3 + per_sublayer:.1f} "
        "d_model read and written per sublayer, standard's 3 included",
        f"  at step 0      {'equal to standard' if described.equals_standard else 'not standard'}",
    ]
    return facts + [
        f"  paper          {loss:.3f} nats per token ({where})" for where, loss in paper
    ]


def recipes_of() -> Report:
    """The shipped recipes and suites with what they are for."""
    purposes = [[name, recipes.load(name).description] for name in recipes.names()]
    suites = [
        [name, f"{shipped.about_suite(name)['description']}\n{'  '.join(shipped.suite(name))}"]
        for name in shipped.suite_names()
    ]
    name = Column("name", "word")
    tables = [
        Table(
            "recipes (attnres recipes NAME prints one)", [name, Column("purpose", "text")], purposes
        ),
        Table("suites (attnres ablate --suite NAME)", [name, Column("variants", "text")], suites),
    ]
    return Report("", tables)


def recipe_of(name: str, overrides: Sequence[str]) -> Report:
    """A recipe's text as it is written, and what follows from it."""
    loaded = recipes.load(name, overrides)
    shape = loaded.model.shape(vocab_size=256)
    tokens = loaded.steps * loaded.tokens_per_step
    text = [recipes.text_of(name).rstrip()]
    if overrides:
        text.append("with " + " ".join(f"--set {override}" for override in overrides))
    text.append(
        f"\ndigest {loaded.digest}: {params(shape.n_params(), loaded)} parameters of the trunk "
        f"with 256 byte tokens (d_ff {shape.d_ff}, d_head {shape.d_head}); "
        f"{plural(f'{loaded.steps:,}', 'step')} of {loaded.tokens_per_step:,} tokens, {tokens:,} "
        f"in all; {3 * shape.flops_per_token() * tokens:.3g} training FLOPs per run of standard"
    )
    keys = loaded.model_dump(mode="json")
    records = [
        {"key": f"{section}.{key}", "value": value}
        for section, values in keys.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    records = [{**each, "key": each["key"].rstrip(".")} for each in records]
    document = {"digest": loaded.digest, "steps": loaded.steps, "recipe": keys}
    return Report("", text=text, document=document, fields=("key", "value"), records=records)
