"""Numbers and files beyond their limits are refused, in one line and before anything is done."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from commands import Attnres

HUGE = "9" * 400


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report --preregister /dev/zero", "preregistration /dev/zero is no file"),
        ("recipes /dev/zero/x.yaml", "recipe /dev/zero/x.yaml cannot be read"),
        ("ablate --workers 999999999", "'--workers'"),
        ("search --workers 1025", "'--workers'"),
        ("plan --gap 1e-300", "--gap takes a difference in loss above 0"),
        ("plan --gap nan", "--gap takes a difference in loss above 0"),
        ("plan --arms 999999999", "'--arms'"),
        ("plan --workers 999999999", "'--workers'"),
        ("variants attnres --shape n_layers=9999999", "n_layers up to 200"),
        ("variants attnres --shape d_model=9999999", "d_model up to 131072"),
        ("search --budget params=1e29 --dry-run", "up to 1e+12, got '1e29'"),
        ("search --budget flops=1e29 --dry-run", "up to 1e+27, got '1e29'"),
        ("search --space lr=1e-320..1e308", "--space lr: expected a number above 0"),
        ("search --space lr=1e-4..1e-3..1e-320", "--space lr: expected a number above 0"),
        ("search --space mlp_ratio=1..1e300", "--space mlp_ratio: expected a number"),
        ("search --trials 1000000000", "'--trials'"),
        ("search --confirm 1000000000", "'--confirm'"),
        ("recipes smoke --set model.d_model=9999999", "model.d_model"),
        ("recipes smoke --set model.seq_len=1B", "model.seq_len"),
        ("recipes smoke --set train.batch_size=1B", "train.batch_size"),
        (f"runs show {HUGE}", "'ID'"),
        ("runs show 9223372036854775808", "'ID'"),
        ("runs rm 1 9223372036854775808", "'[ID...]'"),
        ("verify 9223372036854775808", "'ID'"),
    ],
)
def test_what_is_beyond_its_limit_is_refused_at_once(command: str, message: str, attnres: Attnres):
    started = time.process_time()

    assert message in attnres.refuses(*command.split())
    assert time.process_time() - started < 10  # most of it are imports


def test_a_recipe_that_stands_for_more_than_it_says_is_refused(folder: Path, attnres: Attnres):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    for content, message in (
        ("\n".join(lines), "line 2: *name is not read: write out what it stands for"),
        ("x" * 70_000, "too large: at most 65,536 bytes are read"),
        ("[" * 60_000, "recipe "),
    ):
        (folder / "bomb.yaml").write_text(content, encoding="utf-8")

        assert message in attnres.refuses("recipes", "bomb.yaml")
