"""Residual designs and recipes for reading: the lists, a design's page, proofs, one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.config import complete, shipped
from attnres_cli.config import recipe as recipes
from attnres_cli.config.keys import keys
from attnres_cli.nn import design_page
from attnres_cli.nn.design_page import Description, Finding
from attnres_cli.report.table import Cell, Report, Table, columns
from attnres_cli.verdict.numbers import params, plural

_SHADES = " ·░▒▓█"
_MOST_SITES = 65
_OUTCOMES = {
    "passed": Cell("ok", "good"), "failed": Cell("FAILED", "bad"), "not applicable": Cell("-"),
    "not run": Cell("not run"),
}  # fmt: skip
_PAPER = (
    "paper: validation loss of Table 4 (arXiv 2603.15031; 436M, 87.9B tokens, one run each) "
    "with default options"
)
_MIXING = (
    "who reads what at step 0, {}: a row per site (the last is the output's), a column per output "
    "(the first is the embedding); the darker, the larger its weight in the row; ─ goes with the "
    "output to its left: they are read as a sum, with one weight"
)
_COSTS = """\
{of.spec} at {layers} of width {of.d_model} (--shape n_layers=...,d_model=...):
  parameters     {of.n_params:+,}, {params:+.3%} of the layers' {of.trunk_params:,}
  FLOPs/token    {of.extra_flops:+,} forward, {flops:+.2%} of a trunk with 2,048 positions
  bytes/token    {of.extra_bytes:+,} forward in bf16: {bytes:.1f} d_model read and written per \
sublayer, standard's 3 included
  at step 0      {start}"""
_RECIPE = """
# digest {digest}: {params} parameters of the trunk with 256 byte tokens (d_ff {shape.d_ff}, \
d_head {shape.d_head});
# {steps} of {step_tokens:,} tokens, {tokens:,} in all; {flops:.3g} training FLOPs per run of \
standard"""


def variants_of(
    streams: Mapping[str, Any],
    addons: Mapping[str, Any],
    presets: Mapping[str, str],
    paper: Mapping[str, float],
) -> Report:
    """A line per design, and per add-on: name, equation, the paper's loss."""
    rows = [
        [name, design_page.page_of(cls).equation, f"{paper[name]:.3f}" if name in paper else ""]
        for name, cls in streams.items()
    ]
    rows += [[name, f"a preset: {spec}", ""] for name, spec in presets.items()]
    on = [[name, design_page.page_of(cls).equation] for name, cls in addons.items()]
    tables = [
        Table("", columns("name:word", "equation:text", "paper"), rows),
        Table(
            "add-ons, alone or on a stream, as attnres+vres",
            columns("name:word", "equation:text"),
            on,
        ),
    ]
    return Report("variants (attnres variants NAME tells all about one)", tables, notes=[_PAPER])


def tree_of(contains: Mapping[str, Mapping[str, str]]) -> Report:
    """Which designs each contains; `contains` has, by name, their names and where it is them."""
    heads = columns("design:word", "is the one it hangs from:text")
    tops = [name for name in contains if not contains[name]]
    grown = [name for name in tops if any(name in each for each in contains.values())]
    rows = [row for name in grown for row in _branches(name, contains)]
    alone = [[name] for name in tops if name not in grown]
    tables = [Table("", heads, rows), Table("contains none of these", heads[:1], alone)]
    return Report("what each design contains", tables)


def _branches(
    name: str, contains: Mapping[str, Mapping[str, str]], before: str = "", where: str = ""
) -> list[list[str]]:
    """A design's row, and those of what contains it, drawn as a tree."""
    rows = [[before + name, where]]
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
    equations = [design_page.page_of(cls).text.partition("\n")[0] for cls in classes]
    text = ["\n".join(equations), f"\n{_costs(described, paper)}\n", _drawing(described)]
    return Report(spec, [_proofs(described.spec, described.findings)], text=text)


def variant_of(
    spec: str,
    cls: Any,
    options: Mapping[str, Any],
    paper: Sequence[tuple[str, float]],
    described: Description,
) -> Report:
    """A design's own page: equation, options, start, source; costs at a size; proofs; a drawing."""
    page = design_page.page_of(cls)
    text = [
        f"\n{heading}: {body}" if heading else f"\n{body}"
        for heading, body in page.parts.items()
        if heading != "Options" or not options
    ]
    text.append(f"\n{_costs(described, paper)}\n\n{_drawing(described)}")
    rows = [
        [each.name, each.allowed(), each.default_text(), page.options.get(each.name, "")]
        for each in options.values()
    ]
    title = f"options, as in attnres ablate {spec.partition(':')[0]}:option=value"
    heads = columns("option:word", "takes:text", "default:text", "meaning:text")
    tables = [Table(title, heads, rows)] if rows else []
    tables.append(_proofs(described.spec, described.findings))
    return Report(page.text.partition("\n")[0], tables, text=text)


