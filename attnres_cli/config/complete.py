"""Shell completion of variants, options, recipes and suites. Somebody waits at the prompt, so
designs are read from their source, not imported: torch alone takes two seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

_BREAKS = (":", "=")  # where bash ends a word within a spec


def specs(incomplete: str) -> list[str]:
    """Names of designs and presets; after a colon or a comma, options; after =, values."""
    typed = _whole(incomplete)
    return _as_bash_wants(_specs(typed), typed, incomplete)


def recipes(incomplete: str) -> list[str]:
    """Names of the shipped recipes."""
    return [name for name in _stems("attnres_recipes", ".yaml") if name.startswith(incomplete)]


def suites(incomplete: str) -> list[str]:
    """Names of the shipped suites."""
    return [
        name for name in _stems("attnres_recipes/suites", ".yaml") if name.startswith(incomplete)
    ]


def _stems(folder: str, suffix: str) -> list[str]:
    package, _, inner = folder.partition("/")
    listed = (files(package) / inner if inner else files(package)).iterdir()
    names = sorted(each.name for each in listed if each.name.endswith(suffix))
    return [name.removesuffix(suffix) for name in names if name != "paper.yaml"]


def _specs(typed: str) -> list[str]:
    designs = dict(_designs([*_installed(), *_plugins()]))
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
    installed, files = _installed_names(), {file: _names([file]) for file in _plugins()}
    names = {spec.partition(":")[0]: None for spec in specs}
    origins = {
        name: next((file for file, held in files.items() if name in held), None)
        for name in names
        if name not in installed
    }
    return list(dict.fromkeys(origins.values()))


@cache
def _installed_names() -> frozenset[str]:
    return frozenset(_names(_installed()))


def _names(sources: Iterable[Path]) -> set[str]:
    return {name for name, _ in _designs(sources)}


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
        func = call.func if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or "register" not in (
            getattr(func, "id", ""),
            getattr(func, "attr", ""),
        ):
            continue
        yield from _texts(call.args[:1])
        for keyword in [*call.args[1:], *(each.value for each in call.keywords)]:
            if isinstance(keyword, ast.Dict):
                yield from _texts(keyword.keys)


def _options(node: ast.ClassDef) -> dict[str, list[str]]:
    inits = [each for each in node.body if getattr(each, "name", "") == "__init__"]
    for init in inits:
        if isinstance(init, ast.FunctionDef):
            return {each.arg: _values(each.annotation) for each in init.args.kwonlyargs}
    return {}


def _values(annotation: ast.expr | None) -> list[str]:
    """What may be typed for a choice or a switch; nothing for numbers."""
    if annotation is None:
        return []
    constants = [each for each in ast.walk(annotation) if isinstance(each, ast.Constant)]
    found = [each.value for each in constants if isinstance(each.value, str)]
    if any(getattr(each, "id", "") == "bool" for each in ast.walk(annotation)):
        found += ["on", "off"]
    if any(each.value is None for each in constants):
        found.append("none")
    return found


def _texts(nodes: Sequence[ast.expr | None]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


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
