"""What comes with the tool beside its recipes: suites, plans, reports, the paper's numbers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from attnres_cli.config import complete, strict_yaml
from attnres_cli.errors import RecipeError, unknown


def suite(name: str) -> list[str]:
    """The specs of a suite of variants that comes with the tool; RecipeError for other names."""
    return list(about_suite(name)["variants"])


def about_suite(name: str) -> dict[str, Any]:
    """What the file of a suite says: variants, description and, for searches, space."""
    if name not in (known := complete.suites()):
        raise RecipeError(unknown("suite", name, known))
    return _read(f"suites/{name}.yaml")


@cache
def paper() -> dict[str, Any]:
    """The numbers of the Attention Residuals paper: losses by spec in `table4` (with Fig. 6), by
    size and spec in `table2`; the rest (`scaling`, `table3`, figures, `notes`) as the file says.
    """
    return _read("paper.yaml")


def plan_text(name: str) -> str:
    """The text of a plan of comparisons that comes with the tool; empty for other names."""
    if name not in complete.plans():
        return ""
    return (files("attnres_recipes") / "plans" / f"{name}.yaml").read_text(encoding="utf-8")


def report_texts(name: str) -> list[str]:
    """The JSON of every recipe of a report that comes with the tool; none for other names."""
    if name not in complete.reports():
        return []
    folder = files("attnres_recipes") / "reports" / name
    texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir()}
    return [texts[name] for name in sorted(texts)]


def _read(name: str) -> dict[str, Any]:
    text = (files("attnres_recipes") / name).read_text(encoding="utf-8")
    found: dict[str, Any] = strict_yaml.load(text, name)
    return found
