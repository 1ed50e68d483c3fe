"""YAML as people write recipes: plain mappings, lists and scalars, and nothing that surprises.

Unlike YAML 1.1: 3e-4 is a number; 010, 1:40 or 2020-01-01 is text; a key given twice is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from attnres_cli.errors import RecipeError


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 3e-4 as a float, refuses a key that is given twice, and what stands for
    something else: a kilobyte of these can stand for more than any memory holds.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise RecipeError(
                f"line {event.start_mark.line + 1}: *name is not read: write out what it stands for"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise RecipeError(f"line {line}: key {key!r} must be a word")
            if key in seen:
                raise RecipeError(f"line {line}: key '{key}' is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 has octal 010, base 60 as 1:40 and dates besides; what is no plain decimal number stays
# text, which a recipe refuses where it wants a number.
_NUMBERS = ("int", "float", "timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, words) for tag, words in known if tag.rpartition(":")[2] not in _NUMBERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9_]{0,17})$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?=[0-9_]*[.eE])([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?$"
        r"|[-+]?\.inf$|\.nan$"
    ),
    list("-+.0123456789"),
)


def load(text: str, origin: str) -> Any:
    """The value of a YAML text that messages call `origin`; RecipeError names a refused line."""
    return _read(lambda: yaml.load(text, _Loader), origin)  # noqa: S506  (a SafeLoader)


def documents(text: str, origin: str) -> list[Any]:
    """The values of the documents of a YAML text, parted by `---`. Raises as `load`."""
    found: list[Any] = _read(lambda: list(yaml.load_all(text, _Loader)), origin)
    return found


def _read(how: Callable[[], Any], origin: str) -> Any:
    try:
        return how()
    except RecipeError as error:
        raise RecipeError(f"{origin}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError, LookupError) as error:
        raise RecipeError(f"{origin}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not YAML"
    return f"line {mark.line + 1}: {problem}" if mark else " ".join(str(error).split())
