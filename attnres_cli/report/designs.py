"""Residual designs for reading: the list, one design's page, who reads what, proofs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from attnres_cli.nn import design_page
from attnres_cli.nn.descriptions import Description, Finding
from attnres_cli.report.terminal import console

_SHADES = " ·░▒▓█"
_MOST_SITES = 65
_MARKS = {"passed": "ok", "failed": "FAILED", "not applicable": "-"}


def print_variants(
    known: Mapping[str, Any], presets: Mapping[str, str], paper: Mapping[str, float]
) -> None:
    """One line per design: its name, its equation, and what the paper measured of it."""
    out = console(sys.stdout)
    table = Table(title="variants (attnres variants NAME tells all about one)")
    table.add_column("name", no_wrap=True)
    table.add_column("equation", overflow="fold")
    table.add_column("paper", justify="right")
    for name, cls in known.items():
        loss = f"{paper[name]:.3f}" if name in paper else ""
        table.add_row(name, Text(design_page.page_of(cls).equation), loss)
    for name, spec in presets.items():
        table.add_row(name, Text(f"a preset: {spec}"), "")
    out.print(table)
    out.print(
        Text(
            "paper: validation loss of Table 4 (arXiv 2603.15031; 436M, 87.9B tokens, one run "
            "each) with default options"
        )
    )


def print_variant(
    spec: str,
    cls: Any,
    options: Mapping[str, Any],
    paper: Sequence[tuple[str, float]],
    described: Description,
) -> None:
    """A design's own page: equation, options, start, source; costs at a size; proofs; a drawing."""
    out, page = console(sys.stdout), design_page.page_of(cls)
    out.print(Text(page.text.partition("\n")[0], style="bold"))
    for heading, body in page.parts.items():
        if heading == "Options" and options:
            out.print()
            out.print(_options(spec.partition(":")[0], options, page.options))
        else:
            out.print()
            out.print(Text(f"{heading}: " if heading else "").append(body))
    out.print()
    for line in _facts(described, paper):
        out.print(Text(line))
    out.print()
    print_drawing(described)
    out.print()
    print_findings(described.spec, described.findings)


def print_drawing(described: Description) -> None:
    """M at step 0 by shades: a row per site, a column per source."""
    out = console(sys.stdout)
    if described.mixing is None:
        out.print(Text(f"depth mixing: no table, {described.not_linear}"))
        return
    if len(described.mixing) > _MOST_SITES:
        out.print(
            Text(f"{len(described.mixing)} sites are too many to draw; try --shape n_layers=8")
        )
        return
    out.print(
        Text(
            f"who reads what at step 0, {described.n_layers} layers: a row per site (the last is "
            "the output's), a column\nper output (the first is the embedding); the darker, the "
            "larger its weight in the row; ─ goes with the output\nto its left: they are read as "
            "a sum, with one weight"
        )
    )
    assert described.joined is not None
    for l, (row, joined) in enumerate(zip(described.mixing, described.joined, strict=True), 1):
        shades = zip(shades_of(row), joined, strict=True)
        cells = ["─" if goes else shade for shade, goes in shades]
        out.print(Text(f"{l:4d} {''.join(cells).rstrip()}"))


def print_findings(spec: str, findings: Sequence[Finding]) -> None:
    """What was proven, what failed with the first wrong number, what does not apply and why."""
    out = console(sys.stdout)
    table = Table(title=f"{spec}: the contract, checked now", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("proof", overflow="fold")
    for finding in findings:
        text = Text(finding.proof)
        if finding.detail:
            text.append(f"\n{finding.detail}")
        table.add_row(Text(_MARKS[finding.outcome]), text)
    out.print(table)


def _options(name: str, options: Mapping[str, Any], meanings: Mapping[str, str]) -> Table:
    title = f"options, as in attnres ablate {name}:option=value"
    table = Table(title=title, title_justify="left")
    for column in ("option", "takes", "default"):
        table.add_column(column, no_wrap=column == "option")
    table.add_column("meaning", overflow="fold", ratio=1)
    for option in options.values():
        meaning = Text(meanings.get(option.name, ""))
        table.add_row(option.name, option.allowed(), option.default_text(), meaning)
    return table


def _facts(described: Description, paper: Sequence[tuple[str, float]]) -> list[str]:
    sublayers = 2 * described.n_layers
    per_sublayer = described.extra_bytes / (2 * described.d_model * sublayers)
    share = described.n_params / described.trunk_params
    facts = [
        f"{described.spec} at {described.n_layers} layers of width {described.d_model} "
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


def shades_of(row: Sequence[float]) -> str:
    """One mark per weight: the darker, the larger it is in its row."""
    largest = max(map(abs, row)) or 1.0
    return "".join(_shade(abs(weight) / largest) for weight in row)


def _shade(share: float) -> str:
    if share == 0:
        return _SHADES[0]
    return _SHADES[min(len(_SHADES) - 1, 1 + int(share * (len(_SHADES) - 1) * 0.999))]
