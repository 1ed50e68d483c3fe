"""Tables of docs/results/reference.md and of docs/results/budgets.md, whose rates it tells.

    python benchmarks/reference.py
    python benchmarks/reference.py --renew

A row for each design: its difference from `standard` on each text, what that is worth in tokens
and in time on the first, and whether the texts agree; of the shipped reports. Then the best five
at four times the tokens: their losses at each learning rate, and their differences from `standard`
at the best of them; of docs/results/four-times.db.xz. `--renew` first writes the shipped reports,
recipes/reports/reference/*.json, and the one over texts from the study as it is published: say
with `git diff` that no number changed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from attnres_cli.config.recipe import load
from attnres_cli.config.shipped import report_texts
from attnres_cli.lab.grid import canonical
from attnres_cli.records import preregister
from attnres_cli.store.store import Store
from attnres_cli.verdict.numbers import interval

Table = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "docs" / "results" / "reference.db.xz"
TEXTS = STUDY.with_name("reference-texts.json")
LONG = STUDY.with_name("four-times.db.xz")
SHIPPED = ROOT / "recipes" / "reports" / "reference"
_DIGITS = "+.3f"
_LONG_TITLES = ("design", "rate of `budgets`", "/ 1.41", "/ 2", "/ 2.8", "difference")
_TRIED_ON = (0, 1)
_TITLES = ("design", "Python sources", "tokens", "step", "time", "English", "texts")
_PUBLISHED = ("modded-2024", "modded-2026", "nanochat")
"""Compositions that the plan calls by a shorter name."""


def tables() -> list[Table]:
    """Every table of the shipped reports."""
    found = [json.loads(text) for text in report_texts("reference")]
    return [table for first in found for table in (first, *first["more"])]


def of_text(recipe: str) -> Table:
    """The table of one text that has the words."""
    mine = [one for one in tables() if one.get("recipe") == recipe]
    return next((one for one in mine if one["registered"]), mine[0] if mine else {"arms": []})


def over_texts() -> Table:
    """The table over texts."""
    told: Table = json.loads(TEXTS.read_text(encoding="utf-8"))
    return told


def _difference(arm: Table | None) -> str:
    if not arm or not arm.get("look") or arm["look"]["low"] is None:
        return ""
    look, said = arm["look"], arm["verdict"]
    word = f"**{said}**" if said in ("better", "worse") else said
    ends = look["low"], look["high"]
    return f"{interval(arm['difference']['mean'], ends, _DIGITS)} {word}"


def _times(arm: Table, of: str) -> str:
    """`1.08x` its tokens, or its time, that `standard` needs to end as low."""
    found = arm["multiplier"][of]
    return "" if found is None or found["value"] is None else f"{found['value']:.2f}x"


def _short_names() -> dict[str, str]:
    return {canonical(spec, load("quick")): spec for spec in _PUBLISHED}


def rows() -> Iterator[list[str]]:
    """The cells of every design, lowest mean on the first text first."""
    first, second, both = of_text("quick"), of_text("english"), over_texts()
    other = {arm["variant"]: arm for arm in second["arms"]}
    agree = {arm["variant"]: arm["agreement"] for arm in both["arms"]}
    short = _short_names()
    for arm in first["arms"]:
        name = arm["variant"]
        if name == first["baseline"]:
            continue
        step = arm["step_ratio"]
        yield [
            f"`{short.get(name, name)}`",
            _difference(arm),
            _times(arm, "tokens"),
            "" if step is None else f"{step['median']:.2f}",
            _times(arm, "time"),
            _difference(other.get(name)),
            agree.get(name, ""),
        ]


def budget_rows(told: Table) -> Iterator[list[str]]:
    """The cells of each design over budgets, from `report --scaling --format json`, lowest at the
    largest budget first.
    """
    sizes = [rung["arms"] for rung in told["rungs"]]
    trends = {arm["variant"]: arm["trend"] for arm in told["arms"] if arm["trend"]}
    for name in sorted(trends, key=lambda name: float(sizes[-1][name]["mean"])):
        each = [(size[name]["difference"], size[name]["interval"]) for size in sizes]
        cells = [interval(mean, ends, _DIGITS) for mean, ends in each]
        cells.append(interval(trends[name]["mean"], trends[name]["ci95"], _DIGITS))
        yield [f"`{_short_names().get(name, name)}`", *cells]


def long_rows(study: Path) -> Iterator[list[str]]:
    """The cells of each design at four times the tokens: the mean loss of the seeds that were
    tried, by learning rate, the least in bold; then its difference at that rate, on other seeds.
    """
    tried = _by_rate(study)
    ((_, recipe),) = preregister.read("four-times", canonical)
    told = report(study, [recipe.digest], study.with_suffix(".json"))
    for arm in told["arms"]:
        means = [mean for _, mean in sorted(tried[arm["variant"]].items(), reverse=True)]
        cells = [f"**{mean:.4f}**" if mean == min(means) else f"{mean:.4f}" for mean in means]
        name = _short_names().get(arm["variant"], arm["variant"])
        yield [f"`{name}`", *cells, *[""] * (4 - len(cells)), _difference(arm)]


def _by_rate(study: Path) -> dict[str, dict[float, float]]:
    """Of every design, the mean loss of the seeds that were tried, by learning rate."""
    found: dict[str, dict[float, list[float]]] = {}
    store = Store.open(str(study), create=False)
    for run in store.runs(curves=False):
        if run.seed in _TRIED_ON and run.result is not None:
            lr = store.recipe(run.recipe_digest).optim.lr
            found.setdefault(run.variant, {}).setdefault(lr, []).append(run.result.val_loss)
    return {
        variant: {lr: fmean(losses) for lr, losses in rates.items()}
        for variant, rates in found.items()
    }


@contextmanager
def unpacked(packed: Path) -> Iterator[Path]:
    """A study as it is published."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / packed.stem
        study.write_bytes(lzma.decompress(packed.read_bytes()))
        yield study


def report(study: Path, recipe: Sequence[str], to: Path) -> Table:
    """What `attnres report` says of a study's recipes; the JSON is kept in a file."""
    command = [sys.executable, "-m", "attnres_cli", "report", "--study", str(study)]
    command += [part for each in recipe for part in ("--recipe", each)]
    command += ["--format", "json", "--output", str(to), "-q"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    told: Table = json.loads(to.read_text(encoding="utf-8"))
    return told


def renew() -> None:
    """Write every shipped report anew; each keeps its recipe."""
    with unpacked(STUDY) as study:
        report(study, ["quick", "english"], TEXTS)
        for path in sorted(SHIPPED.glob("*.json")):
            report(study, [json.loads(path.read_text(encoding="utf-8"))["recipe_digest"]], path)


def main() -> None:
    """Print them as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--renew", action="store_true", help="write the shipped reports first")
    if parser.parse_args().renew:
        renew()
    with unpacked(LONG) as study:
        for titles, found in ((_TITLES, rows()), (_LONG_TITLES, long_rows(study))):
            print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            for cells in found:
                print(f"| {' | '.join(cells)} |")
            print()


if __name__ == "__main__":
    main()
