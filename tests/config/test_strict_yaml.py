"""What the YAML of recipes is read as, and what is refused with the line that holds it."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from attnres_cli.config import strict_yaml
from attnres_cli.errors import RecipeError


def load(text: str) -> Any:
    return strict_yaml.load(text, "recipe lab.yaml")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3e-4", 3e-4),
        ("-3E+4", -3e4),
        ("1e3", 1000.0),
        ("6.5e-3", 6.5e-3),
        ("2.e1", 20.0),
        ("0.1", 0.1),
        ("7", 7),
        ("1_000", 1000),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: float):
    value = load(f"lr: {text}")["lr"]

    assert value == number
    assert type(value) is type(number)


@pytest.mark.parametrize("text", ["e5", "1e", "2M", "1.5k", "3e-4x", "'3e-4'"])
def test_what_only_resembles_a_number_stays_text(text: str):
    assert load(f"lr: {text}")["lr"] == text.strip("'")


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("no", False), ("true", True), ("false", False)]
)
def test_yes_and_no_are_booleans(text: str, value: bool):
    assert load(f"tie_embeddings: {text}")["tie_embeddings"] is value


def test_sections_lists_and_nulls_are_read():
    text = "model:\n  d_ff: null\nvariants:\n  - standard\n  - attnres\n"

    assert load(text) == {"model": {"d_ff": None}, "variants": ["standard", "attnres"]}


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_an_empty_text_holds_nothing(text: str):
    assert load(text) is None


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm():
    assert load("\ufeffa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lr: 1\nlr: 2", 2),
        ("optim:\n  lr: 1\n  eps: 1\n  lr: 2", 4),
        ("all:\n- {lr: 1}\n- {lr: 1, lr: 2}", 3),
    ],
)
def test_a_key_given_twice_is_refused_with_its_line(text: str, line: int):
    with pytest.raises(RecipeError) as caught:
        load(text)

    message = str(caught.value)
    assert "recipe lab.yaml" in message
    assert f"line {line}" in message
    assert "'lr'" in message
    assert "twice" in message


@pytest.mark.parametrize("key", ["1", "3e-4", "yes", "null", "? [a]\n", "? {a: b}\n"])
def test_keys_that_are_no_words_are_refused(key: str):
    with pytest.raises(RecipeError, match=r"line 1.*must be a word"):
        load(f"{key}: value")


@pytest.mark.parametrize(
    "text",
    [
        "model: &m {d: 1}",
        "model: &m 1\ndata: *m",
        "data: *m",
        "- &m\n- 1",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    ],
)
def test_anchors_and_aliases_are_refused_and_the_remedy_is_named(text: str):
    with pytest.raises(RecipeError, match=r"lab\.yaml.*line \d.*anchors.*write the value out"):
        load(text)


@pytest.mark.parametrize("text", ["<<: {a: 1}", "<<: 1", "a: ="])
def test_merge_keys_and_default_values_of_old_yaml_are_refused(text: str):
    with pytest.raises(RecipeError, match="line 1"):
        load(text)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("a: !!python/object:os.system {}", "python/object:os.system"),
        ("a: !!python/object/apply:os.system ['true']", "python/object/apply:os.system"),
        ("a: !!python/name:os.system", "python/name:os.system"),
        ("!!python/tuple [1]", "python/tuple"),
        ("a: !!str 1", "str"),
        ("a: !!binary aGk=", "binary"),
        ("a: !mine 1", "!mine"),
    ],
)
def test_tags_are_refused_by_name(text: str, tag: str):
    with pytest.raises(RecipeError) as caught:
        load(text)

    assert "line 1" in str(caught.value)
    assert tag in str(caught.value)


@pytest.mark.parametrize("opening", ["[", "{", "- ", "? ", "{a: ", "[{a: "])
def test_twenty_thousand_levels_are_refused_in_under_a_second(opening: str):
    text = (opening * 20_000)[: strict_yaml.MAX_BYTES]

    start = time.process_time()
    with pytest.raises(RecipeError, match=f"deeper than {strict_yaml.MAX_DEPTH}"):
        load(text)

    assert time.process_time() - start < 1


def test_nesting_is_read_down_to_the_deepest_level_allowed():
    depth = strict_yaml.MAX_DEPTH

    assert load("[" * depth + "]" * depth) == load(str([[[[[[[[]]]]]]]]))
    with pytest.raises(RecipeError, match=f"deeper than {depth}"):
        load("[" * (depth + 1) + "]" * (depth + 1))


def test_a_megabyte_is_refused_unread_with_its_size_and_the_limit():
    start = time.process_time()
    with pytest.raises(RecipeError, match=r"lab\.yaml.*1000000 .*at most 65536"):
        load("[" * 1_000_000)

    assert time.process_time() - start < 1


def test_a_text_of_the_largest_size_is_read():
    text = "a: 1 #" + "x" * (strict_yaml.MAX_BYTES - 6)

    assert load(text) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", 1),
        ("a: 1\nb: 'open", 2),
        ("a: 1\n\tb: 2", 2),
        ("a: 1\n  b: 2", 2),
        ("a: 1\n}", 2),
        ("--- 1\n--- 2", 2),
    ],
)
def test_what_is_no_yaml_is_refused_in_one_line_that_says_where(text: str, line: int):
    with pytest.raises(RecipeError) as caught:
        load(text)

    assert str(caught.value).startswith(f"recipe lab.yaml: line {line}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("character", ["\0", "\x07", "\ud800"])
def test_control_characters_are_refused_in_one_line(character: str):
    with pytest.raises(RecipeError, match=r"lab\.yaml.*characters are not allowed") as caught:
        load(f"a: {character}")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "scalar",
    ["2020-01-01", "2020-99-99", "0b_", "0x_", "0x1F", "010000", "1:40:00", "9" * 5000, "0o17"],
)
def test_what_is_no_plain_decimal_number_stays_text(scalar: str):
    assert load(f"a: {scalar}") == {"a": scalar}


@pytest.mark.parametrize("text", [".inf", "1e400"])
def test_infinity_is_read_and_left_for_the_recipe_to_refuse(text: str):
    assert math.isinf(load(f"lr: {text}")["lr"])
