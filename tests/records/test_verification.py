"""When a second training of a run counts as the same but for rounding."""

from __future__ import annotations

from dataclasses import replace

from studies import RESULT, SETTINGS

from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.verification import Departure, Verification


def again(device: str, **changes: object) -> Verification:
    """A run whose second training ends a tenth of the spread over seeds away."""
    result = replace(RESULT, settings=replace(SETTINGS, device=device))
    record = RunRecord(1, "smoke", "d", "standard", 0, "f", Status.COMPLETE, result=result)
    now = replace(result, val_loss=result.val_loss + 0.002)
    departure = Departure(10, "training loss", 1.6, 1.602)
    given = {"weights": None, "changed": (), "early": 1e-6, "spread": 0.02} | changes
    return Verification(record, now, departure, **given)


def test_a_gpu_rounds_otherwise_each_time_and_a_cpu_only_where_something_has_changed():
    assert again("cuda").agrees
    assert not again("cpu").agrees
    assert again("cpu", changed=(("cpu_capability", "AVX2", "AVX512"),)).agrees


def test_on_a_gpu_other_code_a_bad_start_or_too_few_seeds_do_not_agree():
    assert not again("cuda", changed=(("code_trunk", "a", "b"),)).agrees
    assert not again("cuda", early=0.01).agrees
    assert not again("cuda", spread=None).agrees
    assert not again("cuda", spread=0.001).agrees
