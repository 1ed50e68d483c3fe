"""Every entry of broken.yaml still breaks one place, and names tests that exist."""

from __future__ import annotations

from broken import ROOT, Way, ways


def faults(way: Way) -> list[str]:
    """What keeps an entry from breaking its place."""
    n_found = (ROOT / way.file).read_text(encoding="utf-8").count(way.old)
    gone = [path for path in way.tests if not (ROOT / path.partition("::")[0]).exists()]
    found = [] if n_found == 1 else [f"{way.name}: the old text is in {way.file} {n_found} times"]
    return found + [f"{way.name}: {path} does not exist" for path in gone]


def test_every_entry_breaks_one_place_and_names_tests_that_exist():
    names = [way.name for way in ways()]
    assert len(set(names)) == len(names) >= 61
    assert [fault for way in ways() for fault in faults(way)] == []
    assert all(way.new != way.old and way.tests for way in ways())
