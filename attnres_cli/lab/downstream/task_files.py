"""What a task file of the harness asks for beyond data: code that would run, addresses that would
be contacted. Found in the file's text, before the harness sees it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from attnres_cli.errors import UsageError
from attnres_cli.files import read_text

_MOST_BYTES = 2**20
_PLACES = ("dataset_path", "dataset_name", "dataset_kwargs")
_CODE = ("use_prompt", "unsafe_code", "trust_remote_code", "hf_evaluate")
_PYTHON = "tag:yaml.org,2002:python/"


class Wish(NamedTuple):
    """Something beyond data: `code` that would run or an `address`, and where it stands."""

    kind: Literal["code", "address"]
    text: str
    where: str


def wishes(path: Path, metrics: Container[str]) -> list[Wish]:
    """All of a file and of the files that it includes. `metrics` are those that the harness has:
    others would be loaded as code. Raises UsageError for what is no YAML.
    """
    return list(_of_file(path, metrics, set()))


def _of_file(path: Path, metrics: Container[str], read: set[Path]) -> Iterator[Wish]:
    if path.resolve() in read:
        return
    read.add(path.resolve())
    text = read_text(path, "--tasks", UsageError, _MOST_BYTES)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    included: list[str] = []
    yield from _Walk(path, metrics, included).of(root, "")
    for name in included:
        yield from _of_file(path.parent / name, metrics, read)


class _Walk:
    """Goes through the nodes of one file, each once: aliases may stand for any number of them."""

    def __init__(self, path: Path, metrics: Container[str], included: list[str]) -> None:
        self.path, self.metrics, self.included = path, metrics, included
        self.seen: set[tuple[int, str]] = set()

    def of(self, node: Any, key: str) -> Iterator[Wish]:
        """What a value asks for that stands under a key; of what lies in a place, that place's."""
        if node is None or (id(node), key) in self.seen:
            return
        self.seen.add((id(node), key))
        where = f"{self.path} line {node.start_mark.line + 1}"
        if node.tag.startswith(("!", _PYTHON)):
            shown = node.value if isinstance(node.value, str) else ""
            yield Wish("code", f"{node.tag} {shown}".rstrip(), where)
        if isinstance(node, yaml.ScalarNode):
            yield from self._of_text(node.value, key, where)
        elif isinstance(node, yaml.SequenceNode):
            for each in node.value:
                yield from self.of(each, key)
        else:
            for name, value in node.value:
                inner = str(name.value)
                yield from self.of(name, "")  # a key can be tagged too
                yield from self.of(value, key if key in _PLACES and inner not in _CODE else inner)

    def _of_text(self, text: str, key: str, where: str) -> Iterator[Wish]:
        if key == "include":
            self.included.append(text)
        if key == "metric" and text not in self.metrics:
            yield Wish("code", f"metric {text}, which is none of the harness's", where)
        if key in _CODE and text.lower() not in ("false", "no", "off", "null", ""):
            yield Wish("code", f"{key}: {text}", where)
        if key in _PLACES and text.endswith(".py"):
            yield Wish("code", text, where)
        if key in _PLACES and "://" in text and not text.startswith("file://"):
            yield Wish("address", text, where)
