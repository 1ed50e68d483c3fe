"""The documentation is readable: its sentences are short, and some habits do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONG = 25  # words; a page has few such sentences, since a fact with its units may need one
MOST_LONG = 0.1
LONGEST = 42
HABITS = {
    r"\d %": "95%, not 95 %",
    r"\bin place of\b": "instead of",
    r"\bof those that\b": "name the thing",
    r"\b(is|are) told\b": "say who says it",
    r"\bsome \d": "about 6, not some 6",
    r", as `": "such as",
    r"\bgoes on\b": "continues",
}


def prose(page: Path) -> str:
    """A page without code, tables, formulas and headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"^(\||#|    |!\[).*$", "", text, flags=re.M)


def sentences(page: Path) -> list[str]:
    paragraphs = re.split(r"\n\s*\n|\n- |\n\d\. ", prose(page))
    found = [re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*(\[])", " ".join(p.split())) for p in paragraphs]
    return [sentence for each in found for sentence in each if len(sentence.split()) > 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path):
    found = sentences(page)
    lengths = [len(sentence.split()) for sentence in found]
    longest = max(found, key=lambda sentence: len(sentence.split()))

    assert max(lengths) <= LONGEST, longest
    long = [sentence for sentence in found if len(sentence.split()) > LONG]
    assert len(long) <= MOST_LONG * len(found) + 1, "\n".join(long)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_old_habits_do_not_come_back(page: Path):
    text = prose(page)
    assert {why for habit, why in HABITS.items() if re.search(habit, text)} == set()
