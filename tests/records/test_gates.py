"""The gates that an ended run must pass, with the numbers that decide."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from studies import FACTS as TEXT
from studies import RESULT as GOOD

from attnres_cli.records import gates
from attnres_cli.records.run import DataDescription, RunResult, Status

TASK = replace(TEXT, floor=1.4)


def outcome(result: RunResult, data: DataDescription = TEXT) -> dict[str, bool]:
    return {gate.name: gate.passed for gate in gates.of(result, data)}


@pytest.mark.parametrize(
    ("changes", "gate", "words"),
    [
        ({"initial_loss": 6.6}, "start", "starts at 6.60, not near ln(vocab) 5.55"),
        ({"initial_loss": 4.4}, "start", "starts at 4.40, not near ln(vocab) 5.55"),
        ({"val_loss": 5.6}, "learned", "ends at 5.600, not below its start"),
        ({"val_loss": math.log(256)}, "learned", "it has learned nothing"),
        ({"val_loss": 1.38}, "floor", "ends at 1.3800, below the least possible loss 1.4000"),
    ],
)
def test_a_run_fails_at_one_gate_and_says_how(changes: dict[str, float], gate: str, words: str):
    result = replace(GOOD, **changes)

    failed = [each for each in gates.of(result, TASK) if not each.passed]

    assert [each.name for each in failed] == [gate]
    assert words in gates.explain(failed[0], result)


def test_a_diverged_run_fails_as_such_and_has_no_final_loss_to_judge():
    result = replace(GOOD, status=Status.DIVERGED, val_loss=math.nan, steps=120, proofs=())

    assert outcome(result, TASK) == {"finite": False, "start": True}
    assert gates.explain(gates.of(result, TASK)[0], result) == "diverged at step 120"


def test_a_start_that_is_no_number_fails_and_rounding_below_the_floor_passes():
    assert not outcome(replace(GOOD, initial_loss=math.nan))["start"]
    assert outcome(replace(GOOD, val_loss=1.3999), TASK)["floor"]


def test_a_run_that_learned_passes_every_gate_which_has_its_number_its_limits_and_its_words():
    found = {gate.name: (gate.value, gate.low, gate.high) for gate in gates.of(GOOD, TASK)}

    start = math.log(256)
    assert found["start"] == (start, start - 1, start + 1)
    assert found["learned"] == (1.5, None, start)
    assert found["floor"] == (1.5, pytest.approx(1.39), None)
    assert found["finite"] == (1.5, None, None)
    assert set(found) == set(gates.MEANING) - set(gates.DOUBTS)
    assert outcome(GOOD) == dict.fromkeys(("finite", "start", "learned", *gates.PROOFS), True)
    assert outcome(GOOD, TASK) == outcome(GOOD) | {"floor": True}
