"""Items are made from validation files only, are decided by the data, and are fair to guess."""

from __future__ import annotations

from collections import Counter

import pytest

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.data.documents import Document
from attnres_cli.lab.downstream import shipped
from attnres_cli.lab.downstream.shipped import Item

Halves = tuple[list[Document], list[Document]]


@pytest.fixture(scope="module")
def halves() -> Halves:
    return sources.halves(load("quick").data)


@pytest.fixture(scope="module")
def made(halves: Halves) -> dict[str, list[Item]]:
    return {name: shipped.items(name, *halves, "0123456789abcdef") for name in shipped.NAMES}


def test_a_few_hundred_different_items_are_decided_by_the_data(halves, made, monkeypatch):
    monkeypatch.setattr(shipped, "N_ITEMS", 20)
    for name, items in made.items():
        assert len(items) == len({repr(item) for item in items}) == 300
        assert shipped.items(name, *halves, "0123456789abcdef") == items[:20]
        assert shipped.items(name, *halves, "another") != items[:20]


def test_no_item_comes_from_a_training_file(halves: Halves, made: dict[str, list[Item]]):
    train, val = ({each.name: bytes(each.content) for each in half} for half in halves)
    everything = b"\0".join(train.values())
    for name in ("cloze", "continuation"):
        for item in made[name]:
            right = item["context"] + item["choices"][item["gold"]]
            assert item["file"] in val.keys() - train.keys()
            assert right.encode() in val[item["file"]]
            assert right[-48:].encode() not in everything
        assert len({item["file"] for item in made[name]}) > 30


def test_answers_look_alike_and_right_ones_stand_anywhere(made: dict[str, list[Item]]):
    for items in made.values():
        golds = Counter(item["gold"] for item in items)
        assert set(golds) == {0, 1, 2, 3}
        assert min(golds.values()) > 45
        assert all(len(set(item["choices"])) == 4 for item in items)
    for item in made["cloze"]:
        words = [choice[:-1] for choice in item["choices"]]
        assert len({choice[-1] for choice in item["choices"]}) == 1  # what follows the place
        assert all(word.isidentifier() for word in words)
        assert len({sum(len(word) > most for most in (4, 6, 9)) for word in words}) == 1
    for item in made["continuation"]:
        assert {len(choice) for choice in item["choices"]} == {24}


def test_frequent_words_are_no_easier_to_guess(made: dict[str, list[Item]], halves: Halves):
    texts = [text for each in halves[1] for text in shipped._texts(each)]
    counts = Counter(word for text in texts for _, word in text.words)
    right = sum(
        max(item["choices"], key=lambda word: counts[word[:-1]]) == item["choices"][item["gold"]]
        for item in made["cloze"]
    )
    assert right < 0.4 * shipped.N_ITEMS


def test_recall_asks_for_a_value_shown_within_thirty_two_bytes(made: dict[str, list[Item]]):
    for item in made["recall"]:
        *lines, asked = item["context"].split("\n")
        shown = dict(line.split(" = ") for line in lines)
        assert item["choices"] == [f" {value}" for value in shown.values()]
        assert item["choices"][item["gold"]] == f" {shown[asked.removesuffix(' =')]}"
        assert len(item["context"]) + 2 <= 32


def test_short_or_copied_texts_give_no_items(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shipped, "N_ITEMS", 20)
    text = b"".join(b"value_%d = function_%d(argument_%d)\n" % (i, i, i * i) for i in range(200))
    copied = [Document("a.py", text)], [Document("b.py", text)]
    short = [Document("a.py", b"nothing")], [Document("b.py", b"a few words alone")]
    for name in "cloze", "continuation":
        assert shipped.items(name, *copied, "f") == shipped.items(name, *short, "f") == []
        assert shipped.items(name, copied[0][:0], copied[1], "f")