def findings_of(spec: str, findings: Sequence[Finding]) -> Report:
    """What was proven, what failed with the first wrong number, what does not apply and why."""
    return Report("", [_proofs(spec, findings)])


def _proofs(spec: str, findings: Sequence[Finding]) -> Table:
    """What each proof proves, and below it what it found."""
    rows: list[list[str | Cell]] = []
    for each in findings:
        parts = [each.detail] if each.outcome == "not run" else [each.proof, each.detail]
        rows.append([_OUTCOMES[each.outcome], each.name, "\n".join(filter(None, parts))])
    heads = columns("outcome:word", "name:word", "proof:text")
    return Table(f"{spec}: the contract, checked now", heads, rows)


def _drawing(described: Description) -> str:
    """M at step 0 by shades: a row per site, a column per source."""
    if described.mixing is None:
        return f"depth mixing: no table, {described.not_linear}"
    if (n := len(described.mixing)) > _MOST_SITES:
        return f"{n} sites are too many to draw; try --shape n_layers=8"
    assert described.joined is not None
    lines = [_MIXING.format(plural(described.n_layers, "layer"))]
    for l, (row, joined) in enumerate(zip(described.mixing, described.joined, strict=True), 1):
        largest = max(map(abs, row)) or 1.0
        shades = zip((_shade(abs(weight) / largest) for weight in row), joined, strict=True)
        lines.append(f"{l:4d} {''.join('─' if goes else s for s, goes in shades).rstrip()}")
    return "\n".join(lines)


def _shade(share: float) -> str:
    """The darker, the larger a weight is in its row; blank for 0 alone."""
    return _SHADES[0 if share == 0 else 1 + int(share * (len(_SHADES) - 1) * 0.999)]


def _costs(described: Description, paper: Sequence[tuple[str, float]]) -> str:
    costs = _COSTS.format(
        of=described,
        layers=plural(described.n_layers, "layer"),
        params=described.n_params / described.trunk_params,
        flops=described.extra_flops / described.trunk_flops,
        bytes=3 + described.extra_bytes / (4 * described.d_model * described.n_layers),
        start="equal to standard" if described.equals_standard else "not standard",
    )
    facts = [f"  paper          {loss:.3f} nats per token ({where})" for where, loss in paper]
    return "\n".join([costs, *facts])


def recipes_of() -> Report:
    """The shipped recipes and suites with what they are for."""
    purposes = [[name, recipes.load(name).description] for name in complete.recipes()]
    suites = [
        [name, f"{shipped.about_suite(name)['description']}\n{'  '.join(shipped.suite(name))}"]
        for name in complete.suites()
    ]
    title = "recipes (attnres recipes NAME prints one)"
    tables = [
        Table(title, columns("name:word", "purpose:text"), purposes),
        Table(
            "suites (attnres ablate --suite NAME)", columns("name:word", "variants:text"), suites
        ),
    ]
    return Report("", tables)


def keys_of(prefix: str) -> Report:
    """What the keys of a recipe that begin so mean, a table for each section."""
    rows: dict[str, list[list[str]]] = {}
    for key in keys(prefix):
        of_section = rows.setdefault(key.name.rpartition(".")[0] or "the recipe itself", [])
        default = key.default or "required"
        of_section.append([key.name, key.meaning, key.type, default, key.read_with])
    heads = columns("key:name", "meaning:text", "type:text", "default:word", "read with:text")
    records = [asdict(key) for key in keys(prefix)]
    tables = [Table(section, heads, its) for section, its in rows.items()]
    return Report("", tables, document=records, records=records)


def recipe_of(name: str, overrides: Sequence[str]) -> Report:
    """A recipe's text as it is written, and as comments what follows from it: a file of both is a
    recipe.
    """
    loaded = recipes.load(name, overrides)
    shape = loaded.model.shape(vocab_size=256)
    tokens = loaded.steps * loaded.tokens_per_step
    text = [recipes.text_of(name).rstrip()]
    if overrides:
        typed = " ".join(f"--set {override}" for override in overrides)
        text.append(f"\n# with {typed}, which the lines above do not have:")
    text.append(
        _RECIPE.format(
            digest=loaded.digest,
            params=params(shape.n_params(), loaded),
            shape=shape,
            steps=plural(f"{loaded.steps:,}", "step"),
            step_tokens=loaded.tokens_per_step,
            tokens=tokens,
            flops=3 * shape.flops_per_token() * tokens,
        )
    )
    keys = loaded.model_dump(mode="json")
    records = [
        {"key": f"{section}.{key}".rstrip("."), "value": value}
        for section, values in keys.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    ]
    document = {"digest": loaded.digest, "steps": loaded.steps, "recipe": keys}
    return Report("", text=text, document=document, records=records)
