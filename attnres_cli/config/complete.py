"""Shell completion of variants, options, and what comes with the tool. Somebody waits at the
prompt, so designs are read from their source, not imported: torch alone takes two seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

_BREAKS = (":", "=")  # where bash ends a word within a spec
_PAPER = "paper"  # lies beside the recipes and is none


def specs(incomplete: str) -> list[str]:
    """Names of designs and presets; after a colon or a comma, options; after =, values."""
    typed = _whole(incomplete)
    return _as_bash_wants(_specs(typed), typed, incomplete)


def recipes(incomplete: str = "") -> list[str]:
    """Names of the shipped recipes."""
    return _shipped("", incomplete)


def suites(incomplete: str = "") -> list[str]:
    """Names of the shipped suites."""
    return _shipped("suites", incomplete)


def plans(incomplete: str = "") -> list[str]:
    """Names of the shipped plans of comparisons."""
    return _shipped("plans", incomplete)


def reports(incomplete: str = "") -> list[str]:
    """Names of the shipped reports."""
    folder = files("attnres_recipes") / "reports"
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if name.startswith(incomplete))


def _shipped(folder: str, incomplete: str) -> list[str]:
    listed = [Path(each.name) for each in (files("attnres_recipes") / folder).iterdir()]
    names = [path.stem for path in listed if path.suffix == ".yaml" and path.stem != _PAPER]
    return sorted(name for name in names if name.startswith(incomplete))


def _specs(typed: str) -> list[str]:
    designs = dict(_designs([*_installed(), *_plugins()]))
    before, plus, last_part = typed.rpartition("+")
    if plus and any(name.startswith(last_part.partition(":")[0]) for name in designs):
        return [f"{before}+{each}" for each in _specs(last_part)]
    name, colon, rest = typed.partition(":")
    if not colon:
        return sorted(known for known in designs if known.startswith(typed))
    options = designs.get(name, {})
    *done, last = rest.split(",")
    head = typed[: len(typed) - len(last)]
    option, equals, value = last.partition("=")
    if equals:
        choices = options.get(option, [])
        return [f"{head}{option}={choice}" for choice in choices if choice.startswith(value)]
    taken = {each.partition("=")[0] for each in done}
    return [f"{head}{key}=" for key in options if key.startswith(last) and key not in taken]


def plugins_of(specs: Iterable[str]) -> list[Path | None]:
    """The files of plugins that designs come from, None for unknown ones; none if installed."""
    origins = {name: file for file in _plugins() for name, _ in _designs([file])}
    known = {*origins, *_installed_names()}
    parts = [
        (n, part.partition(":")[0]) for spec in specs for n, part in enumerate(spec.split("+"))
    ]
    names = dict.fromkeys(name for n, name in parts if n == 0 or name in known)  # not of rw+lr
    others = [name for name in names if name not in _installed_names()]
    return list(dict.fromkeys(origins.get(name) for name in others))


@cache
def _installed_names() -> frozenset[str]:
    return frozenset(name for name, _ in _designs(_installed()))


def _designs(sources: Iterable[Path]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Names of designs and presets, each with its options and their values as far as listed."""
    for file in sources:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield from ((name, _options(node)) for name in _registered(node))
            elif isinstance(node, ast.Expr) and ast.unparse(node).startswith("register_preset("):
                assert isinstance(node.value, ast.Call)
                yield ast.literal_eval(node.value.args[0]), {}


def _plugins() -> list[Path]:
    """Those of `--plugin` too, once they are loaded."""
    listed = os.environ.get("ATTNRES_PLUGINS", "")
    return [Path(each) for each in listed.split(os.pathsep) if each]


def _installed() -> list[Path]:
    """Files of the packages that entry points name."""
    found: list[Path] = []
    for entry in entry_points(group="attnres.variants"):
        spec = importlib.util.find_spec(entry.module)
        folders = spec.submodule_search_locations if spec is not None else None
        if folders is not None:
            found += [file for folder in folders for file in sorted(Path(folder).glob("*.py"))]
        elif spec is not None and spec.origin:
            found.append(Path(spec.origin))
    return found


def _registered(node: ast.ClassDef) -> Iterator[str]:
    """What a class is registered as: its name, then its presets'."""
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "register":
            for given in (*call.args, *(each.value for each in call.keywords)):
                names = given.keys if isinstance(given, ast.Dict) else [given]
                found = [each.value for each in names if isinstance(each, ast.Constant)]
                yield from (name for name in found if isinstance(name, str))


def _options(node: ast.ClassDef) -> dict[str, list[str]]:
    for made in node.body:
        if isinstance(made, ast.FunctionDef) and made.name == "__init__":
            return {each.arg: _values(each.annotation) for each in made.args.kwonlyargs}
    return {}


def _values(annotation: ast.expr | None) -> list[str]:
    """What may be typed for a choice or a switch; nothing for numbers."""
    parts = [] if annotation is None else list(ast.walk(annotation))
    constants = [each.value for each in parts if isinstance(each, ast.Constant)]
    found = [value for value in constants if isinstance(value, str)]
    found += ["on", "off"] if any(getattr(each, "id", "") == "bool" for each in parts) else []
    return [*found, "none"] if None in constants else found


def _whole(incomplete: str) -> str:
    """The word that is being typed. Bash gives the part after the last colon or = alone."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    if "complete_bash" not in os.environ.get("_ATTNRES_COMPLETE", "") or len(words) < 2:
        return incomplete
    parts = words[: int(os.environ.get("COMP_CWORD", "0")) + 1]
    if not parts or parts[-1] not in (incomplete, "="):  # typer gives = as nothing
        return incomplete
    whole = parts.pop()
    while parts and (parts[-1] in _BREAKS or whole[:1] in _BREAKS):
        whole = parts.pop() + whole
    return whole


def _as_bash_wants(candidates: list[str], typed: str, incomplete: str) -> list[str]:
    """Candidates less what stands on the line already; bash replaces its own word alone."""
    replaced = "" if incomplete in _BREAKS else incomplete
    return [_Rest(each[len(typed) - len(replaced) :]) for each in candidates]


class _Rest(str):
    """The rest of a word. Typer drops what does not begin with bash's word, maybe a colon."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        """Yes: it has been chosen already."""
        return True
