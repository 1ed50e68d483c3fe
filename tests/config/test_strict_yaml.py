"""How the YAML of recipes is read, and what is refused with the line that holds it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from attnres_cli.config import strict_yaml
from attnres_cli.errors import RecipeError

NUMBERS = {
    "3e-4": 3e-4, "-3E+4": -3e4, "1e3": 1000.0, "6.5e-3": 6.5e-3, "2.e1": 20.0, "0.1": 0.1,
    "7": 7, "1_000": 1000,
}  # fmt: skip
TEXTS = [
    "e5", "1e", "2M", "1.5k", "3e-4x", "'3e-4'", "2020-01-01", "2020-99-99", "0b_", "0x_", "0x1F",
    "010000", "1:40:00", "9" * 5000, "0o17",
]  # fmt: skip
BROKEN = {"a: [1": 1, "a: 1\nb: 'open": 2, "a: 1\n\tb: 2": 2, "a: 1\n  b: 2": 2, "a: 1\n}": 2,
          "--- 1\n--- 2": 2, "<<: {a: 1}": 1, "a: =": 1, "a: !mine 1": 1,
          "a: !!python/object/apply:os.system ['true']": 1}  # fmt: skip


def load(text: str) -> Any:
    return strict_yaml.load(text, "recipe lab.yaml")


def refusal(text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(text)
    (line,) = str(caught.value).splitlines()
    return line


def test_numbers_are_read_as_people_write_them_and_what_resembles_them_stays_text():
    for text, number in NUMBERS.items():
        value = load(f"lr: {text}")["lr"]
        assert (value, type(value)) == (number, type(number)), text
    for text in TEXTS:
        assert load(f"lr: {text}")["lr"] == text.strip("'")
    for text in (".inf", "1e400"):  # left for the recipe to refuse
        assert math.isinf(load(f"lr: {text}")["lr"])


def test_booleans_sections_lists_and_nulls_are_read():
    text = "model:\n  d_ff: null\n  tie: yes\n  mlp: false\nvariants:\n  - standard\n  - attnres\n"

    assert load(text) == {
        "model": {"d_ff": None, "tie": True, "mlp": False},
        "variants": ["standard", "attnres"],
    }
    assert load("") is load("# nothing but a comment\n") is None
    assert load("\ufeffa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


def test_a_key_given_twice_is_refused_with_its_line():
    for text, line in (
        ("lr: 1\nlr: 2", 2),
        ("optim:\n  lr: 1\n  eps: 1\n  lr: 2", 4),
        ("all:\n- {lr: 1}\n- {lr: 1, lr: 2}", 3),
    ):
        assert refusal(text) == f"recipe lab.yaml: line {line}: key 'lr' is given twice"


def test_keys_that_are_not_words_are_refused():
    for key in ("1", "3e-4", "yes", "null", "? [a]\n", "? {a: b}\n"):
        assert "must be a word" in refusal(f"{key}: value")


def test_anything_but_plain_yaml_is_refused_in_one_line_that_says_where():
    for text, line in BROKEN.items():
        assert refusal(text).startswith(f"recipe lab.yaml: line {line}: "), text
    for character in "\0", "\x07", "\ud800":
        assert "characters are not allowed" in refusal(f"a: {character}")
    assert "recursion" in refusal("[" * 20_000)


@pytest.mark.parametrize("text", ["!!int abc", "!!int ''", "!!bool x", "!!timestamp 2020-13-45"])
def test_a_value_of_another_type_than_it_says_is_refused(text: str):
    assert refusal(f"a: {text}").startswith("recipe lab.yaml: ")
