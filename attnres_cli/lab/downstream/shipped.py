"""Tasks made of the validation files of a run's own data: items for models of any size, no
download, nothing that was trained on. docs/downstream.md says how they are made, and why.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from attnres_cli.data.documents import Document
from attnres_cli.data.tasks import Recall
from attnres_cli.data.tokens import generator
from attnres_cli.records.items import SHIPPED

Item = dict[str, Any]  # context, choices, gold (the right one's number), file; as JSON has them

N_ITEMS = 300  # of each task
N_CHOICES = 4
_VERSION = "1"  # of the items; another one draws others
_CONTEXT = 256  # characters before a question; models with fewer positions see the last of them
_LEAST_CONTEXT = 64
_LONGEST = 2**16  # characters of a text that answers are drawn from
_SPAN = 24  # characters of a continuation
_PAIRS = 4  # of a key and its value, in 24 characters
_MOST_SEARCHED = 2**26  # bytes that are trained on; 10 MB take 1 s for 400 items
_TRIES = 40  # places that are looked at for an item, on average

_WORD = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{2,15}\b")
_CLASSES = (4, 6, 9, 16)
"""Lengths of words up to which they are of one class: 3 to 4 characters, 5 to 6, 7 to 9, 10 to 16.
"""

NAMES = SHIPPED
"""All of them, which are also called `local`."""


def items(
    name: str, train: Sequence[Document], val: Sequence[Document], fingerprint: str
) -> list[Item]:
    """The items of a task, decided by the data alone; fewer than N_ITEMS where there are few."""
    key = hashlib.sha256(f"{_VERSION} {name} {fingerprint}".encode()).digest()
    draw = generator(*(int.from_bytes(key[i : i + 8], "big") for i in (0, 8)))
    if name == "recall":
        return _recall(draw)
    make = {"cloze": _cloze, "continuation": _continuation}[name]
    texts = [text for each in val for text in _texts(each)]
    small = sum(len(each.content) for each in train) <= _MOST_SEARCHED
    seen = b"\0".join(bytes(each.content) for each in train) if small else b""
    found: list[Item] = []
    for _ in range(_TRIES * N_ITEMS if texts else 0):
        item = make(texts[int(draw.integers(len(texts)))], draw)
        if item is None or item in found or _was_seen(item, seen):
            continue
        found.append(item)
        if len(found) == N_ITEMS:
            break
    return found


@dataclass(frozen=True)
class _Text:
    """A file, or a part of a long one, with what is asked of it again and again."""

    file: str
    text: str

    @cached_property
    def words(self) -> list[tuple[int, str]]:
        """Where words begin that are no keywords, and the words, but for one that ends the text."""
        found = ((m.start(), m.group()) for m in _WORD.finditer(self.text))
        return [
            (at, word)
            for at, word in found
            if not keyword.iskeyword(word) and at + len(word) < len(self.text)
        ]

    def item(self, at: int, answers: Sequence[str], draw: np.random.Generator) -> Item:
        """What stands before a place, and the answers in any order, of which the first is right."""
        order = draw.permutation(len(answers)).tolist()
        return {
            "context": self.text[max(0, at - _CONTEXT) : at],
            "choices": [answers[number] for number in order],
            "gold": order.index(0),
            "file": self.file,
        }


def _texts(document: Document) -> Iterator[_Text]:
    text = bytes(document.content).decode(errors="ignore")
    for start in range(0, len(text), _LONGEST):
        if len(part := text[start : start + _LONGEST]) > 2 * _CONTEXT:
            yield _Text(document.name, part)


def _was_seen(item: Item, seen: bytes) -> bool:
    """Whether the end of the context and the answer stand in what was trained on: a copied header,
    a file that is there twice.
    """
    return (item["context"][-_SPAN:] + item["choices"][item["gold"]]).encode() in seen


def _cloze(text: _Text, draw: np.random.Generator) -> Item | None:
    """A word of the text at its place, and three others of its length class, each with the
    character that follows the place; drawn by occurrence, so that frequent words gain nothing.
    """
    words = text.words
    at, right = words[int(draw.integers(len(words)))] if words else (0, "")
    if at < _LEAST_CONTEXT:
        return None
    alike = [word for _, word in words if _class(word) == _class(right)]
    answers = [right]
    for number in draw.permutation(len(alike)).tolist():
        if alike[number] not in answers:
            answers.append(alike[number])
        if len(answers) == N_CHOICES:
            after = text.text[at + len(right)]
            return text.item(at, [word + after for word in answers], draw)
    return None


@cache
def _class(word: str) -> int:
    return sum(len(word) > most for most in _CLASSES)


def _continuation(text: _Text, draw: np.random.Generator) -> Item | None:
    """What follows a place in the text, and what follows three other places, all of one length."""
    places = draw.integers(_LEAST_CONTEXT, len(text.text) - _SPAN, N_CHOICES).tolist()
    spans = [text.text[place : place + _SPAN] for place in places]
    if len(set(spans)) < N_CHOICES or not all(s.isascii() and s.strip() for s in spans):
        return None
    return text.item(places[0], spans, draw)


def _recall(draw: np.random.Generator) -> list[Item]:
    """Pairs of a letter and a digit, one a line, then a letter once more: which digit stood there.
    As the generated task, of which instances with equal values are left out.
    """
    task = Recall(_PAIRS, len(string.ascii_lowercase), len(string.digits))
    found: list[Item] = []
    while len(found) < N_ITEMS:
        (row,) = task.draw(draw, 1, task.shortest).tolist()
        keys = [string.ascii_lowercase[k - 1] for k in row[1:-1:2]]
        values = [string.digits[v - 1 - task.keys] for v in row[2::2]]
        *values, answer = values
        *keys, asked = keys
        if len(set(values)) < _PAIRS:
            continue
        lines = [f"{key} = {value}\n" for key, value in zip(keys, values, strict=True)]
        item = {
            "context": f"{''.join(lines)}{asked} =",
            "choices": [f" {value}" for value in values],
            "gold": values.index(answer),
            "file": "",
        }
        if item not in found:
            found.append(item)
    return found
