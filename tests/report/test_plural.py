"""One of a thing is one thing: in reports, pages, plans and lists of a study of one run per arm."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from commands import attnres
from studies import SETTINGS, fill

from attnres_cli.config.recipe import validate
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.report.plans import plan_of
from attnres_cli.report.terminal import print_report

WRONG = re.compile(
    r"(?<![\d.,=])1 (arms|designs|files|heads|layers|points|recipes|rounds|rows|runs|seeds|shapes|"
    r"sizes|steps|sublayers|tables|threads|tokens|trials|workers)\b"
)
ONE = {
    "name": "single",
    "model": {"n_layers": 1, "d_model": 8, "n_heads": 1, "seq_len": 16},
    "optim": {"lr": 1e-2},
    "train": {"tokens": 64, "batch_size": 4, "eval_tokens": 16, "n_evals": 1},
}


REPORTS = [f"report --format {form}" for form in ("table", "markdown", "csv", "latex", "html")]
REPORTS += ["report attnres --against paper", "report --scaling", "runs", "runs show 1"]
OTHERS = ["plan", "runs export --tensorboard boards"]
OTHERS += ["variants attnres --shape n_layers=1,d_model=8", "recipes smoke --set train.tokens=1024"]


@pytest.mark.parametrize(
    "commands",
    [REPORTS, pytest.param(OTHERS, marks=pytest.mark.nightly)],  # which import torch, tensorboard
    ids=["reports", "others"],
)
def test_one_of_a_thing_is_singular(commands: list[str], tmp_path, monkeypatch, capsys, subtests):
    monkeypatch.chdir(tmp_path)
    fill(Path("attnres.db"), validate(ONE, "single"), {"standard": [1.5], "attnres": [1.4]})

    for command in commands:
        with subtests.test(command):
            if "tensorboard" in command:
                pytest.importorskip("tensorboard")

            _, out, err = attnres(capsys, *command.split())

            assert out + err
            assert [match[0] for match in WRONG.finditer(f"{out}\n{err}")] == []


def test_a_plan_of_one_run_says_so():
    recipe, out = validate(ONE, "single"), io.StringIO()
    plan = Plan(recipe, (Arm("standard", 9, 9, 0.5),), (0,), ("cpu",), SETTINGS, "f")

    print_report(plan_of(plan), out)

    assert "1 run (1 arm x 1 seed), 1 to train; each 1 step, 64 tokens" in out.getvalue()
    assert not WRONG.search(out.getvalue())
