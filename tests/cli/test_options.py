"""How what several commands take is read."""

from __future__ import annotations

import pytest

from attnres_cli.cli.options import read_seeds
from attnres_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", (0, 1, 2)),
        ("1", (0,)),
        ("7,", (7,)),
        ("0,", (0,)),
        ("0,3,7", (0, 3, 7)),
        ("0,3,7,", (0, 3, 7)),
    ],
)
def test_seeds_are_a_number_or_with_a_comma_a_list(text: str, seeds: tuple[int, ...]):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (text, "--seeds takes a number, a list as 0,3,7")
            for text in ("", ",", "7,,", ",7", "x,")
        ),
        ("-1,", "--seeds takes different seeds from 0 up"),
        ("1,1,", "--seeds takes different seeds from 0 up"),
        ("0,1000000", "--seeds: those from 1000000 up are kept for --tune-lr"),
        ("0", "--seeds must be at least 1, at most 1000"),
        ("1001", "--seeds must be at least 1, at most 1000"),
    ],
)
def test_other_seeds_are_refused_with_what_you_typed(text: str, words: str):
    with pytest.raises(UsageError) as refused:
        read_seeds(text)

    assert str(refused.value).startswith(words)
    assert text in str(refused.value)
