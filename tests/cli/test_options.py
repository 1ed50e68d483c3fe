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
def test_seeds_are_a_number_of_them_or_a_list_which_a_comma_makes(
    text: str, seeds: tuple[int, ...]
):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", ",", "7,,", ",7", "-1,", "1,1,", "1000000,", "0", "1001", "x,"]
)
def test_other_seeds_are_refused_with_what_was_typed(text: str):
    with pytest.raises(UsageError, match="--seeds") as refused:
        read_seeds(text)

    assert text in str(refused.value)
