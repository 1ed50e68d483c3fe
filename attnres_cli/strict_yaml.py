"""YAML as people write recipes: plain mappings, lists and scalars, and nothing that surprises.

Differs from YAML 1.1 in that 3e-4 is a number, and in what it refuses: object tags, anchors and
aliases, a key given twice, deep nesting, large files.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from attnres_cli.errors import RecipeError

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 3e-4 as a float and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, str):
                raise RecipeError(f"line {node.start_mark.line + 1}: key {key!r} must be a word")
            if key in seen:
                raise RecipeError(f"line {node.start_mark.line + 1}: key '{key}' is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if value.bit_length() > 63:
            line = node.start_mark.line + 1
            raise RecipeError(f"line {line}: {node.value[:20]}... is too large a number")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def load(text: str, origin: str) -> Any:
    """The value that `text` holds.

    Args:
        text: YAML.
        origin: what to call it in messages, as `recipe quick.yaml`.

    Raises:
        RecipeError: it is no YAML, or uses what is refused here, with the line.

    """
    if len(text) > MAX_BYTES:
        raise RecipeError(f"{origin}: {len(text)} characters, at most {MAX_BYTES} are read")
    try:
        _refuse_deep_or_tagged(text)
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except RecipeError as error:
        raise RecipeError(f"{origin}: {error}") from None
    except ValueError as error:  # a date or number that does not exist, as 2020-99-99
        raise RecipeError(f"{origin}: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin}: {_one_line(error)}") from None


def _refuse_deep_or_tagged(text: str) -> None:
    """Walk the events, which are made one by one, before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise RecipeError(f"line {line}: anchors and aliases are not read, write the value out")
        tag = getattr(event, "tag", None) or "!"
        if tag != "!":
            raise RecipeError(f"line {line}: tags such as {tag} are not read")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise RecipeError(f"line {line}: nested deeper than {MAX_DEPTH}")


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not YAML"
    return f"line {mark.line + 1}: {problem}" if mark else " ".join(str(error).split())
